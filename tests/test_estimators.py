"""Every estimator of the table, noise and temperature."""

import math

import pytest
import torch

from gumbeltree import EncoderConfig, GumbelTreeEncoder
from gumbeltree.estimators import ESTIMATORS
from gumbeltree.estimators.gumbel import annealed_temperature, gumbel_noise
from gumbeltree.estimators.st_gumbel import StraightThroughGumbel
from gumbeltree.ops.argmax import first_best


@pytest.mark.parametrize("name", ESTIMATORS)
def test_weights_and_gradient(name: str) -> None:
    estimator = ESTIMATORS[name]()
    scores = torch.randn(4, 6, dtype=torch.float64)
    scores[0, 4:] = -torch.inf
    scores.requires_grad_()
    choice = scores.argmax(1)
    weights = estimator.weights(scores, choice, 0.7)
    torch.testing.assert_close(weights.sum(1), torch.ones(4, dtype=torch.float64))
    assert not weights[0, 4:].any()
    if estimator.one_hot:
        assert torch.equal(weights.detach(), torch.eye(6, dtype=torch.float64)[choice])
    dy = torch.randn_like(weights)
    (expected,) = torch.autograd.grad(weights, scores, dy)
    soft = torch.softmax(scores.detach() / 0.7, dim=1)
    jacobian = soft[:, :, None] * (torch.eye(6) - soft[:, None, :]) / 0.7
    torch.testing.assert_close(expected, (jacobian @ dy[:, :, None])[..., 0])
    if estimator.one_hot:
        torch.testing.assert_close(estimator.score_gradient(dy, soft, 0.7), expected)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_encoder_trains_with_it(name: str) -> None:
    encoder = GumbelTreeEncoder(EncoderConfig(3, 4, estimator=name))
    encoder(torch.randn(2, 6, 3), torch.tensor([6, 4])).vector.sum().backward()
    assert encoder.query.grad.abs().max() > 0


class Plain:
    """One-hot, for autograd alone."""

    one_hot = True
    weights = StraightThroughGumbel.weights


def test_a_one_hot_estimator_without_its_gradient_is_left_to_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(ESTIMATORS.table, "plain", f"{__name__}:Plain")
    encoder = GumbelTreeEncoder(EncoderConfig(3, 4, estimator="plain"))
    assert encoder.explain().name == "reference"
    assert "not 'exact': the estimator Plain has no `score_gradient`" in encoder.explain().reason
    encoder(torch.randn(2, 6, 3), torch.tensor([6, 4])).vector.sum().backward()
    assert encoder.query.grad.abs().max() > 0
    # where nothing is sampled none is needed
    assert encoder.eval().explain().name == "exact"
    with pytest.raises(NotImplementedError, match="Plain has no `score_gradient`"):
        GumbelTreeEncoder(EncoderConfig(3, 4, estimator="plain", impl="exact"))


def test_score_gradient_keeps_its_digits_where_the_textbook_form_loses_them() -> None:
    # y within 1e-12 of one-hot: the winner's gradient is a difference of nearly equal numbers
    gap = 28.0
    scores = torch.tensor([[gap, 0.0, -1.0]], dtype=torch.float64)
    dy = torch.tensor([[1e6, 1e6 + 1.0, 1e6 - 2.0]], dtype=torch.float64)
    y = torch.softmax(scores, dim=1)
    a, b = math.exp(-gap), math.exp(-gap - 1)
    truth = -(a * 1.0 + b * -2.0)  # to first order in a and b
    centred = ESTIMATORS["st_gumbel"].score_gradient(dy, y, 1.0)[0, 0].item()
    textbook = (y * (dy - (y * dy).sum()))[0, 0].item()
    assert centred == pytest.approx(truth, rel=1e-9)
    assert textbook != pytest.approx(truth, rel=1e-2)


def test_noise_is_gumbel_distributed_and_always_finite() -> None:
    noise = gumbel_noise((1000, 300), generator=torch.Generator().manual_seed(0))
    assert noise.dtype == torch.float32
    assert torch.isfinite(noise).all()
    euler = 0.5772156649
    assert noise.mean().item() == pytest.approx(euler, abs=0.01)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.02)
    assert (noise < 0).float().mean().item() == pytest.approx(math.exp(-1), abs=0.005)


@pytest.mark.parametrize("u", [0.0, 1 - 2**-24])
def test_noise_is_finite_at_both_ends(u: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "rand", lambda shape, **rest: torch.full(shape, u))
    noise = gumbel_noise((3,))
    assert torch.isfinite(noise).all()
    assert noise[0].item() == pytest.approx(-math.log(-math.log(u + 1e-20)), rel=1e-3)


def test_noise_follows_its_generator() -> None:
    draws = [gumbel_noise((5, 5), generator=torch.Generator().manual_seed(s)) for s in (1, 1, 2)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_annealing() -> None:
    assert annealed_temperature(0, 1e-4) == 1.0
    assert annealed_temperature(1000, 1e-4) == pytest.approx(math.exp(-0.1))
    assert annealed_temperature(10**9, 1e-4) == 0.5
    assert annealed_temperature(10**9, 1e-4, minimum=0.1) == 0.1
    encoder = GumbelTreeEncoder(EncoderConfig(3, 4))
    encoder.temperature = annealed_temperature(5000, 1e-4)
    assert encoder.temperature == pytest.approx(math.exp(-0.5))


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf")])
def test_temperature_must_be_positive(value: object) -> None:
    with pytest.raises(ValueError, match=r"`temperature` must be a positive finite number, got"):
        GumbelTreeEncoder(EncoderConfig(3, 4, temperature=value))
    encoder = GumbelTreeEncoder(EncoderConfig(3, 4))
    with pytest.raises(ValueError, match="sample=False instead"):
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
