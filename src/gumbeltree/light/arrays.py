"""Types, weights by prefix, and batches of packed words."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
"""Float32 or float64, as the weights of the model."""
Weights = Mapping[str, Array]
"""Weights by name."""
Shapes = dict[str, tuple[int, ...]]
"""Shapes of weights by name."""


def unit(x: Array) -> Array:
    """Scale vectors `[..., D]` to length 1, as torch.nn.functional.normalize does."""
    scaled: Array = x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)
    return scaled


def within(weights: Weights, part: str) -> dict[str, Array]:
    """Return the weights of a part, without its name."""
    return {
        name.removeprefix(f"{part}."): x
        for name, x in weights.items()
        if name.startswith(f"{part}.")
    }


def named(shapes: Shapes, part: str) -> Shapes:
    """Return the shapes of a part, with its name."""
    return {f"{part}.{name}": shape for name, shape in shapes.items()}


class Packed(NamedTuple):
    """Sentences sorted by length, longest first, whose words are stored position by position.

    See `gumbeltree.layout` for an example.
    """

    sentences: NDArray[np.int64]
    """Index of each sentence in the caller's batch `[n]`."""
    lengths: NDArray[np.int64]
    """Words per sentence `[n]`."""
    words: NDArray[np.int64]
    """Row of each word among the caller's words `[N]`."""
    active: list[int]
    """Number of sentences with a word at each position, followed by two zeros."""
    start: list[int]
    """First row of each position, then the number of words."""

    @classmethod
    def of(
        cls,
        sentences: NDArray[np.int64],
        lengths: NDArray[np.int64],
        firsts: NDArray[np.int64],
    ) -> "Packed":
        """Pack sentences that are sorted by length.

        Args:
            sentences: index of each sentence in the caller's batch `[n]`.
            lengths: words of each of the caller's sentences `[B]`.
            firsts: first word of each of the caller's sentences `[B]`.
        """
        lengths, firsts = lengths[sentences], firsts[sentences]
        if len(sentences) == 1:
            T, first = int(lengths[0]), int(firsts[0])
            rows = np.arange(first, first + T)
            return cls(sentences, lengths, rows, [1] * T + [0, 0], list(range(T + 1)))
        position = np.arange(lengths[0])[:, None]
        inside = position < lengths  # [T, n]
        active = inside.sum(1)
        start = [0, *np.cumsum(active).tolist()]
        return cls(sentences, lengths, (firsts + position)[inside], [*active.tolist(), 0, 0], start)

    @property
    def steps(self) -> int:
        """Length of the longest sentence."""
        return len(self.active) - 2


def packed_blocks(lengths: NDArray[np.int64], most: int, words: int) -> "list[Packed]":
    """Divide a batch into blocks of sentences of similar length.

    Args:
        lengths: words per sentence `[B]`.
        most: maximum number of sentences per block.
        words: maximum number of words per block, unless a single sentence is longer.
    """
    order = np.argsort(-lengths, kind="stable")
    firsts = np.cumsum(lengths) - lengths
    blocks, start = [], 0
    while start < len(order):
        # sentences after the first are not longer
        count = max(1, min(most, words // int(lengths[order[start]])))
        blocks.append(Packed.of(order[start : start + count], lengths, firsts))
        start += count
    return blocks


def for_tanh(weight: Array, order: Sequence[int]) -> Array:
    """Reorder blocks of gates, and halve all of them but the last.

    sigmoid(x) = (1 + tanh(x / 2)) / 2, so a single call of tanh activates sigmoid and tanh gates.
    Halving is exact.

    Args:
        weight: weight or bias of the gates, `[gates * D, ...]`.
        order: index of each gate in `weight`; the last one is activated by tanh.
    """
    blocks = np.split(weight, len(order))
    return np.concatenate([*(blocks[i] * 0.5 for i in order[:-1]), blocks[order[-1]]])


def normalized(x: Array, gain: Array, shift: Array) -> Array:
    """Apply layer normalisation to rows `[n, D]`."""
    centred = x - x.mean(1, keepdims=True)
    variance = np.square(centred).mean(1, keepdims=True)
    y: Array = centred / np.sqrt(variance + x.dtype.type(1e-5)) * gain + shift
    return y
