"""Where the words of a batch stand, looked up on the device: nothing is read back from it."""

from typing import NamedTuple

import torch
from torch import Tensor

from gumbeltree.device.triton_support import why_not_triton


class Found(NamedTuple):
    """What kernels read of a layout.

    Attributes:
        start: row of the first word at each position, and the number of words, int32 `[T + 1]`.
        lengths: words of each sentence, longest first, int32 `[B]`.
        previous: row of the word before each word, int32 `[cap]`; anything for first words.
        roots: root node of each sentence by rank, int64 `[B]`, by the numbers of
            ops/merge/fused/forward.py.
        ids: id of each row, int64 `[cap]`, 0 beyond the words; empty unless there are words.
    """

    start: Tensor
    lengths: Tensor
    previous: Tensor
    roots: Tensor
    ids: Tensor


def find_rows(
    cap: int,
    start: Tensor,
    lengths: Tensor,
    words: Tensor | None = None,
    firsts: Tensor | None = None,
) -> Found:
    """Look up on the device what kernels read of a layout.

    Args:
        cap: rows for words.
        start: row of the first word at each position, and the number of words, int `[T + 1]`.
        lengths: words of each sentence, longest first, int `[B]`.
        words: ids of all sentences of a data set, one after the other, int32; None: no ids.
        firsts: where each sentence begins there, by rank, int64 `[B]`.
    """
    find = _find_fast if start.is_cuda and why_not_triton() is None else _find
    return find(cap, start, lengths, words, firsts)


def _find(
    cap: int, start: Tensor, lengths: Tensor, words: Tensor | None, firsts: Tensor | None
) -> Found:
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
    return Found(start, lengths.int(), previous.int(), roots, ids)


def _find_fast(
    cap: int, start: Tensor, lengths: Tensor, words: Tensor | None, firsts: Tensor | None
) -> Found:
    """Look up the same by one kernel."""
    from gumbeltree.device.find_rows_kernels import BLOCK, find_rows_kernel

    B, T, device = len(lengths), len(start) - 1, start.device

    def integers(size: int) -> Tensor:
        return torch.empty(size, dtype=torch.int32, device=device)

    found = Found(
        integers(T + 1),
        integers(B),
        integers(cap),
        torch.empty(B, dtype=torch.int64, device=device),
        torch.empty(cap if words is not None else 0, dtype=torch.int64, device=device),
    )
    with torch.cuda.device_of(start):
        find_rows_kernel[(-(-max(cap, B, T + 1) // BLOCK),)](
            start, lengths, start if words is None else words, start if firsts is None else firsts,
            *found, B, T, cap, BT=max(64, 1 << (T - 1).bit_length()), BLOCK=BLOCK,
            HAS_WORDS=words is not None,
        )  # fmt: skip
    return found
