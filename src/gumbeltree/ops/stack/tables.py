"""Row numbers that shift-reduce reads and writes, computed in advance from given trees."""

import itertools
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from gumbeltree.layout import Layout
from gumbeltree.ops.stack.transitions import left_to_right

NO_TOP, NO_SECOND, NO_NEXT, NO_PARENT = 0, 1, 2, 3
"""Rows after those of the nodes that stand for what is missing."""


class StackTables(NamedTuple):
    """What each step reads, and what each merge reads and writes.

    Steps are ordered by their number and then by the rank of the sentence. Row numbers are those of
    `StackProblem.first_states`.
    """

    order: Tensor
    """Merges from left to right, int64 `[B, T-1]`, -1 past the end of a sentence."""
    active: list[int]
    """Number of sentences at each step."""
    view: Tensor
    """Rows of the top node, the second node and the next word at each step, int64 `[3, steps]`."""
    rank: Tensor
    """Rank of the sentence at each step, int64 `[steps]`."""
    reduces: Tensor
    """Whether each step is REDUCE, bool `[steps]`."""
    free: Tensor
    """Whether both actions are possible at each step, bool `[steps]`."""
    merges: Tensor
    """Rows of left child, right child and parent of each merge, and its step, int64 `[4, M]`."""
    rounds: list[tuple[slice, slice]]
    """Steps and merges to compute together: those of one step. Without a tracker, there are no
    steps, and each round has one merge of every sentence."""


