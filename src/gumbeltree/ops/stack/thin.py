"""Shift-reduce along given trees, with a backward pass written by hand."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function
from torch.nn import functional as F

from gumbeltree.ops.first_derivative import FirstDerivativeOnly
from gumbeltree.ops.stack.problem import StackProblem, StackResult, TrackerWeights, activated
from gumbeltree.ops.stack.tables import StackTables


def follow(problem: StackProblem, tables: StackTables) -> StackResult:
    """Compose the nodes of given trees.

    Args:
        problem: sentences and weights.
        tables: rows to read and write; see `stack_tables`.
    """
    inputs = (problem.leaves, problem.missing, problem.weight, problem.bias)
    states, *tracked = _Thin.apply(problem, tables, *inputs, *(problem.tracker or ()))
    return StackResult(states, tracked[0] if problem.tracker else None)


class _Thin(Function):
    @staticmethod
    def forward(
        ctx: Any, problem: StackProblem, tables: StackTables, *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        states, weight, tracker = problem.first_states(), problem.weight, problem.tracker
        h, c = states.chunk(2, dim=1)
        gates = states.new_empty((tables.merges.shape[1], len(weight)))
        steps = len(tables.rank) if tracker else 0
        d = tracker.weight_hh.shape[1] if tracker else 0
        track_gates, tracked = states.new_empty((steps, 4 * d)), states.new_empty((steps, 2 * d))
        last = tracked.new_zeros((problem.layout.B, 2 * d))
        for at, of in tables.rounds:
            if tracker:
                x = _read(h, tables.view[:, at])
                e, m = last[: len(x)].chunk(2, dim=1)
                pre = F.linear(x, tracker.weight_ih, tracker.bias)
                pre = activated(pre + F.linear(e, tracker.weight_hh))
                i, f, g, o = pre.chunk(4, dim=1)
                m = f * m + i * g
                track_gates[at] = pre
                last = tracked[at] = torch.cat([o * m.tanh(), m], dim=1)
            left, right, made, step = tables.merges[:, of]
            if len(made):
                pre = F.linear(torch.cat([h[left], h[right]], dim=1), weight, problem.bias)
                if tracker:
                    pre += F.linear(tracked[step, :d], tracker.to_cell)
                states[made] = torch.cat(problem.cell.activate(pre, c[left], c[right]), dim=1)
                gates[of] = pre
        ctx.save_for_backward(states, gates, track_gates, tracked, *inputs)
        # the tensors of the problem are saved above
        ctx.cell, ctx.tables, ctx.nodes = problem.cell, tables, problem.layout.nodes
        return states, tracked

    @staticmethod
    def backward(ctx: Any, dstates: Tensor, dtracked: Tensor) -> tuple[Tensor | None, ...]:
        states, gates, track_gates, tracked, *inputs = ctx.saved_tensors
        with torch.no_grad():
            gradients = _backward(
                (states, gates, track_gates, tracked), inputs, ctx.cell, ctx.tables, ctx.nodes,
                dstates.clone(), dtracked.clone(),
            )  # fmt: skip
        if torch.is_grad_enabled():
            gradients = FirstDerivativeOnly.apply(
                "exact", len(gradients), *gradients, *inputs, dstates, dtracked
            )
        return (None, None, *gradients)


def _backward(
    tape: tuple[Tensor, Tensor, Tensor, Tensor],
    inputs: list[Tensor],
    cell: Any,
    tables: StackTables,
    nodes: int,
    dstates: Tensor,
    dtracked: Tensor,
) -> tuple[Tensor, ...]:
    """Return the gradients of the inputs; `dstates` and `dtracked` are overwritten."""
    states, gates, track_gates, tracked = tape
    leaves, _, weight, _, *rest = inputs
    tracker = TrackerWeights(*rest) if rest else None
    (h, c), (dh, dc) = states.chunk(2, dim=1), dstates.chunk(2, dim=1)
    d = tracked.shape[1] // 2
    dgates, dtrack = torch.empty_like(gates), torch.empty_like(track_gates)
    dweight_hh = torch.zeros_like(tracker.weight_hh) if tracker else None
    for number, (at, of) in reversed(list(enumerate(tables.rounds))):
        left, right, made, step = tables.merges[:, of]
        if len(made):
            dpre, *dchildren_c = cell.activate_backward(
                dh[made], dc[made], gates[of], c[made], c[left], c[right]
            )
            dgates[of] = dpre
            dchildren_h = (dpre @ weight).chunk(2, dim=1)
            for child, *parts in zip((left, right), dchildren_h, dchildren_c, strict=True):
                dstates.index_add_(0, child, torch.cat(parts, dim=1))
            if tracker:
                dtracked[:, :d].index_add_(0, step, dpre @ tracker.to_cell)
        if tracker:
            assert dweight_hh is not None
            i, f, g, o = track_gates[at].chunk(4, dim=1)
            de, dm = dtracked[at].chunk(2, dim=1)
            tanh_m = tracked[at, d:].tanh()
            dm = dm + de * o * (1 - tanh_m * tanh_m)
            before = slice(0, 0)
            if number:
                start = tables.rounds[number - 1][0].start
                before = slice(start, start + len(dm))
            e_before, m_before = tracked[before].chunk(2, dim=1)
            df = dm * m_before * f * (1 - f) if number else torch.zeros_like(f)
            dpre = torch.cat(
                [dm * g * i * (1 - i), df, dm * i * (1 - g * g), de * tanh_m * o * (1 - o)], dim=1
            )
            dtrack[at] = dpre
            if number:
                dtracked[before] += torch.cat([dpre @ tracker.weight_hh, dm * f], dim=1)
                dweight_hh += dpre.t() @ e_before
            dx = (dpre @ tracker.weight_ih).chunk(3, dim=1)
            for row, part in zip(tables.view[:, at], dx, strict=True):
                dh.index_add_(0, row, part)
    # weights in one product each
    dweight = dgates.t() @ _read(h, tables.merges[:2])
    found = (dstates[: len(leaves)], dh[nodes : nodes + 3], dweight, dgates.sum(0))
    if tracker is None or dweight_hh is None:
        return found
    dto_cell = dgates.t() @ tracked[tables.merges[3], :d]
    return *found, dtrack.t() @ _read(h, tables.view), dweight_hh, dtrack.sum(0), dto_cell


def _read(h: Tensor, rows: Tensor) -> Tensor:
    """Return the rows of `h` side by side, int64 `[k, n]` -> `[n, k D]`."""
    return torch.cat([h[row] for row in rows], dim=1)
