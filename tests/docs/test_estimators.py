"""benchmarks/write_estimators.py: its tables, and the page that is written from them."""

import importlib
import json
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gumbeltree.data.compile import prepare
from gumbeltree.training.loop import train
from tests.runs import small

ROOT = Path(__file__).parent.parent.parent
ST = ("estimator=st", "forward_temperature=1.0")


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    return importlib.import_module("write_estimators")


def run(recipe: str, *changes: str, seed: int = 0, **more: Any) -> dict[str, Any]:
    """Return a collected run."""
    return {
        **{"recipe": recipe, "set": list(changes), "seed": seed, "data": {"digest": recipe}},
        **{"dev_accuracy": 0.5, "test_accuracy": 0.25, "code": [], **more},
    }


def evaluations(first: float) -> dict[str, Any]:
    names = ("test_d20s", "test-200-300", "test-900-1000")
    return {name: {"accuracy": first - 0.1 * i} for i, name in enumerate(names)}


def write(folder: Path, name: str, runs: list[dict[str, Any]]) -> None:
    text = "".join(json.dumps(each) + "\n" for each in runs)
    (folder / name).write_text(text, encoding="utf-8")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A folder with runs and nothing else."""
    runs = [
        run("listops-gated", *ST, tests=evaluations(0.6)),
        *(run("listops-gated", seed=i, tests=evaluations(0.7 + 0.02 * i)) for i in (0, 1)),
        *(run(f"{x}-100d", "trees=random") for x in ("sst2", "snli")),
        run("sst2-100d", *ST),
    ]
    write(tmp_path, "estimators.jsonl", runs)
    beside = [
        run(f"listops-{x}", tests=evaluations(y)) for x, y in (("gold", 1.0), ("random", 0.65))
    ]
    # the same recipe in the other file does not count
    beside.append(run("listops-gated", seed=7, tests=evaluations(0.1)))
    write(tmp_path, "generalise.jsonl", beside)
    return tmp_path


def test_columns_without_a_file_are_left_out(writer: ModuleType, results: Path) -> None:
    assert writer.tables(results)["estimators"].splitlines() == [
        "| estimator | seeds | test | 200–300 | 900–1000 |",
        "|---|---|---|---|---|",
        "| ST-Gumbel | 2 | 71.00 ± 1.41 | 61.00 ± 1.41 | 51.00 ± 1.41 |",
        "| straight-through | 1 | 60.00 | 50.00 | 40.00 |",
        "| random trees | 1 | 65.00 | 55.00 | 45.00 |",
        "| gold trees | 1 | 100.00 | 90.00 | 80.00 |",
    ]
    assert not (results / "estimators_trees.json").exists()


def test_the_table_on_sentences(writer: ModuleType, results: Path) -> None:
    assert writer.tables(results)["estimators on text"].splitlines()[2:] == [
        "| straight-through | 1 | 50.00 | 25.00 |  |  |  |",
        "| random trees | 1 | 50.00 | 25.00 | 1 | 50.00 | 25.00 |",
    ]


def test_all_columns(writer: ModuleType, results: Path) -> None:
    name = " ".join(["listops-gated", *ST])
    trees = {name: {"test_d20s": {"examples": 9, "f1": {"0": 0.5, "1": 0.6}}}}
    (results / "estimators_trees.json").write_text(json.dumps(trees))

    def row(kind: str, ratio: float | None, temperature: float = 1.0) -> dict[str, Any]:
        about = {"estimator": {"kind": kind}, "temperature": temperature, "passes": 1.0}
        return about | {"score": {"ratio": ratio, "cosine": 0.25}}

    # the same estimator at another temperature has another gradient
    rows = {"a": row("st", 9.0, 2.0), "b": row("st", 1.234), "c": row("st_gumbel", None)}
    (results / "gradient_variance.json").write_text(json.dumps({"rows": rows}))
    kinds = {"st_gumbel": {"kind": "st_gumbel"}, "plain": {"kind": "st"}}
    times = {"st_gumbel": {"ratio": 1.0}, "plain": {"ratio": 0.987}}
    about = {"quick": False, "estimators": kinds, "cases": {"cuda, random batches": times}}
    (results / "estimators_cuda.json").write_text(json.dumps(about))
    found = writer.tables(results)["estimators"].splitlines()
    end = "F1 | deviation | cosine | passes | time per step |"
    assert found[0].endswith(end)
    assert found[2].endswith("|  |  | 0.25 | 1 | 1.00 |")
    assert found[3].endswith("| 55.00 ± 7.07 | 1.23 | 0.25 | 1 | 0.99 |")
    assert found[4].endswith("|  |  |  |  |  |")
    # the time depends on the estimator and its samples, but not on its temperature
    other = writer.Row("listops-gated", ("estimator=st", "temperature=2.0"))
    assert writer.time_of(other, about) == "0.99"
    kinds |= {"rao": {"kind": "gumbel_rao", "samples": 5}}
    times |= {"rao": {"ratio": 1.1}}
    for samples, time in ((5, "1.10"), (6, "")):
        row_of = writer.Row("listops-gated", ("estimator=gumbel_rao", f"samples={samples}"))
        assert writer.time_of(row_of, about) == time
    (results / "estimators_cuda.json").write_text(json.dumps(about | {"quick": True}))
    with pytest.raises(ValueError, match="the times are those of --quick"):
        writer.tables(results)


def test_runs_without_their_evaluation_are_rejected(writer: ModuleType, tmp_path: Path) -> None:
    write(tmp_path, "estimators.jsonl", [run("listops-gated", "temperature=2.0")])
    with pytest.raises(ValueError, match=r"seed 0 of listops-gated temperature=2.0 has not been"):
        writer.tables(tmp_path)


def test_two_recipes_of_a_task_are_rejected(writer: ModuleType, tmp_path: Path) -> None:
    write(tmp_path, "estimators.jsonl", [run("sst2-100d"), run("sst2")])
    with pytest.raises(ValueError, match="both have a row ST-Gumbel"):
        writer.tables(tmp_path)


def test_trees_are_added_by_row_and_seed(writer: ModuleType, tmp_path: Path) -> None:
    recipe = small("train_max_words=12", "max_words=40", "estimator=st", name="listops-gated")
    train(recipe, prepare(recipe), tmp_path / "seed-0", recipe_name="listops-gated")
    shutil.copytree(tmp_path / "seed-0", tmp_path / "seed-3")
    settings = json.loads((tmp_path / "seed-3" / "settings.json").read_text())
    settings["recipe"]["training"]["seed"] = 3
    (tmp_path / "seed-3" / "settings.json").write_text(json.dumps(settings))

    def output(examples: int, **scores: float) -> Path:
        rows = [{"kind": "gold", "f1": None}]
        rows += [{"kind": "model", "f1": {"sentence": x}} for x in scores.values()]
        about = {"models": [str(tmp_path / x.replace("_", "-")) for x in scores], "rows": rows}
        about |= {"file": "data/test_d20s.tsv", "sentences": examples}
        path = tmp_path / "trees.json"
        path.write_text(json.dumps(about))
        return path

    record = tmp_path / "record.json"
    writer.add_trees([output(9, seed_0=0.5)], record)
    found = writer.add_trees([output(9, seed_3=0.25)], record)
    ((name, files),) = found.items()
    assert name.startswith("listops-gated ")
    assert "estimator=st" in name.split()
    assert files == {"test_d20s": {"examples": 9, "f1": {"0": 0.5, "3": 0.25}}}
    assert found == writer.read_json(record)
    # scores of other examples are not mixed with them
    found = writer.add_trees([output(5, seed_3=0.75)], record)
    assert found[name]["test_d20s"] == {"examples": 5, "f1": {"3": 0.75}}


def test_the_page_has_the_recorded_tables(writer: ModuleType) -> None:
    page = (ROOT / "docs" / "generalise.md").read_text(encoding="utf-8")
    again = writer.fill(page, writer.tables())
    assert again == page, "run python benchmarks/write_estimators.py"
