"""Precision, recall and F1 of labels."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gumbeltree.answers import ResultTable


class LabelScores(NamedTuple):
    """Scores of C labels, from their counts; a fraction of nothing is 0, as in scikit-learn.

    Attributes:
        labels: names of the labels.
        correct: correct predictions of each label, int64 `[C]`.
        predicted: predictions of each label, int64 `[C]`.
        gold: examples with each label, int64 `[C]`.
    """

    labels: tuple[str, ...]
    correct: NDArray[np.int64]
    predicted: NDArray[np.int64]
    gold: NDArray[np.int64]

    @property
    def precision(self) -> NDArray[np.float64]:
        """Fraction of the predictions of each label that are correct, `[C]`."""
        return _fraction(self.correct, self.predicted)

    @property
    def recall(self) -> NDArray[np.float64]:
        """Fraction of the examples with each label that are found, `[C]`."""
        return _fraction(self.correct, self.gold)

    @property
    def f1(self) -> NDArray[np.float64]:
        """Harmonic mean of precision and recall, `[C]`."""
        return _fraction(2 * self.correct, self.predicted + self.gold)

    def macro(self, name: str) -> float:
        """Return the mean of "precision", "recall" or "f1" over the labels that occur.

        A label that occurs neither in the gold labels nor in the predictions does not count.
        """
        there = self.gold + self.predicted > 0
        values: NDArray[np.float64] = getattr(self, name)[there]
        return float(values.mean()) if len(values) else 0.0

    def micro(self) -> "LabelScores":
        """Return the scores of all labels taken together, as one label."""
        sums = (np.array([x.sum()]) for x in (self.correct, self.predicted, self.gold))
        return LabelScores(("all",), *sums)

    def of(self, name: str) -> float:
        """Return a score of one label, such as "recall:LABEL"."""
        kind, _, label = name.partition(":")
        return float(getattr(self, kind)[self.labels.index(label)])

    def as_dicts(self) -> list[dict[str, Any]]:
        """Return the scores of each label in a JSON-serialisable form."""
        columns = (self.gold, self.predicted, self.precision, self.recall, self.f1)
        names = ("label", "examples", "predicted", "precision", "recall", "f1")
        rows = zip(self.labels, *(x.tolist() for x in columns), strict=True)
        return [dict(zip(names, row, strict=True)) for row in rows]

    def table(self, title: str, name: str) -> ResultTable:
        """Return the scores of each label as a table whose first column is called `name`."""
        rows = [
            (
                row["label"],
                f"{row['examples']:,}",
                *(f"{100 * row[score]:.1f}" for score in ("precision", "recall", "f1")),
            )
            for row in self.as_dicts()
        ]
        return ResultTable(title, (name, "examples", "precision %", "recall %", "F1 %"), rows)


def _fraction(part: NDArray[np.int64], whole: NDArray[np.int64]) -> NDArray[np.float64]:
    shares: NDArray[np.float64] = part / np.maximum(whole, 1)
    return shares
