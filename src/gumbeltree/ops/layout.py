"""Where the words of a batch stand, said by tensors of fixed sizes.

`Packing` says the same with numbers of the host, which must be read back from the device. Here
sizes are bounds: a layout of other sentences within them has the same shapes, so that a captured
CUDA graph can be replayed on it.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gumbeltree.ops.triton_support import why_not_triton
from gumbeltree.packing import Packing


@dataclass(frozen=True)
class Layout:
    """Rows of words, sentences sorted by length; all tensors on the device.

    Attributes:
        B: sentences; T: most words of one; cap: rows for words.
        start: row of the first word at each position, and the number of words, int32 `[T + 1]`.
        lengths: words of each sentence, longest first, int32 `[B]`.
        sentence: the caller's place of each sentence, int64 `[B]`.
        rank: sorted place of each of the caller's sentences, int64 `[B]`.
        previous: row of the word before each word, int32 `[cap]`; anything for first words.
        roots: root node of each sentence by rank, int64 `[B]`, numbered as in `fused_forward`.
    """

    B: int
    T: int
    cap: int
    start: Tensor
    lengths: Tensor
    sentence: Tensor
    rank: Tensor
    previous: Tensor
    roots: Tensor

    @property
    def dense(self) -> bool:
        """Whether sentences are at least half as long as the longest, in the mean; by bounds."""
        return 2 * self.cap >= self.B * self.T

    @classmethod
    def of(cls, packing: Packing) -> "Layout":
        """Return the layout of a packing, without spare rows."""
        # one small copy; rows are looked up on the device
        start = torch.tensor(packing.start, dtype=torch.int32).to(
            packing.lengths.device, non_blocking=True
        )
        return cls.from_start(packing.N, start, packing.lengths, packing.sentence, packing.rank)

    @classmethod
    def from_start(
        cls, cap: int, start: Tensor, lengths: Tensor, sentence: Tensor, rank: Tensor
    ) -> "Layout":
        """Return a layout with all else looked up on the device.

        Args:
            cap: rows for words.
            start: int `[T + 1]`.
            lengths: int `[B]`, longest first.
            sentence: int64 `[B]`.
            rank: int64 `[B]`.
        """
        return cls.with_ids(cap, start, lengths, sentence, rank, None, None)[0]

    @classmethod
    def with_ids(
        cls,
        cap: int,
        start: Tensor,
        lengths: Tensor,
        sentence: Tensor,
        rank: Tensor,
        words: Tensor | None,
        firsts: Tensor | None,
    ) -> tuple["Layout", Tensor]:
        """Return a layout and the id of each row, int64 `[cap]`, 0 beyond the words.

        Args:
            cap: as in `from_start`, and so for the next four.
            start: row of the first word at each position.
            lengths: words of each sentence.
            sentence: the caller's place of each.
            rank: sorted place of the caller's sentences.
            words: ids of all sentences of a data set, one after the other, int32; None: no ids.
            firsts: where each sentence begins there, by rank, int64 `[B]`.
        """
        B, T = len(lengths), len(start) - 1
        find = _find_fast if start.is_cuda and why_not_triton() is None else _find
        found = find(cap, start, lengths, words, firsts)
        layout = cls(
            B, T, cap, found.start, found.lengths, sentence, rank, found.previous, found.roots
        )
        return layout, found.ids

    def own_lengths(self) -> Tensor:
        """Return the lengths in the caller's order, int64 `[B]`."""
        return self.lengths[self.rank].long()

    def node_rows(self) -> tuple[Tensor, Tensor]:
        """Return the node at each place of the caller's sentences, and whether there is one.

        Returns:
            int64 and bool `[B, 2T-1]`: word i at i, the node made at step t at T + t. Nodes are
            numbered as in `fused_forward`.
        """
        rank = self.rank[:, None]
        words = self.start[:-1] + rank  # [B, T]
        exists = torch.arange(self.T, device=rank.device) < self.lengths[self.rank][:, None]
        nodes = torch.cat([words, self.cap + words[:, 1:]], dim=1)
        exists = torch.cat([exists, exists[:, 1:]], dim=1)
        return torch.where(exists, nodes, 0), exists


class _Found(NamedTuple):
    """Fields of a layout, and ids."""

    start: Tensor
    lengths: Tensor
    previous: Tensor
    roots: Tensor
    ids: Tensor


def _find(
    cap: int, start: Tensor, lengths: Tensor, words: Tensor | None, firsts: Tensor | None
) -> _Found:
    """Look up rows by operations of torch."""
    start, device = start.int(), start.device
    B, T = len(lengths), len(start) - 1
    row = torch.arange(cap, dtype=torch.int32, device=device)
    position = (torch.searchsorted(start, row, right=True) - 1).clamp(max=T - 1)
    rank = row - start[position]
    previous = rank + start[(position - 1).clamp(min=0)]
    ids = torch.zeros(cap if words is not None else 0, dtype=torch.int64, device=device)
    if words is not None and firsts is not None:
        inside = row < start[T]
        place = torch.where(inside, firsts[rank.clamp(0, B - 1)] + position, 0)
        ids = torch.where(inside, words[place].long(), 0)
    order = torch.arange(B, device=device)
    made = cap + start[(lengths - 1).clamp(min=0)] + order
    roots = torch.where(lengths > 1, made, order)
    return _Found(start, lengths.int(), previous.int(), roots, ids)


def _find_fast(
    cap: int, start: Tensor, lengths: Tensor, words: Tensor | None, firsts: Tensor | None
) -> _Found:
    """Look up the same by one kernel."""
    from gumbeltree.ops.layout_kernels import BLOCK, layout_kernel

    B, T, device = len(lengths), len(start) - 1, start.device

    def integers(size: int) -> Tensor:
        return torch.empty(size, dtype=torch.int32, device=device)

    found = _Found(
        integers(T + 1),
        integers(B),
        integers(cap),
        torch.empty(B, dtype=torch.int64, device=device),
        torch.empty(cap if words is not None else 0, dtype=torch.int64, device=device),
    )
    with torch.cuda.device_of(start):
        layout_kernel[(-(-max(cap, B, T + 1) // BLOCK),)](
            start, lengths, start if words is None else words, start if firsts is None else firsts,
            *found, B, T, cap, BT=max(64, 1 << (T - 1).bit_length()), BLOCK=BLOCK,
            HAS_WORDS=words is not None,
        )  # fmt: skip
    return found
