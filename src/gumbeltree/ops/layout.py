"""Where the words of a batch stand, said by tensors of fixed sizes.

`Packing` says the same with numbers of the host, which must be read back from the device. Here
sizes are bounds: a layout of other sentences within them has the same shapes, so that a captured
CUDA graph can be replayed on it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

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
    """

    B: int
    T: int
    cap: int
    start: Tensor
    lengths: Tensor
    sentence: Tensor
    rank: Tensor
    previous: Tensor

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
        """Return a layout with the words before each word looked up on the device."""
        row, position = _rows(cap, start)
        before = row - start[position] + start[(position - 1).clamp(min=0)]
        B, T = len(lengths), len(start) - 1
        return cls(B, T, cap, start, lengths.int(), sentence, rank, before.int())

    def word_ids(self, words: Tensor, first: Tensor) -> Tensor:
        """Return the id of each row, int64 `[cap]`, 0 beyond the words.

        Args:
            words: ids of all sentences of a data set, one after the other.
            first: where each sentence begins there, by rank, int64 `[B]`.
        """
        row, position = _rows(self.cap, self.start)
        rank = (row - self.start[position]).clamp(0, self.B - 1)
        inside = row < self.start[-1]
        place = torch.where(inside, first[rank] + position, 0)
        return torch.where(inside, words[place].long(), 0)

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

    def root_nodes(self) -> Tensor:
        """Return the root node of each sentence by rank, int64 `[B]`."""
        rank = torch.arange(self.B, device=self.start.device)
        lengths = self.lengths.long()
        made = self.cap + self.start[(lengths - 1).clamp(min=0)] + rank
        return torch.where(lengths > 1, made, rank)


def _rows(cap: int, start: Tensor) -> tuple[Tensor, Tensor]:
    """Return all rows, int32 `[cap]`, and the position of the word in each, int64 `[cap]`."""
    row = torch.arange(cap, dtype=torch.int32, device=start.device)
    position = torch.searchsorted(start, row, right=True) - 1
    return row, position.clamp(max=len(start) - 2)
