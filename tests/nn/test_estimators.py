"""Test every registered estimator, the noise and the temperature."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gumbeltree import EncoderConfig, GumbelTreeEncoder
from gumbeltree.config import GappedConfig, GumbelRaoConfig, SpigotConfig
from gumbeltree.nn.estimators.estimator import Estimator, LocalEstimator
from gumbeltree.nn.estimators.gumbel_rao import conditional_logits, exponentials, uniform_parts
from gumbeltree.nn.estimators.spigot import project
from gumbeltree.nn.estimators.temperature import annealed_temperature
from gumbeltree.noise import gumbel_noise
from gumbeltree.ops.merge.argmax import first_best
from gumbeltree.parts import ESTIMATORS


def layer(estimator: Estimator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return logits, noise, choice and weights of a layer; two entries are not candidates."""
    logits, noise = torch.randn(2, 4, 6, dtype=torch.float64)
    logits[0, 4:], noise[0, 4:] = -torch.inf, 0.0
    logits.requires_grad_()
    choice = (logits.detach() + noise).argmax(1)
    # a forced choice that is not the best
    choice[1] = (choice[1] + 1) % 6
    return logits, noise, choice, estimator.weights(logits, noise, choice, 0.7)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_weights(name: str) -> None:
    estimator = ESTIMATORS[name]()
    logits, _, choice, weights = layer(estimator)
    torch.testing.assert_close(weights.sum(1), torch.ones(4, dtype=torch.float64))
    assert not weights[0, 4:].any()
    if not estimator.mixes:
        assert torch.equal(weights.detach(), torch.eye(6, dtype=torch.float64)[choice])
    if not estimator.local:
        assert not weights.requires_grad
        return
    (gradient,) = torch.autograd.grad(weights, logits, torch.randn_like(weights))
    assert gradient.isfinite().all()
    assert (gradient[0, 4:] == 0).all()
    assert gradient.abs().max() > 0


@pytest.mark.parametrize("name", ESTIMATORS)
def test_gradient_equals_that_of_the_weights(name: str) -> None:
    estimator = ESTIMATORS[name]()
    logits, noise, choice, weights = layer(estimator)
    if isinstance(estimator, LocalEstimator):
        # `exact` uses logit_gradient, `reference` differentiates the weights
        dy = torch.randn_like(weights)
        (expected,) = torch.autograd.grad(weights, logits, dy)
        gradient = estimator.logit_gradient(dy, logits.detach(), noise, choice, 0.7)
        torch.testing.assert_close(gradient, expected)
    elif estimator.local:
        torch.autograd.gradcheck(
            lambda x: estimator.weights(x, noise[1:], choice[1:], 0.7),
            logits[1:].detach().requires_grad_(),
        )


@pytest.mark.parametrize("name", ESTIMATORS)
def test_encoder_trains_with_every_estimator(name: str) -> None:
    encoder = GumbelTreeEncoder(EncoderConfig(3, 4, estimator=name))
    found = encoder(torch.randn(2, 6, 3), torch.tensor([6, 4]))
    (found.vector.sum() if found.log_prob is None else found.log_prob.sum()).backward()
    assert encoder.query.grad.abs().max() > 0


@pytest.mark.parametrize("name", ESTIMATORS)
def test_exact_equals_reference(name: str) -> None:
    if ESTIMATORS[name].mixes:
        pytest.skip(f"{name} mixes candidates")
    # sentences for `Ledger`, then for `Direct`
    for lengths in ([24, 17, 2, 1], [7, 6, 3, 1]):
        x = torch.randn(4, lengths[0], 3, dtype=torch.float64)
        noise = gumbel_noise((4, lengths[0] - 1, lengths[0] - 1)).double()
        results = []
        for impl in ("exact", "reference"):
            torch.manual_seed(1)
            config = EncoderConfig(3, 4, estimator=name, impl=impl, temperature=0.8)
            encoder = GumbelTreeEncoder(config).double()
            torch.nn.init.normal_(encoder.query)
            out = encoder(x, torch.tensor(lengths), noise=noise)
            total = (out.vector * torch.linspace(-1, 1, 4)).sum()
            if out.log_prob is not None:
                weights = torch.linspace(-1, 2, 4, dtype=torch.float64)
                total = total + weights @ out.log_prob - 0.3 * out.entropy.sum()
            total.backward()
            results.append([out.order, out.vector, *(p.grad for p in encoder.parameters())])
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_straight_through_gradient_is_that_of_the_softmax() -> None:
    logits, noise, _, weights = layer(ESTIMATORS["st_gumbel"]())
    dy = torch.randn_like(weights)
    (gradient,) = torch.autograd.grad(weights, logits, dy)
    y = torch.softmax((logits.detach() + noise) / 0.7, dim=1)
    jacobian = y[:, :, None] * (torch.eye(6) - y[:, None, :]) / 0.7
    torch.testing.assert_close(gradient, (jacobian @ dy[:, :, None])[..., 0])


