"""Confusion matrices of many classes: on a narrow terminal, and as a file."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gumbeltree.answers import ResultTable

LARGEST = 15
"""Number of confusions shown if the whole matrix does not fit."""


def fitted(results: Sequence[ResultTable], evaluation: Any, width: int) -> list[ResultTable]:
    """Replace a confusion matrix that is wider than `width` characters by its largest entries."""
    labels = getattr(evaluation, "labels", ())
    matrix = getattr(evaluation, "confusion", None)
    return [
        _largest(labels, matrix)
        if matrix is not None and table.header == ("", *labels) and _wide(table, width)
        else table
        for table in results
    ]


def _wide(table: ResultTable, width: int) -> bool:
    # names are folded at 8 and 5 characters, figures cannot be; 3 more for borders
    columns = list(zip(*table.rows, strict=True))[1:]
    return 12 + sum(3 + max(5, *map(len, column)) for column in columns) > width


def _largest(labels: Sequence[str], matrix: Any) -> ResultTable:
    wrong = matrix * (1 - np.eye(len(labels), dtype=np.int64))
    totals = matrix.sum(1)
    order = np.argsort(-wrong, axis=None, kind="stable")[:LARGEST]
    places = zip(*(axis.tolist() for axis in np.unravel_index(order, wrong.shape)), strict=True)
    rows = [
        (
            labels[gold],
            labels[guess],
            f"{wrong[gold, guess]:,}",
            f"{100 * wrong[gold, guess] / totals[gold]:.1f}",
        )
        for gold, guess in places
        if wrong[gold, guess]
    ]
    return ResultTable(
        f"Largest confusions of {len(labels)} classes (--confusion FILE.csv or .png has all):",
        ("gold label", "prediction", "examples", "% of the gold label"),
        rows,
    )


def check_confusion(path: Path) -> None:
    """Raise unless `path` ends in .csv or in the ending of a picture that can be drawn."""
    from gumbeltree.plots import PICTURES, check_picture

    if path.suffix.lower() == ".csv":
        return
    if path.suffix.lower() not in PICTURES:
        raise ValueError(f"{path} must end in .csv, {', '.join(PICTURES)}")
    check_picture(path)


def write_confusion(path: Path, evaluation: Any) -> None:
    """Write a confusion matrix as a CSV file or as a picture."""
    from gumbeltree.cli.streams import write_lines

    if not hasattr(evaluation, "confusion"):
        raise ValueError("--confusion is for models that predict classes; omit it")
    if path.suffix.lower() != ".csv":
        _draw(path, evaluation)
        return
    file = io.StringIO()
    rows = zip(evaluation.labels, evaluation.confusion.tolist(), strict=True)
    table = [["gold", *evaluation.labels], *([label, *row] for label, row in rows)]
    csv.writer(file, lineterminator="\n").writerows(table)
    write_lines(path, [file.getvalue().removesuffix("\n")])


def _draw(path: Path, evaluation: Any) -> None:
    from gumbeltree.plots import any_names, pyplot, save_picture

    labels, matrix = evaluation.labels, evaluation.confusion
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    side = max(4.0, 0.35 * len(labels) + 2)
    figure, axes = pyplot().subplots(figsize=(side, side), layout="constrained")
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    names = [label if len(label) <= 20 else f"{label[:19]}…" for label in labels]
    axes.set_xticks(range(len(labels)), names, rotation=90, parse_math=False)
    axes.set_yticks(range(len(labels)), names, parse_math=False)
    axes.set_xlabel("prediction")
    axes.set_ylabel("gold label")
    for gold, guess in np.argwhere(matrix):
        colour = "white" if shares[gold, guess] > 0.5 else "black"
        axes.text(
            guess, gold, f"{matrix[gold, guess]}", ha="center", va="center", size=7, color=colour
        )
    with any_names():
        save_picture(figure, path)
