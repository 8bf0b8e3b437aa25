"""Keep a split on the device, where captured graphs can read batches from it."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gumbeltree.data.split import Batch, Split
from gumbeltree.device.find_rows import find_rows
from gumbeltree.device.overlap import Overlap
from gumbeltree.layout import Arrangement, Bounds, Layout, Sentences, pack_numbers, unpack_numbers


class DeviceSplit:
    """Words, targets and, if there are any, trees and classes of nodes of a split on a device.

    Args:
        split: examples.
        device: where batches are read.
        word_symbols: number of symbols of each word in the vocabulary, int64 `[V]`, for encoders
            that read a sentence as one text.

    Attributes:
        lengths: number of words of each sentence.
        text_lengths: number of symbols of each sentence, or None.
    """

    def __init__(
        self, split: Split, device: torch.device, word_symbols: NDArray[np.int64] | None = None
    ) -> None:
        self.split = split
        self.lengths = np.diff(split.starts)
        self.text_lengths: NDArray[np.int64] | None = None
        if word_symbols is not None:
            before = np.concatenate([[0], np.cumsum(word_symbols[split.words])])
            self.text_lengths = np.diff(before[split.starts])
        self.words = torch.from_numpy(split.words.astype(np.int32)).to(device)
        self.targets = torch.from_numpy(split.labels).to(device)
        self.orders: Tensor | None = None
        if split.orders is not None:
            # one more entry: batches of single words look up the first merge
            self.orders = torch.from_numpy(np.append(split.orders.astype(np.int64), 0)).to(device)
        self.node_labels: Tensor | None = None
        if split.node_labels is not None:
            self.node_labels = torch.from_numpy(split.node_labels.astype(np.int64)).to(device)

    def place(
        self, rows: NDArray[np.int64], rounded: bool = True
    ) -> tuple[Bounds, NDArray[np.int64]]:
        """Return the bounds of a batch and the numbers that describe it to `read`.

        Args:
            rows: examples of the split.
            rounded: round the bounds, so that batches of similar sizes share a graph.
        """
        sentences = self.split.sentences[rows].T.reshape(-1)  # [columns * examples]
        lengths = self.lengths[sentences]
        texts = self.text_lengths
        most_symbols = 0 if texts is None else int(texts[sentences].max(initial=0))
        bounds = Bounds.of(lengths, rounded, most_symbols)
        arrangement = Arrangement.of(lengths, bounds.T)
        firsts = self.split.starts[sentences[arrangement.sentence]]
        # a sentence has one merge fewer than words
        merges = self.split.starts[sentences] - sentences
        return bounds, pack_numbers(self.split.own(rows), merges, firsts, *arrangement)

    def read(self, numbers: Tensor, bounds: Bounds, overlap: Overlap | None = None) -> Batch:
        """Return the batch that `place` described, without synchronising with the device."""
        B, T, cap, most_symbols = bounds
        own, merges, firsts, lengths, sentence, rank, start = unpack_numbers(
            numbers, *[B] * 6, T + 1
        )
        tables = find_rows(cap, start, lengths, self.words, firsts)
        places = cap, start, lengths, sentence, rank
        layout = Layout(*places, tables=tables, overlap=overlap, most_symbols=most_symbols)
        examples = B // self.split.sentences.shape[1]
        order = self._order(merges, layout)
        labels = self._node_labels(merges, firsts, layout)
        sentences = Sentences(tables.ids, layout, order, labels)
        return Batch(own, sentences, self.targets[own[:examples]])

    def _order(self, first: Tensor, layout: Layout) -> Tensor | None:
        """Return the merges of sentences, int64 `[B, T-1]`, -1 past the end.

        Args:
            first: where the merges of each sentence begin, int64 `[B]`.
            layout: the layout of the sentences.
        """
        if self.orders is None:
            return None
        step = torch.arange(layout.T - 1, device=first.device)
        inside = step < (layout.own_lengths() - 1)[:, None]
        return torch.where(inside, self.orders[torch.where(inside, first[:, None] + step, 0)], -1)

    def _node_labels(self, merges: Tensor, firsts: Tensor, layout: Layout) -> Tensor | None:
        """Return the classes of nodes, int64 `[B, 2T-1]`, -1 where there is no node.

        Args:
            merges: where the merges of each sentence begin, int64 `[B]`.
            firsts: where the words of each sorted sentence begin, int64 `[B]`.
            layout: the layout of the sentences.
        """
        if self.node_labels is None:
            return None
        # a sentence has one node fewer than twice its words
        first = merges + firsts[layout.rank]
        word = torch.arange(layout.T, device=first.device).expand(layout.B, -1)
        # merge t of a sentence follows its last word
        node = torch.cat([word, word[:, :-1] + layout.own_lengths()[:, None]], dim=1)
        inside = layout.node_mask()
        index = torch.where(inside, first[:, None] + node, 0)
        return torch.where(inside, self.node_labels[index], -1)