def test_straight_through_without_noise() -> None:
    estimator = ESTIMATORS["st"]()
    logits, noise, choice, _ = layer(estimator)
    dy = torch.randn(4, 6, dtype=torch.float64)
    (wanted,) = torch.autograd.grad(torch.softmax(logits / 0.7, dim=1), logits, dy)
    found = estimator.logit_gradient(dy, logits.detach(), noise, choice, 0.7)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("gap", [0.5, 3.0])
def test_gapped_shifts_are_constants(gap: float) -> None:
    estimator = ESTIMATORS["gapped"](GappedConfig(gap))
    logits, noise, choice, _ = layer(estimator)
    dy = torch.randn(4, 6, dtype=torch.float64)
    shift = torch.zeros_like(logits)
    for row, k in enumerate(choice.tolist()):
        best = logits[row].max().item()
        for i in range(6):
            a = logits[row, i].item()
            if a > -math.inf:
                shift[row, i] = (best if i == k else min(a, best - gap)) - a
    (wanted,) = torch.autograd.grad(torch.softmax((logits + shift) / 0.7, dim=1), logits, dy)
    found = estimator.logit_gradient(dy, logits.detach(), noise, choice, 0.7)
    torch.testing.assert_close(found, wanted)


def expected_gradient(estimator: Estimator, logits: Tensor, slope: Callable) -> Tensor:
    """Return the mean of the estimate over all choices, for a loss with gradient `slope(y)`."""
    K = len(logits)
    choice = torch.arange(K)
    dy = torch.stack([slope(y) for y in torch.eye(K, dtype=torch.float64)])
    many = logits.expand(K, K)
    found = estimator.logit_gradient(dy, many, torch.zeros_like(many), choice, 1.0)
    return torch.softmax(logits, dim=0) @ found


def true_gradient(logits: Tensor, loss: Callable) -> Tensor:
    """Return the gradient of the expected loss by enumerating all choices."""
    logits = logits.clone().requires_grad_()
    losses = torch.stack([loss(y) for y in torch.eye(len(logits), dtype=torch.float64)])
    (torch.softmax(logits, dim=0) @ losses).backward()
    return logits.grad


def test_reinmax_is_exact_for_quadratic_losses_and_st_for_linear_ones() -> None:
    logits, c = torch.randn(2, 5, dtype=torch.float64)
    Q = torch.randn(5, 5, dtype=torch.float64)
    Q = Q + Q.T
    quadratic = expected_gradient(ESTIMATORS["reinmax"](), logits, lambda y: Q @ y + c)
    truth = true_gradient(logits, lambda y: y @ Q @ y / 2 + c @ y)
    torch.testing.assert_close(quadratic, truth)
    biased = expected_gradient(ESTIMATORS["st"](), logits, lambda y: Q @ y + c)
    assert (biased - truth).abs().max() > 0.01
    linear = expected_gradient(ESTIMATORS["st"](), logits, lambda y: c)
    torch.testing.assert_close(linear, true_gradient(logits, lambda y: c @ y))


SENTENCE = {
    "st_gumbel": {"kind": "st_gumbel"},
    "st": {"kind": "st"},
    "decoupled": {"kind": "st", "forward_temperature": 0.5},
    "gumbel_rao": {"kind": "gumbel_rao", "samples": 3},
    "gapped": {"kind": "gapped"},
    "reinmax": {"kind": "reinmax"},
    **{x: {"kind": "spigot", "variant": x, "step": 0.3} for x in ("spigot", "ce", "eg")},
}


def gradients(
    encoder: GumbelTreeEncoder, words: Tensor, groups: int, order: list[int] | None = None
) -> Tensor:
    """Return gradients of the query `[groups, D]`, each the mean over a batch of draws."""
    B, T, _ = words.shape
    found = []
    for seed in range(groups):
        noise = gumbel_noise((B, T - 1, T - 1), generator=torch.Generator().manual_seed(seed))
        forced = None if order is None else torch.tensor([order]).expand(B, -1)
        out = encoder(words, torch.full((B,), T), noise=noise.double(), order=forced)
        # a loss that depends on the tree
        loss = (out.vector * torch.linspace(-2, 3, out.vector.shape[1])).sum(1).square().mean()
        found += torch.autograd.grad(loss, encoder.query)
    return torch.stack(found)


