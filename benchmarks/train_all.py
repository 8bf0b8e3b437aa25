"""Train the rows of a comparison side by side, and evaluate each of them on further files.

    python benchmarks/train_all.py PLAN.toml... --out FOLDER [--jobs 4] [--minutes 25]
        [--rows 'sst5*' ...] [--seeds 1 2 ...] [--mps]

A plan lists the rows:

    [[row]]
    recipe = "listops-beams"
    set = ["beams=3"]                          # as for `gumbeltree train --set`
    seeds = 5
    first = 0                                  # first seed
    options = ["--prepared", "listops.st"]     # further options of `gumbeltree train`
    evaluate = ["--data", "test-900-1000.tsv"] # options of `gumbeltree evaluate`

Rows that are evaluated on the same files can name them, `tests = "long"`:

    [tests]
    long = ["test.tsv", "test-900-1000.tsv"]

`recipe` can also be a list of recipes that share everything else, and `seeds` the name of a number:

    [seeds]
    matched = 3

benchmarks/plans has the plans of the documentation. `--rows` selects rows by name, such as
"sst5-tuned" or "snli-300d trees=left", or by shell patterns, and `--seeds` some of their seeds.

Each run has its own process and folder, OUT/ROW/seed-N, with the evaluation in seed-N.json and all
messages in seed-N.log beside it. `--jobs` of them run at a time. After `--minutes`, all runs save a
checkpoint and stop; the same command resumes them. A failed run does not stop the others.

Without `--mps`, the kernels of runs on the same GPU take turns. With it, they run at the same time,
through the Multi-Process Service of NVIDIA's driver, which is started and ended with the runs;
`side_by_side.py` measures what this saves.
`collect_runs.py` adds finished runs to the results.
"""

import argparse
import contextlib
import fnmatch
import functools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

KEYS: dict[str, tuple[type, ...]] = {
    **{"recipe": (str, list), "set": (list,), "seeds": (int, str), "first": (int,)},
    **{"options": (list,), "evaluate": (list,), "tests": (str,)},
}
WORDS = ["--batch-words", str(2**18)]
"""Long inputs need large batches on a GPU."""
CONTROL = "nvidia-cuda-mps-control"
PROBE = (sys.executable, "-c", "import torch; torch.ones(1, device='cuda').item()")
"""Fails where a process cannot use the service, although the service has started."""


@contextlib.contextmanager
def mps() -> Iterator[dict[str, str]]:
    """Start CUDA's Multi-Process Service; yield the environment of processes that use it."""
    with tempfile.TemporaryDirectory() as folder:
        folders = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        environment = {**os.environ, **folders}
        subprocess.run([CONTROL, "-d"], env=environment, check=True)
        try:
            subprocess.run(PROBE, env=environment, check=True)
            yield environment
        finally:
            subprocess.run([CONTROL], input=b"quit\n", env=environment, check=False)


class Run(NamedTuple):
    """One run of a row."""

    row: str
    folder: Path
    train: list[str]
    evaluate: list[str]

    @property
    def seed(self) -> int:
        return int(self.folder.name.removeprefix("seed-"))

    @property
    def trained(self) -> bool:
        return (self.folder / "result.json").is_file()

    @property
    def evaluated(self) -> bool:
        return not self.evaluate or self.beside(".json").is_file()

    def beside(self, ending: str) -> Path:
        """Return a file beside the folder, which only `gumbeltree train` may fill."""
        return self.folder.with_name(self.folder.name + ending)


def read_plan(path: Path, out: Path) -> list[Run]:
    """Return the runs of a plan, all rows with seed 0 first."""
    plan = tomllib.loads(path.read_text(encoding="utf-8"))
    named = {key: plan.pop(key, {}) for key in ("tests", "seeds")}
    rows = plan.get("row")
    if plan.keys() != {"row"} or not isinstance(rows, list) or not rows:
        raise ValueError(f"{path} must consist of tables [[row]], got {', '.join(plan) or 'none'}")
    runs: list[tuple[int, Run]] = []
    for number, row in enumerate(rows, 1):
        place = f"{path}, row {number}"
        for key, value in row.items():
            if key not in KEYS or not isinstance(value, KEYS[key]):
                known = (f"{x} ({' or '.join(t.__name__ for t in KEYS[x])})" for x in KEYS)
                raise ValueError(
                    f"{place}: unknown or invalid {key} = {value!r}; known keys are "
                    f"{', '.join(known)}"
                )
            if key in named and isinstance(value, str):
                if value not in named[key]:
                    names = ", ".join(named[key]) or "none"
                    raise ValueError(f"{place}: unknown {key} {value!r}; known: {names}")
                row[key] = named[key][value]
        if "recipe" not in row:
            raise ValueError(f"{place} has no `recipe`")
        recipes = row["recipe"]
        for recipe in [recipes] if isinstance(recipes, str) else recipes:
            new = runs_of(row | {"recipe": recipe}, out)
            if any(new[0].folder == run.folder for _, run in runs):
                raise ValueError(f"{place} repeats the row {new[0].row}")
            runs += enumerate(new)
    return [run for _, run in sorted(runs, key=lambda each: each[0])]


def read_plans(
    paths: Sequence[Path], out: Path, rows: Sequence[str] = (), seeds: Sequence[int] = ()
) -> list[Run]:
    """Return the runs of several plans, lower seeds first.

    Args:
        paths: the plans.
        out: folder for the runs.
        rows: names or shell patterns of the rows to return, by default all.
        seeds: the seeds to return, by default all.
    """
    runs: dict[Path, Run] = {}
    for run in (run for path in paths for run in read_plan(path, out)):
        if run.folder in runs:
            raise ValueError(f"two plans have the row {run.row}; pass one of them")
        runs[run.folder] = run
    names = dict.fromkeys(run.row for run in runs.values())
    for pattern in rows:
        if not fnmatch.filter(names, pattern):
            raise ValueError(f"no row matches {pattern!r}; the plans have {', '.join(names)}")
    chosen = [
        run
        for run in runs.values()
        if (not rows or any(fnmatch.fnmatchcase(run.row, x) for x in rows))
        and (not seeds or run.seed in seeds)
    ]
    if not chosen:
        raise ValueError(f"no row has one of the seeds {', '.join(map(str, seeds))}")
    return sorted(chosen, key=lambda run: run.seed)


