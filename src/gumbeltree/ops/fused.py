"""`exact` as Triton kernels on a CUDA device, a few small ones a step; see ops/README.md.

`fused_forward.py` merges, `fused_backward.py` undoes the merges, each with a file of kernels; here
they become one differentiable function.
"""

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import Function

from gumbeltree.cells.treelstm import TreeLSTMCell
from gumbeltree.estimators.keyed_noise import is_keys
from gumbeltree.estimators.st_gumbel import StraightThroughGumbel
from gumbeltree.ops.first_derivative import OnlyFirst
from gumbeltree.ops.layout import Layout
from gumbeltree.ops.overlap import Overlap
from gumbeltree.ops.problem import TreeProblem, TreeResult
from gumbeltree.ops.triton_support import WIDEST, precision_of, why_not
from gumbeltree.states import NodeState

if TYPE_CHECKING:
    from gumbeltree.ops.fused_forward import Operands


def unsupported(cell: nn.Module, estimator: Any, sample: bool, by_name: bool = False) -> str | None:
    """Return why this implementation cannot run a case, or None if it can.

    Args:
        cell: composition.
        estimator: how the choice is differentiated.
        sample: whether merges are sampled.
        by_name: asked for by name. Triton's interpreter, which runs the kernels on a CPU, is far
            too slow to be chosen otherwise.
    """
    if type(cell) is not TreeLSTMCell:
        return f"its kernels are those of the cell TreeLSTMCell, got {type(cell).__name__}"
    if sample and type(estimator) is not StraightThroughGumbel:
        return f"its kernels know StraightThroughGumbel only, got {type(estimator).__name__}"
    if cell.weight.shape[1] > 2 * WIDEST:
        return f"its tiles fit {WIDEST} units, the cell has {cell.weight.shape[1] // 2}"
    return why_not(cell.weight, by_name)


def build_tree(problem: TreeProblem) -> TreeResult:
    """Merge each sentence into one node."""
    cell: Any = problem.cell
    leaves = torch.cat(problem.leaves, dim=-1)
    with torch.no_grad():
        temperature = torch.full((), problem.temperature, dtype=leaves.dtype, device=leaves.device)
    noise = problem.noise if problem.sample else None
    return merge(
        leaves,
        Layout.of(problem.packing),
        cell,
        problem.query,
        problem.scale,
        noise=noise if noise is None or is_keys(noise) else noise.to(leaves.dtype),
        temperature=temperature,
        order=problem.order,
        keep_nodes=problem.keep_nodes,
        keep_scores=problem.keep_scores,
    )


def merge(
    leaves: Tensor,
    layout: Layout,
    cell: TreeLSTMCell,
    query: Tensor,
    scale: float = 1.0,
    *,
    noise: Tensor | None = None,
    temperature: Tensor | None = None,
    order: Tensor | None = None,
    keep_nodes: bool = False,
    keep_scores: bool = False,
    operands: "Operands | None" = None,
) -> TreeResult:
    """Merge sentences that stand as a layout says; nothing is read back from the device.

    Args:
        leaves: states of the words, h and c side by side, `[cap, 2D]`; rows beyond the words are
            never used.
        layout: where words stand.
        cell: composition.
        query: `[D]`.
        scale: of the scores.
        noise: sampling is with noise, see `fused_forward.forward`; None: the highest score.
        temperature: of Eq. 8, one number on the device.
        order: forced merges, see `TreeProblem`.
        keep_nodes: return the states of all nodes.
        keep_scores: return all scores.
        operands: of `prepare`, if it was already called.
    """
    # the bias' own gradient is that of the gates: the offset is a constant
    inputs = (leaves, cell.weight, cell.bias, query)
    record = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    given = _Given(
        layout,
        None if noise is None else noise.contiguous(),
        temperature,
        None if order is None else order.contiguous(),
        keep_nodes,
        keep_scores,
        precision_of(query.device.type),
        record,
        scale,
        operands or prepare(cell, query, scale),
    )
    if Overlap.current is not None:
        Overlap.current.wait()
    root, merged, made, scores = _FusedTree.apply(*inputs, given)
    nodes = None
    if made is not None:
        rows, exists = layout.node_rows()
        nodes = NodeState(*torch.where(exists[..., None], made[rows], 0.0).chunk(2, dim=-1))
    return TreeResult(root.index_select(0, layout.rank), merged, nodes, scores)