@pytest.mark.parametrize("name", SENTENCE)
def test_mean_and_variance_on_a_sentence_are_those_over_all_orders(name: str) -> None:
    torch.manual_seed(0)
    settings = SENTENCE[name]
    encoder = GumbelTreeEncoder(EncoderConfig(3, 4, estimator=settings, temperature=0.8)).double()
    torch.nn.init.normal_(encoder.query, std=3)
    count, draws, T = 150, 25, 4
    words = torch.randn(1, T, 3, dtype=torch.float64).expand(draws, T, 3)
    # given the order, only the Gumbel methods depend on the noise: both on noise that leads to it,
    # which Gumbel-Rao draws
    noisy = "gumbel" in name
    given = SENTENCE["gumbel_rao"] if noisy else settings
    along = GumbelTreeEncoder(EncoderConfig(3, 4, estimator=given, temperature=0.8)).double()
    along.load_state_dict(encoder.state_dict())
    mean, square, total = 0.0, 0.0, 0.0
    for order in itertools.product(range(3), range(2), range(1)):
        out = encoder(words[:1], torch.tensor([T]), order=torch.tensor([order]), details=True)
        scores = out.scores[0].detach() / settings.get("forward_temperature", 1.0)
        steps = [scores[t, : 3 - t].softmax(0)[k] for t, k in enumerate(order)]
        share = math.prod(map(float, steps))
        # the mean over many draws is that of one large batch
        many = words[:1].expand(draws * (60 if noisy else 1), T, 3)
        (of_order,) = gradients(along, many, 1, list(order))
        mean, square = mean + share * of_order, square + share * of_order**2
        total += share
    assert total == pytest.approx(1)
    found = gradients(encoder, words, count)
    error = found.std(0) / math.sqrt(count)
    assert ((found.mean(0) - mean).abs() < 5 * error).all()
    assert found.mean(0).abs().max() > 3 * error.max()
    if not noisy:
        variance = (square - mean**2) / draws
        torch.testing.assert_close(found.var(0), variance, rtol=0.4, atol=0)


def test_gumbel_rao_draws_noise_that_leads_to_the_choice() -> None:
    torch.manual_seed(0)
    n = 40_000
    logits = torch.tensor([0.5, -1.0, 0.0, -torch.inf], dtype=torch.float64).expand(n, 4)
    noise = gumbel_noise((n, 4)).double()
    choice = (logits + noise).argmax(1)
    drawn, other = exponentials(uniform_parts(noise), torch.arange(2), noise.dtype)
    # exponentially distributed and independent of the noise
    assert drawn.mean().item() == pytest.approx(1, abs=0.02)
    assert drawn.var().item() == pytest.approx(1, abs=0.05)
    for row in torch.corrcoef(torch.stack([drawn[:, 0], noise[:, 0], other[:, 0]])):
        assert row.abs().sort().values[1] < 0.02
    noisy = conditional_logits(logits, choice, drawn[None])[0]
    assert torch.equal(noisy.argmax(1), choice)
    assert (noisy[:, 3] == -torch.inf).all()
    # over all choices, they have the distribution of logits plus Gumbel noise
    other = (noisy - logits)[:, :3]
    assert other.mean(0).tolist() == pytest.approx([0.5772] * 3, abs=0.03)
    assert other.var(0).tolist() == pytest.approx([math.pi**2 / 6] * 3, abs=0.06)


def test_gumbel_rao_has_the_mean_of_st_gumbel_and_less_variance() -> None:
    torch.manual_seed(0)
    n = 100_000
    logits = torch.tensor([0.5, -1.0, 0.0], dtype=torch.float64).expand(n, 3)
    noise = gumbel_noise((n, 3)).double()
    choice = (logits + noise).argmax(1)
    # a loss that depends on the choice
    dy = torch.randn(3, 3, dtype=torch.float64)[choice]
    plain = ESTIMATORS["st_gumbel"]().logit_gradient(dy, logits, noise, choice, 0.5)
    found = {
        K: ESTIMATORS["gumbel_rao"](GumbelRaoConfig(K)).logit_gradient(
            dy, logits, noise, choice, 0.5
        )
        for K in (1, 10)
    }
    error = 4 * plain.std(0) / math.sqrt(n)
    for gradient in found.values():
        assert ((gradient.mean(0) - plain.mean(0)).abs() < 2 * error).all()
    torch.testing.assert_close(found[1].var(0), plain.var(0), rtol=0.06, atol=0)
    assert (found[10].var(0) < 0.8 * plain.var(0)).all()


