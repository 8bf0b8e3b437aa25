"""Time the steps of every row of a plan alone on the machine.

    python benchmarks/step_times.py times.json PLAN.toml... [--seconds 2] [--jobs 15]

The rows of `train_all.py` train side by side, so their times are only upper bounds. This script
trains seed 0 of each row for a short time, and records the mean time of a step and that of an
evaluation. `seconds` is the time of a step with its share of the evaluations that the recipe asks
for; `write_results.py` multiplies it, from results/step_times.json, by the number of steps to the
best evaluation. Compilation and most captures of graphs come before and are not included. Every
row needs a prepared file. Rows that are already in the file are not timed again.

`--jobs` rows at a time read their data, compile and warm up side by side. They are then timed one
after the other, while all others wait.
"""

import argparse
import contextlib
import json
import math
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from train_all import Run, one_of_each, read_plans

from gumbeltree.bench.report import environment, format_time
from gumbeltree.config import load_recipe, with_settings
from gumbeltree.data.prepared import load_prepared
from gumbeltree.training.display import Display
from gumbeltree.training.loop import train

GAP = 100
"""Most steps between two evaluations of a measurement."""


class EnoughStepsError(Exception):
    """The row has been timed."""


class Timer(Display):
    """Times steps and evaluations of a training run that it is the display of.

    Args:
        seconds: least time to measure.
        warm: least time of training before, from the first evaluation.
        hold: called before the measurement; returns when nothing else uses the machine.
    """

    def __init__(self, seconds: float, warm: float, hold: Callable[[], object]) -> None:
        super().__init__(quiet=True)
        self.seconds, self.hold = seconds, hold
        self.begin, self.warm = 0.0, warm
        self.measuring = False
        self.last, self.evaluations = 0, 0
        self.timed = 0
        """Steps after each evaluation that are timed: rounding varies the gap by one."""
        self.started = self.paused = 0.0
        self.steps, self.stepping, self.rest, self.evaluating = 0, 0.0, 0, 0.0

    def evaluated(self, record: dict[str, Any]) -> None:
        """Note the time of an evaluation, whose values have been read from the device."""
        now, step = time.perf_counter(), record["step"]
        if not self.last:
            # the first steps load and compile
            self.begin = now
        if self.measuring and self.paused:
            self.evaluations += 1
            self.rest += step - self.last - self.timed
            self.evaluating += now - self.paused
            if self.evaluations > 1 and now - self.begin > self.seconds:
                raise EnoughStepsError
        elif not self.measuring and self.last and now - self.begin > self.warm:
            self.timed = step - self.last - 2
            self.hold()
            self.measuring, self.begin = True, time.perf_counter()
        self.started, self.paused, self.last = time.perf_counter(), 0.0, step

    def on_step(self, step: int) -> None:
        """Note the time of all steps since the last evaluation but those just before the next."""
        if self.measuring and step == self.last + self.timed:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self.paused = time.perf_counter()
            self.steps += self.timed
            self.stepping += self.paused - self.started

    def means(self) -> tuple[float, float]:
        """Return the mean seconds of a step and of an evaluation."""
        step = self.stepping / self.steps
        return step, (self.evaluating - self.rest * step) / self.evaluations


