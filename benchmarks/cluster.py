"""Measure sentences per second of `gumbeltree encode` in one process and on a local Ray cluster.

    python benchmarks/cluster.py --json benchmarks/results/cluster.json

The sentences are those of the generator of the recipe `demo`, and every way uses one thread per
worker. The script first checks that both ways give the same vectors. On Ray, the time starts when
every worker has encoded a few sentences, and shards finished later count. The time until then, in
which the cluster starts, is reported separately. Rounds alternate between the ways, so that other
load on the machine affects all of them, and the script reports medians. Sentences per second of CPU
time, measured in the process, depend little on such load.
"""

# ruff: noqa: E402
import os

# before NumPy is imported
for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ[f"{library}_NUM_THREADS"] = "1"

import argparse
import contextlib
import itertools
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import ray
from numpy.typing import NDArray
from rich.console import Console

import gumbeltree
from gumbeltree.bench.report import environment, print_table
from gumbeltree.ray_engine import encode_shards
from gumbeltree.sharded import Shard
from gumbeltree.tasks.demo import generate
from gumbeltree.text_model import TextModel

TOLERANCE = 1e-6


class Way(NamedTuple):
    """Vectors of one way of encoding, its rate, the time before the first result, and CPU time."""

    vectors: NDArray[np.float32]
    rate: float
    start: float = 0.0
    cpu: float = 0.0


def shards_of(texts: list[str], rows: int) -> Iterator[Shard]:
    for number, start in enumerate(range(0, len(texts), rows)):
        yield Shard(number, texts[start : start + rows], start + 1, start + rows)


def in_process(model: TextModel, texts: list[str], rows: int) -> Way:
    """Encode shard by shard in this process."""
    gumbeltree.set_threads(1)
    model.encode(texts[:256])
    start, cpu = time.perf_counter(), time.process_time()
    parts = [model.encode(shard.texts) for shard in shards_of(texts, rows)]
    cpu = time.process_time() - cpu
    rate = len(texts) / (time.perf_counter() - start)
    return Way(np.concatenate(parts), rate, cpu=cpu)


def on_ray(model: TextModel, texts: list[str], rows: int, workers: int) -> Way:
    """Encode on a new local cluster; the first shard of each worker is not timed."""
    begin = time.perf_counter()
    warm = [texts[:256]] * workers
    shards = itertools.chain((Shard(-1, x, 0, 0) for x in warm), shards_of(texts, rows))
    parts: dict[int, NDArray[np.float32]] = {}
    ready = timed = 0
    started = finished = 0.0
    results = encode_shards(shards, model, "texts", address="local", workers=workers)
    with contextlib.closing(results):
        for number, vectors, _ in results:
            finished = time.perf_counter()
            if number >= 0:
                parts[number] = vectors
                timed += len(vectors)
            else:
                ready, timed, started = ready + 1, 0, finished
    assert ready == workers
    vectors = np.concatenate([parts[number] for number in sorted(parts)])
    return Way(vectors, timed / (finished - started), started - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="sst2-100d")
    parser.add_argument("--texts", type=int, default=20_000)
    parser.add_argument("--shard-rows", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    model = gumbeltree.load(options.model, runtime="numpy")
    texts = [example.texts[0] for example in generate(options.texts, 1)]
    sizes = texts, options.shard_rows
    ways = {
        "in process, one thread": lambda: in_process(model, *sizes),
        "Ray, one worker": lambda: on_ray(model, *sizes, 1),
        "Ray, two workers": lambda: on_ray(model, *sizes, 2),
    }
    first = texts[: 4 * options.shard_rows], options.shard_rows
    expected = in_process(model, *first).vectors
    difference = float(np.abs(on_ray(model, *first, 2).vectors - expected).max())
    if not difference <= TOLERANCE:
        raise SystemExit(f"the vectors differ by {difference}")
    rates: dict[str, list[float]] = {name: [] for name in ways}
    starts: dict[str, list[float]] = {name: [] for name in ways}
    cpu: list[float] = []
    for _ in range(options.rounds):
        for name, way in ways.items():
            found = way()
            rates[name].append(found.rate)
            starts[name].append(found.start)
            cpu += [found.cpu] if found.cpu else []
    rows: list[dict[str, Any]] = []
    base = statistics.median(rates["in process, one thread"])
    for name in ways:
        rate, start = statistics.median(rates[name]), statistics.median(starts[name])
        rows.append({"way": name, "rate": rate, "start_seconds": start, "rates": rates[name]})
    words = sum(len(text.split()) for text in texts) / len(texts)
    title = f"{options.model}, {len(texts):,} sentences of {words:.1f} words, NumPy runtime"
    columns = ("", "sentences/s", "ratio", "start")
    cells = [
        (x["way"], f"{x['rate']:,.0f}", f"{x['rate'] / base:.2f}", f"{x['start_seconds']:.1f} s")
        for x in rows
    ]
    print_table(Console(), title, columns, cells)
    cpu_rate = len(texts) / statistics.median(cpu)
    print(f"in process, one thread: {cpu_rate:,.0f} sentences per second of CPU time")
    print(f"largest difference between the vectors: {difference:.1e}")
    if options.json:
        report = environment()
        report["machine"]["cores"] = os.cpu_count()
        report["machine"]["load"] = os.getloadavg()[0]
        report["versions"] |= {"numpy": np.__version__, "ray": ray.__version__}
        report |= {
            "model": options.model,
            "texts": len(texts),
            "words": words,
            "shard_rows": options.shard_rows,
            "difference": difference,
            "cpu_rate": cpu_rate,
            "rows": rows,
        }
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
