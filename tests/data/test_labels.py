"""Labels that do not look like classes."""

import itertools

import pytest

from gumbeltree.data.compile import prepare
from gumbeltree.data.labels import check_classes
from tests.runs import small, table

COLUMNS = ("data.text=body", "data.label=class", "data.generate=0")
MEASURED = [f"{number / 100:.2f}" for number in range(10, 600)]


def remarks(labels):
    said = []
    check_classes(labels, said.append)
    return said


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (MEASURED, "590 distinct labels in 590 rows, all numbers from 0.1 to 5.99"),
        # repeated, but still no classes
        (MEASURED[:40] * 10, "40 distinct labels in 400 rows, all numbers from 0.1 to 0.49"),
        ([str(number) for number in range(100)], "100 distinct labels in 100 rows, all numbers"),
        ([str(number) for number in range(900)] * 3, "900 distinct labels in 2,700 rows, all numb"),
    ],
    ids=["all", "repeated", "whole", "many whole"],
)
def test_rejects_measurements(labels, words):
    with pytest.raises(ValueError, match=words) as error:
        check_classes(labels, print)
    assert '--target number, or target="number" in Python,' in str(error.value)
    assert "any_labels=true" in str(error.value)


def test_rejects_texts_as_labels():
    with pytest.raises(ValueError, match=r"do not look like classes: 30 .*'text 0'.*label column"):
        check_classes([f"text {number}" for number in range(30)], print)


@pytest.mark.parametrize(
    "labels",
    [
        ["1", "2", "3", "4", "5"] * 10,
        ["0.5", "1", "1.5", "2"] * 10,
        ["yes", "no"] * 3,
        # a tiny file, which is rejected for other reasons
        ["a", "b", "c"],
        [f"intent {number}" for number in range(150)] * 2,
        ["inf", "-inf"] * 20,
        [str(year) for year in range(2001, 2021)] * 2,
    ],
)
def test_accepts_classes(labels, caplog):
    assert remarks(labels) == []
    assert caplog.messages == []


@pytest.mark.parametrize(("distinct", "rows"), [(77, 385), (150, 1500)])
def test_warns_of_many_whole_numbers(distinct, rows, caplog):
    # a warning, which --quiet does not hide
    labels = [str(number) for number in range(distinct)]
    assert remarks(labels * (rows // distinct)) == []
    (said,) = caplog.messages
    assert f"{distinct} distinct labels in {rows:,} rows, all numbers from 0 to" in said
    assert "--target number" in said


def test_mentions_spellings():
    (said,) = remarks(["Good", "bad", "good"] * 10)
    assert "'Good' and 'good' are different classes" in said


def test_mentions_labels_with_a_single_example():
    (said,) = remarks(["good", "bad"] * 10 + ["fair"])
    assert "single example, which cannot be learned: 'fair'" in said


def test_warns_of_labels_that_stand_for_missing_ones(caplog):
    assert remarks(["good", "bad", "NaN"] * 10) == []
    (message,) = caplog.messages
    assert "10 rows have the label 'NaN'" in message


def test_training_data_is_checked(tmp_path):
    numbers = itertools.count()
    path = table(tmp_path / "a.csv", lambda words: f"{next(numbers) % 40 / 8}")
    with pytest.raises(ValueError, match="look like measurements"):
        prepare(small(*COLUMNS, name="text"), path)
    forced = prepare(small(*COLUMNS, "any_labels=true", name="text"), path)
    assert len(forced.labels) == 40


def test_rejects_fractions_that_leave_nothing(tmp_path):
    path = table(tmp_path / "a.csv", lambda words: "w1" in words)
    recipe = small(*COLUMNS, "dev_fraction=0.6", "test_fraction=0.5", name="text")
    with pytest.raises(ValueError, match=r"dev_fraction=0.6 and test_fraction=0.5 leave nothing"):
        prepare(recipe, path)
