"""The one form of a batch: rows of words, and where they stand.

Sentences are sorted by length, the longest first, and stored word by word: word t of every sentence
that has one stands together, as in `torch.nn.utils.rnn.PackedSequence`. So nothing is padded, the
sentences still running at any step are a prefix, and finished ones cost nothing. Lengths 3, 1, 2 of
sentences a, b, c are stored as

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

from gumbeltree.device.find_rows import Found, find_rows
from gumbeltree.device.overlap import Overlap


class Bounds(NamedTuple):
    """Sizes of a batch; all batches within the same bounds have tensors of the same shapes."""

    B: int
    """Sentences."""
    T: int
    """Bound of the words of a sentence."""
    cap: int
    """Bound of the words of all."""

    @classmethod
    def of(cls, lengths: NDArray[np.int64], rounded: bool = True) -> "Bounds":
        """Return the bounds of sentences `[B]`; rounded, batches of similar sizes share them."""
        longest, words = int(lengths.max(initial=1)), int(lengths.sum())
        if not rounded:
            return cls(len(lengths), max(2, longest), words)
        return cls(len(lengths), rounded_T(longest), rounded_cap(words))


def rounded_T(T: int) -> int:
    """Return T, and from 20 on the next multiple of 2, from 32 on of 4, from 64 on of 8."""
    step = 1 if T <= 20 else 2 if T <= 32 else 4 if T <= 64 else 8
    return max(2, -(-T // step) * step)


def rounded_cap(words: int) -> int:
    """Return the next multiple of 64, from 1,024 on of an eighth of the power of two below."""
    step = max(64, 1 << max(0, words.bit_length() - 4))
    return -(-words // step) * step


class Arrangement(NamedTuple):
    """How sentences are laid out, as the host knows it; all int64."""

    lengths: NDArray[np.int64]
    """Words of each sentence, longest first, `[B]`."""
    sentence: NDArray[np.int64]
    """The caller's place of each sentence, `[B]`."""
    rank: NDArray[np.int64]
    """Sorted place of each of the caller's sentences, `[B]`."""
    start: NDArray[np.int64]
    """Row of the first word at each position, and the number of words at the end, `[T + 1]`."""

    @classmethod
    def of(cls, lengths: NDArray[np.int64], T: int) -> "Arrangement":
        """Lay out sentences of given lengths `[B]`, none longer than T."""
        if not len(lengths) or lengths.min() < 1:
            came = f"one of {lengths.min()} words" if len(lengths) else "no sentence"
            raise ValueError(
                f"a batch must hold at least one sentence, each of at least one word, got {came}; "
                "drop empty sentences, and skip empty batches"
            )
        sentence = np.argsort(-lengths, kind="stable")
        rank = np.empty_like(sentence)
        rank[sentence] = np.arange(len(sentence))
        # sentences that have a word at each position: those longer than it
        active = len(lengths) - np.cumsum(np.bincount(lengths, minlength=T)[:T])
        return cls(lengths[sentence], sentence, rank, np.concatenate([[0], np.cumsum(active)]))

    def rows(self, words: NDArray[np.integer], firsts: NDArray[np.int64]) -> NDArray[np.integer]:
        """Return the words of each row, where sentence i, by rank, begins at `firsts[i]`."""
        position = np.arange(len(self.start) - 1)[:, None]
        inside = position < self.lengths  # [T, B]
        found: NDArray[np.integer] = words[(firsts + position)[inside]]
        return found


