"""A split on the device, and its batches as rows of words without padding."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gumbeltree.data.split import Split
from gumbeltree.ops.layout import Layout


class Shape(NamedTuple):
    """Sizes of a batch; all batches of one shape have tensors of the same sizes."""

    examples: int
    columns: int
    """Sentences an example has."""
    T: int
    """Bound of the words of a sentence."""
    cap: int
    """Bound of the words of all."""


class RowBatch(NamedTuple):
    """Examples that are read together.

    Attributes:
        own: the number of each sentence, int64 `[columns * examples]`: that of its example, and
            for second sentences the number of examples added.
        ids: word ids, int64 `[cap]`, 0 beyond the words.
        layout: where the words stand; the first sentences of all examples, then the second ones.
        labels: classes, int64 `[examples]`.
    """

    own: Tensor
    ids: Tensor
    layout: Layout
    labels: Tensor


class RowData:
    """The words and labels of a split on a device, read by batches of numbers.

    Args:
        split: what to read.
        device: where to.
    """

    def __init__(self, split: Split, device: torch.device) -> None:
        self.split = split
        self.lengths = np.diff(split.starts)
        self.words = torch.from_numpy(split.words.astype(np.int32)).to(device)
        self.labels = torch.from_numpy(split.labels).to(device)

    def place(
        self, rows: NDArray[np.int64], rounded: bool = True
    ) -> tuple[Shape, NDArray[np.int64]]:
        """Return the shape of a batch and the numbers that say which it is.

        Args:
            rows: examples of the split.
            rounded: let batches of similar sizes have one shape.
        """
        sentences = self.split.sentences[rows].T.reshape(-1)  # [columns * examples]
        lengths = self.lengths[sentences]
        longest, words = int(lengths.max(initial=1)), int(lengths.sum())
        T, cap = (rounded_T(longest), rounded_cap(words)) if rounded else (max(2, longest), words)
        order, rank, start = arranged(lengths, T)
        firsts = self.split.starts[sentences[order]]
        own = [rows + column * len(self.split) for column in range(self.split.sentences.shape[1])]
        numbers = np.concatenate([*own, firsts, lengths[order], order, rank, start])
        shape = Shape(len(rows), self.split.sentences.shape[1], T, cap)
        return shape, numbers.astype(np.int64, copy=False)

    def read(self, numbers: Tensor, shape: Shape) -> RowBatch:
        """Return the batch that `place` described; nothing is read back from the device."""
        B = shape.examples * shape.columns
        own, firsts, lengths, sentence, rank, start = numbers.split([B, B, B, B, B, shape.T + 1])
        layout, ids = Layout.with_ids(shape.cap, start, lengths, sentence, rank, self.words, firsts)
        return RowBatch(own, ids, layout, self.labels[own[: shape.examples]])


def arranged(lengths: NDArray[np.int64], T: int) -> tuple[NDArray[np.int64], ...]:
    """Return how sentences are laid out in rows: see `Layout` for the three.

    Args:
        lengths: words of each sentence `[B]`.
        T: bound of them.

    Returns:
        `sentence` `[B]`, `rank` `[B]` and `start` `[T + 1]`, int64.
    """
    order = np.argsort(-lengths, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    # sentences that have a word at each position: those longer than it
    active = len(lengths) - np.cumsum(np.bincount(lengths, minlength=T)[:T])
    return order, rank, np.concatenate([[0], np.cumsum(active)])


def rounded_T(T: int) -> int:
    """Return T, and from 20 on the next multiple of 2, from 32 on of 4, from 64 on of 8."""
    step = 1 if T <= 20 else 2 if T <= 32 else 4 if T <= 64 else 8
    return max(2, -(-T // step) * step)


def rounded_cap(words: int) -> int:
    """Return the next multiple of 64, from 1,024 on of an eighth of the power of two below."""
    step = max(64, 1 << max(0, words.bit_length() - 4))
    return -(-words // step) * step
