"""benchmarks/side_by_side.py: what a process answers, and the ratios of a report."""

import contextlib
import json
import threading
from multiprocessing import Pipe
from pathlib import Path

import pytest
from benchmarks import side_by_side


def test_a_process_answers_each_order_with_its_rate() -> None:
    ours, theirs = Pipe()
    recipes = ["snli-100d", "lstm-matched"]
    thread = threading.Thread(target=side_by_side.work, args=(theirs, recipes, "cpu", {}, True))
    thread.start()
    assert ours.recv() == "ready"
    for recipe in recipes:
        ours.send((recipe, 0.05))
        assert ours.recv() > 0
    ours.send(None)
    thread.join()


def test_a_process_that_dies_ends_the_measurement() -> None:
    ours, theirs = Pipe()
    theirs.close()
    with pytest.raises(SystemExit, match="a process ended"):
        side_by_side.answer(ours)


class Group:
    """Processes that need no time: n of them are n times as fast, 0.5 n times with a service."""

    def __init__(
        self, number: int, recipes: list[str], device: str, variables: object, quick: bool
    ):
        assert (number, recipes, device, variables, quick) == (4, ["sst2"], "cpu", {}, False)

    def wait(self) -> None: ...

    def rate(self, jobs: int, recipe: str, seconds: float) -> float:
        return 0.5 * jobs * (100 if jobs > 1 else 200)

    def end(self) -> None: ...


def test_ratios_are_to_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "Workers", Group)
    out = tmp_path / "side.json"
    options = ["--device", "cpu", "--jobs", "1", "4", "--recipes", "sst2"]
    monkeypatch.setattr("sys.argv", ["side_by_side.py", str(out), *options])
    side_by_side.main()
    rows = json.loads(out.read_text())["rows"]
    assert [(row["mode"], row["jobs"], row["ratio"]) for row in rows] == [
        ("alone", 1, 1.0),
        ("alone", 4, 2.0),
    ]


def test_each_number_of_connections_is_a_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    class Recorded(Group):
        def __init__(
            self, number: int, recipes: list[str], device: str, variables: object, quick: bool
        ):
            seen.append(variables)

    monkeypatch.setattr(side_by_side, "Workers", Recorded)
    monkeypatch.setattr(side_by_side, "mps", lambda: contextlib.nullcontext({"PIPE": "x"}))
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "card")
    out = tmp_path / "side.json"
    options = ["--jobs", "1", "--recipes", "sst2", "--connections", "1", "2"]
    monkeypatch.setattr("sys.argv", ["side_by_side.py", str(out), *options])
    side_by_side.main()
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    assert seen == [{}, {"PIPE": "x"}, {"PIPE": "x", name: "1"}, {"PIPE": "x", name: "2"}]
    modes = [row["mode"] for row in json.loads(out.read_text())["rows"]]
    assert modes == ["alone", "mps", "mps, connections=1", "mps, connections=2"]