def one_of_each(runs: Sequence[Run]) -> dict[str, Run]:
    """Return the first run of each row, by row."""
    found: dict[str, Run] = {}
    for run in runs:
        found.setdefault(run.row, run)
    return found


def runs_of(row: dict[str, Any], out: Path) -> list[Run]:
    """Return the runs of one row, by seed."""
    changes = row.get("set", [])
    name = " ".join([row["recipe"], *changes])
    evaluate = row.get("evaluate", [])
    if "tests" in row:
        evaluate = [*(x for file in row["tests"] for x in ("--data", file)), *WORDS, *evaluate]
    runs = []
    first = row.get("first", 0)
    for seed in range(first, first + row.get("seeds", 1)):
        folder = out / re.sub(r"[^\w.=-]+", "_", name) / f"seed-{seed}"
        settings = [x for change in (*changes, f"training.seed={seed}") for x in ("--set", change)]
        train = ["train", row["recipe"], *settings, *row.get("options", [])]
        check = ["evaluate", str(folder), *evaluate, "--json"] if evaluate else []
        runs.append(Run(name, folder, [*train, "--out", str(folder), "--resume"], check))
    return runs


class Work:
    """Processes of runs, a limited number at a time."""

    command = (sys.executable, "-m", "gumbeltree")

    def __init__(
        self,
        runs: list[Run],
        jobs: int,
        seconds: float,
        say: Callable[[str], None],
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.waiting = [run for run in runs if not (run.trained and run.evaluated)]
        self.jobs, self.say, self.environment = jobs, say, environment
        self.end = time.monotonic() + seconds
        self.running: dict[subprocess.Popen[bytes], Run] = {}
        self.failed: list[Run] = []

    def finish(self) -> None:
        """Run everything, or as much as the time allows."""
        try:
            while (self.waiting or self.running) and time.monotonic() < self.end:
                self.advance()
        finally:
            for process in self.running:
                process.terminate()
            for process, run in self.running.items():
                process.wait()
                self.say(f"stopped   {run.folder}")

    def advance(self) -> None:
        """Start what can run, and see what has ended."""
        while self.waiting and len(self.running) < self.jobs:
            self._start(self.waiting.pop(0))
        self._collect()
        time.sleep(0.05)

    def _start(self, run: Run) -> None:
        run.folder.parent.mkdir(parents=True, exist_ok=True)
        arguments = run.evaluate if run.trained else run.train
        command = [*self.command, *arguments]
        with open(run.beside(".part"), "wb") as out, open(run.beside(".log"), "ab") as log:
            process = subprocess.Popen(
                command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out if run.trained else log,
                stderr=log,
            )
        self.running[process] = run
        self.say(f"{'evaluate ' if run.trained else 'train    '} {run.folder}")

    def _collect(self) -> None:
        for process, run in [each for each in self.running.items() if each[0].poll() is not None]:
            del self.running[process]
            if process.returncode:
                self.failed.append(run)
                self.say(f"failed    {run.folder}, see {run.beside('.log')}")
            elif run.beside(".part").stat().st_size:
                os.replace(run.beside(".part"), run.beside(".json"))
            elif not run.evaluated:
                self.waiting.insert(0, run)


def summary(runs: list[Run]) -> list[str]:
    """Return a table with the finished seeds of each row."""
    lines = []
    for row in dict.fromkeys(run.row for run in runs):
        of_row = [run for run in runs if run.row == row]
        results = [json.loads((x.folder / "result.json").read_text()) for x in of_row if x.trained]
        parts = [f"{len(results)}/{len(of_row)} seeds"]
        for split in ("dev", "test"):
            values = [value for x in results if (value := main_value(x, split)) is not None]
            if values:
                spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
                parts.append(f"{split} {statistics.fmean(values):.4f}{spread}")
        lines.append(f"{row}: {', '.join(parts)}")
    return lines


def main_value(result: dict[str, Any], split: str) -> float | None:
    return result.get(f"{split}_{result.get('measure', 'accuracy')}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("plans", nargs="+", type=Path, help="TOML files with the rows")
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--minutes", type=float, default=1e6, help="stop after this time")
    parser.add_argument("--rows", nargs="+", default=[], help="names or patterns, default: all")
    parser.add_argument("--seeds", nargs="+", type=int, default=[], help="default: all")
    parser.add_argument("--mps", action="store_true", help="let kernels of runs overlap on a GPU")
    given = parser.parse_args()
    try:
        runs = read_plans(given.plans, given.out, given.rows, given.seeds)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    with contextlib.ExitStack() as stack:
        environment: Mapping[str, str] = os.environ
        if given.mps:
            try:
                environment = stack.enter_context(mps())
            except (OSError, subprocess.CalledProcessError) as error:
                parser.error(
                    f"--mps could not use {CONTROL}, a part of NVIDIA's driver: {error}; leave the "
                    "option out to train without it"
                )
        say = functools.partial(print, file=sys.stderr)
        work = Work(runs, given.jobs, 60 * given.minutes, say, environment)
        work.finish()
    print("\n".join(summary(runs)))
    return 1 if work.failed else 0


if __name__ == "__main__":
    sys.exit(main())
