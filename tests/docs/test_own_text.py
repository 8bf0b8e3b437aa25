"""Test that the tables of docs/own_text.md come from benchmarks/results/own_text.jsonl."""

import gzip
import importlib

import pytest


@pytest.fixture
def writer():
    return importlib.import_module("write_own_text")


def test_page_is_up_to_date(writer):
    page = writer.PAGE.read_text(encoding="utf-8")
    assert all(f"<!-- own text: {name} -->" in page for name in writer.SECTIONS)
    runs, costs = writer.read_runs(), writer.read_runs(writer.COSTS)
    assert writer.fill(page, runs, costs) == page, "run benchmarks/write_own_text.py"


def test_accuracies_are_means_over_seeds(writer):
    runs = [
        {"set": name, "method": "lstm", "vectors": True, "seed": seed, "test": 0.5 + seed / 10}
        for name in (*writer.SETS, "sick")
        for seed in range(2 if name == "mr" else 5)
    ]
    header, _, row = writer.accuracies(runs, vectors=True).splitlines()
    assert header == "| method | SST-2 | MR | TREC | Subj | SST-5 | mean of five | SICK |"
    full = "70.0 ± 15.8"
    cells = [full, "55.0 ± 7.1 (2)", full, full, full, "67.0", full]
    assert row == f"| `--encoder lstm` | {' | '.join(cells)} |"
    assert len(writer.accuracies(runs, vectors=False).splitlines()) == 2


def test_the_benchmark_splits_by_a_fixed_seed(tmp_path):
    benchmark = importlib.import_module("own_text")
    (tmp_path / "text").mkdir()
    with gzip.open(tmp_path / "text" / "mr.csv.gz", "wt", encoding="utf-8") as file:
        file.writelines(["label,text\n", *(f"{i % 2},text {i}\n" for i in range(50))])
    data = benchmark.read_set("mr", tmp_path)
    assert {name: len(rows.labels) for name, rows in data.items()} == {
        "train": 40, "dev": 5, "test": 5,
    }  # fmt: skip
    found = sorted(text for rows in data.values() for text in rows.texts)
    assert found == sorted((f"text {i}",) for i in range(50))
    assert data == benchmark.read_set("mr", tmp_path)


def test_earlier_settings_change_every_setting_of_the_recipe():
    benchmark = importlib.import_module("own_text")
    for name in ("sst2", "sick"):
        of = {
            method: benchmark.recipe_of(benchmark.Case(name, method, True, 0))[1]
            for method in ("tree", "before", "lstm", "bag", "bilstm")
        }
        assert of["before"].training.epochs == 20
        assert of["before"].training.average == 0
        assert of["tree"].training.average > 0
        assert [of[method].model.encoder.kind for method in ("lstm", "bag")] == ["lstm", "bag"]
        assert not of["bilstm"].data.own_vectors
