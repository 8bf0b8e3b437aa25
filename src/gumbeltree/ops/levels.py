"""Compose given trees level by level: one call of a cell for all nodes of a batch at one height.

A word has height 0, a parent one more than its higher child. The number of calls is the height of
the highest tree, instead of the number of merges of the longest sentence. Inside a CUDA graph,
where the host does not know the heights, there is one call per merge of the longest possible
sentence; `ops.stack.fused.compose` has kernels for some cells.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from gumbeltree.layout import Layout
from gumbeltree.states import NodeState

Compose = Callable[[NodeState, NodeState], NodeState]


class Level(NamedTuple):
    """Nodes of one height and their children, as numbered in `Layout`, each int64 `[n]`."""

    left: Tensor
    right: Tensor
    node: Tensor


def levels_of(order: Tensor, layout: Layout) -> list[Level]:
    """Return the inner nodes of given trees by height, lowest first.

    Args:
        order: merges, int64 `[B, T-1]`; entries past the end of a sentence are not read.
        layout: layout of the sentences; the host must know their lengths. In a layout with spare
            rows, levels are the steps of the merges instead, all on the device.
    """
    if layout.spare:
        return _steps_of(order, layout)
    sentence = layout.sentence.cpu().numpy()
    merges = order.cpu().numpy()[sentence]
    starts, merged = np.array(layout.starts[:-1]), layout.merged
    # nodes that still have no parent, from left to right; rows past the end are never read
    opened = starts + np.arange(layout.B)[:, None]  # [B, T]
    height = np.zeros(layout.nodes, dtype=np.int64)
    made = []
    for t, count in enumerate(layout.active[1:]):
        row = np.arange(count)
        place = merges[:count, t]
        node = layout.N + merged[t] + row
        left, right = opened[row, place], opened[row, place + 1]
        height[node] = 1 + np.maximum(height[left], height[right])
        position = np.arange(opened.shape[1] - 1)
        opened = np.where(position <= place[:, None], opened[:count, :-1], opened[:count, 1:])
        opened[row, place] = node
        made.append(np.stack([left, right, node]))
    if not made:
        return []
    nodes = np.concatenate(made, axis=1)  # [3, merges]
    heights = height[nodes[2]]
    nodes = nodes[:, np.argsort(heights, kind="stable")]
    counts = np.bincount(heights)[1:].tolist()
    device = order.device
    return [Level(*part) for part in torch.from_numpy(nodes).to(device).split(counts, dim=1)]


def _steps_of(order: Tensor, layout: Layout) -> list[Level]:
    """Return one merge of every sentence at a time; finished sentences merge any nodes."""
    B, T, device = layout.B, layout.T, order.device
    rank, place = torch.arange(B, device=device), torch.arange(T, device=device)
    exists = place[: T - 1] < layout.lengths[:, None] - 1
    merges = torch.where(exists, order.index_select(0, layout.sentence), 0)  # [B, T-1]
    # nodes that still have no parent, from left to right
    opened = place * B + rank[:, None]
    steps = []
    for t in range(T - 1):
        left, node = merges[:, t, None], (T + t) * B + rank
        pair = opened.gather(1, torch.cat([left, left + 1], dim=1)).t()
        steps.append(Level(pair[0], pair[1], node))
        after = opened.gather(1, (place + (place > left)).clamp(max=T - 1))
        opened = after.scatter(1, left, node[:, None])
    return steps


def compose_levels(
    compose: Compose, levels: Sequence[Level], leaves: NodeState, parameters: Sequence[Tensor]
) -> NodeState:
    """Return the states of all nodes, `[2N-B, D]`, from those of the words.

    Time and memory are linear in the number of nodes. A plain autograd graph would add a gradient
    of all nodes for every level.

    Args:
        compose: returns the parents of n pairs of nodes, from states `[n, D]`.
        levels: see `levels_of`.
        leaves: states of the words `[N, D]`; the width of c may differ from that of h.
        parameters: parameters that `compose` reads.
    """
    record = torch.is_grad_enabled()
    return NodeState(*_Levels.apply(compose, levels, record, *leaves, *parameters))


class _Levels(Function):
    """Keep a graph per level, and pass gradients between the levels by hand."""

    @staticmethod
    def forward(
        ctx: Any,
        compose: Compose,
        levels: Sequence[Level],
        record: bool,
        h: Tensor,
        c: Tensor,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:
        total = len(h) + sum(len(level.node) for level in levels)
        states = [x.new_empty((total, x.shape[1])) for x in (h, c)]
        for state, leaves in zip(states, (h, c), strict=True):
            state[: len(leaves)] = leaves
        ctx.graphs = []
        for level in levels:
            children = [x.index_select(0, side) for side in level[:2] for x in states]
            with torch.set_grad_enabled(record):
                if record:
                    children = [x.requires_grad_() for x in children]
                parent = compose(NodeState(*children[:2]), NodeState(*children[2:]))
                # autocast may narrow products; states keep the precision of the leaves
                parent = NodeState(*(x.to(h.dtype) for x in parent))
            for state, x in zip(states, parent, strict=True):
                state.index_copy_(0, level.node, x.detach())
            if record:
                ctx.graphs.append((level, children, parent))
        ctx.words, ctx.parameters = len(h), parameters
        return states[0], states[1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dh: Tensor, dc: Tensor) -> tuple[Tensor | None, ...]:
        gradients = [dh.clone(), dc.clone()]
        needed = [p for p in ctx.parameters if p.requires_grad]
        totals: list[Tensor | None] = [None] * len(needed)
        for level, children, parent in reversed(ctx.graphs):
            found = torch.autograd.grad(
                parent,
                [*children, *needed],
                [x.index_select(0, level.node) for x in gradients],
                retain_graph=True,
                allow_unused=True,
            )
            for i, dx in enumerate(found[:4]):
                if dx is not None:
                    gradients[i % 2].index_add_(0, level[i // 2], dx)
            for i, dp in enumerate(found[4:]):
                before = totals[i]
                if dp is not None:
                    totals[i] = dp if before is None else before + dp
        of = dict(zip(needed, totals, strict=True))
        leaves = (x[: ctx.words] for x in gradients)
        return None, None, None, *leaves, *(of.get(p) for p in ctx.parameters)
