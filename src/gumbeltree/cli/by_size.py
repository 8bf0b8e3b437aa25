"""Compare the results of a model on several files, and by the size of the examples."""

from collections.abc import Sequence
from itertools import chain, cycle
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
    names = _names(results)
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


def sizes_by_file(name: str, results: Sequence[Result]) -> ResultTable:
    """Return the accuracy by size as a table, with one column per file."""
    found = [{x.shortest: f"{100 * x.correct / x.examples:.1f}" for x in result.sizes}
             for result in results]  # fmt: skip
    rows = [(f"{size}", *(x.get(size, "") for x in found)) for size in sorted({*chain(*found)})]
    return ResultTable(f"Accuracy % by {name}:", (name, *_names(results)), rows)


def draw(results: Sequence[Result], path: Path, size_name: str) -> None:
    """Draw the accuracy over the length, and over the size if the task has one.

    With several files, the length has one point per file, and the size one curve.
    """
    lengths = [[(x.words, x.evaluation.correct, x.evaluation.count)] for x in results]
    if len(results) == 1:
        found = results[0].evaluation.by_length
        middles = [(x.shortest + (x.longest or 1.5 * x.shortest)) / 2 for x in found]
        lengths = [[(m, x.correct, x.examples) for m, x in zip(middles, found, strict=True)]]
    panels = {"words": lengths}
    if any(x.sizes for x in results):
        panels[size_name] = [[(x.shortest, x.correct, x.examples) for x in y.sizes]
                             for y in results]  # fmt: skip
    plt = pyplot()
    figure, rows = plt.subplots(
        1, len(panels), figsize=(6 * len(panels), 3.6), layout="constrained", squeeze=False
    )
    for axes, (name, curves) in zip(rows[0], panels.items(), strict=True):
        for colour, file, points in zip(cycle(COLOURS), _names(results), curves, strict=False):
            _draw_curve(axes, points, colour, file)
        axes.set(xlabel=name, ylabel="accuracy %", ylim=(0, 101))
        axes.grid(alpha=0.3)
    rows[0, 0].set_xscale("log")
    rows[0, 0].xaxis.set_major_formatter("{x:g}")
    rows[0, 0].xaxis.set_minor_formatter("")
    if len(results) > 1:
        rows[0, -1].legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=8)
    save_picture(figure, path)


def _draw_curve(
    axes: Any, points: Sequence[tuple[float, int, int]], colour: str, name: str
) -> None:
    """Draw accuracies with their intervals, given x, correct answers and examples."""
    points = [point for point in points if point[2]]
    share = [100 * correct / count for _, correct, count in points]
    ends = [wilson(correct, count) for _, correct, count in points]
    low = [y - 100 * end for y, (end, _) in zip(share, ends, strict=True)]
    high = [100 * end - y for y, (_, end) in zip(share, ends, strict=True)]
    x = [x for x, _, _ in points]
    axes.errorbar(x, share, [low, high], color=colour, marker="o", capsize=3, label=name)


def _names(results: Sequence[Result]) -> list[str]:
    """Return the names of the files, or their paths if names are equal."""
    names = [x.path.name for x in results]
    return names if len({*names}) == len(names) else [str(x.path) for x in results]


def _accuracy(correct: int, count: int) -> tuple[str, str]:
    """Return accuracy and interval in per cent."""
    if not count:
        return "", ""
    low, high = (f"{100 * end:.1f}" for end in wilson(correct, count))
    return f"{100 * correct / count:.1f}", f"{low} to {high}"
