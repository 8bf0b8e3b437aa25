"""Time the steps of every row of a plan alone on the machine.

    python benchmarks/step_times.py times.json PLAN.toml... [--seconds 10]

The rows of `train_all.py` train side by side, so their times are only upper bounds. This script
trains seed 0 of each row for a short time with nothing beside it, and records the mean time of a
step between evaluations, including these. `write_results.py` multiplies this time, from
results/step_times.json, by the number of steps to the best evaluation. Compilation and graph
capture, which come before the first evaluation, are stated apart in `first`. Every row needs a
prepared file. Rows that are already in the file are not timed again.
"""

import argparse
import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from train_all import Run, read_plan

from gumbeltree.bench.report import environment, format_time
from gumbeltree.config import load_recipe, with_settings
from gumbeltree.data.prepared import load_prepared
from gumbeltree.training.display import Display
from gumbeltree.training.loop import train

EVALUATIONS = 3
"""Evaluations that a time needs: steps are measured from the first one on."""


class EnoughStepsError(Exception):
    """The row has been timed."""


class Records(Display):
    """Keeps the metrics of all evaluations and shows nothing."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.found: list[dict[str, Any]] = []

    def evaluated(self, record: dict[str, Any]) -> None:
        self.found.append(record)


def measure(run: Run, seconds: float, device: str) -> dict[str, Any]:
    """Return the mean seconds of a step, and those until the first evaluation."""
    if "--prepared" not in run.train:
        raise ValueError(f"row {run.row} has no --prepared file; prepare its data first")
    data = load_prepared(Path(run.train[run.train.index("--prepared") + 1]))
    name, *changes = run.row.split(" ")
    recipe = with_settings(load_recipe(name), changes)
    records = Records()
    begin = time.perf_counter()

    def on_step(step: int) -> None:
        if len(records.found) >= EVALUATIONS and time.perf_counter() - begin > seconds:
            raise EnoughStepsError

    with tempfile.TemporaryDirectory() as out, contextlib.suppress(EnoughStepsError):
        train(recipe, data, f"{out}/run", device=device, display=records, test=False,
              on_step=on_step)  # fmt: skip
    if len(records.found) < 2:
        raise ValueError(f"row {run.row} has fewer than two evaluations; nothing to measure")
    first, last = records.found[0], records.found[-1]
    steps = last["step"] - first["step"]
    return {
        "seconds": (last["seconds"] - first["seconds"]) / steps,
        "steps": steps,
        "first": first["seconds"],
    }


def main() -> None:
    """Time the rows of all plans; write what is known after each row."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("json", type=Path, help="JSON file for all times")
    parser.add_argument("plans", nargs="+", type=Path, metavar="PLAN.toml")
    parser.add_argument("--seconds", type=float, default=10.0, help="least time of a row")
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    runs = {run.row: run for plan in given.plans for run in reversed(read_plan(plan, Path()))}
    found: dict[str, Any] = {**environment(), "rows": {}}
    if torch.cuda.is_available():
        found["machine"]["gpu"] = torch.cuda.get_device_name()
    if given.json.exists():
        before = json.loads(given.json.read_text(encoding="utf-8"))
        if before | {"rows": {}} != found:
            parser.error(f"{given.json} has times of another machine or code; write to a new file")
        found = before
    for name, run in runs.items():
        if name not in found["rows"]:
            row = measure(run, given.seconds, given.device)
            found["rows"][name] = row
            given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            print(f"{name}: {format_time(row['seconds'])} a step", flush=True)


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError) as problem:
        sys.exit(f"step_times: error: {problem}")