def prepare(cell: TreeLSTMCell, query: Tensor, scale: float) -> "Operands":
    """Return the weights as a merge wants them: beside the leaves' work, where there is a way."""
    # triton is imported when it is needed, not before
    from gumbeltree.ops.fused_forward import Operands

    work = partial(Operands.of, cell, query, scale, precision_of(query.device.type))
    with torch.cuda.device_of(query):
        return work() if Overlap.current is None else Overlap.current.start(work)


class _Given(NamedTuple):
    """What the merge needs beside what is differentiated."""

    layout: Layout
    noise: Tensor | None
    temperature: Tensor | None
    order: Tensor | None
    keep_nodes: bool
    keep_scores: bool
    precision: str
    record: bool
    scale: float
    operands: "Operands"


class _FusedTree(Function):
    @staticmethod
    def forward(
        ctx: Any, leaves: Tensor, weight: Tensor, bias: Tensor, query: Tensor, given: _Given
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        from gumbeltree.ops.fused_forward import forward

        # Triton launches on the current device, whichever the tensors are on
        with torch.cuda.device_of(leaves), torch.autocast(leaves.device.type, enabled=False):
            trees = forward(
                leaves,
                given.operands,
                given.layout,
                noise=given.noise,
                forced=given.order,
                temperature=given.temperature,
                record=given.record,
                keep_scores=given.keep_scores,
                precision=given.precision,
            )
        root = trees.states[trees.node_state[given.layout.roots], : query.shape[0]]
        nodes = trees.states[trees.node_state] if given.keep_nodes else None
        scores = trees.scores if given.keep_scores else None
        ctx.mark_non_differentiable(trees.order)
        ctx.set_materialize_grads(False)
        ctx.given, ctx.shares = given, None
        if given.record:
            if Overlap.current is not None and given.noise is not None and given.layout.T > 1:
                from gumbeltree.ops.fused_backward import score_shares

                # needed at the start of the backward pass, and the head comes in between
                off = torch.autocast(leaves.device.type, enabled=False)
                with torch.cuda.device_of(leaves), off:
                    ctx.shares = Overlap.current.start(
                        partial(
                            score_shares,
                            trees,
                            weight,
                            given.operands.query,
                            given.layout,
                            given.precision,
                        )
                    )
            ctx.save_for_backward(leaves, weight, bias, query, *trees)
        return root, trees.order, nodes, scores

    @staticmethod
    def backward(
        ctx: Any, droot: Tensor | None, _: None, dnodes: Tensor | None, dscores: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        from gumbeltree.ops.fused_backward import backward
        from gumbeltree.ops.fused_forward import Trees

        leaves, weight, bias, query, *trees = ctx.saved_tensors
        given: _Given = ctx.given
        if ctx.shares is not None and Overlap.current is not None:
            Overlap.current.wait()
        device = torch.cuda.device_of(leaves)
        with device, torch.no_grad(), torch.autocast(leaves.device.type, enabled=False):
            gradients = backward(
                Trees(*trees),
                weight,
                given.operands.query,
                given.layout,
                droot,
                dnodes=None if dnodes is None else dnodes.contiguous(),
                dscores=None if dscores is None else dscores.contiguous(),
                sample=given.noise is not None,
                temperature=given.temperature,
                precision=given.precision,
                scale=given.scale,
                shares=ctx.shares,
            )
        result: tuple[Tensor, ...] = tuple(gradients)
        if torch.is_grad_enabled():
            cotangents = [x for x in (droot, dnodes, dscores) if x is not None]
            inputs = (leaves, weight, bias, query)
            result = OnlyFirst.apply("fused", 4, *result, *inputs, *cotangents)
        return (*result, None)
