"""Batches without padding: sentences sorted by length, their words stored word by word.

Word t of every sentence that has one stands together, longest sentence first, as in
`torch.nn.utils.rnn.PackedSequence`. So the sentences still running at any step are a prefix, and
finished ones cost nothing. Lengths 3, 1, 2 of sentences a, b, c are stored as

    row      0  1  2   3  4   5
    word    a0 c0 b0  a1 c1  a2        active = [3, 2, 1]
"""

import copy
from itertools import accumulate

import torch
from torch import Tensor


class Packing:
    """Where each word and each tree node of a batch is stored.

    Attributes:
        B: sentences; T: padded width; N: words in all; steps: longest length.
        active: for each word position t, how many sentences have a word there.
        start: row of the first word at each position, and N at the end.
        sentence: original index of each sorted sentence, int64 `[B]`.
        rank: sorted place of each original sentence, int64 `[B]`.
        lengths: sorted lengths, int64 `[B]`.

    Nodes are stored behind the words: the node that the sentence of rank b makes at step t is
    ``N + merged[t] + b``, 2N - B rows in all.
    """

    def __init__(self, lengths: Tensor, T: int) -> None:
        self.B, self.T = lengths.shape[0], T
        self.lengths, self.sentence = torch.sort(lengths, descending=True, stable=True)
        self.rank = torch.empty_like(self.sentence)
        self.rank[self.sentence] = torch.arange(self.B, device=lengths.device)
        counts = torch.bincount(lengths, minlength=2).tolist()
        # a sentence has a word at position t if it is longer than t
        self.active: list[int] = list(accumulate(reversed(counts[1:])))[::-1]
        self.steps = len(self.active)
        self.start = [0, *accumulate(self.active)]
        self.N = self.start[-1]
        self.merged = [0, *accumulate(self.active[1:])]
        self.nodes = 2 * self.N - self.B

    def narrowed(self) -> "Packing":
        """Return this packing for batches padded to the longest sentence only."""
        other = copy.copy(self)
        other.T = self.steps
        return other

    def row_starts(self) -> Tensor:
        """Return `start` without its end as a tensor, int64 `[steps]`."""
        return torch.tensor(self.start[:-1], device=self.lengths.device)

    def valid(self, width: int, shorter: int = 0) -> Tensor:
        """Return which of `width` positions lie in each sorted sentence, bool `[B, width]`."""
        position = torch.arange(width, device=self.lengths.device)
        return position < (self.lengths - shorter)[:, None]

    def word_rows(self) -> Tensor:
        """Return the row of each word in a flattened padded batch `[B * T]`, int64 `[N]`."""
        inside = self.valid(self.steps).t()  # [steps, B]
        position, rank = inside.nonzero(as_tuple=True)
        return self.sentence[rank] * self.T + position

    def pack(self, padded: Tensor) -> Tensor:
        """Take the words out of a padded batch, `[B, T, ...]` -> `[N, ...]`."""
        return padded.flatten(0, 1).index_select(0, self.word_rows())

    def unpack(self, packed: Tensor) -> Tensor:
        """Lay packed words out, `[N, ...]` -> `[B, T, ...]`, zero where there is no word."""
        return self._lay_out(packed, self.word_rows(), self.T)

    def unpack_nodes(self, packed: Tensor) -> Tensor:
        """Lay nodes out, `[2N - B, ...]` -> `[B, 2T-1, ...]`: word i at i, merge t at T + t."""
        width = 2 * self.T - 1
        inside = self.valid(self.steps - 1, shorter=1).t()
        step, rank = inside.nonzero(as_tuple=True)
        words = self.word_rows()
        words = words.div(self.T, rounding_mode="floor") * width + words % self.T
        rows = torch.cat([words, self.sentence[rank] * width + self.T + step])
        return self._lay_out(packed, rows, width)

    def _lay_out(self, packed: Tensor, rows: Tensor, width: int) -> Tensor:
        flat = packed.new_zeros((self.B * width, *packed.shape[1:])).index_copy(0, rows, packed)
        return flat.view(self.B, width, *packed.shape[1:])

    def root_rows(self) -> Tensor:
        """Return the packed node that is the root of each sorted sentence, int64 `[B]`."""
        merged = torch.tensor(self.merged, device=self.lengths.device)
        rank = torch.arange(self.B, device=self.lengths.device)
        made = self.N + merged[(self.lengths - 2).clamp(min=0)] + rank
        return torch.where(self.lengths > 1, made, rank)
