"""Count the training steps of several processes on one GPU, with and without CUDA's MPS.

    python benchmarks/side_by_side.py side.json [--jobs 1 4 15] [--recipes sst2 nse-matched]

Several processes normally take turns on a GPU. With the Multi-Process Service (MPS), their kernels
run at the same time. `--connections` also measures MPS with other numbers of queues between a
process and the GPU (CUDA_DEVICE_MAX_CONNECTIONS, 8 by default). Each process trains a model of its
own on the random batches of `peer_speed.py`. The processes of all modes are started, compile and
warm up together; measurements alternate between the modes, and all other processes wait. `ratio`
compares the steps per second of all processes with those of one process without MPS, as the median
over the rounds.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from peer_speed import QUICK, SIZES, split_of, step_of
from train_all import mps

from gumbeltree.bench.report import environment
from gumbeltree.config import load_recipe
from gumbeltree.data.split import shuffled
from gumbeltree.training.loop import LOOK_EVERY


def work(
    pipe: Connection, recipes: Sequence[str], device: str, variables: Mapping[str, str], quick: bool
) -> None:
    """Warm up a step of each recipe; then answer each (recipe, seconds) with a number of steps."""
    os.environ.update(variables)
    torch.set_num_threads(1)
    steps = {}
    sizes = QUICK if quick else SIZES[device]
    for name in recipes:
        recipe = load_recipe(name)
        split = split_of(recipe, sizes.examples)
        size = max(1, recipe.training.batch_size // sizes.share)
        batches = [x for x in shuffled(split, size, 0, 0) if len(x) == size][: sizes.batches]
        step, _ = step_of(recipe, split, device)
        for number, batch in enumerate(batches):
            step(batch, 0, number)
        steps[name] = step, batches
        float(step.loss)
    pipe.send("ready")
    while (order := pipe.recv()) is not None:
        name, seconds = order
        step, batches = steps[name]
        count, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            step(batches[count % len(batches)], 0, count)
            count += 1
            # as often as training waits for the device
            if count % LOOK_EVERY == 0:
                float(step.loss)
        float(step.loss)
        pipe.send(count / (time.perf_counter() - end + seconds))


def answer(pipe: Connection) -> Any:
    """Return what a process sends; end with a message if it has died."""
    try:
        return pipe.recv()
    except EOFError:
        raise SystemExit("a process ended before its measurement; its error is above") from None


class Workers:
    """Processes that have warmed up."""

    def __init__(self, number: int, *given: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipes: list[Connection] = []
        self.processes = []
        for _ in range(number):
            ours, theirs = context.Pipe()
            self.processes.append(context.Process(target=work, args=(theirs, *given), daemon=True))
            self.processes[-1].start()
            theirs.close()
            self.pipes.append(ours)

    def wait(self) -> None:
        for pipe in self.pipes:
            answer(pipe)

    def rate(self, jobs: int, recipe: str, seconds: float) -> float:
        """Return the steps per second of all of the first `jobs` processes."""
        for pipe in self.pipes[:jobs]:
            pipe.send((recipe, seconds))
        return sum(answer(pipe) for pipe in self.pipes[:jobs])

    def end(self) -> None:
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.send(None)
        for process in self.processes:
            process.join()


def main() -> None:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("json", type=Path, help="JSON file for all figures")
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 4, 15], help="processes")
    parser.add_argument(
        "--connections", type=int, nargs="*", default=[], help="with MPS also so many"
    )
    parser.add_argument("--recipes", nargs="+", default=["sst2", "nse-matched"])
    parser.add_argument("--seconds", type=float, default=2.0, help="time of a measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", choices=SIZES, default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to check the script")
    given = parser.parse_args()
    report: dict[str, Any] = {**environment(), "rows": []}
    with contextlib.ExitStack() as stack:
        modes: dict[str, Mapping[str, str]] = {"alone": {}}
        if given.device == "cuda":
            report["machine"]["gpu"] = torch.cuda.get_device_name()
            modes["mps"] = stack.enter_context(mps())
            for number in given.connections:
                changed = {"CUDA_DEVICE_MAX_CONNECTIONS": str(number)}
                modes[f"mps, connections={number}"] = {**modes["mps"], **changed}
        workers = {}
        for mode, variables in modes.items():
            workers[mode] = Workers(
                max(given.jobs), given.recipes, given.device, variables, given.quick
            )
            stack.callback(workers[mode].end)
        start = time.perf_counter()
        for mode, group in workers.items():
            group.wait()
            print(f"{mode}: ready after {time.perf_counter() - start:.0f} s", flush=True)
        for recipe in given.recipes:
            rates: dict[tuple[str, int], list[float]] = {}
            for number in range(given.rounds):
                cases = [(mode, jobs) for jobs in given.jobs for mode in modes]
                for mode, jobs in cases[:: -1 if number % 2 else 1]:
                    rate = workers[mode].rate(jobs, recipe, given.seconds)
                    rates.setdefault((mode, jobs), []).append(rate)
                    print(f"{recipe}, {jobs} processes, {mode}: {rate:.0f} steps/s", flush=True)
            base = rates["alone", given.jobs[0]]
            for (mode, jobs), found in rates.items():
                ratio = statistics.median(x / y for x, y in zip(found, base, strict=True))
                row = {"recipe": recipe, "mode": mode, "jobs": jobs, "rates": found, "ratio": ratio}
                report["rows"].append(row)
                print(f"{recipe}, {jobs} processes, {mode}: {ratio:.2f}", flush=True)
            given.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