def test_projection_to_the_simplex() -> None:
    torch.manual_seed(0)
    points = 2 * torch.randn(50, 5, dtype=torch.float64)
    there = torch.rand(50, 5) < 0.7
    there[:, 2] = True
    found = project(points, there)
    torch.testing.assert_close(found.sum(1), torch.ones(50, dtype=torch.float64))
    assert (found >= 0).all()
    assert not found[~there].any()
    # nearer than any other point: moving towards a corner does not help
    for i, corner in enumerate(torch.eye(5, dtype=torch.float64)):
        gain = ((points - found) * (corner - found)).sum(1)
        assert (gain[there[:, i]] < 1e-9).all()


@pytest.mark.parametrize("variant", ["spigot", "ce", "eg"])
def test_spigot_is_a_step_that_stays_in_the_simplex(variant: str) -> None:
    estimator = ESTIMATORS["spigot"](SpigotConfig(variant, step=0.3))
    logits, noise, choice, _ = layer(estimator)
    logits, dy = logits.detach(), torch.randn(4, 6, dtype=torch.float64)
    start = torch.softmax(logits, dim=1)
    if variant == "spigot":
        start = torch.eye(6, dtype=torch.float64)[choice]
    moved = start - estimator.logit_gradient(dy, logits, noise, choice, 0.7)
    torch.testing.assert_close(moved.sum(1), torch.ones(4, dtype=torch.float64))
    assert (moved > -1e-12).all()
    if variant == "eg":
        powers = start * torch.exp(-0.3 * dy)
        torch.testing.assert_close(moved, powers / powers.sum(1, keepdim=True))
    else:
        torch.testing.assert_close(moved, project(start - 0.3 * dy, logits > -torch.inf))


@pytest.mark.parametrize("impl", ["exact", "reference"])
def test_forward_temperature_changes_how_often_a_merge_is_sampled(impl: str) -> None:
    torch.manual_seed(0)
    config = EncoderConfig(3, 4, estimator={"kind": "st", "forward_temperature": 0.4}, impl=impl)
    encoder = GumbelTreeEncoder(config)
    torch.nn.init.normal_(encoder.query, std=8)
    words = torch.randn(1, 3, 3).expand(3000, 3, 3)
    out = encoder(words, torch.full((3000,), 3), details=True)
    scores = out.scores[0, 0, :2].detach()
    share = torch.sigmoid((scores[0] - scores[1]) / 0.4).item()
    assert 0.05 < share < 0.95
    assert abs(share - torch.sigmoid(scores[0] - scores[1]).item()) > 0.05
    assert (out.order[:, 0] == 0).float().mean().item() == pytest.approx(share, abs=0.03)


class Centred(LocalEstimator):
    """The gradient without its mean over the candidates."""

    def logit_gradient(
        self, dy: Tensor, logits: Tensor, noise: Tensor, choice: Tensor, temperature: float
    ) -> Tensor:
        there = (logits > -torch.inf).to(dy.dtype)
        mean = (dy * there).sum(-1, keepdim=True) / there.sum(-1, keepdim=True)
        return there * (dy - mean) / temperature


class OwnWeights:
    """One-hot weights for autograd, without a base class."""

    weights = ESTIMATORS["st_gumbel"].weights

    def __init__(self, config: object) -> None:
        pass


def test_custom_estimator_can_be_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ESTIMATORS.table, "centred", f"{__name__}:Centred")
    for test in (
        test_weights,
        test_gradient_equals_that_of_the_weights,
        test_encoder_trains_with_every_estimator,
        test_exact_equals_reference,
    ):
        test("centred")
    assert GumbelTreeEncoder(EncoderConfig(3, 4, estimator="centred")).explain().name == "exact"


