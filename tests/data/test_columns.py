"""Labelled texts in memory."""

import math

import numpy as np
import pytest
import torch

from gumbeltree.data.columns import examples_of
from tests.columns import FORMS, Series


@pytest.mark.parametrize("form", FORMS)
def test_reads_every_form(form):
    make = FORMS[form]
    found = examples_of(make([" one dog", "two dogs "]), make(["a", "b"]))
    assert found.texts() == [("one dog",), ("two dogs",)]
    assert found.labels == ["a", "b"]
    assert found.report.examples == 2
    pairs = examples_of(make(["x", "y"]), make([1, 0]), make(["u", "v"]))
    assert pairs.texts() == [("x", "u"), ("y", "v")]
    assert pairs.labels == ["1", "0"]


@pytest.mark.parametrize(
    ("label", "text"),
    [
        (" good ", "good"),
        (3, "3"),
        (True, "true"),
        (2.0, "2"),
        (2.5, "2.5"),
        (np.int64(3), "3"),
        (np.float32(0.1), str(float(np.float32(0.1)))),
        (np.bool_(False), "false"),
        (np.str_("good"), "good"),
        (torch.tensor(4), "4"),
    ],
)
def test_labels_are_written_as_in_a_table(label, text):
    assert examples_of(["dog"], [label]).labels == [text]


class NAType:
    """The missing value of a data frame: comparisons with it have no truth value."""

    def __eq__(self, other):
        return self

    __hash__ = None

    def __bool__(self):
        raise TypeError("boolean value of NA is ambiguous")


@pytest.mark.parametrize("missing", [None, math.nan, np.float64("nan"), NAType(), "", "  "])
def test_names_the_row_of_a_missing_label(missing):
    with pytest.raises(ValueError, match=r"label of row 1 is (missing|empty).*remove the row"):
        examples_of(["one", "two"], ["a", missing])


def test_names_the_row_of_a_missing_text():
    with pytest.raises((TypeError, ValueError), match="1"):
        examples_of(Series(["one", math.nan]), ["a", "b"])
    with pytest.raises(ValueError, match="text of row 1 is empty; remove the row"):
        examples_of(["one", " "], ["a", "b"])


def test_rejects_other_labels_and_lengths():
    with pytest.raises(TypeError, match=r"label of row 0 must be a string or a number.*\['a'\]"):
        examples_of(["one"], [["a"]])
    with pytest.raises(ValueError, match="2 texts and 1 label;"):
        examples_of(["one", "two"], ["a"])
    with pytest.raises(ValueError, match="1 text and 2 labels;"):
        examples_of(["one", "two"], ["a", "b"], ["only"])
    with pytest.raises(TypeError, match="expected a list"):
        examples_of("one", ["a"])


@pytest.mark.parametrize("attribute", ["columns", "column_names"])
def test_rejects_whole_tables(attribute):
    class Table(list):
        pass

    frame = Table([{"text": "one"}])
    setattr(frame, attribute, ["text"])
    with pytest.raises(TypeError, match="got Table; pass one of its columns"):
        examples_of(frame, ["a"])


def test_undoes_the_escapes_of_pretokenized_text():
    found = examples_of(["a -LRB- b"], ["x"], pretokenized=True)
    assert found.texts() == [("a ( b",)]
