"""Row numbers that shift-reduce reads and writes, computed in advance from given trees."""

import itertools
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gumbeltree.layout import Layout
from gumbeltree.ops.stack.transitions import left_to_right

NO_TOP, NO_SECOND, NO_NEXT = 0, 1, 2
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


def _slices(counts: list[int]) -> list[slice]:
    """Return consecutive slices of the given sizes."""
    ends = np.cumsum([0, *counts]).tolist()
    return [slice(*pair) for pair in itertools.pairwise(ends)]
