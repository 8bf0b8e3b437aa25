"""Measure time and memory of tree encoders on long inputs, and plot them against the length.

    python benchmarks/long_inputs.py long.json [--device cuda] [--plot long.png]

The models are those of ListOps: 128D, the gated recursive cell, with one learned tree (the encoder
`gumbel_tree`) and with five (`beam_tree`). One step on one input is measured per length: training,
from word ids to updated weights, and inference. The first case is one pass over 100 inputs of 901
to 999 words, one at a time. On a CPU, every case runs in a new process on one thread, and memory is
what the process adds at its peak; on a CUDA device, it is all that torch reserves at its peak.
Steps on a CUDA device are captured as graphs: `first` is the time of the calls that capture them,
the other times are those of replays. Cases that the file already has, measured with the same code
on the same machine, are kept.
"""

import argparse
import json
import math
import multiprocessing
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gumbeltree.bench.cuda import release
from gumbeltree.bench.memory import resident
from gumbeltree.bench.report import environment, format_size, format_time
from gumbeltree.config import load_recipe, with_settings
from gumbeltree.data.split import Split
from gumbeltree.model import SentenceModel
from gumbeltree.plots import pyplot, save_picture
from gumbeltree.states import Draw
from gumbeltree.text.tokenizer import whitespace_tokenizer
from gumbeltree.training.loop import new_optimizer
from gumbeltree.training.start import start_fabric
from gumbeltree.training.step import CapturedStep, Step, why_not_captured

VOCABULARY = 16
ENCODERS = {"one tree": "gumbel_tree", "five trees": "beam_tree"}


class Sizes(NamedTuple):
    width: int
    training: tuple[int, ...]
    inference: tuple[int, ...]
    pass_over: tuple[int, int, int]
    """Number of inputs of the first case, their smallest and their largest length."""


FULL = Sizes(128, (125, 250, 500, 1000), (1024, 2048, 4096, 8192, 16384), (100, 901, 999))
QUICK = Sizes(8, (8, 16), (16, 32), (3, 10, 12))


class Case(NamedTuple):
    encoder: str
    mode: str
    lengths: tuple[int, ...]
    """Words of each input."""
    width: int
    device: str


def split_of(lengths: tuple[int, ...]) -> Split:
    """Return inputs of random words."""
    generator = np.random.default_rng(0)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return Split(
        generator.integers(2, VOCABULARY, starts[-1]).astype(np.uint16),
        starts,
        np.arange(len(lengths), dtype=np.int32)[:, None],
        generator.integers(0, 10, len(lengths)),
    )


class Measured:
    """A model, and one training step or one prediction per input."""

    def __init__(self, case: Case) -> None:
        kind = [f"encoder.kind={case.encoder}", "leaf=norm", "cell=gated", "cell.dropout=0"]
        kind.append("max_words=20000")
        width = [f"encoder.hidden_dim={case.width}", f"embedding_dim={case.width}"]
        recipe = with_settings(load_recipe("listops-beams"), [*kind, *width])
        torch.manual_seed(0)
        words = map(str, range(VOCABULARY - 2))
        self.model = SentenceModel(recipe.model, whitespace_tokenizer(words, lower=False))
        fabric = start_fabric(case.device, recipe.training.precision)
        self.device, self.split = fabric.device, split_of(case.lengths)
        self.training = case.mode == "training"
        optimizer = new_optimizer(recipe.training, self.model, fabric.device)
        module, wrapped = fabric.setup(self.model, optimizer)
        given = self.split, recipe.training
        self.step: Step
        if why_not_captured(fabric, self.model) is None:
            self.step = CapturedStep(fabric, self.model, optimizer, *given)
        else:
            self.step = Step(fabric, module, self.model, wrapped, *given)
        self.model.train(self.training)

    def __call__(self, row: int) -> None:
        rows: NDArray[np.int64] = np.array([row])
        if self.training:
            self.step(rows, 0, row)
            return
        with torch.inference_mode():
            self.model(self.split.batch(rows, self.device).sentences, Draw())


def measure(case: Case) -> dict[str, Any]:
    """Return seconds per input and the peak of the memory in bytes."""
    cuda = case.device == "cuda"
    if cuda:
        release()
    else:
        torch.set_num_threads(1)
        # load libraries outside the measurement
        Measured(case._replace(lengths=(3,)))(0)
    run = Measured(case)
    rows = range(len(case.lengths))
    begin = time.perf_counter()
    first = None
    if cuda:
        # the first call runs eagerly, and the second of each size captures a graph
        for row in (*rows, *rows):
            run(row)
        torch.cuda.synchronize()
        first = time.perf_counter() - begin
        torch.cuda.reset_peak_memory_stats()
    else:
        before = resident("VmRSS")
        # reset the peak, because imports use more memory than a small step
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    begin = time.perf_counter()
    for row in rows:
        run(row)
    if cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    if case.mode == "training" and not math.isfinite(float(run.step.loss)):
        raise ValueError(f"the loss of {case} is not finite; benchmark aborted")
    size = torch.cuda.max_memory_reserved() if cuda else max(resident("VmHWM") - before, 1)
    row = {**case._asdict(), "seconds": seconds, "first": first, "bytes": size}
    return row | {"lengths": [min(case.lengths), max(case.lengths)], "inputs": len(case.lengths)}


