"""Time training steps with the gated recursive cell on a CUDA device, eager and captured.

    python benchmarks/gated.py gated.json

The script first checks that `fused` and `exact` agree at every precision, and stops if they differ
by more than rounding. It then times whole training steps, from word ids to updated weights, on
random words: 128 sentences of 100 words, 128 of 27, 128 of 1 to 100 (27 on average), and one of 950
words. Memory is the peak of what a step allocates in addition to weights and data;
`reserved` includes caches and graphs.
"""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gumbeltree.bench.cuda import correctness, passes, release
from gumbeltree.bench.report import environment, format_size, format_time
from gumbeltree.config import EncoderConfig, load_recipe
from gumbeltree.data.split import Split
from gumbeltree.model import SentenceModel
from gumbeltree.text.tokenizer import whitespace_tokenizer
from gumbeltree.training.optimizers import new_optimizer
from gumbeltree.training.start import start_fabric
from gumbeltree.training.step import CapturedStep, Step, why_not_captured

VOCABULARY = 16
BATCHES = 4
"""Batches of each case; all have the same bounds, so they share a graph."""
WAYS = {"exact": ("exact", False), "eager": ("fused", False), "captured": ("fused", True)}
"""Implementation and whether the step is captured."""


def listops_lengths(sentences: int) -> NDArray[np.int64]:
    """Return lengths from 1 to 100 with a mean of 27, as in the training data of ListOps."""
    shares = (np.arange(sentences) + 0.5) / sentences
    # exponential with this scale, cut off at 100
    lengths = -30.5 * np.log1p(-shares * (1 - np.exp(-100 / 30.5)))
    return np.clip(np.ceil(lengths), 1, 100).astype(np.int64)


def split_of(lengths: Sequence[int]) -> Split:
    """Return BATCHES batches of random words, each with these sentence lengths."""
    generator = np.random.default_rng(0)
    counts = np.tile(np.asarray(lengths, dtype=np.int64), BATCHES)
    starts = np.concatenate([[0], np.cumsum(counts)])
    return Split(
        generator.integers(2, VOCABULARY, starts[-1]).astype(np.uint16),
        starts,
        np.arange(len(counts), dtype=np.int32)[:, None],
        generator.integers(0, 10, len(counts)),
    )


def encoder_config(width: int, impl: str = "auto") -> EncoderConfig:
    """Return the settings of the encoder."""
    return EncoderConfig(width, width, cell="gated", leaf="norm", impl=impl)


def step_of(width: int, impl: str, captured: bool, precision: str, split: Split) -> Step:
    """Return the training step of a ListOps model with the gated cell."""
    recipe = load_recipe("listops")
    config = dataclasses.replace(recipe.model, encoder=encoder_config(width, impl))
    training = dataclasses.replace(recipe.training, precision=precision)
    torch.manual_seed(0)
    words = map(str, range(VOCABULARY - 2))
    model = SentenceModel(config, whitespace_tokenizer(words, lower=False))
    fabric = start_fabric("cuda", precision)
    optimizer = new_optimizer(training, model, fabric.device)
    module, wrapped = fabric.setup(model, optimizer)
    if not captured:
        return Step(fabric, module, model, wrapped, split, training)
    if reason := why_not_captured(fabric, model):
        raise ValueError(f"the step cannot be captured: {reason}")
    return CapturedStep(fabric, model, optimizer, split, training)


def timed(
    name: str, lengths: Sequence[int], way: str, precision: str, width: int, count: int
) -> dict[str, Any]:
    """Time one way of running the steps of one case."""
    release()
    impl, captured = WAYS[way]
    split = split_of(lengths)
    step = step_of(width, impl, captured, precision, split)
    batches = list(np.arange(len(split)).reshape(BATCHES, -1))
    before = torch.cuda.memory_allocated()
    seconds = passes(lambda rows: step(rows, 0, 0), batches, count)
    # the passes include two for warm-up
    loss = float(step.loss) / (len(split) * (count + 2))
    if not np.isfinite(loss):
        raise ValueError(f"the loss is {loss} in {name}, {way}, {precision}; benchmark aborted")
    return {
        "case": name,
        "way": way,
        "precision": precision,
        **seconds,
        "bytes": torch.cuda.max_memory_allocated() - before,
        "reserved": torch.cuda.max_memory_reserved(),
        "loss": loss,
    }


def measure(quick: bool) -> dict[str, Any]:
    """Check correctness, then time all cases; `quick` uses tiny sizes."""
    width, sentences, longest, count = (16, 4, 20, 2) if quick else (128, 128, 950, 5)
    report: dict[str, Any] = {**environment(), "quick": quick, "width": width}
    report["machine"]["gpu"] = torch.cuda.get_device_name()
    report["correctness"] = correctness(encoder_config(width))
    print(json.dumps(report["correctness"]), flush=True)
    words = (10, 5) if quick else (100, 27)
    cases: dict[str, Sequence[int]] = {f"{sentences} x {n} words": [n] * sentences for n in words}
    cases["ListOps lengths"] = listops_lengths(sentences).clip(max=words[0]).tolist()
    cases[f"1 x {longest} words"] = [longest]
    report["cases"] = []
    for name, lengths in cases.items():
        for way in WAYS:
            for precision in ("tf32", "32", "bf16") if way == "captured" else ("tf32",):
                row = timed(name, lengths, way, precision, width, 2 if way == "exact" else count)
                report["cases"].append(row)
                print(
                    f"{name}, {way}, {precision}: {format_time(row['median'])}, "
                    f"{format_size(row['bytes'])}, reserved {format_size(row['reserved'])}",
                    flush=True,
                )
    return report


def main() -> None:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("json", type=Path, help="JSON file for all figures")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to check the script")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this machine has no CUDA device")
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(measure(arguments.quick), indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
