"""Test the correlation of cosines with judgements of similarity."""

import gzip
import json

import numpy as np
import pytest

from gumbeltree import load
from gumbeltree.analysis.similarity import (
    ENGLISH,
    SimilarityResult,
    cosine,
    english_mean,
    evaluate_similarity,
    find_pairs,
    similarity_table,
)
from tests.commands import run

PAIRS = [("i love this", "i love it"), ("a dog", "the moon , far away"), ("so bad", "so good")]


@pytest.fixture
def folder(tmp_path):
    lines = ["sent1,sent2,score"]
    lines += [f'"{a}","{b}",{score}' for (a, b), score in zip(PAIRS, (4.5, 0, 3), strict=True)]
    text = "\n".join(lines) + "\n"
    (tmp_path / "sts13_test.csv.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "af_test.csv").write_text(text, encoding="utf-8")
    (tmp_path / "notes.md").write_text("not a table", encoding="utf-8")
    return tmp_path


def test_cosine_by_hand():
    u, v = np.array([[3.0, 4.0], [1.0, 0.0], [0.0, 0.0]]), np.array([[4.0, 3.0], [-2, 0], [1, 1]])
    assert cosine(u, v).tolist() == pytest.approx([0.96, -1, 0])


def test_results_of_a_model(folder):
    model = load("sst2-100d")
    first, second = evaluate_similarity(model, find_pairs(folder))
    assert (first.name, second.name, first.pairs) == ("sts13", "af", 3)
    vectors = model.encode([text for pair in PAIRS for text in pair])
    cosines = cosine(vectors[::2], vectors[1::2])
    gold = np.array([4.5, 0, 3])
    assert first.pearson == pytest.approx(np.corrcoef(cosines, gold)[0, 1])
    ranks = [x.argsort().argsort() for x in (cosines, gold)]
    assert first.spearman == pytest.approx(np.corrcoef(*ranks)[0, 1])


def test_mean_of_the_english_sets():
    results = [SimilarityResult(name, 5, i / 10, 0) for i, name in enumerate(ENGLISH)]
    assert english_mean(results) == pytest.approx(0.35)
    assert english_mean(results[1:]) is None
    table = similarity_table([*results, SimilarityResult("af", 5, 0.9, 0.1)])
    assert [row[0] for row in table.rows][-2:] == ["mean of these eight", "af"]
    assert table.rows[-2][2] == "35.0"


def test_command(folder):
    found = run("evaluate", "sst2-100d", "--sts", folder, "--json")
    assert found.code == 0, found
    about = json.loads(found.out)
    assert [each["name"] for each in about["sets"]] == ["sts13", "af"]
    assert about["english_mean"] is None
    shown = run("evaluate", "sst2-100d", "--sts", folder / "af_test.csv")
    assert f"{100 * about['sets'][1]['spearman']:.1f}" in shown.out


def test_bad_input(folder, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    assert (
        "needs the columns sent1, sent2, score" in run("evaluate", "sst2-100d", "--sts", empty).err
    )
    missing = run("evaluate", "sst2-100d", "--sts", tmp_path / "none")
    assert "none does not exist" in missing.err
    both = run("evaluate", "sst2-100d", "--sts", folder, "--data", folder)
    assert "--sts evaluates similarities; omit --data" in both.err
    (empty / "x.csv").write_text("sent1,sent2,score\na,b,high\n", encoding="utf-8")
    bad = run("evaluate", "sst2-100d", "--sts", empty)
    assert bad.code != 0
    assert "line 2" in bad.err
    assert "high" in bad.err
    (empty / "x.csv").write_text("sent1,sent2,score\na,b,1\na,,2\na,c,3\n", encoding="utf-8")
    assert run("evaluate", "sst2-100d", "--sts", empty).code != 0
    skipped = run("evaluate", "sst2-100d", "--sts", empty, "--skip-bad", "--json")
    assert json.loads(skipped.out)["sets"][0]["pairs"] == 2
    (empty / "x.csv").write_text("first,second,score\na,b,1\n", encoding="utf-8")
    columns = run("evaluate", "sst2-100d", "--sts", empty)
    assert "x.csv must have the columns sent1, sent2, score" in columns.err