def exponent(rows: list[dict[str, Any]], value: str) -> float:
    """Return the fitted power of the length that a value grows with."""
    x = [math.log(row["lengths"][1]) for row in rows]
    return statistics.linear_regression(x, [math.log(row[value]) for row in rows]).slope


def measured(path: Path, found: dict[str, Any], width: int) -> list[dict[str, Any]]:
    """Return the cases of a file that the same code has measured on the same machine."""
    if not path.exists():
        return []
    earlier = json.loads(path.read_text(encoding="utf-8"))
    same = all(earlier[x] == found[x] for x in ("machine", "versions", "device"))
    same = same and earlier["code"]["source"] == found["code"]["source"]
    return [row for row in earlier["rows"] if same and row["width"] == width]


def report(device: str, sizes: Sizes, path: Path) -> dict[str, Any]:
    """Measure all cases; write what is known to `path` after each of them."""
    count, low, high = sizes.pass_over
    lengths = tuple(int(n) for n in np.random.default_rng(0).integers(low, high + 1, count))
    cases = [
        *(Case(x, "training", lengths, sizes.width, device) for x in ENCODERS.values()),
        *(Case(x, "training", (n,), sizes.width, device) for x in ENCODERS.values()
          for n in sizes.training),
        *(Case(x, "inference", (n,), sizes.width, device) for x in ENCODERS.values()
          for n in sizes.inference),
    ]  # fmt: skip
    found = {**environment(), "device": device, "rows": []}
    if device == "cuda":
        found["machine"]["gpu"] = torch.cuda.get_device_name()
    found["rows"] = measured(path, found, sizes.width)
    context = multiprocessing.get_context("spawn")
    for case in cases[len(found["rows"]) :]:
        if device == "cuda":
            row = measure(case)
        else:
            with context.Pool(1) as pool:
                row = pool.apply(measure, (case,))
        found["rows"].append(row)
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        of = f"{row['inputs']} x {row['lengths'][1]} words, {case.encoder}, {case.mode}"
        print(f"{of}: {format_time(row['seconds'])}, {format_size(row['bytes'])}", flush=True)
    found["exponents"] = {
        f"{kind}, {mode}, {value}": exponent(
            [x for x in found["rows"]
             if (x["encoder"], x["mode"], x["inputs"]) == (kind, mode, 1)], value)
        for kind in ENCODERS.values() for mode in ("training", "inference")
        for value in ("seconds", "bytes")
    }  # fmt: skip
    print(json.dumps(found["exponents"], indent=1))
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def draw(found: dict[str, Any], path: Path) -> None:
    """Plot seconds and memory against the length."""
    plt = pyplot()
    figure, axes = plt.subplots(1, 4, figsize=(13, 3.4), layout="constrained")
    panels = [(m, v) for m in ("training", "inference") for v in ("seconds", "bytes")]
    for axis, (mode, value) in zip(axes, panels, strict=True):
        for (label, kind), colour in zip(ENCODERS.items(), ("#0072b2", "#d55e00"), strict=True):
            key = (kind, mode, 1)
            rows = [x for x in found["rows"] if (x["encoder"], x["mode"], x["inputs"]) == key]
            y = [x[value] / (2**20 if value == "bytes" else 1) for x in rows]
            power = found["exponents"][f"{kind}, {mode}, {value}"]
            text = f"{label}, T^{power:.2f}"
            axis.plot([x["lengths"][1] for x in rows], y, "o-", color=colour, label=text)
        what = "memory, MiB" if value == "bytes" else "seconds"
        axis.set(title=f"{mode}: {what}", xlabel="tokens T", xscale="log", yscale="log")
        axis.set_xticks(
            sorted(
                {x["lengths"][1] for x in found["rows"] if x["mode"] == mode and x["inputs"] == 1}
            )
        )
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.yaxis.set_major_locator(plt.LogLocator(subs=(1, 2, 5), numticks=99))
        axis.yaxis.set_major_formatter("{x:,g}")
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
    machine = found["machine"].get("gpu") or f"{found['machine']['cpu']}, one thread"
    width = found["rows"][0]["width"]
    figure.suptitle(f"One input of T tokens, gated recursive cell, {width}D, {machine}")
    save_picture(figure, path)


def main() -> None:
    """Measure, write the report and draw it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("json", type=Path, help="JSON file for all figures")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--plot", type=Path, help="picture, such as long.png")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to check the script")
    given = parser.parse_args()
    found = report(given.device, QUICK if given.quick else FULL, given.json)
    if given.plot:
        draw(found, given.plot)


if __name__ == "__main__":
    main()
