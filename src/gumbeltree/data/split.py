"""Labelled text as ids, in memory, and its length-bucketed batches."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gumbeltree.layout import Arrangement, Layout, Sentences
from gumbeltree.text.batches import batches

Cost = Callable[[NDArray[np.integer[Any]]], NDArray[np.integer[Any]]]
"""Memory of sentences, given their lengths; see `EncoderTraits.batch_cost`."""


class Batch(NamedTuple):
    """Examples that are encoded together.

    Attributes:
        own: index of each sentence in its split, int64 `[columns * examples]`: the row of its
            example, plus the size of the split for second sentences.
        sentences: word ids; the first sentences of all examples, then the second ones.
        targets: targets of the head, `[examples, ...]`.
    """

    own: Tensor
    sentences: Sentences
    targets: Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    """Labelled sentences or pairs as ids; a repeated sentence is stored once.

    Attributes:
        words: concatenated ids of all distinct sentences, unsigned integers.
        starts: start of each sentence in `words`, and the end of the last, int64.
        sentences: sentences of each example, int32 `[examples, columns]`.
        labels: target of each example, `[examples]`; int64 for classes. For tags, 1 for each tag of
            an example and 0 for all others, uint8 `[examples, C]`.
        orders: concatenated merges of all sentences, length - 1 each, if the data includes trees.
        node_labels: concatenated classes of the nodes of all sentences, 2 length - 1 each, words
            first, if the data includes them; see `Sentences.node_labels`.
    """

    words: NDArray[np.unsignedinteger]
    starts: NDArray[np.int64]
    sentences: NDArray[np.int32]
    labels: NDArray[Any]
    orders: NDArray[np.unsignedinteger] | None = None
    node_labels: NDArray[np.int16] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of words per sentence, `[examples, columns]`."""
        counts: NDArray[np.int64] = np.diff(self.starts)[self.sentences]
        return counts

    def own(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index of each sentence; see `Batch.own`."""
        columns = self.sentences.shape[1]
        numbers: NDArray[np.int64] = (rows + len(self) * np.arange(columns)[:, None]).reshape(-1)
        return numbers

    def batch(
        self, rows: Sequence[int] | NDArray[np.int64], device: torch.device | str | None = None
    ) -> Batch:
        """Return the examples of `rows` on a device."""
        rows = np.asarray(rows, dtype=np.int64)
        sentences = self.sentences[rows].T.reshape(-1)
        starts = self.starts[sentences]
        lengths = self.starts[sentences + 1] - starts
        arrangement = Arrangement.of(lengths, int(lengths.max(initial=1)))
        ids = arrangement.rows(self.words, starts[arrangement.sentence]).astype(np.int64)
        own, words, targets = (
            torch.from_numpy(x).to(device, non_blocking=True)
            for x in (self.own(rows), ids, self.labels[rows])
        )
        order, labels = (
            None if x is None else torch.from_numpy(x).to(device, non_blocking=True)
            for x in (self._order(sentences, lengths), self._node_labels(sentences, lengths))
        )
        layout = Layout.of(arrangement, device)
        return Batch(own, Sentences(words, layout, order, labels), targets)

    def _order(
        self, sentences: NDArray[np.int32], lengths: NDArray[np.int64]
    ) -> NDArray[np.int64] | None:
        """Return the merges of sentences, int64 `[B, T-1]`, padded with -1."""
        if self.orders is None:
            return None
        # a sentence has one merge fewer than words
        first = self.starts[sentences] - sentences
        step = np.arange(int(lengths.max(initial=1)) - 1)
        inside = step < (lengths - 1)[:, None]
        order = np.full(inside.shape, -1, dtype=np.int64)
        order[inside] = self.orders[(first[:, None] + step)[inside]]
        return order

    def _node_labels(
        self, sentences: NDArray[np.int32], lengths: NDArray[np.int64]
    ) -> NDArray[np.int64] | None:
        """Return the classes of the nodes of sentences, int64 `[B, 2T-1]`, padded with -1."""
        if self.node_labels is None:
            return None
        first = 2 * self.starts[sentences] - sentences
        T = int(lengths.max(initial=1))
        # word i is the node i, and merge t of a sentence follows its last word
        node = np.concatenate([np.arange(T), np.arange(T - 1)])
        node = node + np.where(np.arange(2 * T - 1) < T, 0, lengths[:, None])
        inside = np.arange(T) < lengths[:, None]
        inside = np.concatenate([inside, inside[:, 1:]], axis=1)
        labels = np.full(inside.shape, -1, dtype=np.int64)
        labels[inside] = self.node_labels[(first[:, None] + node)[inside]]
        return labels


def by_length(
    split: Split, words: int, examples: int = 1024, cost: Cost | None = None
) -> Iterator[NDArray[np.int64]]:
    """Yield the rows of a split in batches of similar length, shortest first.

    Args:
        split: the examples.
        words: maximum number of words per batch, including padding; a longer example forms
            its own batch.
        examples: maximum number of examples per batch.
        cost: memory of sentences in words, given their lengths; see `EncoderTraits.batch_cost`.
    """
    longest = split.lengths.max(axis=1, initial=1)
    costs = longest if cost is None else cost(longest)
    return batches(costs * split.sentences.shape[1], examples, words)


def shortest(examples: int, least: int, share: float) -> int:
    """Return how many examples are a share of all, at least `least` if there are as many."""
    return min(examples, max(least, math.ceil(share * examples)))


def shuffled(
    split: Split,
    batch_size: int,
    seed: int,
    epoch: int,
    least: int = 1,
    pool: int = 100,
    grouped: bool = False,
    share: float = 1.0,
) -> list[NDArray[np.int64]]:
    """Return the rows of a split in random batches of similar length.

    Examples are shuffled, sorted by length within pools of `pool` batches, and cut into batches,
    which are shuffled again. This limits padding, yet batches differ in every epoch. Pools are
    smaller for small data sets, which are divided into about four.

    Args:
        split: the examples.
        batch_size: examples per batch; one batch may have fewer.
        seed: determines the order together with `epoch`.
        epoch: epoch number.
        least: minimum number of examples per batch; a smaller remainder joins another batch.
        pool: maximum number of batches sorted together.
        grouped: keep examples with the same first sentence together, except where a batch ends.
        share: use the shortest examples only, this share of them.
    """
    generator = np.random.Generator(np.random.PCG64([seed, epoch]))
    longest = split.lengths.max(axis=1, initial=1)
    if grouped:
        _, groups = np.unique(split.sentences[:, 0], return_inverse=True)
        # all examples of a group count as long as the longest of them
        of_group = np.zeros(groups.max(initial=-1) + 1, dtype=np.int64)
        np.maximum.at(of_group, groups, longest)
        places = generator.permutation(len(of_group))
        longest, order = of_group[groups], np.argsort(places[groups], kind="stable")
    else:
        order = generator.permutation(len(split))
    if share < 1:
        places = np.argsort(longest[order], kind="stable")
        order = order[np.sort(places[: shortest(len(order), least, share)])]
    batches: list[NDArray[np.int64]] = []
    pool = max(1, min(pool, len(order) // (4 * batch_size)))
    for start in range(0, len(order), batch_size * pool):
        chunk = order[start : start + batch_size * pool]
        chunk = chunk[np.argsort(longest[chunk], kind="stable")]
        batches += [chunk[i : i + batch_size] for i in range(0, len(chunk), batch_size)]
    if len(batches) > 1 and len(batches[-1]) < least:
        last = batches.pop()
        batches[-1] = np.concatenate([batches[-1], last])
    places = generator.permutation(len(batches))
    return [batches[place] for place in places]
