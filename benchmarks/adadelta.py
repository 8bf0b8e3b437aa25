"""Compare Adadelta by row with that of torch on the weights of `sst2`, whose word vectors learn.

    python benchmarks/adadelta.py benchmarks/results/adadelta_cpu.json [--device cuda]

In each round, both optimizers update equal weights by equal gradients, those of a batch of random
words, and take turns in going first. On a GPU, each update is a CUDA graph. Weights are compared
before the measurement and after it. `ratio` is the median over the rounds of the time of torch's
update divided by that of ours.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gumbeltree.bench.report import environment, format_time
from gumbeltree.config import load_recipe
from gumbeltree.model import SentenceModel
from gumbeltree.text.tokenizer import whitespace_tokenizer
from gumbeltree.training.optimizers import Adadelta, make_state

SETTINGS: dict[str, Any] = {"lr": 1.0, "rho": 0.9, "eps": 1e-6}
TOLERANCE = 1e-4
"""Largest difference of the weights, relative to how far they have moved."""


def parameters_of(words: int, device: str) -> list[Tensor]:
    """Return the weights of `sst2` with so many word vectors, and a gradient for each."""
    torch.manual_seed(0)
    tokenizer = whitespace_tokenizer((f"w{i}" for i in range(words - 2)), lower=False)
    model = SentenceModel(load_recipe("sst2").model, tokenizer).to(device)
    parameters = [p for p in model.parameters() if p.requires_grad]
    for p in parameters:
        p.grad = torch.zeros_like(p)
    return parameters


def captured(update: Callable[[], None], device: str) -> Callable[[], None]:
    """Return the update as a CUDA graph, or itself on a CPU."""
    if device == "cpu":
        return update
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        # compiles the kernel
        update()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        update()
    return graph.replay


def draw_gradients(sets: list[list[Tensor]], batch: int) -> None:
    """Give all sets of weights the same new gradients; few words have one."""
    vectors, *others = sets[0]
    present = torch.randint(2, len(vectors), (batch,), device=vectors.device)
    found = [torch.zeros_like(vectors), *(1e-2 * torch.randn_like(p) for p in others)]
    found[0][present] = 1e-2 * torch.randn(batch, vectors.shape[1], device=vectors.device)
    for parameters in sets:
        for p, gradient in zip(parameters, found, strict=True):
            assert p.grad is not None
            p.grad.copy_(gradient)


def check(ours: list[Tensor], torchs: list[Tensor], start: list[Tensor]) -> float:
    """Return the largest relative difference of the weights; fail if it is not that of rounding."""
    worst = 0.0
    for one, other, first in zip(ours, torchs, start, strict=True):
        worst = max(worst, float((one - other).norm() / (other - first).norm()))
    if not worst < TOLERANCE:
        raise SystemExit(f"the optimizers differ by {worst:.2g}; nothing was measured")
    return worst


@torch.no_grad()
def measure(words: int, batch: int, rounds: int, device: str) -> dict[str, Any]:
    """Time both updates with so many word vectors, of which `batch` have a gradient."""
    ours, torchs = parameters_of(words, device), parameters_of(words, device)
    start = [p.clone() for p in ours]
    optimizers = {
        "ours": Adadelta(ours, **SETTINGS),
        "torch": torch.optim.Adadelta(torchs, **SETTINGS, capturable=device == "cuda"),
    }
    for optimizer, parameters in zip(optimizers.values(), (ours, torchs), strict=True):
        gradients = [p.grad for p in parameters]
        make_state(optimizer, parameters)
        for p, gradient in zip(parameters, gradients, strict=True):
            p.grad = gradient
    updates = {name: captured(x.step, device) for name, x in optimizers.items()}
    wait: Callable[[], object] = torch.cuda.synchronize if device == "cuda" else lambda: None

    def turn(names: list[str]) -> dict[str, float]:
        draw_gradients([ours, torchs], batch)
        seconds = {}
        for name in names:
            wait()
            begin = time.perf_counter()
            updates[name]()
            wait()
            seconds[name] = time.perf_counter() - begin
        return seconds

    for _ in range(5):
        turn(list(updates))
    check(ours, torchs, start)
    found = [turn(list(updates)[:: -1 if number % 2 else 1]) for number in range(rounds)]
    return {
        "words": words,
        "with_gradient": batch,
        "seconds": {name: statistics.median(x[name] for x in found) for name in updates},
        "ratio": statistics.median(x["torch"] / x["ours"] for x in found),
        "difference": check(ours, torchs, start),
    }


def main() -> None:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("json", type=Path, help="JSON file for all figures")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--words", type=int, nargs="+", default=[5_000, 22_431, 100_000])
    parser.add_argument("--batch", type=int, default=240, help="words with a gradient")
    parser.add_argument("--rounds", type=int, default=50)
    given = parser.parse_args()
    report: dict[str, Any] = {**environment(), "device": given.device, "rows": []}
    if given.device == "cuda":
        report["machine"]["gpu"] = torch.cuda.get_device_name()
    for words in given.words:
        row = measure(words, given.batch, given.rounds, given.device)
        report["rows"].append(row)
        ours, torchs = (format_time(row["seconds"][name]) for name in ("ours", "torch"))
        print(
            f"{words:,} words: {torchs} with torch, {ours} by row, {row['ratio']:.1f}x", flush=True
        )
    given.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
