"""benchmarks/long_inputs.py: a quick run, and one that goes on from a file."""

import json
from multiprocessing.pool import ThreadPool
from pathlib import Path
from types import SimpleNamespace

import pytest
from benchmarks import long_inputs


def test_a_file_of_the_same_code_and_machine_is_continued(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # threads instead of processes, which import torch for seconds
    context = SimpleNamespace(Pool=ThreadPool)
    monkeypatch.setattr(long_inputs.multiprocessing, "get_context", lambda name: context)
    monkeypatch.setattr(long_inputs.torch, "set_num_threads", lambda count: None)
    file = tmp_path / "long.json"
    first = long_inputs.report("cpu", long_inputs.QUICK, file)
    assert all(row["seconds"] > 0 and row["bytes"] > 0 for row in first["rows"])
    long_inputs.draw(first, tmp_path / "long.png")
    assert (tmp_path / "long.png").stat().st_size > 0

    file.write_text(json.dumps(first | {"rows": first["rows"][:-1]}))
    again = long_inputs.report("cpu", long_inputs.QUICK, file)
    assert again["rows"][:-1] == first["rows"][:-1]
    assert again["rows"][-1] != first["rows"][-1]
    assert {*again["exponents"]} == {*first["exponents"]}


def test_cases_of_another_width_version_or_machine_are_measured_again(tmp_path: Path) -> None:
    about = {"machine": {"cpu": "a"}, "versions": {"torch": "2"}, "device": "cpu"}
    about |= {"code": {"source": "1"}, "rows": [{"width": 8}]}
    file = tmp_path / "long.json"
    assert long_inputs.measured(file, about, 8) == []
    file.write_text(json.dumps(about))
    assert long_inputs.measured(file, about, 8) == [{"width": 8}]
    assert long_inputs.measured(file, about, 128) == []
    for name, value in (
        ("machine", {}),
        ("versions", {}),
        ("device", "cuda"),
        ("code", {"source": 2}),
    ):
        assert long_inputs.measured(file, about | {name: value}, 8) == []
