"""Evaluation of a classifier: accuracy, scores of each class, confusion matrix, lengths."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gumbeltree.answers import ResultTable
from gumbeltree.nn.heads.head import combined_loss
from gumbeltree.nn.heads.label_scores import LabelScores

LONGEST = (5, 10, 15, 20, 30, 40, 60, 100, 200, 500, 1000)
"""Upper bounds of the length buckets; the last bucket is unbounded."""


class Bucket(NamedTuple):
    """Examples whose longest sentence has `shortest` to `longest` words."""

    shortest: int
    longest: int | None
    """None if the bucket is unbounded."""
    examples: int
    correct: int

    @property
    def name(self) -> str:
        """Label such as "6-10" or "1001+"."""
        return f"{self.shortest}+" if self.longest is None else f"{self.shortest}-{self.longest}"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ClassEvaluation:
    """Results of a classifier on labelled examples; parts of one split can be added.

    Attributes:
        labels: names of the classes.
        loss: mean cross entropy, with the class weights of the head; NaN without examples.
        confusion: examples by gold class (rows) and predicted class (columns), int64 `[C, C]`.
        predictions: predicted class of each example of the split, int64 `[examples]`, -1 for
            examples not evaluated.
        by_length: accuracy by the length of an example's longest sentence, without empty buckets.
    """

    labels: tuple[str, ...]
    loss: float
    confusion: NDArray[np.int64]
    predictions: NDArray[np.int64]
    by_length: list[Bucket]

    @property
    def count(self) -> int:
        """Number of examples evaluated."""
        return int(self.confusion.sum())

    @property
    def correct(self) -> int:
        """Number of examples classified correctly."""
        return int(self.confusion.trace())

    @property
    def accuracy(self) -> float:
        """Fraction of examples classified correctly, NaN without examples."""
        return self.correct / self.count if self.count else math.nan

    @property
    def majority(self) -> float:
        """Fraction of examples in the most frequent class, NaN without examples."""
        return int(self.confusion.sum(1).max()) / self.count if self.count else math.nan

    @property
    def scores(self) -> LabelScores:
        """Precision, recall and F1 of each class."""
        confusion = self.confusion
        return LabelScores(self.labels, confusion.diagonal(), confusion.sum(0), confusion.sum(1))

    @property
    def macro_f1(self) -> float:
        """Mean F1 of the classes that occur, NaN without examples; see `LabelScores`."""
        return self._macro("f1")

    @property
    def macro_precision(self) -> float:
        """Mean precision of the classes that occur, NaN without examples."""
        return self._macro("precision")

    @property
    def macro_recall(self) -> float:
        """Mean recall of the classes that occur, NaN without examples."""
        return self._macro("recall")

    def _macro(self, name: str) -> float:
        return self.scores.macro(name) if self.count else math.nan

    def metric(self, name: str) -> float:
        """Return a metric by name, such as "macro_f1" or "recall:LABEL"."""
        value: float = self.scores.of(name) if ":" in name else getattr(self, name)
        return value

    @property
    def interval(self) -> tuple[float, float]:
        """95 % confidence interval of the accuracy; see `wilson`."""
        return wilson(self.correct, self.count)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.summary()}>"

    def __add__(self, other: "ClassEvaluation") -> "ClassEvaluation":
        """Combine two parts of one split, for example from two processes."""
        loss = combined_loss(self, other, self.predictions >= 0, other.predictions >= 0)
        buckets: dict[tuple[int, int | None], Bucket] = {}
        for bucket in sorted(self.by_length + other.by_length):
            before = buckets.get(bucket[:2], Bucket(*bucket[:2], 0, 0))
            buckets[bucket[:2]] = Bucket(
                *bucket[:2], bucket.examples + before.examples, bucket.correct + before.correct
            )
        return ClassEvaluation(
            self.labels,
            loss,
            self.confusion + other.confusion,
            np.maximum(self.predictions, other.predictions),
            list(buckets.values()),
        )

    @property
    def value(self) -> float:
        """The accuracy."""
        return self.accuracy

    def as_dict(self) -> dict[str, Any]:
        """Return everything except individual predictions, in a JSON-serialisable form."""
        return {
            "examples": self.count,
            "correct": self.correct,
            # JSON has no NaN
            "accuracy": self.accuracy if self.count else None,
            "interval_95": list(self.interval),
            "loss": self.loss if self.count else None,
            **{
                f"macro_{name}": self._macro(name) if self.count else None
                for name in ("f1", "precision", "recall")
            },
            "labels": list(self.labels),
            "classes": self.scores.as_dicts(),
            "confusion": self.confusion.tolist(),
            "by_length": [
                {**bucket._asdict(), "accuracy": bucket.correct / bucket.examples}
                for bucket in self.by_length
            ],
        }

    def summary(self) -> str:
        """Return accuracy, interval, macro-F1 and loss in one line."""
        low, high = (f"{100 * end:.2f}" for end in self.interval)
        return (
            f"accuracy {100 * self.accuracy:.2f} % (95 % interval {low} to {high} %), "
            f"{self.correct:,} of {self.count:,} correct, macro-F1 {100 * self.macro_f1:.2f} %, "
            f"loss {self.loss:.4f}"
        )

    def tables(self) -> list[ResultTable]:
        """Return the scores of each class, the confusion matrix and accuracy by length."""
        counts = zip(self.labels, self.confusion.tolist(), strict=True)
        lengths: list[tuple[str, ...]] = []
        for bucket in self.by_length:
            low, high = (f"{100 * end:.1f}" for end in wilson(bucket.correct, bucket.examples))
            share = f"{100 * bucket.correct / bucket.examples:.1f}"
            lengths.append((bucket.name, f"{bucket.examples:,}", share, f"{low} to {high}"))
        return [
            self.scores.table("Scores of each class:", "class"),
            ResultTable(
                "Confusion matrix (rows: gold labels, columns: predictions):",
                ("", *self.labels),
                [(label, *(f"{count:,}" for count in row)) for label, row in counts],
            ),
            ResultTable(
                "Accuracy by length (of the longer sentence in a pair):",
                ("words", "examples", "accuracy %", "95 % interval"),
                lengths,
            ),
        ]

    def answers(self) -> list[str]:
        """Return the predicted label of each example, "" for examples not evaluated."""
        return [self.labels[guess] if guess >= 0 else "" for guess in self.predictions.tolist()]


def wilson(correct: int, count: int) -> tuple[float, float]:
    """Return the 95 % Wilson score interval for `correct` successes in `count` trials.

    Example:
        >>> [round(end, 3) for end in wilson(9, 10)]
        [0.596, 0.982]
    """
    if not count:
        return 0.0, 1.0
    z = 1.959963984540054
    share = correct / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    spread = math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    half = z * spread / (1 + z * z / count)
    # 0 and 1 are exact bounds regardless of rounding
    low = 0.0 if correct == 0 else middle - half
    high = 1.0 if correct == count else middle + half
    return low, high


def buckets_of(
    values: NDArray[np.int64],
    correct: NDArray[np.bool_],
    ends: Sequence[int] = LONGEST,
    first: int = 1,
) -> list[Bucket]:
    """Count all and correct examples in buckets of a value, such as the longest sentence's length.

    Args:
        values: value of each example `[examples]`.
        correct: whether each example is classified correctly `[examples]`.
        ends: largest value of each bucket but the last, which is unbounded.
        first: smallest value of the first bucket.
    """
    place = np.searchsorted(ends, values)
    size = len(ends) + 1
    counts = np.bincount(place, minlength=size).tolist()
    right = np.bincount(place[correct], minlength=size).tolist()
    buckets = map(Bucket, [first, *(end + 1 for end in ends)], [*ends, None], counts, right)
    return [bucket for bucket in buckets if bucket.examples]
