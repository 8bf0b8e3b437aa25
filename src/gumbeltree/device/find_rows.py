"""Compute the row tables of a batch on the device, without a transfer back to the host."""

from typing import NamedTuple

import torch
from torch import Tensor

from gumbeltree.device.triton_support import why_not_triton


class RowTables(NamedTuple):
    """Indices that the kernels read to locate words and nodes."""

    start: Tensor
    """First row of each position, then the total number of words, int32 `[T + 1]`."""
    lengths: Tensor
    """Length of each sentence, longest first, int32 `[B]`."""
    previous: Tensor
    """Row of the word before each word, int32 `[cap]`; undefined for first words."""
    roots: Tensor
    """Root node of each sorted sentence, int64 `[B]`, numbered as in ops/merge/fused/forward.py."""
    ids: Tensor
    """Word id of each row, int64 `[cap]`, 0 past the last word; empty if `words` is None."""


def find_rows(
    cap: int,
    start: Tensor,
    lengths: Tensor,
    words: Tensor | None = None,
    firsts: Tensor | None = None,
) -> RowTables:
    """Compute the row tables of a batch on the device.

    Args:
        cap: Number of rows for words.
        start: First row of each position, then the total number of words, integers `[T + 1]`.
        lengths: Length of each sentence, longest first, integers `[B]`.
        words: Concatenated word ids of a data set, int32; None to leave `ids` empty.
        firsts: Index in `words` of the first word of each sorted sentence, int64 `[B]`.
    """
    fused = start.is_cuda and why_not_triton(start.device) is None
    find = _find_by_kernel if fused else _find
    return find(cap, start, lengths, words, firsts)


def _find(
    cap: int, start: Tensor, lengths: Tensor, words: Tensor | None, firsts: Tensor | None
) -> RowTables:
    """Compute the tables with PyTorch operations."""
    start, device = start.int(), start.device
    B, T = len(lengths), len(start) - 1
    row = torch.arange(cap, dtype=torch.int32, device=device)
    position = (torch.searchsorted(start, row, right=True) - 1).clamp(max=T - 1)
    rank = row - start[position]
    previous = rank + start[(position - 1).clamp(min=0)]
    ids = torch.zeros(cap if words is not None else 0, dtype=torch.int64, device=device)
    if words is not None and firsts is not None:
        inside = row < start[T]
        index = torch.where(inside, firsts[rank.clamp(0, B - 1)] + position, 0)
        ids = torch.where(inside, words[index].long(), 0)
    order = torch.arange(B, device=device)
    made = cap + start[(lengths - 1).clamp(min=0)] + order
    roots = torch.where(lengths > 1, made, order)
    return RowTables(start, lengths.int(), previous.int(), roots, ids)


def _find_by_kernel(
    cap: int, start: Tensor, lengths: Tensor, words: Tensor | None, firsts: Tensor | None
) -> RowTables:
    """Compute the tables with one kernel."""
    from gumbeltree.device.find_rows_kernels import BLOCK, find_rows_kernel

    B, T, device = len(lengths), len(start) - 1, start.device

    def integers(size: int) -> Tensor:
        return torch.empty(size, dtype=torch.int32, device=device)

    tables = RowTables(
        integers(T + 1),
        integers(B),
        integers(cap),
        torch.empty(B, dtype=torch.int64, device=device),
        torch.empty(cap if words is not None else 0, dtype=torch.int64, device=device),
    )
    with torch.cuda.device_of(start):
        find_rows_kernel[(-(-max(cap, B, T + 1) // BLOCK),)](
            start, lengths, start if words is None else words, start if firsts is None else firsts,
            *tables, B, T, cap, BT=max(64, 1 << (T - 1).bit_length()), BLOCK=BLOCK,
            HAS_WORDS=words is not None,
        )  # fmt: skip
    return tables
