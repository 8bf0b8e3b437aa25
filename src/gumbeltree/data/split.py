"""Labelled text as ids: splits that fit in memory, and their length-bucketed batches."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gumbeltree.layout import Arrangement, Layout, Sentences


class Batch(NamedTuple):
    """Examples that are read together.

    Attributes:
        own: the number of each sentence, int64 `[columns * examples]`: that of its example, and
            for second sentences the number of examples added.
        sentences: word ids; the first sentences of all examples, then the second ones.
        targets: what the head should say, `[examples]`.
    """

    own: Tensor
    sentences: Sentences
    targets: Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    """Labelled sentences or pairs as ids; a sentence that comes often is kept once.

    Attributes:
        words: ids of all distinct sentences, one after the other, unsigned integers.
        starts: where each sentence starts in `words`, and the end of the last, int64.
        sentences: which sentences an example has, int32 `[examples, columns]`.
        labels: class of each example, int64 `[examples]`, or what else its head asks for.
        orders: given merges of all sentences, one after the other, length - 1 each, where the data
            bring trees.
    """

    words: NDArray[np.unsignedinteger]
    starts: NDArray[np.int64]
    sentences: NDArray[np.int32]
    labels: NDArray[Any]
    orders: NDArray[np.unsignedinteger] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Words of each sentence of each example, `[examples, columns]`."""
        counts: NDArray[np.int64] = np.diff(self.starts)[self.sentences]
        return counts

    def own(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of each sentence of examples; see `Batch`."""
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
        order = self._order(sentences, lengths)
        if order is not None:
            order = order.to(device, non_blocking=True)
        return Batch(own, Sentences(words, Layout.of(arrangement, device), order), targets)

    def _order(self, sentences: NDArray[np.int32], lengths: NDArray[np.int64]) -> Tensor | None:
        """Return the given merges of sentences, int64 `[B, T-1]`, -1 past their ends."""
        if self.orders is None:
            return None
        # a sentence has one merge fewer than words
        first = self.starts[sentences] - sentences
        step = np.arange(int(lengths.max(initial=1)) - 1)
        inside = step < (lengths - 1)[:, None]
        order = np.full(inside.shape, -1, dtype=np.int64)
        order[inside] = self.orders[(first[:, None] + step)[inside]]
        return torch.from_numpy(order)


def by_length(split: Split, words: int, examples: int = 1024) -> Iterator[NDArray[np.int64]]:
    """Yield the rows of a split once, in batches of similar length, the shortest first.

    Args:
        split: what to go through.
        words: most words of a batch, padding included; an example longer than that comes alone.
        examples: most examples of a batch.
    """
    longest = split.lengths.max(axis=1, initial=1) * split.sentences.shape[1]
    order = np.argsort(longest, kind="stable")
    start = 0
    while start < len(order):
        end = start + 1
        while (
            end < len(order)
            and end - start < examples
            and longest[order[end]] * (end + 1 - start) <= words
        ):
            end += 1
        yield order[start:end]
        start = end


def shuffled(
    split: Split, batch_size: int, seed: int, epoch: int, least: int = 1, pool: int = 100
) -> list[NDArray[np.int64]]:
    """Return the rows of a split once, in batches of similar length and in random order.

    Examples are shuffled, sorted by length within pools of `pool` batches, cut into batches, and
    the batches shuffled. So little is padded, and who meets whom changes with every epoch: small
    data sets, too, are divided into four pools.

    Args:
        split: what to go through.
        batch_size: examples a batch; the last batch cut may have fewer.
        seed: with `epoch` decides the order.
        epoch: each has an order of its own.
        least: fewest examples of a batch; fewer at the end join the batch before.
        pool: most batches sorted together.
    """
    generator = np.random.Generator(np.random.PCG64([seed, epoch]))
    longest = split.lengths.max(axis=1, initial=1)
    order = generator.permutation(len(split))
    batches: list[NDArray[np.int64]] = []
    pool = max(1, min(pool, len(split) // (4 * batch_size)))
    for start in range(0, len(order), batch_size * pool):
        chunk = order[start : start + batch_size * pool]
        chunk = chunk[np.argsort(longest[chunk], kind="stable")]
        batches += [chunk[i : i + batch_size] for i in range(0, len(chunk), batch_size)]
    if len(batches) > 1 and len(batches[-1]) < least:
        last = batches.pop()
        batches[-1] = np.concatenate([batches[-1], last])
    places = generator.permutation(len(batches))
    return [batches[place] for place in places]