def measure(
    run: Run, seconds: float, warm: float, device: str, hold: Callable[[], object]
) -> dict[str, float]:
    """Return the seconds of a step with its share of evaluations, and those of each alone."""
    if "--prepared" not in run.train:
        raise ValueError(f"row {run.row} has no --prepared file; prepare its data first")
    data = load_prepared(Path(run.train[run.train.index("--prepared") + 1]))
    name, *changes = run.row.split(" ")
    recipe = with_settings(load_recipe(name), changes)
    config = recipe.training
    batches = math.ceil(len(data.splits["train"]) / config.batch_size)
    evaluations = min(batches // 4, max(config.evaluations, math.ceil(batches / GAP)))
    if evaluations < 1:
        raise ValueError(f"row {run.row} has {batches} batches; timing it needs four or more")
    timer = Timer(seconds, warm, hold)
    # no epoch is shorter than another, and no checkpoint is written while steps are timed
    often = replace(
        config, evaluations=evaluations, evaluation_steps=1, epochs=1000, stop_after=0,
        stop_halvings=0, curriculum=0, checkpoint_seconds=1e9,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as out, contextlib.suppress(EnoughStepsError):
        train(replace(recipe, training=often), data, f"{out}/run", device=device, display=timer,
              test=False, on_step=timer.on_step)  # fmt: skip
    step, evaluation = timer.means()
    if evaluation < 0:
        raise ValueError(
            f"row {run.row} took less time for an evaluation and the steps beside it than for the "
            "steps alone; keep the machine free of other work, or raise --seconds"
        )
    # as training spaces them
    least = max(1, config.evaluation_steps)
    count = min(config.evaluations, max(1, batches // least))
    apart = batches * math.ceil(least / batches) / count
    return {"seconds": step + evaluation / apart, "step": step, "evaluation": evaluation}


def answer(pipe: Connection, run: Run, seconds: float, warm: float, device: str) -> None:
    """Measure a row in a process of its own: say when it is ready, wait, and send the times."""

    def hold() -> None:
        pipe.send(None)
        pipe.recv()

    try:
        pipe.send(measure(run, seconds, warm, device, hold))
    except (OSError, ValueError) as error:
        pipe.send(str(error))


def time_together(runs: Sequence[Run], *given: Any) -> Iterator[tuple[str, Any]]:
    """Yield the times of each row, or an error message; rows start together, and then take turns.

    Args:
        runs: one run of each row.
        given: the further arguments of `answer`.
    """
    context = multiprocessing.get_context("spawn")
    started = []
    for run in runs:
        ours, theirs = context.Pipe()
        process = context.Process(target=answer, args=(theirs, run, *given), daemon=True)
        process.start()
        theirs.close()
        started.append((run, ours, process))

    def receive(pipe: Connection) -> Any:
        try:
            return pipe.recv()
        except (EOFError, OSError):
            return "the process ended without an answer; see its messages above"

    # None if ready, an error otherwise
    for (run, pipe, process), found in [(each, receive(each[1])) for each in started]:
        if found is None:
            with contextlib.suppress(OSError):
                pipe.send(None)
            found = receive(pipe)
        # nothing else uses the machine while the next one is timed
        process.join()
        yield run.row, found


def main() -> int:
    """Time the rows of all plans; write what is known after each of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("json", type=Path, help="JSON file for all times")
    parser.add_argument("plans", nargs="+", type=Path, metavar="PLAN.toml")
    parser.add_argument("--rows", nargs="+", default=[], help="names or patterns, default: all")
    parser.add_argument("--seconds", type=float, default=2.0, help="least time of a row")
    parser.add_argument("--warm", type=float, default=5.0, help="least time before")
    parser.add_argument("--jobs", type=int, default=1, help="rows that warm up side by side")
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    if given.jobs < 1:
        parser.error(f"--jobs must be at least 1, got {given.jobs}")
    if not given.json.parent.is_dir():
        parser.error(f"the folder of {given.json} does not exist; create it first")
    runs = one_of_each(read_plans(given.plans, Path(), given.rows))
    found: dict[str, Any] = {**environment(), "rows": {}}
    if torch.cuda.is_available():
        found["machine"]["gpu"] = torch.cuda.get_device_name()
    if given.json.exists():
        before = json.loads(given.json.read_text(encoding="utf-8"))
        if before | {"rows": {}} != found:
            parser.error(f"{given.json} has times of another machine or code; write to a new file")
        found = before
    failed = False
    waiting = [run for name, run in runs.items() if name not in found["rows"]]
    for first in range(0, len(waiting), given.jobs):
        group = waiting[first : first + given.jobs]
        for name, row in time_together(group, given.seconds, given.warm, given.device):
            if isinstance(row, str):
                failed = True
                print(f"{name}: {row}", flush=True)
            else:
                found["rows"][name] = row
                print(f"{name}: {format_time(row['seconds'])} a step", flush=True)
                given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, ValueError) as problem:
        sys.exit(f"step_times: error: {problem}")
