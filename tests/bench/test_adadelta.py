"""benchmarks/adadelta.py: the optimizers agree, and a wrong one is not measured."""

import json
import sys
from pathlib import Path

import pytest
from benchmarks import adadelta


def test_writes_both_times_for_each_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "report.json"
    sizes = ["--words", "12", "4100", "--batch", "5", "--rounds", "2"]
    monkeypatch.setattr(sys, "argv", ["adadelta.py", str(out), *sizes])
    adadelta.main()
    report = json.loads(out.read_text(encoding="utf-8"))
    assert [row["words"] for row in report["rows"]] == [12, 4100]
    for row in report["rows"]:
        assert row["seconds"].keys() == {"ours", "torch"}
        assert row["ratio"] > 0
        assert row["difference"] < adadelta.TOLERANCE


def test_measures_no_other_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adadelta.Adadelta, "_update_rows", lambda *_: None)
    with pytest.raises(SystemExit, match="the optimizers differ by"):
        adadelta.measure(4100, 5, 1, "cpu")
