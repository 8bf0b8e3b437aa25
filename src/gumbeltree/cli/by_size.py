"""Compare the results of a model on several files, and by the size of the examples."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gumbeltree.answers import ResultTable
from gumbeltree.data.examples import Examples
from gumbeltree.nn.heads.class_evaluation import Bucket, ClassEvaluation, buckets_of, wilson
from gumbeltree.plots import COLOURS, pyplot, save_picture
from gumbeltree.tasks.task import Task


class Result(NamedTuple):
    """Results on one file.

    Attributes:
        path: the file.
        words: mean number of words of the longer sentence.
        evaluation: the evaluation.
        sizes: results by size, empty if the task has no sizes.
        about: everything for JSON.
        note: what was read.
    """

    path: Path
    words: float
    evaluation: Any
    sizes: list[Bucket]
    about: dict[str, Any]
    note: str


def buckets(task: Task, examples: Examples, evaluation: Any) -> list[Bucket]:
    """Return how many examples of each size are correct; empty if the task has no sizes."""
    if not task.size_name or not isinstance(evaluation, ClassEvaluation) or not examples.rows:
        return []
    sizes = np.array([task.size_of(texts) for texts in examples.texts()])
    pairs = zip(examples.labels, evaluation.answers(), strict=True)
    correct = np.array([gold == guess for gold, guess in pairs])
    return buckets_of(sizes, correct, range(sizes.min(), sizes.max()), int(sizes.min()))


def as_dicts(sizes: Sequence[Bucket]) -> list[dict[str, Any]]:
    """Return results by size in a JSON-serialisable form."""
    return [
        {"size": x.shortest, "examples": x.examples, "accuracy": x.correct / x.examples}
        for x in sizes
    ]


def table(name: str, sizes: Sequence[Bucket]) -> ResultTable:
    """Return the accuracy by size as a table."""
    rows = [(f"{x.shortest}", f"{x.examples:,}", *_accuracy(x.correct, x.examples)) for x in sizes]
    header = (name, "examples", "accuracy %", "95 % interval")
    return ResultTable(f"Accuracy by {name}:", header, rows)


def comparison(results: Sequence[Result]) -> ResultTable:
    """Return one row per file: accuracy, or the main metrics of other heads."""
    names = [x.path.name for x in results]
    if len({*names}) < len(names):
        names = [str(x.path) for x in results]
    if all(isinstance(x.evaluation, ClassEvaluation) for x in results):
        header: tuple[str, ...] = ("file", "examples", "words", "accuracy %", "95 % interval")
        rows: list[tuple[str, ...]] = []
        for name, x in zip(names, results, strict=True):
            count = x.evaluation.count
            shares = _accuracy(x.evaluation.correct, count)
            rows.append((name, f"{count:,}", f"{x.words:.1f}", *shares))
        return ResultTable("", header, rows)
    rows = [
        (name, f"{x.evaluation.count:,}", x.evaluation.summary())
        for name, x in zip(names, results, strict=True)
    ]
    return ResultTable("", ("file", "examples", "results"), rows)


def draw(results: Sequence[Result], path: Path) -> None:
    """Draw the accuracy over the length: one point per file, or per bucket of a single file."""
    points = [(x.words, x.evaluation.correct, x.evaluation.count) for x in results]
    if len(results) == 1:
        points = [
            ((x.shortest + (x.longest or 1.5 * x.shortest)) / 2, x.correct, x.examples)
            for x in results[0].evaluation.by_length
        ]
    points.sort()
    words, share, low, high = [], [], [], []
    for length, correct, count in points:
        if not count:
            continue
        ends = wilson(correct, count)
        words.append(length)
        share.append(100 * correct / count)
        low.append(share[-1] - 100 * ends[0])
        high.append(100 * ends[1] - share[-1])
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    axes.errorbar(words, share, [low, high], color=COLOURS[0], marker="o", capsize=3)
    axes.set_xscale("log")
    axes.set_ylim(0, 101)
    axes.set_xlabel("words")
    axes.set_ylabel("accuracy %")
    axes.grid(alpha=0.3)
    save_picture(figure, path)


def _accuracy(correct: int, count: int) -> tuple[str, str]:
    """Return accuracy and interval in per cent."""
    if not count:
        return "", ""
    low, high = (f"{100 * end:.1f}" for end in wilson(correct, count))
    return f"{100 * correct / count:.1f}", f"{low} to {high}"