def test_estimator_without_a_base_class_uses_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ESTIMATORS.table, "own", f"{__name__}:OwnWeights")
    encoder = GumbelTreeEncoder(EncoderConfig(3, 4, estimator="own"))
    assert encoder.explain().name == "reference"
    assert "not 'exact': the estimator OwnWeights mixes candidates" in encoder.explain().reason
    found = encoder(torch.randn(2, 6, 3), torch.tensor([6, 4]))
    (found.vector.sum() if found.log_prob is None else found.log_prob.sum()).backward()
    assert encoder.query.grad.abs().max() > 0
    # greedy choices need no estimator
    assert encoder.eval().explain().name == "exact"
    with pytest.raises(NotImplementedError, match="OwnWeights mixes candidates"):
        GumbelTreeEncoder(EncoderConfig(3, 4, estimator="own", impl="exact"))


def test_gradient_avoids_cancellation() -> None:
    # y is within 1e-12 of one-hot, so the textbook form subtracts nearly equal numbers
    gap = 28.0
    logits = torch.tensor([[gap, 0.0, -1.0]], dtype=torch.float64)
    dy = torch.tensor([[1e6, 1e6 + 1.0, 1e6 - 2.0]], dtype=torch.float64)
    y = torch.softmax(logits, dim=1)
    a, b = math.exp(-gap), math.exp(-gap - 1)
    truth = -(a * 1.0 + b * -2.0)  # to first order in a and b
    no_noise, choice = torch.zeros_like(logits), torch.tensor([0])
    gradient = ESTIMATORS["st_gumbel"]().logit_gradient(dy, logits, no_noise, choice, 1.0)
    textbook = (y * (dy - (y * dy).sum()))[0, 0].item()
    assert gradient[0, 0].item() == pytest.approx(truth, rel=1e-9)
    assert textbook != pytest.approx(truth, rel=1e-2)


def test_noise_is_gumbel_distributed_and_finite() -> None:
    noise = gumbel_noise((1000, 300), generator=torch.Generator().manual_seed(0))
    assert noise.dtype == torch.float32
    assert torch.isfinite(noise).all()
    euler = 0.5772156649
    assert noise.mean().item() == pytest.approx(euler, abs=0.01)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.02)
    assert (noise < 0).float().mean().item() == pytest.approx(math.exp(-1), abs=0.005)


@pytest.mark.parametrize("u", [0.0, 1 - 2**-24])
def test_noise_is_finite_in_both_tails(u: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "rand", lambda shape, **rest: torch.full(shape, u))
    noise = gumbel_noise((3,))
    assert torch.isfinite(noise).all()
    assert noise[0].item() == pytest.approx(-math.log(-math.log(u + 1e-20)), rel=1e-3)


def test_noise_follows_its_generator() -> None:
    draws = [gumbel_noise((5, 5), generator=torch.Generator().manual_seed(s)) for s in (1, 1, 2)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_annealed_temperature() -> None:
    assert annealed_temperature(0, 1e-4) == 1.0
    assert annealed_temperature(1000, 1e-4) == pytest.approx(math.exp(-0.1))
    assert annealed_temperature(10**9, 1e-4) == 0.5
    assert annealed_temperature(10**9, 1e-4, minimum=0.1) == 0.1
    encoder = GumbelTreeEncoder(EncoderConfig(3, 4))
    encoder.temperature = annealed_temperature(5000, 1e-4)
    assert encoder.temperature == pytest.approx(math.exp(-0.5))


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf")])
def test_rejects_temperatures_that_are_not_positive(value: object) -> None:
    with pytest.raises(ValueError, match=r"`temperature` must be a positive finite number, got"):
        GumbelTreeEncoder(EncoderConfig(3, 4, temperature=value))
    encoder = GumbelTreeEncoder(EncoderConfig(3, 4))
    with pytest.raises(ValueError, match="sample=False"):
        encoder.temperature = value


def test_first_best() -> None:
    inf = torch.inf
    scores = torch.tensor([[1.0, 3.0, 3.0], [-inf, -2.0, -inf], [5.0, 4.0, 5.0 + 1e-6]])
    one = torch.tensor(1.0)
    assert first_best(scores, one).tolist() == [1, 1, 0]
    assert first_best(torch.tensor([[1.0, 1.0 + 1e-5]]), one).tolist() == [1]
    assert first_best(torch.tensor([[0.0, 1e-7]]), one).tolist() == [0]
    assert first_best(torch.tensor([[0.0, 1e-7]]), one / 1000).tolist() == [1]
    assert first_best(torch.tensor([[1e6, 1e6 + 1.0]]), one).tolist() == [0]
    assert first_best(torch.tensor([[float("nan"), 1.0]]), one).tolist() == [0]