class Layout:
    """Where the words of a batch stand.

    Sizes are bounds, and what says which sentences these are lies in tensors of fixed shapes, so
    that a captured CUDA graph can be replayed on other sentences within the same bounds. Outside of
    graphs the host knows the numbers as well: `active` and what follows from it.

    Args:
        cap: rows for words.
        start: row of the first word at each position, and the number of words, int64 `[T + 1]`.
        lengths: words of each sentence, longest first, int64 `[B]`.
        sentence: the caller's place of each sentence, int64 `[B]`.
        rank: sorted place of each of the caller's sentences, int64 `[B]`.
        active: for each position up to the longest sentence's, how many sentences have a word
            there; None in a graph.
        found: what kernels read, if it is known already.
        overlap: a second stream for work that nobody waits for yet; whoever gives one waits for it
            before reading any gradient.

    Attributes:
        B: sentences; T: most words of one.

    Tree nodes are stored behind the words: the node that the sentence of rank b makes at step t is
    ``N + merged[t] + b``, 2N - B rows in all.
    """

    def __init__(
        self,
        cap: int,
        start: Tensor,
        lengths: Tensor,
        sentence: Tensor,
        rank: Tensor,
        active: Sequence[int] | None = None,
        found: Found | None = None,
        overlap: Overlap | None = None,
    ) -> None:
        self.B, self.T, self.cap = len(lengths), len(start) - 1, cap
        self.start, self.lengths, self.sentence, self.rank = start, lengths, sentence, rank
        self._active, self.overlap = active, overlap
        if found is not None:
            self.found = found

    @classmethod
    def of(cls, arrangement: Arrangement, device: torch.device | str | None = None) -> "Layout":
        """Return the layout of an arrangement, without spare rows."""
        # one small copy
        numbers = torch.from_numpy(in_one(*arrangement)).to(device, non_blocking=True)
        lengths, sentence, rank, start = in_parts(numbers, *map(len, arrangement))
        cap, steps = int(arrangement.start[-1]), int(arrangement.lengths[0])
        active = np.diff(arrangement.start)[:steps].tolist()
        return cls(cap, start, lengths, sentence, rank, active)

    @property
    def known(self) -> bool:
        """Whether the host knows the numbers: it does not in a graph."""
        return self._active is not None

    @property
    def active(self) -> Sequence[int]:
        """For each position, how many sentences have a word there."""
        if self._active is None:
            raise RuntimeError(
                "the host does not know the sentences of a captured graph: what reads their "
                "numbers must not be captured"
            )
        return self._active

    @property
    def steps(self) -> int:
        """Words of the longest sentence."""
        return len(self.active)

    @cached_property
    def starts(self) -> list[int]:
        """`start` up to the longest sentence's end, as the host knows it."""
        return [0, *accumulate(self.active)]

    @cached_property
    def merged(self) -> list[int]:
        """Merges made before each step, and in all."""
        return [0, *accumulate(self.active[1:])]

    @property
    def N(self) -> int:
        """Words in all."""
        return self.starts[-1]

    @property
    def nodes(self) -> int:
        """Nodes in all, words included."""
        return 2 * self.N - self.B

    @property
    def dense(self) -> bool:
        """Whether sentences are at least half as long as the longest, in the mean; by bounds."""
        return 2 * self.cap >= self.B * self.T

    @cached_property
    def found(self) -> Found:
        """What kernels read."""
        # it may be kept for a backward pass to come
        with torch.inference_mode(False):
            return find_rows(self.cap, self.start, self.lengths)

    def own_lengths(self) -> Tensor:
        """Return the lengths in the caller's order, int64 `[B]`."""
        return self.lengths[self.rank]

    def valid(self, width: int, shorter: int = 0) -> Tensor:
        """Return which of `width` positions lie in each sorted sentence, bool `[B, width]`."""
        position = torch.arange(width, device=self.lengths.device)
        return position < (self.lengths - shorter)[:, None]

    def word_places(self) -> Tensor:
        """Return the place of each row in a flattened padded batch `[B * T]`, int64 `[N]`."""
        position, rank = self.valid(self.steps).t().nonzero(as_tuple=True)
        return self.sentence[rank] * self.T + position

    def unpack(self, rows: Tensor) -> Tensor:
        """Lay words out, `[N, ...]` -> `[B, T, ...]`, zero where there is no word."""
        return self._lay_out(rows, self.word_places(), self.T)

    def unpack_nodes(self, rows: Tensor) -> Tensor:
        """Lay nodes out, `[2N - B, ...]` -> `[B, 2T-1, ...]`: word i at i, merge t at T + t."""
        width = 2 * self.T - 1
        step, rank = self.valid(self.steps - 1, shorter=1).t().nonzero(as_tuple=True)
        words = self.word_places()
        words = words.div(self.T, rounding_mode="floor") * width + words % self.T
        places = torch.cat([words, self.sentence[rank] * width + self.T + step])
        return self._lay_out(rows, places, width)

    def _lay_out(self, rows: Tensor, places: Tensor, width: int) -> Tensor:
        flat = rows.new_zeros((self.B * width, *rows.shape[1:])).index_copy(0, places, rows)
        return flat.view(self.B, width, *rows.shape[1:])

    def root_rows(self) -> Tensor:
        """Return the node that is the root of each sorted sentence, int64 `[B]`."""
        merged = torch.tensor(self.merged, device=self.lengths.device)
        rank = torch.arange(self.B, device=self.lengths.device)
        made = self.N + merged[(self.lengths - 2).clamp(min=0)] + rank
        return torch.where(self.lengths > 1, made, rank)

    def node_mask(self) -> Tensor:
        """Return where the caller's sentences have a node, bool `[B, 2T-1]`, as `unpack_nodes`."""
        words = torch.arange(self.T, device=self.rank.device) < self.own_lengths()[:, None]
        return torch.cat([words, words[:, 1:]], dim=1)


