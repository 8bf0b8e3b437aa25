"""Confusion matrices of many classes."""

import csv
import json

import numpy as np
import pytest

import gumbeltree
from gumbeltree.cli.confusion import fitted
from gumbeltree.config import HeadConfig, ModelConfig
from gumbeltree.model import SentenceModel
from gumbeltree.nn.heads.class_evaluation import ClassEvaluation
from gumbeltree.text.tokenizer import whitespace_tokenizer
from tests.commands import run
from tests.models import WORDS, encoder_settings

LABELS = tuple(f"class number {n}" for n in range(20))


def evaluation(matrix):
    count = int(matrix.sum())
    return ClassEvaluation(LABELS[: len(matrix)], 0.5, matrix, np.zeros(count, np.int64), [])


def confusion_of(matrix, width):
    """Return the table that shows a confusion matrix at a width."""
    whole = evaluation(matrix)
    tables = fitted(whole.tables(), whole, width)
    return next(table for table in tables if "onfusion" in table.title)


def test_few_classes_keep_their_matrix():
    matrix = np.arange(25).reshape(5, 5)
    table = confusion_of(matrix, 80)
    assert [list(map(int, row[1:])) for row in table.rows] == matrix.tolist()


def test_many_classes_show_the_largest_confusions():
    matrix = np.zeros((20, 20), np.int64)
    matrix[np.arange(20), np.arange(20)] = 90
    matrix[3, 7], matrix[3, 5], matrix[19, 0] = 30, 4, 1200
    table = confusion_of(matrix, 80)
    assert table.header[:3] == ("gold label", "prediction", "examples")
    assert table.rows == [
        ("class number 19", "class number 0", "1,200", f"{100 * 1200 / 1290:.1f}"),
        ("class number 3", "class number 7", "30", f"{100 * 30 / 124:.1f}"),
        ("class number 3", "class number 5", "4", f"{100 * 4 / 124:.1f}"),
    ]
    assert len(confusion_of(matrix, 240).rows) == 20
    full = np.arange(400).reshape(20, 20)
    assert len(confusion_of(full, 80).rows) == 15
    assert confusion_of(full, 80).rows[0][2] == "398"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A model of 20 classes, and a table with each of them."""
    folder = tmp_path_factory.mktemp("confusion")
    config = ModelConfig(encoder_settings(), HeadConfig("single", LABELS, hidden_dim=7))
    gumbeltree.save(SentenceModel(config, whitespace_tokenizer(WORDS)), folder / "model")
    rows = "".join(f"the dog {WORDS[n % 11]},{label}\n" for n, label in enumerate(LABELS))
    (folder / "a.csv").write_text("text,label\n" + rows, encoding="utf-8")
    return folder


def evaluate(place, *options):
    columns = ["--text", "text", "--label", "label", "--device", "cpu"]
    return run("evaluate", place / "model", "--data", place / "a.csv", *columns, *options)


def test_evaluate_fits_into_80_columns(place, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = evaluate(place)
    assert code == 0
    # a terminal wraps the summary in the first line, but not tables
    assert max(map(len, out.splitlines()[1:])) <= 80
    assert "Largest confusions of 20 classes" in out


def test_evaluate_writes_the_whole_matrix(place, tmp_path):
    path = tmp_path / "confusion.csv"
    result = json.loads(evaluate(place, "--confusion", path, "--json").out)
    header, *rows = csv.reader(path.read_text("utf-8").splitlines())
    assert header == ["gold", *LABELS]
    assert [row[0] for row in rows] == list(LABELS)
    assert [list(map(int, row[1:])) for row in rows] == result["confusion"]


def test_evaluate_draws_the_matrix(place, tmp_path):
    pytest.importorskip("matplotlib")
    assert evaluate(place, "--confusion", tmp_path / "x.png", "-q").code == 0
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_rejects_other_endings(place, tmp_path):
    message = evaluate(place, "--confusion", tmp_path / "x.txt").refused()
    assert "x.txt must end in .csv, .png" in message
