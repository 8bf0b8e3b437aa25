"""Compare an exported model in onnxruntime with the NumPy runtime and with torch, on one thread.

    python benchmarks/onnx_speed.py sst2-100d mr.csv.gz
    python benchmarks/onnx_speed.py snli-100d snli_1.0_dev.jsonl.gz --json snli.json

Reads texts from a table with a column `text`, or pairs from a file of SNLI. The script first checks
that all runtimes agree: equal trees, and vectors and probabilities within 1e-5, on the texts and on
texts of 1 and of 200 words. It then measures the encoder and the head; tokenization is not
included, and all runtimes get the same batches of sentences of similar length. Rounds alternate
between the runtimes, so other work on the machine slows down all of them. The figures are those of
the best round, in CPU time, which other work affects less than elapsed time.
"""

# This file must not be called onnx.py: Python would import it instead of the package.
# ruff: noqa: E402
import os

# before NumPy, torch and onnxruntime are imported
for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ[f"{library}_NUM_THREADS"] = "1"

import argparse
import csv
import gzip
import itertools
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import torch

import gumbeltree
import gumbeltree.onnx
from gumbeltree.answers import softmax
from gumbeltree.bench.report import environment
from gumbeltree.text.ids import TextReader
from gumbeltree.text_model import TextModel

Ids = list[list[int]]


class Answer(NamedTuple):
    """Outputs for one batch; vectors and trees of the first and second sentences."""

    vectors: list[Any]
    orders: list[Any]
    probabilities: Any


def read_texts(path: Path, count: int) -> list[list[str]]:
    """Return one list of texts per sentence of an example."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        if ".csv" in path.name:
            return [[row["text"] for row in itertools.islice(csv.DictReader(file), count)]]
        rows = [json.loads(line) for line in itertools.islice(file, count)]
        return [[row[name] for row in rows] for name in ("sentence1", "sentence2")]


def ours(model: TextModel, columns: list[Ids]) -> Answer:
    """Run a model of gumbeltree on one batch."""
    found = [model.encode_ids(ids) for ids in columns]
    encoded = [model.as_numpy(x) for x in found]
    shares = softmax(model.head_output(*found))
    return Answer([x.vector for x in encoded], [x.order for x in encoded], shares)


def theirs(session: Any, columns: list[Ids]) -> Answer:
    """Run the exported model on one batch."""
    feed, second = {}, len(columns) == 2
    for suffix, sentences in zip(("", "2"), columns, strict=False):
        lengths = np.array([len(ids) for ids in sentences])
        ids = np.zeros((len(lengths), lengths.max()), np.int64)
        for row, own in zip(ids, sentences, strict=True):
            row[: len(own)] = own
        feed |= {f"ids{suffix}": ids, f"lengths{suffix}": lengths}
    names = ["vector", "order", "probabilities", *(["vector2", "order2"] if second else [])]
    vector, order, shares, *more = session.run(names, feed)
    return Answer([vector, *more[:1]], [order, *more[1:]], shares)


def check(expected: Answer, found: Answer) -> tuple[float, float]:
    """Return the largest differences of vectors and probabilities; raise if they are too large."""
    pairs = zip(expected.vectors, found.vectors, strict=True)
    vectors = max(float(np.abs(a - b).max()) for a, b in pairs)
    shares = float(np.abs(expected.probabilities - found.probabilities).max())
    orders = zip(expected.orders, found.orders, strict=True)
    if max(vectors, shares) > 1e-5 or not all(np.array_equal(a, b) for a, b in orders):
        raise SystemExit(f"the runtimes disagree: {vectors=:.1e} {shares=:.1e}, or trees differ")
    return vectors, shares


def batches(columns: list[Ids], size: int) -> list[list[Ids]]:
    """Return batches of examples of similar length."""
    order = sorted(range(len(columns[0])), key=lambda row: [len(ids[row]) for ids in columns])
    groups = [order[i : i + size] for i in range(0, len(order), size)]
    return [[[ids[row] for row in group] for ids in columns] for group in groups]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("data", type=Path, help="a table with a column `text`, or a file of SNLI")
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    gumbeltree.set_threads(1)
    light = gumbeltree.load(arguments.model, runtime="numpy")
    model = gumbeltree.load(arguments.model, runtime="torch")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        gumbeltree.onnx.export(light, path)
        session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
    runtimes: dict[str, Callable[[list[Ids]], Answer]] = {
        "onnxruntime": lambda columns: theirs(session, columns),
        "numpy": lambda columns: ours(light, columns),
        "torch": lambda columns: ours(model, columns),
    }
    reader = TextReader(light.tokenizer, light.config.max_words, False, None)
    texts = read_texts(arguments.data, arguments.texts)
    columns = [[sentence.ids for sentence in reader.read(column, 0, False)] for column in texts]
    words = sum(len(ids) for column in columns for ids in column)

    # real texts in their own order, so that batches mix lengths, and extreme lengths
    chance = np.random.default_rng(0)
    cases = [[ids[i : i + 32] for ids in columns] for i in range(0, len(columns[0]), 32)]
    for lengths in ([1], [200], [200, 1, 30]):
        drawn = [chance.integers(0, 1000, length).tolist() for length in lengths]
        cases.append([drawn, drawn[::-1]][: len(columns)])
    cases += [[[ids[i]] for ids in columns] for i in range(len(columns[0]))]
    different = []
    for case in cases:
        expected = ours(model, case)
        different += [
            check(expected, run(case)) for name, run in runtimes.items() if name != "torch"
        ]
    errors = dict(
        zip(("vectors", "probabilities"), map(max, zip(*different, strict=True)), strict=True)
    )
    print(f"{arguments.model}, {len(columns[0]):,} examples, {words:,} words: all trees equal, "
          f"vectors within {errors['vectors']:.0e}, probabilities within "
          f"{errors['probabilities']:.0e}")  # fmt: skip

    results: list[dict[str, Any]] = []
    for size in (1, 32):
        groups = batches(columns, size)
        cpu: dict[str, list[float]] = {name: [] for name in runtimes}
        elapsed: dict[str, list[float]] = {name: [] for name in runtimes}
        for _ in range(arguments.rounds):
            for name, run in runtimes.items():
                start, used = time.perf_counter(), time.process_time()
                for group in groups:
                    run(group)
                cpu[name].append(time.process_time() - used)
                elapsed[name].append(time.perf_counter() - start)
        sentences = len(columns) * len(columns[0])
        for name in runtimes:
            best = min(cpu[name])
            ratio = min(cpu["numpy"]) / best
            results.append(
                {
                    "batch": size,
                    "runtime": name,
                    "cpu_seconds": best,
                    "elapsed_seconds": min(elapsed[name]),
                    "sentences_per_cpu_second": sentences / best,
                    "times_numpy": ratio,
                }
            )
            print(f"  batch {size:2}, {name:11}: {sentences / best:8,.0f} sentences per CPU s, "
                  f"{ratio:.2f}x NumPy")  # fmt: skip
    report = environment()
    report["machine"]["threads"] = 1
    for package in (np, onnx, onnxruntime):
        report["versions"][package.__name__] = package.__version__
    report |= {
        "model": arguments.model,
        "data": arguments.data.name,
        "examples": len(columns[0]),
        "words": words,
        "opset": gumbeltree.onnx.OPSET,
        "errors": errors,
        "results": results,
    }
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
