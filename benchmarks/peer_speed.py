"""Time a training step of every system that the paper compares itself with, beside the Gumbel tree.

    python benchmarks/peer_speed.py peers.json [--device cuda]

Each matched recipe differs from its base in the encoder alone. RNTN and the byte mLSTM have no
matched recipe; their own ones are timed with batches of the base. Steps go from word ids to updated
weights, on random words with the sentence lengths of SNLI's development set, in bucketed batches of
the recipe's size (a quarter of it on a CPU); given trees are random. All systems of a base take
turns within each round, and `ratio` is the median over the rounds of a system's time divided by
that of the base in the same round. Steps are captured as CUDA graphs where an encoder allows it,
and there are few different batches, because each needs a graph of its own. On a GPU, systems with
kernels of their own are also timed without them: `exact` has the time with PyTorch operations, and
its ratio to the time with kernels.
"""

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from gumbeltree.bench.cases import snli_lengths
from gumbeltree.bench.report import environment, format_time
from gumbeltree.config import Recipe, load_recipe, recipe_names, with_settings
from gumbeltree.data.split import Split, shuffled
from gumbeltree.describe import count_parameters
from gumbeltree.model import SentenceModel
from gumbeltree.text.tokenizer import whitespace_tokenizer
from gumbeltree.training.optimizers import new_optimizer
from gumbeltree.training.start import start_fabric
from gumbeltree.training.step import CapturedStep, Step, why_not_captured

BASES = ("snli-300d", "snli-100d", "sst2")
OTHERS = {"sst2": ("rntn-sst2", "byte-mlstm-small-sst2")}
"""Recipes of systems without a matched one, timed beside a base."""
EXACT = "encoder.impl=exact"
WITH_KERNELS = ("spinn", "latent_syntax", "cyk")
"""Encoders, other than the bases, that have kernels of their own."""
VOCABULARY = 5_000


class Sizes(NamedTuple):
    examples: int
    rounds: int
    share: int
    """Divisor of the recipe's batch size."""
    batches: int
    """Number of different batches."""


SIZES = {"cpu": Sizes(512, 7, 4, 20), "cuda": Sizes(5_120, 20, 1, 5)}
QUICK = Sizes(16, 2, 32, 2)


def systems(base: str) -> list[str]:
    """Return a base and the recipes that are matched with it."""
    plain = load_recipe(base)
    matched = [
        name
        for name in recipe_names()
        if name.endswith("-matched")
        and load_recipe(name).data == plain.data
        and load_recipe(name).model.head == plain.model.head
    ]
    return [base, *matched]


def split_of(recipe: Recipe, examples: int) -> Split:
    """Return examples of random words with random trees, whose nodes have random labels."""
    generator = np.random.default_rng(0)
    pair = recipe.model.head.kind == "pair"
    sides = [
        generator.choice(len(counts), examples, p=np.array(counts) / sum(counts))
        for counts in snli_lengths()[: 1 + pair]
    ]
    lengths = np.stack(sides, axis=1)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    left = np.concatenate([np.arange(n - 1, 0, -1) for n in lengths.reshape(-1)])
    classes = len(recipe.model.head.labels)
    return Split(
        generator.integers(2, VOCABULARY, starts[-1]).astype(np.uint32),
        starts.astype(np.int64),
        np.arange(lengths.size, dtype=np.int32).reshape(lengths.shape),
        generator.integers(0, classes, examples),
        (generator.random(len(left)) * left).astype(np.uint32),
        generator.integers(0, classes, 2 * starts[-1] - lengths.size).astype(np.int16),
    )


