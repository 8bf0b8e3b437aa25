"""Measure how threads change the speed of encoding and training, on a quiet and on a busy machine.

    python benchmarks/threads.py --json benchmarks/results/threads.json

Each way of using threads runs in its own process. The processes take turns, one short round each,
so that other load on the machine affects all of them alike. For the busy case, another process
spins in a loop. The rates of a way are compared with those of one thread in the same turn.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WAYS = {"one": ["--threads", "1"], "torch": ["--plain"], "default": []}
"""One thread, all operations on torch's default number of threads, and gumbeltree's default."""
STEPS = {"train-100d": ("text", 32), "train-300d": ("snli-300d", 128)}
"""Recipe and number of examples per step."""
CASES = ("encode", *STEPS)


def encoding() -> tuple[int, Callable[[], object]]:
    """Encode 1,024 sentences with the packaged model sst2-100d."""
    import gumbeltree

    model = gumbeltree.load("sst2-100d", "cpu")
    chooser = random.Random(0)
    words = sorted(model.tokenizer.get_vocab())
    texts = [" ".join(chooser.choices(words, k=chooser.randint(5, 40))) for _ in range(1024)]
    return len(texts), lambda: model.encode(texts, pretokenized=True)


def training(recipe: str, rows: int) -> tuple[int, Callable[[], object]]:
    """Take one training step with random sentences of 5 to 40 of 10,000 words."""
    import dataclasses

    import numpy as np

    from gumbeltree.config import load_recipe
    from gumbeltree.data.split import Split
    from gumbeltree.model import SentenceModel
    from gumbeltree.text.tokenizer import whitespace_tokenizer
    from gumbeltree.training.optimizers import new_optimizer
    from gumbeltree.training.start import start_fabric
    from gumbeltree.training.step import Step

    loaded = load_recipe(recipe)
    head = loaded.model.head
    if head.labels == ("?",):
        head = dataclasses.replace(head, labels=("bad", "good"))
    config = dataclasses.replace(loaded.model, head=head)
    model = SentenceModel(config, whitespace_tokenizer(map(str, range(10_000)), lower=False))
    generator = np.random.default_rng(0)
    columns = 2 if head.kind.startswith("pair") else 1
    lengths = generator.integers(5, 41, size=columns * rows * 4)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    split = Split(
        words=generator.integers(2, 10_000, size=starts[-1]).astype(np.uint16),
        starts=starts,
        sentences=np.arange(columns * rows * 4).reshape(-1, columns).astype(np.int32),
        labels=np.zeros(rows * 4, np.int64),
    )
    fabric = start_fabric("cpu", "32")
    module, optimizer = fabric.setup(model, new_optimizer(loaded.training, model, fabric.device))
    step = Step(fabric, module, model, optimizer, split, loaded.training)
    count = 0

    def take() -> None:
        nonlocal count
        step(np.arange(rows) + rows * (count % 4), 0, count)
        count += 1

    return rows, take


def work(case: str, threads: int | None, plain: bool) -> None:
    """Take turns, one per line of standard input, and print the rate of each."""
    from gumbeltree import threads as own

    if not plain:
        own.prepare_environment()
    own.set_threads(threads)
    if plain:
        # no limits, and one batch at a time
        own._libraries = dict
        own.MOST = 1
    items, run = encoding() if case == "encode" else training(*STEPS[case])
    run()
    print("ready", flush=True)
    for _ in sys.stdin:
        start, done = time.perf_counter(), 0
        while (seconds := time.perf_counter() - start) < 0.5:
            run()
            done += items
        print(done / seconds, flush=True)


def measure(case: str, turns: int, spinning: int) -> dict[str, Any]:
    """Return the rates of all ways and their ratios to one thread, beside `spinning` processes."""
    environment = {name: x for name, x in os.environ.items() if not name.startswith("OMP_")}
    spinners = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(spinning)
    ]
    workers = {}
    try:
        for way, options in WAYS.items():
            workers[way] = subprocess.Popen(
                [sys.executable, __file__, "--case", case, *options],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        for worker in workers.values():
            assert worker.stdout.readline() == "ready\n"
        rates: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(turns):
            for way, worker in workers.items():
                worker.stdin.write("\n")
                worker.stdin.flush()
                rates[way].append(float(worker.stdout.readline()))
    finally:
        for process in (*spinners, *workers.values()):
            process.kill()
            process.wait()
    return {
        "case": case,
        "spinning": spinning,
        "load": os.getloadavg()[0],
        "rate": {way: statistics.median(found) for way, found in rates.items()},
        "ratio": {
            way: statistics.median(x / one for x, one in zip(found, rates["one"], strict=True))
            for way, found in rates.items()
        },
    }


def main() -> None:
    """Run all cases and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--spinning", nargs="+", type=int, default=[0, 1], help="busy processes")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        work(options.case, options.threads, options.plain)
        return
    rows = []
    print(f"{os.cpu_count()} cores; rate per second (ratio to one thread)")
    for spinning in options.spinning:
        for case in options.cases:
            row = measure(case, options.turns, spinning)
            rows.append(row)
            figures = (f"{way} {row['rate'][way]:,.0f} ({row['ratio'][way]:.2f})" for way in WAYS)
            print(f"{case:11} beside {spinning} busy:", "  ".join(figures), flush=True)
    if options.json:
        from gumbeltree.bench.report import environment

        report = {**environment(), "rows": rows}
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
