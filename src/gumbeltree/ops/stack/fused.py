"""Shift-reduce in Triton kernels, for batches whose sentences take part in all steps.

Without a tracker, steps are merges of given trees in any order, see `compose`, or all merges of a
level of full trees, see `compose_full`.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import Function
from torch.nn import functional as F

from gumbeltree.device.triton_support import why_not
from gumbeltree.layout import Layout
from gumbeltree.ops.first_derivative import FirstDerivativeOnly
from gumbeltree.ops.stack.machine import Machine
from gumbeltree.ops.stack.problem import StackProblem, StackResult
from gumbeltree.ops.stack.tables import NO_SECOND, NO_TOP, StackTables

BD = 128
"""Columns per program."""
BS = 128
"""Sentences per program."""


def why_not_kernels(problem: StackProblem, impl: str) -> str | None:
    """Return why `follow` cannot run, or None if it can."""
    if impl not in {"auto", "fused"}:
        return f"impl={impl!r} uses PyTorch operations"
    if not problem.layout.spare:
        return "its kernels need a layout where all sentences take part in all steps"
    if problem.tracker and problem.missing.requires_grad:
        return "its kernels do not learn the vectors of missing nodes"
    return why_not(problem.weight, by_name=impl == "fused")


def spans_of(order: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first word of each merged span and the word after it, each int64 `[B, T-1]`.

    Args:
        order: merges, int64 `[B, T-1]`, -1 past the end of a sentence; both results are 0 there.
    """
    from gumbeltree.ops.stack.kernels import spans_kernel

    order = order.contiguous()
    (B, M), (start, end) = order.shape, order.new_empty((2, *order.shape)).unbind()
    with torch.cuda.device_of(order):
        spans_kernel[(B,)](order, start, end, M, BT=max(16, 1 << M.bit_length()), num_warps=1)
    return start, end


class StackSteps(NamedTuple):
    """What the steps read and write."""

    rows: Tensor
    """Rows of left child, right child and parent, int64 `[3, M]`."""
    after: Tensor
    """Row of the next word, int64 `[M]`; only a tracker reads it."""
    parts: list[tuple[int, int]]
    """First merge of each step and number of its merges, which is B with a tracker."""
    kept: tuple[Tensor | None, Tensor | None] = (None, None)
    """Dropout of h of both children and of the candidates g: factors `[M, 2D]` and `[M, D]`."""


