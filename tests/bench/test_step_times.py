"""benchmarks/step_times.py: times of steps and of evaluations, told apart and taken in turns."""

import contextlib
import itertools
import json
import math
import sys
from pathlib import Path

import pytest
import step_times

import gumbeltree
from gumbeltree.data.prepared import save_prepared
from tests.bench import turns
from tests.runs import SMALL, small


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "demo.safetensors"
    save_prepared(gumbeltree.prepare(small()), path)
    return path


def run_of(prepared: Path, *changes: str):
    return step_times.Run(" ".join(["demo", *changes]), Path(), ["--prepared", str(prepared)], [])


def test_a_plan_is_timed_once(tmp_path, monkeypatch) -> None:
    plan, out = tmp_path / "plan.toml", tmp_path / "times.json"
    plan.write_text('[[row]]\nrecipe = ["demo", "text"]\nseeds = 2\n', encoding="utf-8")
    command = ["step_times", str(out), str(plan), "--device=cpu"]
    monkeypatch.setattr(step_times, "answer", turns.at_once)
    monkeypatch.setattr(sys, "argv", command)
    # one row has an error, and is timed again
    for _ in range(2):
        assert step_times.main() == 1
        found = json.loads(out.read_text(encoding="utf-8"))
        assert found["rows"] == {"demo": {"seconds": 0.5}}
    monkeypatch.setattr(step_times, "answer", None)
    plan.write_text('[[row]]\nrecipe = "demo"\n', encoding="utf-8")
    assert step_times.main() == 0
    out.write_text(json.dumps(found | {"machine": "another"}), encoding="utf-8")
    with pytest.raises(SystemExit):
        step_times.main()
    monkeypatch.setattr(sys, "argv", [*command, "--jobs=0"])
    with pytest.raises(SystemExit):
        step_times.main()
    monkeypatch.setattr(
        sys, "argv", ["step_times", str(tmp_path / "missing" / "x.json"), str(plan)]
    )
    with pytest.raises(SystemExit):
        step_times.main()


def test_a_real_run_is_timed(prepared, monkeypatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(step_times.time, "perf_counter", lambda: float(next(ticks)))
    found = step_times.measure(run_of(prepared, *SMALL), 20, 0, "cpu", lambda: None)
    # one tick for five of seven steps, and one for an evaluation with the two others
    assert found == pytest.approx({"step": 0.2, "evaluation": 0.6, "seconds": 0.2 + 0.6 * 3 / 7})


def test_a_row_without_a_prepared_file_is_refused() -> None:
    with pytest.raises(ValueError, match="row text has no --prepared file"):
        step_times.measure(step_times.Run("text", Path(), [], []), 0, 0, "cpu", lambda: None)


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(step_times.time, "perf_counter", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("changes", "apart"),
    [
        # 140 examples in seven batches of 20
        (("evaluations=3", "evaluation_steps=1"), 7 / 3),
        (("evaluations=3", "evaluation_steps=3"), 7 / 2),
        (("evaluations=30", "evaluation_steps=1"), 1),
        # in every third epoch
        (("evaluations=3", "evaluation_steps=20"), 21),
    ],
)
def test_each_part_counts_as_often_as_in_training(
    prepared, clock, monkeypatch, changes, apart
) -> None:
    def train(recipe, data, out, *, display, on_step, **given) -> None:
        config = recipe.training
        # all epochs are alike, and nothing else takes time
        assert config.curriculum == 0
        assert config.checkpoint_seconds > 1e6
        assert config.evaluations == 1
        assert math.ceil(len(data.splits["train"]) / config.batch_size) == 7
        for step in itertools.count(1):
            clock[0] += 2
            if step % 7 == 0:
                clock[0] += 5
                display.evaluated({"step": step})
            on_step(step)

    monkeypatch.setattr(step_times, "train", train)
    changes = (*SMALL, *changes, "curriculum=2")
    found = step_times.measure(run_of(prepared, *changes), 30, 0, "cpu", lambda: None)
    assert found == pytest.approx({"seconds": 2 + 5 / apart, "step": 2, "evaluation": 5})


def test_a_disturbed_measurement_is_refused(prepared, clock, monkeypatch) -> None:
    def train(recipe, data, out, *, display, on_step, **given) -> None:
        for step in itertools.count(1):
            # the steps beside an evaluation take less time than all others
            clock[0] += 9 if step % 7 not in (0, 6) else 1
            if step % 7 == 0:
                display.evaluated({"step": step})
            on_step(step)

    monkeypatch.setattr(step_times, "train", train)
    with pytest.raises(ValueError, match="keep the machine free"):
        step_times.measure(run_of(prepared, *SMALL), 30, 0, "cpu", lambda: None)


def test_steps_and_evaluations_are_told_apart(clock) -> None:
    waited = []

    def hold() -> None:
        clock[0] += 500
        waited.append(step)

    timer, step = step_times.Timer(seconds=50, warm=100, hold=hold), 0
    # before training
    clock[0] += 1000

    def train() -> None:
        nonlocal step
        # rounding varies the number of steps between evaluations by one
        for gap in itertools.cycle((5, 6)):
            for number in range(gap):
                # the first steps also compile
                clock[0] += 2 if step > 10 else 9
                step += 1
                if number == gap - 1:
                    clock[0] += 7
                    timer.evaluated({"step": step})
                timer.on_step(step)

    with pytest.raises(step_times.EnoughStepsError):
        train()
    # the first evaluation begins to warm up
    assert waited == [27]
    assert timer.means() == pytest.approx((2, 7))
    assert timer.evaluations == 3


def test_rows_take_turns_and_a_failed_one_loses_nothing(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(step_times, "answer", turns.answer)
    names, log = ("broken", "one", "dies", "refused", "two", "leaves"), tmp_path / "log.txt"
    runs = [step_times.Run(name, Path(), [], []) for name in names]
    with contextlib.closing(step_times.time_together(runs, str(log))) as rows:
        found = dict(rows)
    assert list(found) == list(names)
    assert found["one"] == found["two"] == {"seconds": 1}
    assert found["refused"] == "no data"
    assert "without an answer" in found["broken"]
    assert found["broken"] == found["dies"] == found["leaves"]
    lines = log.read_text(encoding="utf-8").split("\n")
    assert lines[:4] == ["one begins", "one ends", "two begins", "two ends"]
