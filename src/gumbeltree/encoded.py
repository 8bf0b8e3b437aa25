"""Encodings as NumPy arrays, the common form of all runtimes."""

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


VECTORS = Keep()
"""Return vectors and trees only."""


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