class StackColumns(NamedTuple):
    """Columns of the inputs of a step: next word, last tracker state, left, right, tracker state.

    The tracker reads the first four parts and the composition the last three, so that each product
    has one operand. Without a tracker, there are only left and right.
    """

    D: int
    """Width of the states."""
    d: int
    """Width of the tracker, 0 if there is none."""

    @property
    def padded(self) -> int:
        """Width of a tracker state, padded: operands of tensor cores must be aligned."""
        return -(-self.d // 8) * 8

    @property
    def first(self) -> int:
        """First column of the left child."""
        return self.D + self.padded if self.d else 0

    @property
    def view(self) -> slice:
        """Columns that the tracker reads."""
        return slice(0, self.first + 2 * self.D if self.d else 0)

    @property
    def read(self) -> slice:
        """Columns that the composition reads."""
        return slice(self.first, None)

    @property
    def wide(self) -> int:
        """Number of columns."""
        return self.first + 2 * self.D + self.padded


def follow(problem: StackProblem, tables: StackTables) -> StackResult:
    """Compose the nodes of given trees; see `thin.follow`.

    Args:
        problem: sentences and weights; `why_not_kernels` must return None.
        tables: rows to read and write; see `device_tables`.
    """
    D, tracker = problem.missing.shape[1], problem.tracker
    columns = StackColumns(D, tracker.weight_hh.shape[1] if tracker else 0)
    weights = [problem.weight, problem.bias]
    if tracker:
        top, second, word = tracker.weight_ih.split(D, dim=1)
        pad = (0, columns.padded - columns.d)
        weights[0] = torch.cat([problem.weight, F.pad(tracker.to_cell, pad)], dim=1)
        last = F.pad(tracker.weight_hh, pad)
        weights += [torch.cat([word, last, second, top], dim=1), tracker.bias]
    rows, after = tables.merges[:3].contiguous(), tables.view[2].contiguous()
    steps = StackSteps(rows, after, _one_each(rows, problem.layout))
    inputs = (problem.leaves, problem.missing)
    states, tracked = _Fused.apply(problem, steps, columns, *inputs, *weights)
    return StackResult(states, tracked if tracker else None)


def compose(problem: StackProblem, order: Tensor, kept: Tensor | None = None) -> Tensor:
    """Return the states of all nodes of given trees, numbered as in `Layout`, `[2N - B, 2D]`.

    Args:
        problem: sentences and weights, without a tracker; `why_not_kernels` must return None.
        order: merges in any order, int64 `[B, T-1]`; entries past the end of a sentence are not
            read.
        kept: dropout of the candidates g of all merges: their factors `[(T-1) B, D]`.
    """
    rows = merge_rows(order, problem.layout)
    steps = StackSteps(rows, rows, _one_each(rows, problem.layout), (None, kept))
    return _composed(problem, steps)[: problem.layout.nodes]


def compose_full(problem: StackProblem, kept: Tensor | None = None) -> Tensor:
    """Return the states of all nodes of full binary trees, `[2N - B + 4, 2D]`.

    Nodes are numbered level by level from the left, node i of sentence b in row iB + b. So those
    with T leaves have the merges m = 0, 1, ..., of nodes 2m and 2m + 1, to node T + m. The last
    four rows are no nodes.

    Args:
        problem: sentences of T leaves, a power of two, and weights; see `compose`.
        kept: dropout of h of the children of all merges: their factors `[(T-1) B, 2D]`.
    """
    B, T = problem.layout.B, problem.layout.T
    node = torch.arange(problem.layout.nodes, device=problem.leaves.device)
    children = node[: 2 * (T - 1) * B].view(T - 1, 2, B).transpose(0, 1)
    rows = torch.cat([children, node[T * B :].view(1, T - 1, B)]).flatten(1)
    widths = [T >> height for height in range(1, T.bit_length())]
    levels = [((T - 2 * n) * B, n * B) for n in widths]
    return _composed(problem, StackSteps(rows, rows, levels, (kept, None)))


def _composed(problem: StackProblem, steps: StackSteps) -> Tensor:
    """Return the states `[2N - B + 4, 2D]` after all steps, without a tracker."""
    inputs = problem.leaves, problem.missing, problem.weight, problem.bias
    columns = StackColumns(problem.missing.shape[1], 0)
    states: Tensor = _Fused.apply(problem, steps, columns, *inputs)[0]
    return states


def _one_each(rows: Tensor, layout: Layout) -> list[tuple[int, int]]:
    """Return the parts of steps of one merge per sentence; see `StackSteps`."""
    return [(offset, layout.B) for offset in range(0, rows.shape[1], layout.B)]


def merge_rows(order: Tensor, layout: Layout) -> Tensor:
    """Return rows of left child, right child and parent of all merges, int64 `[3, (T-1) B]`.

    A finished sentence reads rows of its own, and writes to the row that is never read.

    Args:
        order: see `compose`.
        layout: a layout with T rows for each sentence; see `Layout.full`.
    """
    from gumbeltree.ops.stack import kernels

    B, T = layout.B, layout.T
    rows = order.new_empty((3, (T - 1) * B))
    with torch.cuda.device_of(order):
        kernels.merges_kernel[(B,)](
            order.contiguous(), layout.sentence, layout.lengths, rows, B, T,
            BT=1 << (T - 1).bit_length(), num_warps=1,
        )  # fmt: skip
    return rows


class _Fused(Function):
    @staticmethod
    def forward(
        ctx: Any,
        problem: StackProblem,
        steps: StackSteps,
        columns: StackColumns,
        leaves: Tensor,
        missing: Tensor,
        *weights: Tensor,
    ) -> tuple[Tensor, Tensor]:
        from gumbeltree.ops.stack import kernels

        states, (D, d) = problem.first_states(), columns
        rows, after, parts, (of_inputs, of_candidates) = steps
        M = rows.shape[1]
        # padded columns stay zero
        inputs = states.new_zeros((M, columns.wide))
        gates = states.new_empty((M, 5 * D))
        tracks = M if d else 0
        track, tracked = states.new_empty((tracks, 4 * d)), states.new_empty((tracks, 2 * d))
        sizes = {"D": D, "FIRST": columns.first, "WIDE": columns.wide, "BD": BD}
        weight, bias, *of_tracker = weights
        # Triton launches on the current device, not on that of the tensors
        with torch.cuda.device_of(states):
            for offset, n in parts:
                at = slice(offset, offset + n)
                kernels.read_kernel[_grid(n, max(D, d))](
                    rows, after, states, tracked, inputs, offset, n, M, d=d,
                    **sizes, **_dropout(of_inputs, gates),
                )  # fmt: skip
                if d:
                    of_view, of_bias = of_tracker
                    torch.addmm(of_bias, inputs[at, columns.view], of_view.t(), out=track[at])
                    kernels.track_kernel[_grid(n, d)](
                        track, tracked, inputs, offset, n, d=d, **sizes
                    )
                torch.addmm(bias, inputs[at, columns.read], weight.t(), out=gates[at])
                kernels.compose_kernel[_grid(n, D)](
                    rows, states, gates, offset, M, D=D, BD=BD, **_dropout(of_candidates, gates)
                )
        tape = states, gates, track, tracked, inputs, rows, after, *steps.kept
        ctx.save_for_backward(leaves, missing, *tape, *weights)
        ctx.columns, ctx.parts = columns, parts
        ctx.counts = len(leaves), problem.layout.nodes
        return states, tracked

    @staticmethod
    def backward(ctx: Any, dstates: Tensor, dtracked: Tensor) -> tuple[Tensor | None, ...]:
        leaves, missing, *tape = ctx.saved_tensors
        with torch.no_grad():
            # kernels assume contiguous rows
            own = dstates.clone(memory_format=torch.contiguous_format), dtracked.contiguous()
            gradients = _backward(tape, ctx.columns, ctx.parts, ctx.counts, *own)
        if torch.is_grad_enabled():
            inputs = leaves, missing, *tape[9:]
            gradients = FirstDerivativeOnly.apply(
                "fused", len(gradients), *gradients, *inputs, dstates, dtracked
            )
        return (None, None, None, *gradients)


def _backward(
    tape: list[Any],
    columns: StackColumns,
    parts: list[tuple[int, int]],
    counts: tuple[int, int],
    dstates: Tensor,
    dtracked: Tensor,
) -> tuple[Tensor, ...]:
    """Return the gradients of leaves, missing nodes and weights; `dstates` is overwritten.

    That of missing nodes is complete only if there is no tracker, which would read them. `counts`
    are the rows of words and those of all nodes.
    """
    from gumbeltree.ops.stack import kernels

    words, nodes = counts
    states, gates, track, tracked, inputs, rows, after, of_inputs, of_candidates, *weights = tape
    weight, _, *of_tracker = weights
    (D, d), M = columns, rows.shape[1]
    dgates, dtrack = torch.empty_like(gates), torch.empty_like(track)
    most = max((n for _, n in parts), default=0)
    dread = states.new_empty((most, 2 * D + columns.padded))
    dview = states.new_zeros((most, columns.view.stop))
    carried = states.new_zeros((most, d))
    sizes = {"D": D, "BD": BD}
    of_step = {"d": d, "DP": columns.padded, **sizes}
    with torch.cuda.device_of(states):
        for offset, n in reversed(parts):
            at = slice(offset, offset + n)
            kernels.compose_backward_kernel[_grid(n, D)](
                rows, states, gates, dstates, dgates, offset, M, nodes,
                **sizes, **_dropout(of_candidates, gates),
            )  # fmt: skip
            torch.mm(dgates[at], weight, out=dread[:n])
            if d:
                kernels.track_backward_kernel[_grid(n, d)](
                    track, tracked, dtracked, dread, dview, carried, dtrack, offset, n, **of_step
                )
                torch.mm(dtrack[at], of_tracker[0], out=dview)
            kernels.add_kernel[_grid(n, D)](
                rows, after, dread, dview, dstates, offset, M, nodes,
                **of_step, **_dropout(of_inputs, gates),
            )  # fmt: skip
    # weights in one product each
    of_cell = dgates.t() @ inputs[:, columns.read], dgates.sum(0)
    found = dstates[:words], dstates[nodes : nodes + 3, :D], *of_cell
    if not d:
        return found
    return *found, dtrack.t() @ inputs[:, columns.view], dtrack.sum(0)


def _grid(n: int, width: int) -> tuple[int, int]:
    return n, -(-width // BD)


def _dropout(kept: Tensor | None, any_other: Tensor) -> dict[str, Any]:
    """Return the arguments of kernels that apply dropout, if there is any."""
    return {"p_kept": any_other if kept is None else kept, "DROPS": kept is not None}


def why_no_machine(problem: StackProblem, impl: str) -> str | None:
    """Return why `FusedMachine` cannot run, or None if it can."""
    return "it has no tracker" if problem.tracker else why_not_kernels(problem, impl)


class FusedMachine(Machine):
    """A machine without a tracker and without gradients, whose steps are kernels.

    Only `view` and `advance` may be called.
    """

    def __init__(self, problem: StackProblem) -> None:
        super().__init__(problem)
        B, D, nodes = problem.layout.B, problem.missing.shape[1], problem.layout.nodes
        first = torch.arange(B, device=self.size.device)
        missing = (torch.full_like(first, nodes + x) for x in (NO_TOP, NO_SECOND))
        self.now = torch.stack([*missing, first], dim=1)
        """Rows of top node, second node and next word, int64 `[B, 3]`."""
        self.merges = self.size.new_empty((3, B))
        self.inputs, self.gates = (self.states.new_empty((B, x * D)) for x in (2, 5))

    def view(self, n: int) -> Tensor:
        """Return h of top node, second node and next word, `[B, 3D]`."""
        return self.states.chunk(2, dim=1)[0][self.now].flatten(1)

    def advance(self, wanted: Tensor) -> None:
        """Make one step; see `Machine.advance`."""
        from gumbeltree.ops.stack import kernels

        problem, layout, D = self.problem, self.problem.layout, self.problem.missing.shape[1]
        B, no_tracker = layout.B, self.states
        with torch.cuda.device_of(self.states):
            kernels.advance_kernel[(-(-B // BS),)](
                wanted.view(torch.uint8), layout.lengths, self.stack, self.size, self.merged,
                self.order, self.merges, self.now, B, layout.T, self.order.shape[1], BS=BS,
            )  # fmt: skip
            kernels.read_kernel[_grid(B, D)](
                self.merges, self.merges, self.states, no_tracker, self.inputs, 0, B, B,
                D=D, d=0, FIRST=0, WIDE=2 * D, BD=BD, **_dropout(None, self.gates),
            )  # fmt: skip
            torch.addmm(problem.bias, self.inputs, problem.weight.t(), out=self.gates)
            kernels.compose_kernel[_grid(B, D)](
                self.merges, self.states, self.gates, 0, B, D=D, BD=BD,
                **_dropout(None, self.gates),
            )  # fmt: skip
