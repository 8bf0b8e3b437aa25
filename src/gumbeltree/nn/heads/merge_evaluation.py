"""Evaluation of a parser: unlabelled brackets shared with gold trees."""

import dataclasses
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gumbeltree.answers import ResultTable
from gumbeltree.nn.heads.head import combined_loss


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class MergeEvaluation:
    """Brackets of binary trees; parts of one split can be added.

    Both trees of a sentence have equally many brackets, so precision, recall and F1 are the same.
    Whole sentences do not count, and sentences of one or two words have no other bracket.

    Attributes:
        loss: mean loss of the head, NaN without examples.
        right: brackets of each sentence that are in its gold tree, int64 `[examples]`.
        spans: brackets of each sentence, int64 `[examples]`, -1 for sentences not evaluated.
    """

    loss: float
    right: NDArray[np.int64]
    spans: NDArray[np.int64]

    @property
    def count(self) -> int:
        """Number of sentences evaluated."""
        return int((self.spans >= 0).sum())

    @property
    def f1(self) -> float:
        """Mean F1 of the sentences that have brackets, NaN if none has."""
        some = self.spans > 0
        return float((self.right[some] / self.spans[some]).mean()) if some.any() else math.nan

    @property
    def corpus_f1(self) -> float:
        """F1 of all brackets, NaN without brackets."""
        total = int(self.spans.clip(min=0).sum())
        return int(self.right.sum()) / total if total else math.nan

    @property
    def value(self) -> float:
        """Mean F1."""
        return self.f1

    def metric(self, name: str) -> float:
        """Return a further metric of the head."""
        return float(getattr(self, name))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.summary()}>"

    def __add__(self, other: "MergeEvaluation") -> "MergeEvaluation":
        """Combine two parts of one split, for example from two processes."""
        mine = self.spans >= 0
        return MergeEvaluation(
            combined_loss(self, other, mine, other.spans >= 0),
            np.where(mine, self.right, other.right),
            np.where(mine, self.spans, other.spans),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return all metrics in a JSON-serialisable form."""
        found = {"f1": self.f1, "corpus_f1": self.corpus_f1, "loss": self.loss}
        # JSON has no NaN
        return {
            "examples": self.count,
            **{name: None if math.isnan(x) else x for name, x in found.items()},
        }

    def summary(self) -> str:
        """Return the F1 in one line."""
        return f"F1 {self.f1:.2%}, {self.count:,} sentences, loss {self.loss:.4f}"

    def tables(self) -> list[ResultTable]:
        """Return the F1 by length."""
        rows = []
        for low, high in ((3, 8), (9, 16), (17, 32), (33, None)):
            words = self.spans + 2
            some = (words >= low) & (words <= (high or np.inf)) & (self.spans > 0)
            if some.any():
                mean = (self.right[some] / self.spans[some]).mean()
                name = f"{low}-{high}" if high else f"{low} or more"
                rows.append((name, f"{int(some.sum()):,}", f"{mean:.2%}"))
        return [ResultTable("Brackets:", ("words", "sentences", "F1"), rows)]

    def answers(self) -> list[str]:
        """Return the right brackets of each sentence, "" for sentences not evaluated."""
        found = zip(self.right.tolist(), self.spans.tolist(), strict=True)
        return [f"{right}/{spans}" if spans >= 0 else "" for right, spans in found]
