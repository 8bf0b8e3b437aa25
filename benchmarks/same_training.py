"""Check that two versions of the source train the rows of a plan alike, bit for bit.

    python benchmarks/same_training.py same.json OLD/src NEW/src PLAN.toml... [--jobs 4]

Runs of an older commit stay comparable with newer ones if the code between the two did not change
how they train. Each version trains seed 0 of every row for an epoch. A row is the same if all
metrics of all evaluations are, in all digits; these depend on every weight. A row that fails in
either version, such as one whose recipe did not exist yet, is reported with its error. Rows that
were compared before, for the same versions and machine, are not trained again.
"""

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from train_all import Run, one_of_each, read_plans

from gumbeltree.bench.report import environment
from gumbeltree.code_version import source_digest

Metrics = list[dict[str, Any]]


def metrics_of(run: Run, source: Path, epochs: int, options: list[str]) -> Metrics | str:
    """Train a run with a version of the source; return its metrics without times, or an error."""
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary) / "run"
        # the folder of the plan is not used
        train = run.train[: run.train.index("--out")]
        # -P: the version is that of PYTHONPATH, whatever the current folder contains
        command = [sys.executable, "-P", "-m", "gumbeltree", *train, "--set", f"epochs={epochs}"]
        done = subprocess.run(
            [*command, *options, "--out", str(out)], text=True, capture_output=True, check=False,
            env={**os.environ, "PYTHONPATH": str(source.resolve())},
        )  # fmt: skip
        if done.returncode:
            return (done.stderr.strip().splitlines() or ["no message"])[-1]
        lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        found = [{k: x for k, x in json.loads(line).items() if k != "seconds"} for line in lines]
        return found or "no evaluations"


def compare(old: Metrics | str, new: Metrics | str) -> dict[str, Any]:
    """Return whether two lists of metrics are the same, and where they first differ."""
    if isinstance(old, str) or isinstance(new, str):
        errors = {"old": old, "new": new}
        return {"same": False, "error": {k: x for k, x in errors.items() if isinstance(x, str)}}
    pairs = list(zip(old, new, strict=False))
    differing = next((x for x, y in pairs if x != y), None)
    found = {"same": old == new, "steps": new[-1]["step"], "evaluations": len(new)}
    return found if differing is None else found | {"differs_at_step": differing["step"]}


def main() -> int:
    """Compare all rows; write what is known after each of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("json", type=Path, help="JSON file for the outcome")
    parser.add_argument("old", type=Path, metavar="OLD/src")
    parser.add_argument("new", type=Path, metavar="NEW/src")
    parser.add_argument("plans", nargs="+", type=Path, metavar="PLAN.toml")
    parser.add_argument("--rows", nargs="+", default=[], help="names or patterns, default: all")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="trainings at the same time")
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    try:
        wanted = one_of_each(read_plans(given.plans, Path(), given.rows))
        sources = {x: source_digest(getattr(given, x) / "gumbeltree") for x in ("old", "new")}
    except (OSError, ValueError) as error:
        parser.error(str(error))
    here = environment()
    about = {"machine": here["machine"], "versions": here["versions"], **sources}
    if torch.cuda.is_available() and given.device != "cpu":
        about["machine"]["gpu"] = torch.cuda.get_device_name()
    about["epochs"] = given.epochs
    pairs = json.loads(given.json.read_text(encoding="utf-8")) if given.json.exists() else []
    pair = next((x for x in pairs if x | {"rows": {}} == about | {"rows": {}}), None)
    if pair is None:
        pair = about | {"rows": {}}
        pairs.append(pair)
    options = ["--device", given.device]
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        waiting = {
            name: [
                pool.submit(metrics_of, run, source, given.epochs, options)
                for source in (given.old, given.new)
            ]
            for name, run in wanted.items()
            if "error" in pair["rows"].get(name, {"error": {}})
        }
        for name in wanted:
            if name in waiting:
                pair["rows"][name] = compare(*(x.result() for x in waiting[name]))
            found = pair["rows"][name]
            print(f"{name}: {'same' if found['same'] else found}", flush=True)
            given.json.write_text(json.dumps(pairs, indent=1) + "\n", encoding="utf-8")
    return 0 if all(pair["rows"][name]["same"] for name in wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
