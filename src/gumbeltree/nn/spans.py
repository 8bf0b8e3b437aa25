"""Spans of the nodes of trees, for batches of merge orders."""

from typing import NamedTuple

import torch
from torch import Tensor

from gumbeltree.device.triton_support import why_not_triton
from gumbeltree.ops.stack import fused


class AllowedMerges(NamedTuple):
    """One of the orders in which a tree can be built, and the alternatives at each step."""

    order: Tensor
    """Merges, int64 `[B, T-1]`, -1 past the end of a sentence."""
    allowed: Tensor
    """Which merges create a node of the tree, bool `[B, T-1, T-1]` (step, position)."""


def first_words(lengths: Tensor, T: int) -> Tensor:
    """Return the first word of each open node before any merge, int64 `[B, T+1]`.

    The length of a sentence follows its last node and fills the rest of its row.
    """
    return torch.arange(T + 1, device=lengths.device).minimum(lengths[:, None])


def after_merge(first: Tensor, position: Tensor) -> Tensor:
    """Return `first_words` after a merge at each position `[B]`; -1 changes nothing."""
    place = torch.arange(first.shape[1], device=first.device)
    moved = torch.cat([first[:, 1:], first[:, -1:]], dim=1)
    return torch.where((place > position[:, None]) & (position >= 0)[:, None], moved, first)


def spans_of(order: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first word of each merged span and the word after it, each `[B, T-1]`.

    Args:
        order: merges, int64 `[B, T-1]`, -1 past the end of a sentence; both results are 0 there.
    """
    if order.is_cuda and why_not_triton(order.device) is None:
        # one kernel
        return fused.spans_of(order)
    T = order.shape[1] + 1
    first = first_words((order >= 0).sum(1) + 1, T)
    start, end = torch.zeros_like(order), torch.zeros_like(order)
    for t in range(T - 1):
        place = order[:, t, None].clamp(min=0)
        made = order[:, t] >= 0
        start[:, t] = torch.where(made, first.gather(1, place)[:, 0], 0)
        end[:, t] = torch.where(made, first.gather(1, place + 2)[:, 0], 0)
        first = after_merge(first, order[:, t])
    return start, end


def span_table(order: Tensor) -> Tensor:
    """Return which spans are nodes of the trees, bool `[B, T+1, T+1]` (first word, word after)."""
    B, T = len(order), order.shape[1] + 1
    start, end = spans_of(order)
    table = torch.zeros((B, T + 1, T + 1), dtype=torch.bool, device=order.device)
    # an assignment would copy the number to the device, which a graph does not allow
    table.view(B, -1).scatter_(1, start * (T + 1) + end, True)
    # entries past the end of a sentence are at (0, 0)
    table[:, 0, 0] = False
    return table


def random_orders(order: Tensor) -> AllowedMerges:
    """Build the same trees in random orders: each merge is one of those allowed, drawn uniformly.

    Args:
        order: merges of the trees, int64 `[B, T-1]`, -1 past the end of a sentence.
    """
    B, T = len(order), order.shape[1] + 1
    table, lengths = span_table(order), (order >= 0).sum(1) + 1
    row = torch.arange(B, device=order.device)[:, None]
    first = first_words(lengths, T)
    drawn = torch.full_like(order, -1)
    allowed = torch.zeros((B, T - 1, T - 1), dtype=torch.bool, device=order.device)
    for t in range(T - 1):
        # the last node has no right neighbour
        exists = first[:, 1:-1] < lengths[:, None]
        allowed[:, t] = exists & table[row, first[:, :-2], first[:, 2:]]
        chance = torch.rand((B, T - 1), device=order.device).masked_fill(~allowed[:, t], -1.0)
        drawn[:, t] = torch.where(lengths - 1 > t, chance.argmax(1), -1)
        first = after_merge(first, drawn[:, t])
    return AllowedMerges(drawn, allowed)
