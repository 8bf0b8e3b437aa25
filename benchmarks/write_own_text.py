"""Fill the tables of docs/own_text.md from benchmarks/results/own_text.jsonl.

    python benchmarks/write_own_text.py

Replaces the text between `<!-- own text: NAME -->` and `<!-- end -->`; everything else is written
by hand. The file has one line per run of benchmarks/own_text.py. own_text_costs.jsonl has further
runs on a CPU, of methods whose accuracies come from a GPU.
"""

import json
import re
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from write_results import spread, table

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "own_text.md"
RESULTS = ROOT / "benchmarks" / "results" / "own_text.jsonl"
COSTS = ROOT / "benchmarks" / "results" / "own_text_costs.jsonl"
SECTION = re.compile(r"(<!-- own text: ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)
SETS = {"sst2": "SST-2", "mr": "MR", "trec": "TREC", "subj": "Subj", "sst5": "SST-5"}
METHODS = {
    "tree": "**tree, the recipe's default**",
    "lstm": "`--encoder lstm`",
    "bag": "`--encoder bag`",
    "before": "tree, earlier settings",
    "bilstm": "BiLSTM, max-pooling",
    "fasttext": "fastText",
    "tfidf": "TF-IDF, logistic regression",
}

Run = dict[str, Any]


def select(runs: Iterable[Run], **fields: Any) -> list[Run]:
    """Return the runs with the given fields."""
    return [run for run in runs if fields.items() <= run.items()]


def accuracy(runs: list[Run]) -> str:
    """Return mean and deviation of the test accuracies in percent, and the number of runs if few.

    TF-IDF is deterministic and has one run.
    """
    if not runs:
        return ""
    tests = [100 * run["test"] for run in runs]
    few = len(runs) < 5 and runs[0]["method"] != "tfidf"
    return spread(tests, 1) + (f" ({len(runs)})" if few else "")


def accuracies(runs: list[Run], vectors: bool) -> str:
    """Return the accuracy of each method on each data set, and the mean over the single texts."""
    lines = []
    for method, title in METHODS.items():
        own = select(runs, method=method, vectors=vectors)
        parts = {name: select(own, set=name) for name in (*SETS, "sick")}
        if not own:
            continue
        means = [
            statistics.mean(run["test"] for run in parts[name]) for name in SETS if parts[name]
        ]
        mean = f"{100 * statistics.mean(means):.1f}" if len(means) == len(SETS) else ""
        cells = [accuracy(parts[name]) for name in SETS]
        lines.append([title, *cells, mean, accuracy(parts["sick"])])
    return table(["method", *SETS.values(), "mean of five", "SICK"], lines)


def costs(runs: list[Run]) -> str:
    """Return mean CPU time of training, size and rate on SST-2, with vectors if any."""
    lines = []
    for method, title in METHODS.items():
        own = select(runs, method=method, set="sst2", device="cpu", vectors=method != "tfidf")
        if own:
            seconds, size, rate = (
                statistics.mean(run[name] for run in own)
                for name in ("seconds", "bytes", "texts_per_second")
            )
            lines.append([title, f"{seconds:,.0f}", f"{size / 1e6:,.1f}", f"{rate:,.0f}"])
    return table(["method", "training, CPU seconds", "size, MB", "texts per second"], lines)


SECTIONS: dict[str, Callable[[list[Run], list[Run]], str]] = {
    "without vectors": lambda runs, _: accuracies(runs, vectors=False),
    "with vectors": lambda runs, _: accuracies(runs, vectors=True),
    "costs": lambda runs, more: costs([*runs, *more]),
}


def read_runs(path: Path = RESULTS) -> list[Run]:
    """Read the recorded runs."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def fill(page: str, runs: list[Run], more: list[Run]) -> str:
    """Return the page with its tables filled in."""
    return SECTION.sub(lambda m: f"{m[1]}\n{SECTIONS[m[2]](runs, more)}\n\n{m[3]}", page)


if __name__ == "__main__":
    text = fill(PAGE.read_text(encoding="utf-8"), read_runs(), read_runs(COSTS))
    PAGE.write_text(text, encoding="utf-8")
