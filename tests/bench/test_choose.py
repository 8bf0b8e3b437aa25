"""benchmarks/choose.py: settings are chosen by development accuracy alone."""

import dataclasses
import importlib
import json
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return importlib.import_module("choose")


@pytest.fixture(scope="module")
def rows(script: ModuleType) -> ModuleType:
    return importlib.import_module("estimator_rows")


def run(dev: float, *changes: str, seed: int = 0, digest: str = "d", **more: Any) -> dict[str, Any]:
    """Return a collected run of listops-gated."""
    return {
        **{"recipe": "listops-gated", "set": list(changes), "seed": seed, "dev_accuracy": dev},
        **{"data": {"digest": digest}, "test_accuracy": 1 - dev, **more},
    }


def write(path: Path, *runs: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in runs))
    return path


def test_the_best_setting_of_each_estimator_wins(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    path = write(
        tmp_path / "runs.jsonl",
        run(0.5, "epochs=5", tests={"long": {"accuracy": 1.0}}),
        run(0.6, "temperature=2.0", "epochs=5", tests={"long": {"accuracy": 0.0}}),
        run(0.4, "estimator=spigot", "step=0.1", "variant=spigot", "epochs=5"),
        # defaults are no change of their own, and equal accuracies prefer fewer changes
        run(0.4, "estimator=spigot", "step=1.0", "variant=spigot", "epochs=5"),
        run(0.3, "estimator=spigot", "step=10.0", "variant=ce", "epochs=5"),
    )
    monkeypatch.setattr(sys, "argv", ["choose", str(path)])
    script.main()
    assert capsys.readouterr().out.splitlines() == [
        "listops-gated, SPIGOT:",
        "  dev  40.00  estimator=spigot",
        "  dev  40.00  estimator=spigot step=0.1",
        '  set = ["estimator=spigot"]',
        "listops-gated, SPIGOT-CE:",
        "  dev  30.00  estimator=spigot step=10.0 variant=ce",
        '  set = ["estimator=spigot", "step=10.0", "variant=ce"]',
        "listops-gated, ST-Gumbel:",
        "  dev  60.00  temperature=2.0",
        "  dev  50.00  as in the recipe",
        '  set = ["temperature=2.0"]',
    ]


def test_results_on_test_files_are_not_read(script: ModuleType, tmp_path: Path) -> None:
    path = write(tmp_path / "runs.jsonl", run(0.5, tests={"long": {"accuracy": 1.0}}))
    (found,) = script.read(path)
    assert {*found} == {"recipe", "set", "seed", "dev_accuracy", "data"}


def test_seeds_are_averaged(script: ModuleType) -> None:
    runs = [run(x, seed=seed) for seed, x in enumerate((0.2, 0.4))]
    (found,) = script.candidates(runs)
    assert found.mean == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([], "contains no runs"),
        ([{"recipe": "listops-gated", "set": []}], "a run of listops-gated has no 'seed'"),
        ([run(0.5), run(0.5, seed=1, digest="other")], "used different data"),
        ([run(0.5), run(0.5, "temperature=2.0", seed=1)], "all settings need the same seeds"),
    ],
)
def test_runs_that_cannot_be_compared_are_rejected(
    script: ModuleType, tmp_path: Path, runs: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        script.candidates(script.read(write(tmp_path / "runs.jsonl", *runs)))


def test_the_search_gives_every_estimator_three_candidates(rows: ModuleType) -> None:
    plans = BENCHMARKS / "plans"
    search, final = (
        rows.read_rows(plans / f"{x}.toml") for x in ("estimators_search", "estimators")
    )
    counts = Counter(rows.title(row.settings.model.encoder) for row in search)
    assert set(counts.values()) == {3}
    learned = [row for row in final if row.settings.model.encoder.kind == "gumbel_tree"]
    assert counts.keys() == {rows.title(row.settings.model.encoder) for row in learned}
    # nothing but the settings of training and of the estimator differs
    encoders = {
        json.dumps(
            dataclasses.asdict(
                dataclasses.replace(row.settings.model.encoder, estimator="st", temperature=1.0)
            )
        )
        for row in search
    }
    assert len(encoders) == 1
    assert {row.settings.training.epochs for row in search} == {5}
    assert {row.settings.data.test_fraction for row in search} == {0}


def test_plans_on_sentences_have_the_same_estimators(rows: ModuleType) -> None:
    plans = BENCHMARKS / "plans"
    text, listops = (rows.read_rows(plans / f"{x}.toml") for x in ("estimators_text", "estimators"))
    wanted = {rows.title(row.settings.model.encoder) for row in listops} | {"random trees"}
    for recipe in ("sst2-100d", "snli-100d"):
        found = [rows.title(row.settings.model.encoder) for row in text if row.recipe == recipe]
        assert len(found) == len(set(found))
        assert set(found) == wanted


def test_names_of_rows(rows: ModuleType) -> None:
    row = rows.Row("listops-gated", ("estimator=reinforce", "baseline=rloo", "samples=4"))
    assert rows.needed(row) == ("estimator=reinforce", "baseline=rloo")
    assert rows.label(row) == "REINFORCE, leave-one-out"
    row = rows.Row("sst2-100d", ("trees=random", "learning_rate=0.0003"))
    assert rows.label(row) == "random trees, `learning_rate=0.0003`"
    row = rows.Row("listops-gated", ("estimator=st", "forward_temperature=0.5"))
    assert rows.label(row) == "decoupled straight-through, `forward_temperature=0.5`"
