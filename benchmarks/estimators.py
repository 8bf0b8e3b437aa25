"""Time training steps with every estimator against ST-Gumbel, on a CPU and on a CUDA device.

    python benchmarks/estimators.py estimators.json

The script first checks the estimators with a local gradient: `exact` against `reference` in float64
and, on a CUDA device, `fused` against `exact` at every precision. It stops if they differ by more
than rounding. It then times whole training steps on pairs of random words with the sentence lengths
of SNLI: with `exact` on the CPU, and captured steps of `fused` on a CUDA device, where policy
gradients are timed too. The estimators take turns, and a ratio is the median over all turns of the
time relative to that of ST-Gumbel in the same turn.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from gumbeltree.bench import cuda
from gumbeltree.bench.cases import largest_error, snli_step
from gumbeltree.bench.report import environment, format_time, quantiles
from gumbeltree.config import EncoderConfig

ESTIMATORS: dict[str, dict[str, Any]] = {
    "st_gumbel": {"kind": "st_gumbel"},
    "st": {"kind": "st"},
    "st, decoupled": {"kind": "st", "forward_temperature": 0.5},
    "gumbel_rao, 10 draws": {"kind": "gumbel_rao", "samples": 10},
    "gapped": {"kind": "gapped"},
    "reinmax": {"kind": "reinmax"},
    "spigot": {"kind": "spigot"},
    "spigot, ce": {"kind": "spigot", "variant": "ce"},
    "spigot, eg": {"kind": "spigot", "variant": "eg"},
}
POLICIES: dict[str, dict[str, Any]] = {
    "reinforce": {"kind": "reinforce"},
    "reinforce, self-critical": {"kind": "reinforce", "baseline": "self_critical"},
    "reinforce, leave-one-out": {"kind": "reinforce", "baseline": "rloo"},
    "reinforce, nvil": {"kind": "reinforce", "baseline": "nvil"},
    "ppo": {"kind": "ppo", "baseline": "self_critical"},
}


class Sizes(NamedTuple):
    """Sizes and repetitions of the measurements."""

    recipe: str = "snli-300d"
    width: int = 300
    pairs: int = 128
    examples: int = 12_800
    cpu_batches: int = 2
    rounds: int = 7
    warm_up: int = 2


QUICK = Sizes("snli-100d", 20, 4, 16, 1, 2, 1)
Steps = Mapping[str, Callable[[], object]]


def checked(on_cuda: bool, width: int) -> dict[str, Any]:
    """Compare the implementations of every estimator; raise ValueError if they differ."""
    report: dict[str, Any] = {}
    for name, settings in ESTIMATORS.items():
        error = largest_error(estimator=settings)
        if not error < 1e-10:
            raise ValueError(f"exact differs from reference by {error:.1e} in float64: {name}")
        row: dict[str, Any] = {"exact": error}
        if on_cuda:
            config = EncoderConfig(width, width, estimator=settings)
            row["fused"] = cuda.correctness(config, keys=True)
        report[name] = row
        print(f"{name}: {json.dumps(row)}", flush=True)
    return report


def turns(
    steps: Steps, count: int, sizes: Sizes, finish: Callable[[], object]
) -> dict[str, dict[str, float]]:
    """Run `count` steps of each estimator in turn; return seconds a step and ratios to ST-Gumbel.

    `finish` waits until the device has finished.
    """
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    for number in range(sizes.warm_up + sizes.rounds):
        # another one comes first in every round
        for name in names[number % len(names) :] + names[: number % len(names)]:
            finish()
            start = time.perf_counter()
            steps[name]()
            finish()
            seconds[name].append((time.perf_counter() - start) / count)
    found = {name: values[sizes.warm_up :] for name, values in seconds.items()}
    return {
        name: {
            **quantiles(values),
            "ratio": statistics.median(
                x / y for x, y in zip(values, found["st_gumbel"], strict=True)
            ),
        }
        for name, values in found.items()
    }


def on_cpu(sizes: Sizes) -> dict[str, dict[str, float]]:
    """Time training steps of `exact` on the CPU."""
    steps = {}
    for name, settings in ESTIMATORS.items():
        step = snli_step(
            "exact", "training", sizes.recipe, sizes.pairs, sizes.cpu_batches, estimator=settings
        )
        steps[name] = partial(repeat, step, sizes.cpu_batches)
    return turns(steps, sizes.cpu_batches, sizes, lambda: None)


def repeat(step: Callable[[], object], count: int) -> None:
    """Call `step` several times."""
    for _ in range(count):
        step()


def on_card(batches: str, sizes: Sizes) -> dict[str, dict[str, float]]:
    """Time captured training steps of `fused` per batch, with random or bucketed batches."""
    data = cuda.CudaSizes(pairs=sizes.pairs, examples=sizes.examples)
    steps: dict[str, Callable[[], object]] = {}
    for name, settings in (ESTIMATORS | POLICIES).items():
        _, step, chosen = cuda.setup(
            sizes.recipe, "tf32", batches, data, impl="fused", estimator=settings
        )
        steps[name] = partial(run_all, step, chosen)
    return turns(steps, len(chosen), sizes, torch.cuda.synchronize)


def run_all(step: Callable[..., object], batches: list[np.ndarray]) -> None:
    """Run the step on all batches."""
    for rows in batches:
        step(rows, 0, 0)


def measure(sizes: Sizes, devices: list[str], path: Path) -> dict[str, Any]:
    """Check all estimators, then time them; write what is known to `path` after each case."""
    report: dict[str, Any] = {**environment(), "quick": sizes == QUICK}
    report["estimators"] = ESTIMATORS | POLICIES
    if "cuda" in devices:
        report["machine"]["gpu"] = torch.cuda.get_device_name()
    report["correctness"] = checked("cuda" in devices, sizes.width)
    report["cases"] = {}
    cases: dict[str, Callable[[], dict[str, dict[str, float]]]] = {}
    if "cuda" in devices:
        cases |= {
            f"cuda, {batches} batches": partial(on_card, batches, sizes)
            for batches in ("random", "bucketed")
        }
    if "cpu" in devices:
        cases["cpu"] = partial(on_cpu, sizes)
    for case, run in cases.items():
        report["cases"][case] = run()
        for name, row in report["cases"][case].items():
            line = f"{case}: {name:24} {format_time(row['median']):>11}  {row['ratio']:.3f}"
            print(line, flush=True)
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return report


def main() -> None:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("json", type=Path, help="JSON file for all figures")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="only this device")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to check the script")
    given = parser.parse_args()
    here = torch.cuda.is_available()
    if given.device == "cuda" and not here:
        parser.error("this machine has no CUDA device; pass --device cpu")
    devices = [given.device] if given.device else ["cpu", *(["cuda"] if here else [])]
    given.json.parent.mkdir(parents=True, exist_ok=True)
    measure(QUICK if given.quick else Sizes(), devices, given.json)


if __name__ == "__main__":
    main()
