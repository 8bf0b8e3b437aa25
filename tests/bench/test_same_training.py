"""benchmarks/same_training.py: two versions of the source train alike, or the first difference."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import same_training

import gumbeltree
from tests.runs import SMALL


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    changes = json.dumps([*SMALL, "evaluations=2"])
    rows = f'[[row]]\nrecipe = "demo"\nset = {changes}\n[[row]]\nrecipe = "sst2"\n'
    (tmp_path / "plan.toml").write_text(rows, encoding="utf-8")
    return tmp_path / "plan.toml"


def test_metrics_of_another_version_have_no_times(plan: Path, tmp_path: Path) -> None:
    package = Path(gumbeltree.__file__).parent
    ignored = shutil.ignore_patterns("__pycache__", "pretrained")
    old = shutil.copytree(package, tmp_path / "old" / "gumbeltree", ignore=ignored).parent
    # a version of its own, which the message of its error shows
    (old / "gumbeltree" / "signals.py").write_text("raise OSError('the other version')\n")
    demo, _ = same_training.read_plans([plan], tmp_path)
    assert same_training.metrics_of(demo, old, 1, ["--device=cpu"]) == "OSError: the other version"
    found = same_training.metrics_of(demo, package.parent, 1, ["--device=cpu"])
    assert [row["epoch"] for row in found] == [0.5714, 1.0]
    assert not any("seconds" in row for row in found)


def test_rows_are_trained_once_with_both_versions(
    plan: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trained: list[tuple[str, str]] = []

    def metrics_of(run: Any, source: Path, epochs: int, options: list[str]) -> Any:
        trained.append((run.row.split()[0], source.name))
        return [{"step": 5, "dev_loss": 0.1}] if trained[-1] != ("sst2", "old") else "no data"

    for name in ("old", "new"):
        (tmp_path / name / "gumbeltree").mkdir(parents=True)
        (tmp_path / name / "gumbeltree" / "a.py").write_text(name)
    monkeypatch.setattr(same_training, "metrics_of", metrics_of)
    out = tmp_path / "same.json"
    sources = [str(tmp_path / name) for name in ("old", "new")]
    command = ["same_training", str(out), *sources, str(plan), "--device=cpu"]
    monkeypatch.setattr(sys, "argv", command)
    # one row has no answer, and is trained again
    rows = [(x, y) for x in ("demo", "sst2") for y in ("new", "old")]
    for times in (1, 2):
        assert same_training.main() == 1
        assert sorted(trained) == sorted([*rows[:2], *rows[2:] * times])
        assert capsys.readouterr().out.count(": same\n") == 1
    (pair,) = json.loads(out.read_text(encoding="utf-8"))
    assert pair["old"] != pair["new"]
    assert [row["same"] for row in pair["rows"].values()] == [True, False]
    assert pair["rows"]["sst2"]["error"] == {"old": "no data"}
    trained.clear()
    same = " ".join(["demo", *SMALL, "evaluations=2"])
    monkeypatch.setattr(sys, "argv", [*command, "--rows", same])
    assert same_training.main() == 0
    assert not trained
    # other settings are compared apart
    monkeypatch.setattr(sys, "argv", [*command, "--rows", same, "--epochs", "2"])
    assert same_training.main() == 0
    assert sorted(trained) == rows[:2]
    assert len(json.loads(out.read_text(encoding="utf-8"))) == 2
    monkeypatch.setattr(sys, "argv", [*command, "--rows", "nothing"])
    with pytest.raises(SystemExit):
        same_training.main()
    assert "no row matches 'nothing'" in capsys.readouterr().err


def test_the_first_difference_is_named() -> None:
    old = [{"step": 5, "dev_loss": 0.5}, {"step": 10, "dev_loss": 0.25}]
    assert same_training.compare(old, old) == {"same": True, "steps": 10, "evaluations": 2}
    new = [old[0], {"step": 10, "dev_loss": 0.25000000000000006}]
    assert same_training.compare(old, new)["differs_at_step"] == 10
    assert not same_training.compare(old, new)["same"]
    # a run that ends early differs, too
    assert not same_training.compare(old, old[:1])["same"]
