"""Evaluation of similarities: how often the similar sentence of a triplet is the nearer one."""

import dataclasses
import math
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gumbeltree.answers import ResultTable, number
from gumbeltree.nn.heads.head import combined_loss


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SimilarityEvaluation:
    """Similarities of labelled pairs; parts of one split can be added.

    A triplet is a sentence with a similar and a different one. It is right if the cosine of the
    similar one is higher.

    Attributes:
        loss: mean loss of the head, NaN without examples.
        cosines: cosine of each pair of the split, `[examples]`, NaN for pairs not evaluated.
        targets: kind and group of each pair, int64 `[examples, 2]`, -1 for pairs not evaluated.
    """

    loss: float
    cosines: NDArray[np.float64]
    targets: NDArray[np.int64]

    @property
    def count(self) -> int:
        """Number of pairs evaluated."""
        return int(self._evaluated.sum())

    @property
    def _evaluated(self) -> NDArray[np.bool_]:
        there: NDArray[np.bool_] = self.targets[:, 0] >= 0
        return there

    @cached_property
    def counts(self) -> tuple[int, int]:
        """Numbers of right triplets and of all triplets."""
        right = triplets = 0
        kinds, groups = self.targets.T
        # of equal cosines, the similar pair comes first, so that it does not count as higher
        order = np.lexsort((-kinds, self.cosines, groups))
        for rows in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
            # by cosine: each similar pair is above the different ones before it
            similar = kinds[rows] == 1
            different = np.cumsum(kinds[rows] == 0)
            right += int(different[similar].sum())
            triplets += int(similar.sum()) * int(different[-1]) if len(rows) else 0
        return right, triplets

    @property
    def triplets(self) -> float:
        """Share of right triplets, NaN without triplets."""
        right, triplets = self.counts
        return right / triplets if triplets else math.nan

    @property
    def value(self) -> float:
        """Share of right triplets, NaN without triplets."""
        return self.triplets

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.summary()}>"

    def __add__(self, other: "SimilarityEvaluation") -> "SimilarityEvaluation":
        """Combine two parts of one split, for example from two processes."""
        mine = self._evaluated
        return SimilarityEvaluation(
            combined_loss(self, other, mine, other._evaluated),
            np.where(mine, self.cosines, other.cosines),
            np.where(mine[:, None], self.targets, other.targets),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return everything except individual cosines, in a JSON-serialisable form."""
        right, triplets = self.counts
        found = {"triplets": self.triplets, "loss": self.loss}
        # JSON has no NaN
        shown = {name: None if math.isnan(x) else x for name, x in found.items()}
        return {"examples": self.count, "triplet_count": triplets, "right_triplets": right, **shown}

    def summary(self) -> str:
        """Return the accuracy in one line."""
        found = f"triplet accuracy {self.triplets:.2%}, " if self.counts[1] else ""
        return f"{found}{self.counts[1]:,} triplets, {self.count:,} pairs, loss {self.loss:.4f}"

    def tables(self) -> list[ResultTable]:
        """Return quartiles of the cosines of similar and different pairs."""
        rows = []
        for kind, name in ((1, "similar"), (0, "different")):
            found = self.cosines[self.targets[:, 0] == kind]
            if len(found):
                quartiles = np.quantile(found, [0.25, 0.5, 0.75]).tolist()
                rows.append((name, f"{len(found):,}", *(f"{x:.3f}" for x in quartiles)))
        return [
            ResultTable("Cosines:", ("pairs", "count", "lower quartile", "median", "upper"), rows)
        ]

    def answers(self) -> list[str]:
        """Return the cosine of each pair, "" for pairs not evaluated."""
        found = zip(self.cosines.tolist(), self._evaluated.tolist(), strict=True)
        return [number(value) if there else "" for value, there in found]
