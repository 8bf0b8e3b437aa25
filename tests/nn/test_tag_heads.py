"""Test the heads that predict any number of tags, and their evaluation."""

import math

import numpy as np
import pytest
import torch

from gumbeltree.answers import TagsPrediction, sigmoid
from gumbeltree.config import TagsConfig
from gumbeltree.nn.heads.head import Part
from gumbeltree.parts import HEADS

CONFIG = TagsConfig(hidden_dim=4, tags=("plot", "music", "cast"))
HEAD = HEADS["single_tags"](CONFIG, 3)
GOLD = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 1, 0], [1, 0, 0]], np.uint8)
FOUND = np.array([[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 0]], np.uint8)


def evaluation(rows, size=5, head=HEAD):
    rows = np.array(rows, dtype=np.int64)
    logits = np.where(FOUND[rows] > 0, 1.0, -1.0)
    return head.evaluation(Part(logits, GOLD[rows], 0.5, rows, size, np.ones(len(rows), np.int64)))


def test_scores_by_hand():
    found = evaluation(range(5))
    # plot: 2 of 2 predictions and of 3 gold tags; music: 1 of 2 and of 2; cast never occurs
    plot, music = 2 * 2 / 5, 2 * 1 / 4
    assert found.scores.f1.tolist() == pytest.approx([plot, music, 0])
    assert found.scores.precision.tolist() == pytest.approx([1, 1 / 2, 0])
    assert found.scores.recall.tolist() == pytest.approx([2 / 3, 1 / 2, 0])
    assert found.macro_f1 == pytest.approx((plot + music) / 2)
    assert found.micro_precision == pytest.approx(3 / 4)
    assert found.micro_recall == pytest.approx(3 / 5)
    assert found.micro_f1 == pytest.approx(6 / 9)
    assert found.exact_match == pytest.approx(2 / 5)
    assert found.value == found.micro_f1
    assert found.metric("recall:music") == 0.5
    assert found.answers() == ["plot", "plot", "music", "music", ""]
    about = found.as_dict()
    assert about["micro_f1"] == found.micro_f1
    assert about["tags"][1] == {
        "label": "music", "examples": 2, "predicted": 2, "precision": 0.5, "recall": 0.5, "f1": 0.5,
    }  # fmt: skip
    assert "micro-F1 66.67 % (precision 75.00, recall 60.00)" in found.summary()
    assert found.tables()[0].rows[0] == ("plot", "3", "100.0", "66.7", "80.0")


def test_parts_of_an_evaluation_add_up():
    both = evaluation([0, 3]) + evaluation([1, 2, 4])
    assert both.as_dict() == evaluation(range(5)).as_dict()
    assert evaluation([0, 3]).count == 2
    with pytest.raises(ValueError, match="share example 3"):
        evaluation([0, 3]) + evaluation([3])
    with pytest.raises(ValueError, match="different splits"):
        evaluation([0]) + evaluation([0], size=6)


def test_empty_evaluation_has_no_metrics():
    about = evaluation([], size=0).as_dict()
    assert about["examples"] == 0
    assert about["micro_f1"] is about["exact_match"] is about["loss"] is None


def test_loss_is_the_mean_binary_cross_entropy():
    logits = torch.tensor([[0.0, 2.0, -1.0]], dtype=torch.float64, requires_grad=True)
    target = torch.tensor([[1, 0, 1]], dtype=torch.uint8)
    expected = (math.log(2) + math.log(1 + math.exp(2)) + math.log(1 + math.exp(1))) / 3
    assert HEAD.loss(logits, target).tolist() == pytest.approx([expected])
    assert torch.autograd.gradcheck(lambda x: HEAD.loss(x, target), logits)


def test_answers_list_the_tags_above_the_threshold():
    logits = np.array([[3.0, 0.0, -0.1], [-5.0, -5.0, -5.0]], np.float32)
    first, second = HEAD.answers(logits)
    assert first.labels == ("plot", "music")
    assert first.probabilities == pytest.approx(
        {"plot": 1 / (1 + math.exp(-3)), "music": 0.5, "cast": 1 / (1 + math.exp(0.1))}
    )
    assert first.cells() == ["plot|music", "0.9526|0.5000"]
    assert first.as_dict() == {"labels": ["plot", "music"], "probabilities": first.probabilities}
    assert isinstance(second, TagsPrediction)
    assert second.labels == ()
    assert second.cells() == ["", ""]
    config = TagsConfig(hidden_dim=4, tags=CONFIG.tags, threshold=0.6, tag_separator=", ")
    assert HEADS["single_tags"](config, 3).answers(logits)[0].cells() == ["plot", "0.9526"]


def test_sigmoid_does_not_overflow():
    with np.errstate(over="raise"):
        assert sigmoid(np.array([-1e4, 0.0, 1e4], np.float32)).tolist() == [0, 0.5, 1]


def test_targets_of_labels():
    assert HEAD.target("music | plot").tolist() == [1, 1, 0]
    assert HEAD.target("").tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="'sound' is not a tag of this model, which has plot, mus"):
        HEAD.target("plot|sound")


def test_rejects_targets_of_other_tags():
    for targets in (np.zeros((2, 4), np.uint8), np.zeros(2, np.uint8), np.full((2, 3), 2)):
        with pytest.raises(ValueError, match="0 or 1 for each of 3 tags"):
            HEAD.check_targets(targets)


def test_tags_come_from_the_training_data():
    head = HEADS["single_tags"]
    assert head.completed(TagsConfig(), ("a", "b"), GOLD[:, :2]).tags == ("a", "b")
    with pytest.raises(ValueError, match=r"recipe has the tags plot, music, cast, but .* has a, b"):
        head.completed(CONFIG, ("a", "b"), GOLD[:, :2])
    with pytest.raises(ValueError, match="predicts tags, but the data was prepared"):
        head.completed(TagsConfig(), ("a", "b"), np.array([0, 1]))
