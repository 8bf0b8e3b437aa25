"""Test the count of beams that repeat a tree."""

import torch
from benchmarks import duplicates

from tests.models import tiny_model

TEXT = "the dog sleeps now"


def model_of(beams=2):
    torch.manual_seed(0)
    return tiny_model(encoder="beam_tree", beams=beams).eval()


def test_one_beam_does_not_repeat_itself():
    assert duplicates.repeated(model_of(), [TEXT, "not one cat"], 1) == 0


def test_counts_repeated_trees(monkeypatch):
    model = model_of()
    with torch.no_grad():
        # all merges are equally probable
        model.encoder.query.zero_()
    # six orders of merges, two of which build the balanced tree
    (trees,) = duplicates.trees_of(model, [TEXT], 6)
    assert len(trees) == 5
    assert duplicates.repeated(model, [TEXT], 6) == 1 - 5 / 6
    monkeypatch.setattr(duplicates, "RANGES", ((2, 3), (4, 9)))
    # three words have two trees, fewer than the beams
    (row,) = duplicates.report(model, [TEXT, "not one cat"], 5, 10)
    assert row["words"] == [4, 9]
    assert row["texts"] == 1
    assert row["random"] <= 0.2
