"""Test every registered estimator, the noise and the temperature."""

import math

import pytest
import torch
from torch import Tensor

from gumbeltree import EncoderConfig, GumbelTreeEncoder
from gumbeltree.nn.estimators.estimator import Estimator, LocalEstimator
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
    if isinstance(estimator, LocalEstimator):
        assert torch.equal(weights.detach(), torch.eye(6, dtype=torch.float64)[choice])
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
    else:
        torch.autograd.gradcheck(
            lambda x: estimator.weights(x, noise[1:], choice[1:], 0.7),
            logits[1:].detach().requires_grad_(),
        )


@pytest.mark.parametrize("name", ESTIMATORS)
def test_encoder_trains_with_every_estimator(name: str) -> None:
    encoder = GumbelTreeEncoder(EncoderConfig(3, 4, estimator=name))
    encoder(torch.randn(2, 6, 3), torch.tensor([6, 4])).vector.sum().backward()
    assert encoder.query.grad.abs().max() > 0


@pytest.mark.parametrize("name", ESTIMATORS)
def test_exact_equals_reference(name: str) -> None:
    if not isinstance(ESTIMATORS[name](), LocalEstimator):
        pytest.skip(f"{name} is not a local estimator")
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
            (out.vector * torch.linspace(-1, 1, 4)).sum().backward()
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


class ReinMax(LocalEstimator):
    """Liu et al. (2023): 2 J((pi_T + D) / 2) dy - J(pi) dy / 2, with J(w) v = w (v - w.v)."""

    def logit_gradient(
        self, dy: Tensor, logits: Tensor, noise: Tensor, choice: Tensor, temperature: float
    ) -> Tensor:
        def jacobian(w: Tensor) -> Tensor:
            return w * (dy - (w * dy).sum(-1, keepdim=True))

        one_hot = torch.zeros_like(logits).scatter(-1, choice[:, None], 1.0)
        warm = torch.softmax(logits / temperature, dim=-1)
        return 2 * jacobian((warm + one_hot) / 2) - jacobian(torch.softmax(logits, dim=-1)) / 2


class OwnWeights:
    """One-hot weights for autograd, without a base class."""

    weights = ESTIMATORS["st_gumbel"].weights

    def __init__(self, config: object) -> None:
        pass


def test_custom_estimator_can_be_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ESTIMATORS.table, "reinmax", f"{__name__}:ReinMax")
    for test in (
        test_weights,
        test_gradient_equals_that_of_the_weights,
        test_encoder_trains_with_every_estimator,
        test_exact_equals_reference,
    ):
        test("reinmax")
    assert GumbelTreeEncoder(EncoderConfig(3, 4, estimator="reinmax")).explain().name == "exact"


def test_estimator_without_a_base_class_uses_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ESTIMATORS.table, "own", f"{__name__}:OwnWeights")
    encoder = GumbelTreeEncoder(EncoderConfig(3, 4, estimator="own"))
    assert encoder.explain().name == "reference"
    assert "not 'exact': the estimator OwnWeights mixes candidates" in encoder.explain().reason
    encoder(torch.randn(2, 6, 3), torch.tensor([6, 4])).vector.sum().backward()
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
