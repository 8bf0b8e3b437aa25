"""Read labels that are numbers or tags."""

import doctest
import json

import pytest

from gumbeltree.tasks import TASKS, checks
from gumbeltree.tasks.checks import checked_number, checked_tags
from gumbeltree.text.files import BadLineError, MismatchError, Report

HEADER = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"


def read(task, path, skip_bad=False):
    report = Report()
    return [example.label for example in task.read(path, "train", report, skip_bad)], report


def table(target, **options):
    return TASKS["table"]("text", label="y", target=target, **options)


def written(path, *lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_docstrings():
    results = doctest.testmod(checks)
    assert results.attempted
    assert not results.failed


@pytest.mark.parametrize("label", ["3", "-0.5", "1e3", 4, 2.5])
def test_numbers(label):
    assert float(checked_number(label)) == float(label)


@pytest.mark.parametrize(
    ("label", "advice"),
    [
        ("high", "--target classes"),
        ("", "--target classes"),
        ("nan", "got 'nan'"),
        ("inf", "correct the label"),
        (None, "got None"),
        (True, "got True"),
        ([1], r"got \[1\]"),
        ("3,5", r"decimal point: 3\.5"),
    ],
)
def test_labels_that_are_not_numbers(label, advice):
    with pytest.raises(MismatchError, match=advice):
        checked_number(label)


def test_a_table_of_numbers_names_the_line(tmp_path):
    path = written(tmp_path / "a.csv", "text,y", "one,1.5", "two,high", "three, 2 ")
    with pytest.raises(BadLineError, match=r"a\.csv, line 3: expected a number as label, got 'hig"):
        read(table("number"), path)
    labels, report = read(table("number"), path, skip_bad=True)
    assert (labels, report.bad) == (["1.5", "2"], 1)


def test_numbers_in_json_lines(tmp_path):
    rows = [{"text": "one", "y": 1}, {"text": "two", "y": 2.5}, {"text": "three", "y": "3"}]
    path = written(tmp_path / "a.jsonl", *map(json.dumps, rows))
    assert read(table("number"), path)[0] == ["1", "2.5", "3"]


@pytest.mark.parametrize(
    ("label", "joined"),
    [
        ("plot|music", "plot|music"),
        (" plot | music||plot", "plot|music"),
        ("", ""),
        (["plot", "music", "plot"], "plot|music"),
        ([], ""),
        ([1, "two"], "1|two"),
    ],
)
def test_tags(label, joined):
    assert checked_tags(label, None, "|") == joined


@pytest.mark.parametrize(
    ("label", "match"),
    [
        ("plot|sound", r"one of the labels plot, music, got 'sound'"),
        (["plt"], "Did you mean 'plot'"),
        (["plot|music"], r"without the separator '\|', got 'plot\|music'; .*head\.tag_separator"),
        (None, r"tags as label, got None; write a list such as \[\"a\", \"b\"\] or .*\"a\|b\""),
        ([None], "text as tag, got None"),
    ],
)
def test_labels_that_are_not_tags(label, match):
    with pytest.raises(MismatchError, match=match):
        checked_tags(label, ("plot", "music"), "|")


def test_tables_of_tags(tmp_path):
    path = written(tmp_path / "a.csv", "text,y", "one,a; b", "two,", "three,b")
    assert read(table("tags", tag_separator=";"), path)[0] == ["a;b", "", "b"]
    rows = [{"text": "one", "y": ["a", "b"]}, {"text": "two", "y": []}, {"text": "x", "y": "b"}]
    path = written(tmp_path / "a.jsonl", *map(json.dumps, rows))
    assert read(table("tags"), path)[0] == ["a|b", "", "b"]
    with pytest.raises(BadLineError, match=r"line 1: expected one of the labels b, got 'a'"):
        read(table("tags", labels=["b"]), path)


def test_sick_relatedness(tmp_path):
    path = written(tmp_path / "SICK_train.txt", HEADER, "1\tA b\tC d\t4.5\tNEUTRAL")
    written(tmp_path / "SICK_test.txt", HEADER)
    task = TASKS["sick_relatedness"]()
    (example,) = task.read(path, "train", Report())
    assert (example.texts, example.label) == (("A b", "C d"), "4.5")
    assert task.splits(tmp_path)["test"].name == "SICK_test.txt"
    path = written(tmp_path / "a.txt", HEADER, "1\tA b\tC d\tclose\tNEUTRAL")
    with pytest.raises(BadLineError, match="line 2: expected a number as label, got 'close'"):
        read(task, path)
    path = written(tmp_path / "b.txt", "4.5\tA b\tC d")
    with pytest.raises(BadLineError, match="line 1: expected a column 'sentence_A'"):
        read(task, path)