def step_of(recipe: Recipe, split: Split, device: str) -> tuple[Step, str | None]:
    """Return a training step, and why it is not captured."""
    torch.manual_seed(0)
    words = (f"w{i}" for i in range(VOCABULARY - 2))
    model = SentenceModel(recipe.model, whitespace_tokenizer(words, lower=False)).train()
    needs = model.encoder.needs | model.encoder.learns_from
    if "order" not in needs:
        split = dataclasses.replace(split, orders=None)
    if not model.head.node_targets:
        split = dataclasses.replace(split, node_labels=None)
    fabric = start_fabric(device, recipe.training.precision)
    optimizer = new_optimizer(recipe.training, model, fabric.device)
    module, wrapped = fabric.setup(model, optimizer)
    reason = why_not_captured(fabric, model)
    if reason:
        return Step(fabric, module, model, wrapped, split, recipe.training), reason
    return CapturedStep(fabric, model, optimizer, split, recipe.training), None


def turns(steps: dict[str, Callable[[int], None]], rounds: int, wait: Callable[[], object]) -> Any:
    """Return the seconds of each step in each round; the order alternates."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds):
        for name in list(steps)[:: -1 if number % 2 else 1]:
            wait()
            start = time.perf_counter()
            steps[name](number)
            wait()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def measure(base: str, device: str, sizes: Sizes) -> list[dict[str, Any]]:
    """Time the systems of a base."""
    plain = load_recipe(base)
    split = split_of(plain, sizes.examples)
    size = max(1, plain.training.batch_size // sizes.share)
    batches = [x for x in shuffled(split, size, 0, 0) if len(x) == size][: sizes.batches]
    steps: dict[str, Callable[[int], None]] = {}
    about: dict[str, dict[str, Any]] = {}
    names = [*systems(base), *OTHERS.get(base, ())]
    if device == "cuda":
        kinds = {name: load_recipe(name).model.encoder.kind for name in names}
        names += [f"{name} {EXACT}" for name in names if kinds[name] in WITH_KERNELS]
    for name in names:
        start = time.perf_counter()
        known, *changes = name.split(" ")
        recipe = with_settings(load_recipe(known), changes)
        step, reason = step_of(recipe, split, device)
        about[name] = {
            "recipe": name,
            "base": base,
            "batch": size,
            "parameters": count_parameters(recipe.model)["total"],
            "captured": reason is None,
        }

        def run(number: int, step: Step = step) -> None:
            step(batches[number % len(batches)], 0, number)
            if not np.isfinite(float(step.loss)):
                raise ValueError("the loss is not finite; benchmark aborted")

        # kernels are compiled and graphs captured before the measurement
        for number in range(min(sizes.rounds, len(batches)) if reason is None else 1):
            run(number)
        steps[name] = run
        took = format_time(time.perf_counter() - start)
        eager = f", not captured: {reason}" if reason and device == "cuda" else ""
        print(f"{name} is ready after {took}{eager}", flush=True)
    wait: Callable[[], object] = torch.cuda.synchronize if device == "cuda" else lambda: None
    seconds = turns(steps, sizes.rounds, wait)

    def beside(name: str, other: str) -> dict[str, float]:
        own = seconds[name]
        ratio = statistics.median(a / b for a, b in zip(own, seconds[other], strict=True))
        print(f"{name}: {format_time(statistics.median(own))}, {ratio:.2f} of {other}", flush=True)
        return {"seconds": statistics.median(own), "ratio": ratio}

    rows = []
    for name in names:
        if not name.endswith(EXACT):
            rows.append({**about[name], **beside(name, base)})
            if f"{name} {EXACT}" in seconds:
                rows[-1]["exact"] = beside(f"{name} {EXACT}", name)
    return rows


def main() -> None:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("json", type=Path, help="JSON file for all figures")
    parser.add_argument("--device", choices=SIZES, default="cpu")
    parser.add_argument("--bases", nargs="+", choices=BASES, default=BASES)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to check the script")
    given = parser.parse_args()
    report: dict[str, Any] = {**environment(), "device": given.device}
    if given.device == "cuda":
        report["machine"]["gpu"] = torch.cuda.get_device_name()
    sizes = QUICK if given.quick else SIZES[given.device]
    report["rows"] = []
    for base in given.bases:
        report["rows"] += measure(base, given.device, sizes)
        given.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
