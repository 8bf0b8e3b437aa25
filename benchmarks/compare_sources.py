"""Time the kernels of two source trees in turn, on one CUDA device.

    python benchmarks/compare_sources.py OLD/src NEW/src [--rounds 2] [--json FILE]

Each round runs both trees in separate processes, the old one first, and checks that `fused` equals
`exact`. Times are the lowest median over rounds, memory is the highest that torch reserved.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAM = """
import json
from gumbeltree.bench import cuda
cuda.correctness()
sizes, found = cuda.CudaSizes(examples=25_600, passes=7), {}
for recipe, precision, batches in (
    ("snli-300d", "tf32", "random"), ("snli-300d", "tf32", "bucketed"),
    ("snli-300d", "32", "random"), ("snli-300d", "bf16", "random"),
    ("snli-600d", "tf32", "random"),
):
    row = cuda.training(recipe, precision, batches, sizes)
    found[f"training, {recipe}, {precision}, {batches}"] = row["median"], row["bytes"]
for precision in ("tf32", "32", "bf16"):
    row = cuda.inference(precision, sizes)
    found[f"inference, {precision}"] = row["median"], row["bytes"]
for words in (64, 512):
    row = cuda.growth(words, 128)
    found[f"one sentence of {words} words, training"] = row["training"]["median"], row["bytes"]
    found[f"one sentence of {words} words, inference"] = row["inference"]["median"], 0
print(json.dumps(found))
"""


def measure(source: Path) -> dict[str, list[float]]:
    """Return the seconds and bytes of each case for a source tree."""
    environment = {**os.environ, "PYTHONPATH": str(source.resolve())}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{source}: {done.stderr.strip().splitlines()[-1]}")
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Print the ratios of new to old."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rounds: dict[str, list[dict[str, list[float]]]] = {"old": [], "new": []}
    for _ in range(given.rounds):
        for name in rounds:
            rounds[name].append(measure(getattr(given, name)))
    rows: dict[str, dict[str, Any]] = {}
    for name in rounds["old"][0]:
        seconds = {tree: min(found[name][0] for found in rounds[tree]) for tree in rounds}
        memory = {tree: max(found[name][1] for found in rounds[tree]) for tree in rounds}
        rows[name] = {"seconds": seconds, "bytes": memory}
        ratio = seconds["new"] / seconds["old"]
        room = f"{memory['new'] / memory['old']:.3f}" if memory["old"] else ""
        print(f"{name:48} {1e3 * seconds['old']:8.3f} ms  time {ratio:.3f}  memory {room}")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
