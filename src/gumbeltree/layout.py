"""The batch format of the package: packed rows of words and the layout that locates them.

Sentences are sorted by length, longest first, and stored time-major, as in
`torch.nn.utils.rnn.PackedSequence`: all first words, then all second words, and so on. There is no
padding, and the sentences that are still active at a step form a prefix of the batch. Sentences a,
b, c of lengths 3, 1, 2 are stored as

    row      0  1  2   3  4   5
    word    a0 c0 b0  a1 c1  a2        active = [3, 2, 1]
"""

import itertools
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from gumbeltree.device.find_rows import RowTables, find_rows
from gumbeltree.device.overlap import Overlap

NO_CLASS = -2
"""Class number of a node whose label is not one of the classes, such as neutral in sst2."""


class Bounds(NamedTuple):
    """Sizes of a batch; batches with the same bounds have tensors of the same shapes."""

    B: int
    """Number of sentences."""
    T: int
    """Upper bound on the number of words per sentence."""
    cap: int
    """Upper bound on the number of words in the batch."""
    most_symbols: int = 0
    """Upper bound on the number of symbols per sentence, if the encoder reads them as one text."""

    @classmethod
    def of(
        cls, lengths: NDArray[np.int64], rounded: bool = True, most_symbols: int = 0
    ) -> "Bounds":
        """Return the bounds for lengths `[B]`; rounding lets batches of similar size share them.

        Args:
            lengths: words of each sentence.
            rounded: whether to round.
            most_symbols: maximum number of symbols of a sentence, if the encoder joins words.
        """
        longest, words = int(lengths.max(initial=1)), int(lengths.sum())
        if not rounded:
            return cls(len(lengths), max(2, longest), words, most_symbols)
        most_symbols = -(-most_symbols // 16) * 16
        return cls(len(lengths), rounded_T(longest), rounded_cap(words), most_symbols)


def rounded_T(T: int) -> int:
    """Round T up to a multiple of 2 above 20, of 4 above 32 and of 8 above 64; at least 2."""
    step = 1 if T <= 20 else 2 if T <= 32 else 4 if T <= 64 else 8
    return max(2, -(-T // step) * step)


def rounded_cap(words: int) -> int:
    """Round up to a multiple of 64 or, from 1024 words, of an eighth of the power of two below."""
    step = max(64, 1 << max(0, words.bit_length() - 4))
    return -(-words // step) * step


class Arrangement(NamedTuple):
    """The layout of a batch on the host, in NumPy arrays."""

    lengths: NDArray[np.int64]
    """Length of each sentence, longest first, `[B]`."""
    sentence: NDArray[np.int64]
    """Index in the caller's batch of each sorted sentence, `[B]`."""
    rank: NDArray[np.int64]
    """Index among the sorted sentences of each of the caller's sentences, `[B]`."""
    start: NDArray[np.int64]
    """First row of each position, then the total number of words, `[T + 1]`."""

    @classmethod
    def of(cls, lengths: NDArray[np.int64], T: int) -> "Arrangement":
        """Lay out sentences of lengths `[B]`, none longer than T."""
        if not len(lengths):
            raise ValueError("the batch contains no sentences; skip empty batches")
        if lengths.min() < 1:
            raise ValueError(
                f"the batch contains a sentence of {lengths.min()} words; drop empty sentences"
            )
        sentence = np.argsort(-lengths, kind="stable")
        rank = np.empty_like(sentence)
        rank[sentence] = np.arange(len(sentence))
        # number of sentences longer than each position
        active = len(lengths) - np.cumsum(np.bincount(lengths, minlength=T)[:T])
        return cls(lengths[sentence], sentence, rank, np.concatenate([[0], np.cumsum(active)]))

    def rows(self, words: NDArray[np.integer], firsts: NDArray[np.int64]) -> NDArray[np.integer]:
        """Return the word of each row, given where each sorted sentence begins in `words`."""
        position = np.arange(len(self.start) - 1)[:, None]
        inside = position < self.lengths  # [T, B]
        packed: NDArray[np.integer] = words[(firsts + position)[inside]]
        return packed


class Layout:
    """Locates the words and tree nodes of a batch.

    Sizes are upper bounds, and the numbers that describe the sentences are tensors of fixed shape,
    so a captured CUDA graph can be replayed for other sentences within the same bounds. Outside
    graphs the host knows these numbers as well: `active` and everything derived from it.

    Tree nodes are numbered after the words: the node that the sentence of rank b creates at
    step t is ``N + merged[t] + b``. There are 2N - B nodes in all.

    Args:
        cap: Number of rows for words.
        start: First row of each position, then the total number of words, int64 `[T + 1]`.
        lengths: Length of each sentence, longest first, int64 `[B]`.
        sentence: Index in the caller's batch of each sorted sentence, int64 `[B]`.
        rank: Index among the sorted sentences of each of the caller's sentences, int64 `[B]`.
        active: Number of sentences that have a word at each position; None inside a graph.
        tables: Row tables for the kernels, if they have already been computed.
        overlap: A second stream for work whose result is not needed immediately. A caller that
            passes one must wait for it before reading any gradient.
        spare: Whether some rows may not be words; see `full`.
        most_symbols: Upper bound on the number of symbols of a sentence; 0 if unknown.

    Attributes:
        B: Number of sentences.
        T: Upper bound on the number of words per sentence.
    """

    def __init__(
        self,
        cap: int,
        start: Tensor,
        lengths: Tensor,
        sentence: Tensor,
        rank: Tensor,
        active: Sequence[int] | None = None,
        tables: RowTables | None = None,
        overlap: Overlap | None = None,
        spare: bool = False,
        most_symbols: int = 0,
    ) -> None:
        self.B, self.T, self.cap = len(lengths), len(start) - 1, cap
        self.start, self.lengths, self.sentence, self.rank = start, lengths, sentence, rank
        self._active, self.overlap, self.spare = active, overlap, spare or active is None
        self.most_symbols = most_symbols
        if tables is not None:
            self.tables = tables

    @classmethod
    def of(cls, arrangement: Arrangement, device: torch.device | str | None = None) -> "Layout":
        """Return the layout of an arrangement, without spare rows."""
        # one small copy to the device instead of four
        numbers = torch.from_numpy(pack_numbers(*arrangement)).to(device, non_blocking=True)
        lengths, sentence, rank, start = unpack_numbers(numbers, *map(len, arrangement))
        cap, steps = int(arrangement.start[-1]), int(arrangement.lengths[0])
        active = np.diff(arrangement.start)[:steps].tolist()
        return cls(cap, start, lengths, sentence, rank, active)

    @property
    def known(self) -> bool:
        """Whether the host knows the lengths; inside a graph it does not."""
        return self._active is not None

    @property
    def active(self) -> Sequence[int]:
        """Number of sentences that have a word at each position, up to the longest sentence."""
        if self._active is None:
            raise RuntimeError(
                "the lengths of the sentences are not available on the host inside a captured "
                "CUDA graph; code that reads them cannot be captured"
            )
        return self._active

    @property
    def steps(self) -> int:
        """Length of the longest sentence."""
        return len(self.active)

    @cached_property
    def starts(self) -> list[int]:
        """`start` on the host, up to the end of the longest sentence."""
        return [0, *accumulate(self.active)]

    @cached_property
    def merged(self) -> list[int]:
        """Number of merges before each step, then their total number."""
        return [0, *accumulate(self.active[1:])]

    @property
    def N(self) -> int:
        """Total number of words."""
        return self.starts[-1]

    @property
    def rows(self) -> int:
        """Number of rows in use: N, or `cap` inside a graph."""
        return self.N if self.known else self.cap

    @property
    def nodes(self) -> int:
        """Total number of nodes, words included."""
        return 2 * self.N - self.B

    @property
    def dense(self) -> bool:
        """Whether the mean length is at least half the maximum, according to the bounds."""
        return 2 * self.cap >= self.B * self.T

    @cached_property
    def tables(self) -> RowTables:
        """Row tables for the kernels."""
        # a later backward pass may save them, which inference tensors do not allow
        with torch.inference_mode(False):
            return find_rows(self.cap, self.start, self.lengths)

    def own_lengths(self) -> Tensor:
        """Return the lengths in the caller's order, int64 `[B]`."""
        return self.lengths[self.rank]

    def valid(self, width: int, shorter: int = 0) -> Tensor:
        """Return the mask of sorted sentences without their last `shorter` words, `[B, width]`."""
        position = torch.arange(width, device=self.lengths.device)
        return position < (self.lengths - shorter)[:, None]

    def full(self, width: int = 0) -> "Layout":
        """Return the same sentences with T rows each, if the host does not know their lengths.

        Inside a graph, all B sentences then take part in each of T steps, so that the host knows
        `active`. `spread` fills the rows past the end of a sentence with zeros. Lengths and masks
        still describe the words, and results of spare rows must not be used.

        Args:
            width: Number of rows per sentence, if not T.
        """
        if self.known:
            return self
        B, T = self.B, width or self.T
        start = torch.arange(0, (T + 1) * B, B, device=self.lengths.device)
        own = self.lengths, self.sentence, self.rank
        return Layout(B * T, start, *own, [B] * T, overlap=self.overlap, spare=True)

    def spread(self, rows: Tensor) -> Tensor:
        """Return rows of words, `[cap, ...]`, in the layout `full`."""
        if self.known:
            return rows[: self.N]
        inside = self.valid(self.T).t().flatten()
        rank = torch.arange(self.B, device=self.lengths.device)
        return _read(rows, (self.start[:-1, None] + rank).flatten(), inside)

    def gather(self, rows: Tensor) -> Tensor:
        """Return rows of the layout `full` as rows of this one, `[rows, ...]`."""
        if self.known:
            return rows
        position, rank = self.row_places()
        return rows.index_select(0, position * self.B + rank)

    def row_places(self) -> tuple[Tensor, Tensor]:
        """Return the position and the rank of each row, int64 `[rows]` each.

        Those of rows past the last word are in range, but have no meaning.
        """
        row = torch.arange(self.rows, device=self.start.device)
        position = (torch.searchsorted(self.start, row, right=True) - 1).clamp(max=self.T - 1)
        return position, (row - self.start[position]).clamp(max=self.B - 1)

    def rows_before(self) -> Tensor:
        """Return the row of the word before each word but the first ones, int64 `[rows - B]`."""
        position, rank = (x[self.B :] for x in self.row_places())
        return self.start[position - 1] + rank

    def last_rows(self) -> Tensor:
        """Return the row of the last word of each of the caller's sentences, int64 `[B]`."""
        last = self.start[self.lengths - 1] + torch.arange(self.B, device=self.start.device)
        return last[self.rank]

    def word_places(self) -> Tensor:
        """Return the index of each row in a flattened padded batch `[B * T]`, int64 `[rows]`."""
        position, rank = self.row_places()
        return self.sentence[rank] * self.T + position

    def packed(self, rows: Tensor) -> PackedSequence:
        """Return rows of words `[cap, ...]` as an input of torch's RNNs."""
        return PackedSequence(rows[: self.N], torch.tensor(self.active))

    def unpack(self, rows: Tensor) -> Tensor:
        """Pad rows of words, `[rows, ...]` -> `[B, T, ...]`, with zeros."""
        # the gradient is faster than that of `padded`
        return self.padded(rows) if self.spare else self._lay_out(rows, self.word_places(), self.T)

    def padded(self, rows: Tensor) -> Tensor:
        """Pad rows of words, `[cap, ...]` -> `[B, T, ...]`, with zeros, also inside a graph."""
        return _read(rows, self.start[:-1] + self.rank[:, None], self.word_mask())

    def unpack_nodes(self, rows: Tensor) -> Tensor:
        """Pad rows of nodes, `[2N-B, ...]` -> `[B, 2T-1, ...]`: word i at i, merge t at T+t."""
        width = 2 * self.T - 1
        position, rank = self.row_places()
        words = self.sentence[rank] * width + position
        # one merge for each word but the first
        places = torch.cat([words, words[self.B :] + self.T - 1])
        found = self._lay_out(rows, places, width)
        if not self.spare:
            return found
        return torch.where(_beside(self.node_mask(), rows), found, 0)

    def _lay_out(self, rows: Tensor, places: Tensor, width: int) -> Tensor:
        flat = rows.new_zeros((self.B * width, *rows.shape[1:])).index_copy(0, places, rows)
        return flat.view(self.B, width, *rows.shape[1:])

    def root_rows(self) -> Tensor:
        """Return the root node of each sorted sentence, int64 `[B]`."""
        rank = torch.arange(self.B, device=self.lengths.device)
        # the last merge, whose number is that of the last word without the first words
        made = self.N + self.start[self.lengths - 1] - self.B + rank
        return torch.where(self.lengths > 1, made, rank)

    def word_mask(self) -> Tensor:
        """Return which entries of `unpack` are words, bool `[B, T]`."""
        return torch.arange(self.T, device=self.rank.device) < self.own_lengths()[:, None]

    def node_mask(self) -> Tensor:
        """Return which entries of `unpack_nodes` are nodes, bool `[B, 2T-1]`."""
        words = self.word_mask()
        return torch.cat([words, words[:, 1:]], dim=1)


class Sentences:
    """A batch of sentences.

    Args:
        words: Word ids, int64 `[cap]`, as the input of a model, or word vectors `[cap, E]`, as the
            input of an encoder. Rows past the last word may hold any finite value.
        layout: Layout of the words.
        order: Merge orders to follow instead of the encoder's own choice, int64 `[B, T-1]`;
            entries past the end of a sentence are ignored.
        node_labels: Classes of the nodes, int64 `[B, 2T-1]`: word i at i, merge t at T+t, -1 where
            there is no node, `NO_CLASS` for labels that are not classes.
        extras: Additional inputs of custom encoders, by name.
    """

    def __init__(
        self,
        words: Tensor,
        layout: Layout,
        order: Tensor | None = None,
        node_labels: Tensor | None = None,
        extras: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.words, self.layout, self.order = words, layout, order
        self.node_labels, self.extras = node_labels, extras or {}

    def __len__(self) -> int:
        return self.layout.B

    @classmethod
    def of(
        cls, ids: Sequence[Sequence[int]], device: torch.device | str | None = None
    ) -> "Sentences":
        """Build a batch from the word ids of sentences.

        Args:
            ids: Word ids of each sentence, at least one.
            device: Device of the batch.
        """
        lengths = np.fromiter(map(len, ids), dtype=np.int64, count=len(ids))
        arrangement = Arrangement.of(lengths, int(lengths.max(initial=1)))
        rows = arrangement.rows(*concatenate_ids(ids, arrangement))
        return cls(torch.from_numpy(rows).to(device), Layout.of(arrangement, device))

    @classmethod
    def padded(cls, words: Tensor, lengths: Tensor) -> "Sentences":
        """Pack a padded batch.

        Args:
            words: Padded words `[B, T, ...]`; padding is never read.
            lengths: Length of each sentence, integers in 1..T, `[B]`.
        """
        T, device = words.shape[1], words.device
        if lengths.shape != words.shape[:1] or lengths.is_floating_point():
            raise ValueError(
                f"`lengths` must be an integer tensor of shape [{len(words)}], one length per "
                f"sentence, got {lengths.dtype} of shape {list(lengths.shape)}"
            )
        counts = np.array(lengths.tolist(), dtype=np.int64)
        longest = int(counts.max(initial=1))
        if longest > T:
            raise ValueError(
                f"`lengths` must not exceed the padded length {T}, got {longest}; truncate longer "
                "sentences before batching"
            )
        arrangement = Arrangement.of(counts, longest)
        places = np.arange(len(counts) * T)
        rows = torch.from_numpy(arrangement.rows(places, arrangement.sentence * T)).to(device)
        return cls(words.flatten(0, 1).index_select(0, rows), Layout.of(arrangement, device))

    @classmethod
    def full(cls, words: Tensor, lengths: Tensor) -> "Sentences":
        """Arrange a padded batch in the layout `Layout.full`, also inside a graph.

        Args:
            words: Padded words `[B, T, ...]`; padding must be finite.
            lengths: Length of each sentence, in 1..T, int64 `[B]`.
        """
        ordered, sentence = lengths.sort(descending=True, stable=True)
        places = ordered, sentence, sentence.argsort()
        layout = Layout(0, lengths.new_zeros(words.shape[1] + 1), *places).full()
        return cls(words[sentence].transpose(0, 1).flatten(0, 1), layout)

    def with_order(self, order: Tensor) -> "Sentences":
        """Return the same sentences with fixed merge orders.

        Args:
            order: Merge orders, int64 `[B, T-1]`.
        """
        return Sentences(self.words, self.layout, order, self.node_labels, self.extras)

    def with_words(self, words: Tensor, **extras: Tensor) -> "Sentences":
        """Return the same sentences with other word data, such as vectors instead of ids.

        Args:
            words: Data of the words `[cap, ...]`.
            extras: Additional inputs, by name.
        """
        both = {**self.extras, **extras}
        return Sentences(words, self.layout, self.order, self.node_labels, both)


def _read(rows: Tensor, index: Tensor, inside: Tensor) -> Tensor:
    """Return rows `[n, ...]` at indices of any shape, zeros where they are not inside."""
    index = torch.where(inside, index, 0)
    found = rows.index_select(0, index.flatten()).unflatten(0, index.shape)
    return torch.where(_beside(inside, rows), found, 0)


def _beside(mask: Tensor, rows: Tensor) -> Tensor:
    """Return a mask of rows with as many dimensions as `rows` has in each."""
    return mask.view(*mask.shape, *[1] * (rows.dim() - 1))


def pack_numbers(*parts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Concatenate arrays, each aligned to 16 bytes for fast access by kernels."""
    even = [np.append(part, 0) if len(part) % 2 else part for part in parts]
    return np.concatenate(even).astype(np.int64, copy=False)


def unpack_numbers(numbers: Tensor, *sizes: int) -> list[Tensor]:
    """Split the output of `pack_numbers` into arrays of the given sizes."""
    parts = numbers.split([size + size % 2 for size in sizes])
    return [part[:size] for part, size in zip(parts, sizes, strict=True)]


def concatenate_ids(
    ids: Sequence[Sequence[int]], arrangement: Arrangement
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Concatenate the ids of the sorted sentences; return them and where each sentence begins."""
    flat = np.array(list(itertools.chain.from_iterable(ids[i] for i in arrangement.sentence)))
    if flat.dtype.kind not in "iu":
        raise TypeError(f"word ids must be integers, got {flat.dtype}")
    return flat.astype(np.int64, copy=False), np.cumsum(arrangement.lengths) - arrangement.lengths
