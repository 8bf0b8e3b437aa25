"""Samples of trees agree with the softmax, and their predictions with the trees."""

import json
from collections import Counter

import numpy as np
import pytest
import torch

from gumbeltree.analysis.samples import MOST_TREES, sample_trees, span_probabilities
from gumbeltree.analysis.trace import trace
from gumbeltree.model import save
from gumbeltree.runtimes import load
from gumbeltree.tree import Tree
from tests.models import tiny_model

TEXT = "the dog that barked all night sleeps ."


@pytest.fixture
def model():
    model = tiny_model("single", embedding_dim=6, hidden_dim=8, leaf="lstm")
    with torch.no_grad():
        # far enough apart that no two scores tie
        model.encoder.query.normal_(generator=torch.Generator().manual_seed(1))
    return model


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_span_probabilities_follow_the_softmax(model, temperature):
    text = "not one dog"
    first = trace(model, text, temperature=temperature).layers[0].probabilities
    tree, traced = span_probabilities(model, text, samples=4000, temperature=temperature)
    assert tree == model.parse(text)
    assert traced[0, 3] == 1
    # four standard errors
    for span, p in (((0, 2), first[0]), ((1, 3), first[1])):
        assert abs(traced.get(span, 0.0) - p) < 4 * (p * (1 - p) / 4000) ** 0.5 + 1e-9


def test_span_probabilities_of_short_texts(model):
    assert span_probabilities(model, "dog") == (Tree("dog", []), {})
    assert span_probabilities(model, "one dog", samples=3)[1] == {(0, 2): 1.0}
    assert span_probabilities(model, TEXT, seed=1) == span_probabilities(model, TEXT, seed=1)
    assert span_probabilities(model, TEXT, seed=1) != span_probabilities(model, TEXT, seed=2)
    with pytest.raises(ValueError, match="`samples` must be at least 1, got 0"):
        span_probabilities(model, TEXT, samples=0)


@pytest.mark.parametrize("runtime", ["torch", "numpy"])
def test_every_sample_has_the_prediction_of_its_tree(model, tmp_path, runtime):
    save(model, tmp_path / "model")
    loaded = load(tmp_path / "model", runtime=runtime)
    drawn = sample_trees(loaded, TEXT, samples=60, seed=1)
    assert drawn.greedy == loaded.parse(TEXT)
    assert drawn.greedy_answer.probabilities == pytest.approx(
        loaded.predict([TEXT])[0].probabilities, abs=1e-5
    )
    assert len(drawn.trees) == len(drawn.answers) == 60
    for tree, answer in zip(drawn.trees[:10], drawn.answers, strict=False):
        given = trace(loaded, TEXT, tree=str(tree)).answer
        assert answer.probabilities == pytest.approx(given.probabilities, abs=1e-5)


def test_summary_counts_trees_and_labels(model):
    drawn = sample_trees(model, TEXT, samples=80, seed=2, temperature=0.05)
    summary = json.loads(json.dumps(drawn.as_dict()))
    counts = Counter(drawn.trees)
    assert summary["distinct"] == len(counts) > MOST_TREES
    assert summary["greedy_share"] == counts[drawn.greedy] / 80 > 0
    listed = summary["trees"]
    assert len(listed) == MOST_TREES
    shares = [tree["share"] for tree in listed]
    assert shares == sorted((count / 80 for count in counts.values()), reverse=True)[:MOST_TREES]
    for tree in listed:
        found = Tree.from_brackets(tree["brackets"])
        assert found == Tree(TEXT, tree["order"])
        assert tree["share"] == counts[found] / 80
        assert tree["greedy"] == (found == drawn.greedy)
        given = trace(model, TEXT, tree=tree["brackets"]).answer
        assert tree["answer"]["probabilities"] == pytest.approx(given.probabilities, abs=1e-5)
    labels = Counter(answer.label for answer in drawn.answers)
    for label, about in summary["answers"].items():
        assert about["share"] == labels[label] / 80
        mean = np.mean([answer.probabilities[label] for answer in drawn.answers])
        assert about["mean"] == pytest.approx(mean)
    top = drawn.greedy_answer.label
    assert summary["top"] == [answer.probabilities[top] for answer in drawn.answers]


@pytest.mark.parametrize("kind", ["single_number", "single_bins", "single_tags", "pair"])
def test_summary_of_other_predictions(kind):
    drawn = sample_trees(tiny_model(kind), TEXT, samples=40, seed=3, temperature=5.0)
    summary = json.loads(json.dumps(drawn.as_dict()))
    if kind == "pair":
        assert summary["answers"] is summary["top"] is summary["trees"][0]["answer"] is None
    elif kind == "single_tags":
        found = Counter(label for answer in drawn.answers for label in answer.labels)
        assert {tag: x["share"] for tag, x in summary["answers"].items()} == {
            tag: found[tag] / 40 for tag in ("plot", "music", "cast")
        }
        assert summary["top"] is None
    else:
        values = [answer.value for answer in drawn.answers]
        assert summary["top"] == values
        assert summary["answers"]["mean"] == pytest.approx(np.mean(values))
        quantiles = summary["answers"]["quantiles"]
        assert quantiles["0.5"] == pytest.approx(np.median(values))
        assert list(quantiles.values()) == sorted(quantiles.values())
        assert quantiles["0.05"] < quantiles["0.95"]


def test_trees_of_a_pair_have_no_prediction_of_their_own():
    drawn = sample_trees(tiny_model("pair"), TEXT, "one dog", samples=10, seed=3)
    summary = drawn.as_dict()
    # it depends on the second tree as well
    assert summary["answers"] is not None
    assert all(tree["answer"] is None for tree in summary["trees"])
