"""The two records that travel through the package: node states and encodings."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class NodeState(NamedTuple):
    """State of tree nodes, r = [h; c] of the paper, each half `[..., D]`."""

    h: Tensor
    c: Tensor


@dataclass(frozen=True)
class Encoding:
    """What an encoder returns; unpacks as ``vector, order = encoder(...)``.

    The fields after `order` are None unless asked for with ``details=True``.
    """

    vector: Tensor
    """Sentence vectors `[B, D]`."""
    order: Tensor | None
    """Position merged at each step, int64 `[B, T-1]`, -1 past a sentence's end; None where the
    encoder builds no tree."""
    nodes: NodeState | None = None
    """States `[B, 2T-1, D]`: word i at i, the node made at step t at T + t, zero elsewhere."""
    scores: Tensor | None = None
    """Validity scores without noise, `[B, T-1, T-1]` (layer, position); -inf outside a sentence."""
    probabilities: Tensor | None = None
    """Eq. 12 at each layer, softmax of `scores`, `[B, T-1, T-1]`; zero outside a sentence."""
    attention: Tensor | None = None
    """Weights of the nodes `[B, 2T-1]` where the encoder pools by attention."""

    def chunk(self, parts: int) -> "tuple[Encoding, ...]":
        """Return the vectors of equal numbers of sentences, one after the other, without trees."""
        return tuple(Encoding(vector, None) for vector in self.vector.chunk(parts))

    def __iter__(self) -> Iterator[Tensor | None]:
        return iter((self.vector, self.order))