class Sentences:
    """A batch of sentences, from the data to the merge.

    Args:
        words: of each row: ids, int64 `[cap]`, at the model's door; vectors `[cap, E]` at the
            encoder's. Rows beyond the words may be anything finite.
        layout: where the words stand.
        order: given merges, int64 `[B, T-1]`, where data or caller bring trees; entries past a
            sentence's end are never read.
        node_labels: labels of nodes, int64 `[B, 2T-1]`, -1 where there is none.
        extras: what single encoders need beside the words, by name.
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
        """Return sentences of word ids, each with at least one."""
        lengths = np.fromiter(map(len, ids), dtype=np.int64, count=len(ids))
        arrangement = Arrangement.of(lengths, int(lengths.max(initial=1)))
        rows = arrangement.rows(*joined(ids, arrangement))
        return cls(torch.from_numpy(rows).to(device), Layout.of(arrangement, device))

    @classmethod
    def padded(cls, words: Tensor, lengths: Tensor) -> "Sentences":
        """Take the words out of a padded batch.

        Args:
            words: `[B, T, ...]`; what stands beyond `lengths` is never read.
            lengths: words of each sentence, `[B]`, each in 1..T.
        """
        T, device = words.shape[1], words.device
        if lengths.shape != words.shape[:1] or lengths.is_floating_point():
            raise ValueError(
                f"`lengths` must be whole numbers [B] = [{len(words)}], one for each sentence, got "
                f"{lengths.dtype} {list(lengths.shape)}"
            )
        counts = np.array(lengths.tolist(), dtype=np.int64)
        longest = int(counts.max(initial=1))
        if longest > T:
            raise ValueError(
                f"`lengths` must lie in 1..T={T}, got {longest}; cut long sentences before batching"
            )
        arrangement = Arrangement.of(counts, longest)
        places = np.arange(len(counts) * T)
        rows = torch.from_numpy(arrangement.rows(places, arrangement.sentence * T)).to(device)
        return cls(words.flatten(0, 1).index_select(0, rows), Layout.of(arrangement, device))

    def with_order(self, order: Tensor) -> "Sentences":
        """Return the same sentences with given merges."""
        return Sentences(self.words, self.layout, order, self.node_labels, self.extras)

    def with_words(self, words: Tensor) -> "Sentences":
        """Return the same sentences with other words, such as vectors instead of ids."""
        return Sentences(words, self.layout, self.order, self.node_labels, self.extras)


def in_one(*parts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return arrays of numbers as one, each at a multiple of 16 bytes, as kernels prefer it."""
    even = [np.append(part, 0) if len(part) % 2 else part for part in parts]
    return np.concatenate(even).astype(np.int64, copy=False)


def in_parts(numbers: Tensor, *sizes: int) -> list[Tensor]:
    """Return the parts of given sizes that `in_one` put together."""
    parts = numbers.split([size + size % 2 for size in sizes])
    return [part[:size] for part, size in zip(parts, sizes, strict=True)]


def joined(
    ids: Sequence[Sequence[int]], arrangement: Arrangement
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the ids of sentences one after the other, by rank, and where each begins."""
    flat = np.array(list(itertools.chain.from_iterable(ids[i] for i in arrangement.sentence)))
    if flat.dtype.kind not in "iu":
        raise TypeError(f"word ids must be whole numbers, got {flat.dtype}")
    return flat.astype(np.int64, copy=False), np.cumsum(arrangement.lengths) - arrangement.lengths