def step_counts(layout: Layout) -> list[int]:
    """Return the number of sentences at each step; one of L words has 2L - 1 steps."""
    return [layout.active[(step + 1) // 2] for step in range(2 * layout.steps - 1)]


def stack_tables(order: Tensor, layout: Layout, tracked: bool) -> StackTables:
    """Follow trees with a stack of row numbers.

    Args:
        order: merges in any order, int64 `[B, T-1]`.
        layout: layout of the words.
        tracked: whether there is a tracker, so that merges wait for steps.
    """
    active, T = np.array(layout.active), layout.steps
    lengths = (active[:, None] > np.arange(layout.B)).sum(0)
    # the only transfer from the device
    sorted_order = order.index_select(0, layout.sentence)[:, : T - 1].cpu().numpy()
    merged_at = left_to_right(sorted_order, lengths)
    # one more column, for sentences whose merges are done
    targets = np.pad(merged_at, ((0, 0), (0, 1)), constant_values=-1)
    starts, merged = np.array(layout.starts), np.array(layout.merged)
    # one more column: the index of a missing second node is -2
    stack = np.zeros((layout.B, T + 1), dtype=np.int64)
    size, done = np.zeros((2, layout.B), dtype=np.int64)
    counts = step_counts(layout)
    steps, merges, first = [], [], 0
    for n in counts:
        b, s, t = np.arange(n), size[:n], done[:n]
        read = s + t
        unread = read < lengths[:n]
        top = np.where(s > 0, stack[b, s - 1], layout.nodes + NO_TOP)
        second = np.where(s > 1, stack[b, s - 2], layout.nodes + NO_SECOND)
        word = np.where(unread, starts[np.minimum(read, T - 1)] + b, layout.nodes + NO_NEXT)
        reduces = (s > 1) & (targets[b, t] == s - 2)
        steps.append(np.stack([top, second, word, b, reduces, (s > 1) & unread]))
        (m,) = np.nonzero(reduces)
        made = layout.N + merged[t[m]] + m
        merges.append(np.stack([second[m], top[m], made, first + m]))
        place = np.where(reduces, s - 2, s)
        stack[b, place] = np.where(reduces, layout.N + merged[t] + b, word)
        size[:n], done[:n] = place + 1, t + reduces
        first += n
    table = np.concatenate(steps, axis=1)
    rows = np.concatenate(merges, axis=1)
    if tracked:
        at, of = _slices(counts), _slices([m.shape[1] for m in merges])
    else:
        # parents are numbered by merge, then by rank
        rows = rows[:, rows[2].argsort()]
        of = _slices(list(layout.active[1:]))
        at = [slice(0, 0)] * len(of)
    device = order.device
    there = torch.from_numpy(table).to(device)
    own_order = np.full(order.shape, -1)
    own_order[:, : T - 1] = merged_at
    return StackTables(
        torch.from_numpy(own_order).to(device).index_select(0, layout.rank),
        counts,
        there[:3],
        there[3],
        there[4].bool(),
        there[5].bool(),
        torch.from_numpy(rows).to(device),
        list(zip(at, of, strict=True)),
    )


def device_tables(start: Tensor, end: Tensor, layout: Layout, tracked: bool) -> StackTables:
    """Return the tables of `stack_tables` without reading the trees on the host.

    All sentences take part in 2T - 1 steps and, with a tracker, in a merge at each of them. Those
    that do not exist read any rows and write to rows that are not read.

    Args:
        start: first word of each merged span, int64 `[B, T-1]`.
        end: the word after each span, int64 `[B, T-1]`, 0 past the end of a sentence.
        layout: a layout with T rows for each sentence; see `Layout.full`.
        tracked: whether there is a tracker, so that merges wait for steps.
    """
    B, T, nodes, device = layout.B, layout.T, layout.nodes, start.device
    rank, place = torch.arange(B, device=device)[:, None], torch.arange(2 * T - 1, device=device)
    # a stack merges spans by their end, shorter ones first; those past the end come last
    keys = torch.where(end > 0, end * T + T - 1 - start, 2 * T * T)[layout.sentence].sort(1)[0]
    start, end = T - 1 - keys % T, keys // T
    word, merge, lengths = place[:T], place[: T - 1], layout.lengths[:, None]
    shifted = word < lengths
    merged = merge < lengths - 1  # [B, T-1]
    # a word is shifted after all spans that end before it, a span merged after its words
    shift = word + (end[:, None] <= word[:, None]).sum(2)  # [B, T]
    reduce = torch.where(merged, end + merge, 2 * T - 1)
    # what each step pushes, its first word, and whether it merges; the last entry is not read
    parent = (T + merge) * B + rank
    steps = torch.cat([torch.where(shifted, shift, 2 * T - 1), reduce], dim=1)
    pushed, first, reduces = (
        lengths.new_full((B, 2 * T), empty).scatter(1, steps, torch.cat([of_words, of_merges], 1))
        for of_words, of_merges, empty in (
            (word * B + rank, parent, -1),
            (word.expand(B, T), start, 0),
            (torch.zeros_like(shift), torch.ones_like(end), 0),
        )
    )
    reduces = reduces[:, :-1]
    top = F.pad(pushed[:, :-2], (1, 0), value=-1)  # [B, 2T-1]
    # what was on top when the first word of the top node was shifted
    below = top.gather(1, shift.gather(1, first[:, :-2]).clamp(max=2 * T - 2))
    second = F.pad(torch.where(top[:, 1:] < 0, -1, below), (1, 0), value=-1)
    read = place - reduces.cumsum(1) + reduces
    unread = read < lengths
    free = (second >= 0) & unread
    view = torch.stack(
        [
            torch.where(top < 0, nodes + NO_TOP, top),
            torch.where(second < 0, nodes + NO_SECOND, second),
            torch.where(unread, read * B + rank, nodes + NO_NEXT),
        ]
    )
    if tracked:
        made = torch.where(reduces > 0, pushed[:, :-1], nodes + NO_PARENT)
        merges = torch.stack([view[1], view[0], made, place * B + rank])
        at = of = _slices([B] * (2 * T - 1))
    else:
        step = reduce.clamp(max=2 * T - 2)
        second, top = (x.gather(1, step) for x in (view[1], view[0]))
        merges = torch.stack([second, top, parent, step * B + rank])
        of = _slices([B] * (T - 1))
        at = [slice(0, 0)] * len(of)

    def by_step(x: Tensor) -> Tensor:
        return x.transpose(-1, -2).flatten(-2)

    return StackTables(
        torch.where(merged, end - 2 - merge, -1).index_select(0, layout.rank),
        [B] * (2 * T - 1),
        by_step(view),
        by_step(rank.expand(B, 2 * T - 1)),
        by_step(reduces > 0),
        by_step(free),
        by_step(merges),
        list(zip(at, of, strict=True)),
    )


def _slices(counts: list[int]) -> list[slice]:
    """Return consecutive slices of the given sizes."""
    ends = np.cumsum([0, *counts]).tolist()
    return [slice(*pair) for pair in itertools.pairwise(ends)]
