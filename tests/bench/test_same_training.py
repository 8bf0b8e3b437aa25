"""benchmarks/same_training.py: two versions of the source train alike, or the first difference."""

import importlib
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import gumbeltree
from tests.runs import SMALL

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module("same_training")
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture
def given(tmp_path: Path) -> list[str]:
    changes = json.dumps([*SMALL, "evaluations=2"])
    row = '[[row]]\nrecipe = "{}"\nset = {}\noptions = {}\n'
    text = row.format("demo", changes, "[]") + row.format("sst2", "[]", '["--data", "none"]')
    (tmp_path / "plan.toml").write_text(text, encoding="utf-8")
    (tmp_path / "old").mkdir()
    package = Path(gumbeltree.__file__).parent
    ignored = shutil.ignore_patterns("__pycache__", "pretrained")
    shutil.copytree(package, tmp_path / "old" / "gumbeltree", ignore=ignored)
    sources = [str(tmp_path / "old"), str(package.parent)]
    return [str(tmp_path / "same.json"), *sources, str(tmp_path / "plan.toml"), "--device=cpu"]


def test_sources_with_the_same_training_and_rows_that_fail(
    script: ModuleType,
    given: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["same_training", *given])
    assert script.main() == 1
    (pair,) = json.loads(Path(given[0]).read_text(encoding="utf-8"))
    assert pair["old"] != pair["new"]
    failed, same = sorted(pair["rows"].values(), key=lambda row: row["same"])
    assert same["evaluations"] == 2
    assert "none" in failed["error"]["old"]
    assert capsys.readouterr().out.count(": same") == 1
    # nothing is trained again
    monkeypatch.setattr(script, "metrics_of", None)
    assert script.main() == 1


def test_the_first_difference_is_named(script: ModuleType) -> None:
    old = [{"step": 5, "dev_loss": 0.5}, {"step": 10, "dev_loss": 0.25}]
    assert script.compare(old, old) == {"same": True, "steps": 10, "evaluations": 2}
    new = [old[0], {"step": 10, "dev_loss": 0.25000000000000006}]
    assert script.compare(old, new)["differs_at_step"] == 10
    assert not script.compare(old, new)["same"]
    # a run that ends early differs, too
    assert not script.compare(old, old[:1])["same"]
