"""Evaluation of a regression: correlations with the gold numbers and mean squared error."""

import dataclasses
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gumbeltree.answers import ResultTable, number
from gumbeltree.nn.heads.head import combined_loss

TENTHS = 10
"""Number of groups of examples in the table of `NumberEvaluation`."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class NumberEvaluation:
    """Results of a regression on labelled examples; parts of one split can be added.

    Attributes:
        loss: mean loss of the head, NaN without examples.
        predictions: predicted number of each example of the split, float64 `[examples]`, NaN for
            examples not evaluated.
        gold: gold number of each example, float64 `[examples]`, NaN for examples not evaluated.
    """

    loss: float
    predictions: NDArray[np.float64]
    gold: NDArray[np.float64]

    @property
    def count(self) -> int:
        """Number of examples evaluated."""
        return int((~np.isnan(self.gold)).sum())

    @property
    def pearson(self) -> float:
        """Pearson's correlation; see `pearson`."""
        return pearson(*self._evaluated())

    @property
    def spearman(self) -> float:
        """Spearman's rank correlation; see `spearman`."""
        return spearman(*self._evaluated())

    @property
    def mse(self) -> float:
        """Mean squared error, NaN without examples."""
        found, gold = self._evaluated()
        return float(np.square(found - gold).mean()) if len(gold) else math.nan

    @property
    def value(self) -> float:
        """Pearson's correlation."""
        return self.pearson

    def metric(self, name: str) -> float:
        """Return a metric by name."""
        value: float = getattr(self, name)
        return value

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.summary()}>"

    def __add__(self, other: "NumberEvaluation") -> "NumberEvaluation":
        """Combine two parts of one split, for example from two processes."""
        mine = ~np.isnan(self.gold)
        return NumberEvaluation(
            combined_loss(self, other, mine, ~np.isnan(other.gold)),
            np.where(mine, self.predictions, other.predictions),
            np.where(mine, self.gold, other.gold),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return everything except individual predictions, in a JSON-serialisable form."""
        values = {"pearson": self.pearson, "spearman": self.spearman, "mse": self.mse}
        values["loss"] = self.loss
        # JSON has no NaN
        return {"examples": self.count, **{k: v if self.count else None for k, v in values.items()}}

    def summary(self) -> str:
        """Return correlations and errors in one line."""
        return (
            f"Pearson {self.pearson:.4f}, Spearman {self.spearman:.4f}, mean squared error "
            f"{number(self.mse)}, {self.count:,} examples, loss {self.loss:.4f}"
        )

    def tables(self) -> list[ResultTable]:
        """Return mean prediction and error for tenths of the examples, by gold number."""
        found, gold = self._evaluated()
        rows: list[tuple[str, ...]] = []
        for part in np.array_split(np.argsort(gold, kind="stable"), TENTHS):
            if len(part):
                ends = gold[part[0]], gold[part[-1]]
                error = math.sqrt(np.square(found[part] - gold[part]).mean())
                means = (gold[part].mean(), found[part].mean(), error)
                numbers = [f"{x:.4g}" for x in (*ends, *means)]
                rows.append((*numbers[:2], f"{len(part):,}", *numbers[2:]))
        return [
            ResultTable(
                "Tenths of the examples, from the lowest to the highest gold number:",
                ("from", "to", "examples", "mean", "mean predicted", "root mean sq. error"),
                rows,
            )
        ]

    def answers(self) -> list[str]:
        """Return the predicted number of each example, "" for examples not evaluated."""
        found = zip(self.predictions.tolist(), np.isnan(self.gold).tolist(), strict=True)
        return ["" if left_out else number(value) for value, left_out in found]

    def _evaluated(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        there = ~np.isnan(self.gold)
        return self.predictions[there], self.gold[there]


def pearson(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Return Pearson's correlation of `x` and `y`, each `[n]`.

    It is 0 if all values of `x` or of `y` are equal, and NaN if there are none.

    Example:
        >>> round(pearson(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 4.0])), 4)
        0.982
    """
    if not len(x):
        return math.nan
    if x.min() == x.max() or y.min() == y.max():
        return 0.0
    x, y = x - x.mean(), y - y.mean()
    x, y = x / np.abs(x).max(), y / np.abs(y).max()
    share = float(x @ y / math.sqrt(float(x @ x) * float(y @ y)))
    return max(-1.0, min(1.0, share))


def spearman(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Return Spearman's rank correlation: Pearson's correlation of the ranks.

    Example:
        >>> round(spearman(np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 8.0, 8.0, 9.0])), 4)
        0.9487
    """
    return pearson(average_ranks(x), average_ranks(y))


def average_ranks(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rank of each value, counted from 1; equal values share their mean rank.

    Example:
        >>> average_ranks(np.array([3.0, 1.0, 3.0])).tolist()
        [2.5, 1.0, 2.5]
    """
    _, place, counts = np.unique(x, return_inverse=True, return_counts=True)
    ranks: NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return ranks
