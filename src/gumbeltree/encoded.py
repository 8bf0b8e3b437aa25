"""What all runtimes share: encodings as NumPy arrays, and properties of encoders."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Keep(NamedTuple):
    """What an encoder returns in addition to vectors and trees."""

    nodes: bool = False
    """Whether to return the states of all nodes."""
    scores: bool = False
    """Whether to return the scores of all candidates."""
    beams: int = 0
    """How many of the most probable trees to return; if 0, those that the encoder finds anyway."""


MOST_BEAMS = 100
"""Largest number of trees that beam search returns for a text."""


def check_beams(beams: int) -> None:
    """Raise a ValueError unless beam search returns this many trees."""
    if not isinstance(beams, int) or not 1 <= beams <= MOST_BEAMS:
        raise ValueError(f"`beams` must be a whole number in 1..{MOST_BEAMS}, got {beams!r}")


VECTORS = Keep()
"""Return vectors and trees only."""


class BestTrees(NamedTuple):
    """The k most probable trees of each sentence that beam search finds, best first."""

    order: Any
    """Position of each merge, int64 `[B, k, T-1]`, -1 past the end of a sentence; arbitrary if the
    log-probability is -inf."""
    log_prob: Any
    """Log-probability of all merges `[B, k]`; -inf if there are fewer than k trees."""


@dataclass(frozen=True)
class Encoded:
    """Encoding of B sentences of up to T words; see `gumbeltree.Encoding`."""

    vector: NDArray[np.floating[Any]]
    """Sentence vectors `[B, D]`."""
    order: NDArray[np.int64] | None = None
    """Position merged at each step `[B, T-1]`, -1 past the end of a sentence; None if the encoder
    builds no tree."""
    nodes: NDArray[np.floating[Any]] | None = None
    """h of each node `[B, 2T-1, D]`: word i at i, the node created at step t at T + t."""
    scores: NDArray[np.floating[Any]] | None = None
    """Validity scores without noise, `[B, T-1, T-1]` (layer, position); -inf outside a sentence."""
    beams: BestTrees | None = None
    """The most probable trees, if the encoder searches for them or `Keep.beams` requests them."""


class MissingInputError(ValueError):
    """Texts without an input that the encoder needs, such as their trees."""


class EncoderTraits:
    """Properties of an encoder that do not depend on what computes it."""

    config: Any
    """Settings of the encoder."""
    trees: str = "none"
    """Which trees it builds: "none"; "given" with the data; "fixed", regardless of the words;
    "sampled", chosen by score; or "soft", the heaviest tree of a mixture."""

    @property
    def vector_dim(self) -> int:
        """Width of the sentence vectors."""
        width: int = self.config.hidden_dim
        return width

    def batch_cost(self, lengths: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
        """Return the memory of sentences `[n]` in words, which limits the size of batches.

        Encoders that need more than a constant per word override it.

        Args:
            lengths: words per sentence `[n]`.
        """
        return lengths

    @property
    def builds_trees(self) -> bool:
        """Whether encodings have an `order`."""
        return self.trees != "none"

    @property
    def shape_of_trees(self) -> str:
        """The kind of trees in one word; empty if it builds none."""
        return {"none": "", "sampled": "learned"}.get(self.trees, self.trees)

    @property
    def draws_trees(self) -> bool:
        """Whether trees depend on noise."""
        return self.trees == "sampled"

    def why_no_beams(self) -> str | None:
        """Return why beam search cannot find its most probable trees, or None if it can."""
        learned = self.trees == "sampled"
        return f"it does not {'support beam search' if learned else 'score merges'}"
