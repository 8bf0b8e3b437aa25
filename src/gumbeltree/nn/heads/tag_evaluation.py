"""Evaluation of a classifier that assigns any number of tags: F1 and exact matches."""

import dataclasses
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gumbeltree.answers import ResultTable
from gumbeltree.nn.heads.head import combined_loss
from gumbeltree.nn.heads.label_scores import LabelScores


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TagEvaluation:
    """Results on labelled examples; parts of one split can be added.

    Attributes:
        tags: names of the tags.
        loss: mean binary cross entropy, NaN without examples.
        predictions: 1 for each predicted tag of an example of the split and 0 for all others, int8
            `[examples, C]`; -1 for examples not evaluated.
        gold: the same for the gold tags.
        separator: separates tags in text.
    """

    tags: tuple[str, ...]
    loss: float
    predictions: NDArray[np.int8]
    gold: NDArray[np.int8]
    separator: str = "|"

    @property
    def count(self) -> int:
        """Number of examples evaluated."""
        return int(self._there().sum())

    @property
    def scores(self) -> LabelScores:
        """Precision, recall and F1 of each tag."""
        there = self._there()
        found, gold = self.predictions[there].astype(bool), self.gold[there].astype(bool)
        return LabelScores(self.tags, (found & gold).sum(0), found.sum(0), gold.sum(0))

    @property
    def micro_f1(self) -> float:
        """F1 of all tags taken together, NaN without examples; see `LabelScores`."""
        return self._micro("f1")

    @property
    def micro_precision(self) -> float:
        """Fraction of the predicted tags that are correct, NaN without examples."""
        return self._micro("precision")

    @property
    def micro_recall(self) -> float:
        """Fraction of the gold tags that are found, NaN without examples."""
        return self._micro("recall")

    @property
    def macro_f1(self) -> float:
        """Mean F1 of the tags that occur, NaN without examples; see `LabelScores`."""
        return self.scores.macro("f1") if self.count else math.nan

    @property
    def exact_match(self) -> float:
        """Fraction of examples whose tags are all correct, NaN without examples."""
        there = self._there()
        same = (self.predictions[there] == self.gold[there]).all(1)
        return float(same.mean()) if len(same) else math.nan

    @property
    def value(self) -> float:
        """The micro-averaged F1."""
        return self.micro_f1

    def metric(self, name: str) -> float:
        """Return a metric by name, such as "exact_match" or "recall:TAG"."""
        value: float = self.scores.of(name) if ":" in name else getattr(self, name)
        return value

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.summary()}>"

    def __add__(self, other: "TagEvaluation") -> "TagEvaluation":
        """Combine two parts of one split, for example from two processes."""
        return TagEvaluation(
            self.tags,
            combined_loss(self, other, self._there(), other._there()),
            np.maximum(self.predictions, other.predictions),
            np.maximum(self.gold, other.gold),
            self.separator,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return everything except individual predictions, in a JSON-serialisable form."""
        names = ("micro_f1", "macro_f1", "micro_precision", "micro_recall", "exact_match", "loss")
        return {
            "examples": self.count,
            # JSON has no NaN
            **{name: getattr(self, name) if self.count else None for name in names},
            "tags": self.scores.as_dicts(),
        }

    def summary(self) -> str:
        """Return F1, exact matches and loss in one line."""
        return (
            f"micro-F1 {100 * self.micro_f1:.2f} % (precision {100 * self.micro_precision:.2f}, "
            f"recall {100 * self.micro_recall:.2f}), macro-F1 {100 * self.macro_f1:.2f} %, all "
            f"tags correct {100 * self.exact_match:.2f} % of {self.count:,}, loss {self.loss:.4f}"
        )

    def tables(self) -> list[ResultTable]:
        """Return the scores of each tag."""
        return [self.scores.table("Scores of each tag:", "tag")]

    def answers(self) -> list[str]:
        """Return the predicted tags of each example, "" for examples not evaluated."""
        rows = (np.flatnonzero(row > 0) for row in self.predictions)
        return [self.separator.join(self.tags[i] for i in row) for row in rows]

    def _there(self) -> NDArray[np.bool_]:
        """Return which examples were evaluated, `[examples]`."""
        return np.asarray((self.gold >= 0).all(1))

    def _micro(self, name: str) -> float:
        values = getattr(self.scores.micro(), name)
        return float(values[0]) if self.count else math.nan
