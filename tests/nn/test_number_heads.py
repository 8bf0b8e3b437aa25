"""Test the heads that predict a number, and its metrics."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from gumbeltree import Encoding
from gumbeltree.answers import BinsPrediction, NumberPrediction, number
from gumbeltree.config import BinsConfig, NumberConfig
from gumbeltree.nn.heads.head import Part
from gumbeltree.nn.heads.number_evaluation import (
    NumberEvaluation,
    average_ranks,
    pearson,
    spearman,
)
from gumbeltree.parts import HEADS

NUMBER = NumberConfig(hidden_dim=4, mean=100.0, deviation=20.0)
BINS = BinsConfig(hidden_dim=4, low=1.0, high=5.0, kind="pair_bins")


def head_of(config, vector_dim=3):
    return HEADS[config.kind](config, vector_dim)


def array(*values):
    return np.array(values, dtype=np.float64)


def float64(values):
    return torch.tensor(values, dtype=torch.float64)


# metrics


def test_pearson_by_hand():
    # deviations from the means: [-1.5, -0.5, 0.5, 1.5] and [-3, 1, -1, 3]
    expected = (4.5 - 0.5 - 0.5 + 4.5) / math.sqrt(5 * 20)
    assert pearson(array(1, 2, 3, 4), array(2, 6, 4, 8)) == pytest.approx(expected)
    assert pearson(array(1, 2, 3), array(-2, -4, -6)) == pytest.approx(-1)


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_pearson_ignores_scale_and_offset(scale):
    x, y = np.random.default_rng(0).normal(size=(2, 50))
    expected = np.corrcoef(x, y)[0, 1]
    assert pearson(x * scale, 3 - y) == pytest.approx(-expected)


def test_correlations_of_constants_and_of_nothing():
    assert pearson(array(2, 2, 2), array(1, 2, 3)) == 0
    assert spearman(array(1, 2, 3), array(7, 7, 7)) == 0
    assert math.isnan(pearson(array(), array()))
    assert math.isnan(spearman(array(), array()))


def test_equal_values_share_their_mean_rank():
    assert average_ranks(array(10, 30, 20, 30, 30, 10)).tolist() == [1.5, 5, 3, 5, 5, 1.5]


def test_spearman_by_hand():
    # without ties: 1 - 6 sum d^2 / (n (n^2 - 1))
    assert spearman(array(1, 2, 3, 4, 5), array(5, 6, 7, 8, 7.5)) == pytest.approx(1 - 12 / 120)
    # ranks 1, 2.5, 2.5, 4 and 1, 2, 3.5, 3.5, of mean 2.5
    expected = (2.25 + 0 + 0 + 1.5) / math.sqrt(4.5 * 4.5)
    assert spearman(array(1, 2, 2, 3), array(0, 5, 9, 9)) == pytest.approx(expected)


def test_spearman_depends_on_the_order_alone():
    x, y = np.random.default_rng(1).normal(size=(2, 40))
    assert spearman(np.exp(5 * x), y**3) == pytest.approx(spearman(x, y))


# evaluations


def evaluation(head, output, target, rows, size):
    rows = np.array(rows)
    part = Part(output, target, 0.5, rows, size, np.ones(len(rows), np.int64))
    return head.evaluation(part)


def test_evaluation_in_the_units_of_the_data():
    head = head_of(NUMBER)
    found = evaluation(head, array([-1], [0], [2]), array(90, 100, 130), [0, 1, 2], 3)
    # predictions 80, 100, 140
    assert found.predictions.tolist() == [80, 100, 140]
    assert found.mse == pytest.approx((100 + 0 + 100) / 3)
    assert found.spearman == pytest.approx(1)
    # deviations from the means, times 3: [-80, -20, 100] and [-50, -20, 70]
    expected = (4000 + 400 + 7000) / math.sqrt(16_800 * 7_800)
    assert found.pearson == pytest.approx(expected)
    assert found.value == found.pearson
    assert found.as_dict() == {
        "examples": 3, "pearson": found.pearson, "spearman": found.spearman, "mse": found.mse,
        "loss": 0.5,
    }  # fmt: skip
    assert found.answers() == ["80.0000", "100.0000", "140.0000"]
    assert "Pearson 0.9959, Spearman 1.0000, mean squared error 66.6667, 3 ex" in found.summary()
    ((_, header, rows),) = found.tables()
    assert rows[2] == ("130", "130", "1", "130", "140", "10")
    assert len(header) == 6


def test_parts_of_an_evaluation_add_up():
    head = head_of(NUMBER)
    output, target = np.random.default_rng(0).normal(size=(2, 30))
    whole = evaluation(head, output[:, None], target, range(30), 30)
    parts = [
        evaluation(head, output[rows, None], target[rows], rows, 30)
        for rows in (np.arange(0, 30, 2), np.arange(1, 30, 2))
    ]
    both = parts[0] + parts[1]
    assert both.as_dict() == whole.as_dict()
    assert parts[0].answers()[1] == ""
    assert parts[0].count == 15
    with pytest.raises(ValueError, match="share example 0"):
        parts[0] + whole
    with pytest.raises(ValueError, match="different splits"):
        whole + NumberEvaluation(0.0, array(1), array(1))


def test_empty_evaluation_has_no_metrics():
    found = evaluation(head_of(NUMBER), np.empty((0, 1)), array(), [], 0)
    assert found.as_dict() == {
        "examples": 0, "pearson": None, "spearman": None, "mse": None, "loss": None,
    }  # fmt: skip
    assert found.answers() == []


# losses


def test_loss_of_numbers_is_the_squared_error_in_deviations():
    head = head_of(NUMBER)
    losses = head.loss(torch.tensor([[0.5], [-1.0]]), float64([100.0, 110.0]))
    assert losses.tolist() == [0.25, 2.25]
    assert losses.dtype == torch.float32


def test_targets_far_from_zero_keep_their_precision():
    # in float32, these targets would differ by a multiple of 64
    head = head_of(NumberConfig(hidden_dim=4, mean=1e9, deviation=10.0))
    losses = head.loss(torch.tensor([[0.0], [0.0]]), float64([1e9 + 1, 1e9 + 3]))
    assert losses.tolist() == pytest.approx([0.01, 0.09])
    assert head.answers(np.array([[0.1]], np.float32))[0].value == pytest.approx(1e9 + 1, abs=1e-6)


def test_distribution_of_a_number_over_the_bins_of_tai_et_al():
    head = head_of(BINS)
    shares = head.distribution(float64([1.0, 3.6, 5.0, 0.0, 9.0]))
    expected = [
        [1, 0, 0, 0, 0],
        [0, 0, 0.4, 0.6, 0],
        [0, 0, 0, 0, 1],
        [1, 0, 0, 0, 0],
        [0, 0, 0, 0, 1],
    ]
    np.testing.assert_allclose(shares, expected, atol=1e-12)
    np.testing.assert_allclose(shares[:3].numpy() @ head.positions, [1, 3.6, 5])


def test_loss_of_bins_is_the_divergence_by_hand():
    head = head_of(BINS)
    logits = float64([[0.1, -0.4, 0.7, 0.2, 1.1], [2.0, 0.0, 0.0, 0.0, 0.0]])
    q = np.exp(logits.numpy()) / np.exp(logits.numpy()).sum(1, keepdims=True)
    expected = [
        0.4 * math.log(0.4 / q[0, 2]) + 0.6 * math.log(0.6 / q[0, 3]),
        math.log(1 / q[1, 0]),
    ]
    losses = head.loss(logits, float64([3.6, 1.0]))
    assert losses.tolist() == pytest.approx(expected)
    # zero if the distributions are equal
    same = head.distribution(float64([2.5])).log().clamp(min=-800)
    assert head.loss(same, float64([2.5])).item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("config", [NUMBER, BINS], ids=["number", "bins"])
def test_gradients_of_losses(config):
    head = head_of(config)
    targets = torch.tensor([70.0, 100.0, 133.0]) if config is NUMBER else torch.tensor([1, 2.2, 5])
    output = torch.randn(3, 1 if config is NUMBER else 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: head.loss(x, targets.double()), output)


# answers


def test_answers_of_numbers():
    (answer,) = head_of(NUMBER).answers(np.array([[0.25]], np.float32))
    assert answer == NumberPrediction(105.0)
    assert answer.cells() == ["105.0000"]
    assert answer.as_dict() == {"value": 105.0}


def test_answers_of_bins():
    (answer,) = head_of(BINS).answers(np.log(array([0.1, 0.2, 0.3, 0.4, 1e-30])).astype(np.float32))
    assert isinstance(answer, BinsPrediction)
    assert answer.bins == (1, 2, 3, 4, 5)
    assert answer.value == pytest.approx(0.1 + 0.4 + 0.9 + 1.6)
    assert answer.probabilities == pytest.approx((0.1, 0.2, 0.3, 0.4, 0), abs=1e-7)
    assert answer.cells() == ["3.0000"]
    assert [place for place, _ in answer.as_dict()["bins"]] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.0000"), (-3.14159, "-3.1416"), (1.5e-7, "1.5e-07"), (123456789.0, "1.23457e+08")],
)
def test_numbers_as_text(value, text):
    assert number(value) == text


# targets and settings


def test_labels_become_numbers():
    head = head_of(NUMBER)
    assert [head.target(label) for label in ("3", "-1.5e2", " 4.0 ")] == [3, -150, 4]
    for label in ("high", "nan", "inf", "", "1,5"):
        with pytest.raises(ValueError, match="not a finite number"):
            head.target(label)


@pytest.mark.parametrize(
    "targets", [array(1, math.nan), np.array([1, 2]), array([1, 2])], ids=["nan", "int", "rows"]
)
def test_rejects_targets_that_are_not_numbers(targets):
    with pytest.raises(ValueError, match="must be finite numbers"):
        head_of(NUMBER).check_targets(targets)


def test_numbers_take_mean_and_deviation_from_the_training_data():
    targets = array(1, 2, 3, 6)
    head = HEADS["single_number"]
    config = head.completed(NumberConfig(), (), targets)
    assert (config.mean, config.deviation) == (3, pytest.approx(math.sqrt(3.5)))
    fixed = head.completed(NumberConfig(mean=0.0, deviation=2.0), (), targets)
    assert (fixed.mean, fixed.deviation) == (0, 2)


def test_bins_take_their_range_from_the_training_data():
    config = HEADS["single_bins"].completed(BinsConfig(), (), array(4, -2, 3))
    assert (config.low, config.high) == (-2, 4)
    config = HEADS["pair_bins"].completed(BINS, (), array(2, 3))
    assert (config.low, config.high) == (1, 5)
    assert head_of(dataclasses.replace(BINS, bins=3)).positions.tolist() == [1, 3, 5]
    with pytest.raises(ValueError, match=r"less than `head\.high`, got 5 and 1"):
        head_of(BinsConfig(low=5.0, high=1.0))


@pytest.mark.parametrize("kind", ["single_number", "single_bins"])
def test_training_data_must_be_numbers_that_differ(kind):
    head, config = HEADS[kind], HEADS[kind].Config()
    with pytest.raises(ValueError, match="all training targets equal 4"):
        head.completed(config, (), array(4, 4, 4))
    with pytest.raises(ValueError, match=r"got -1e\+200 to 4; check the label"):
        head.completed(config, (), array(4, -1e200, 3))
    with pytest.raises(ValueError, match="predicts numbers, but the data was prepared"):
        head.completed(config, ("a", "b"), np.array([0, 1]))


def test_pair_heads_read_two_sentences():
    for kind in ("number", "bins"):
        assert HEADS[f"single_{kind}"].sentences == 1
        assert HEADS[f"pair_{kind}"].sentences == 2
    head = head_of(BINS).eval()
    u, v = (Encoding(torch.randn(4, 3), None) for _ in range(2))
    assert head(u, v).shape == (4, 5)
    assert not torch.equal(head(u, v), head(v, u))


def test_metrics_by_name():
    head = HEADS["pair_number"]
    assert head.metric().name == "pearson"
    assert head.metric("mse").lower
    assert head.metric("loss").lower
    assert not head.metric("spearman").lower
    with pytest.raises(ValueError, match="one of pearson, spearman, mse, loss, got 'accuracy'"):
        head.metric("accuracy")
    with pytest.raises(ValueError, match="Did you mean 'spearman'"):
        head.metric("speerman")
