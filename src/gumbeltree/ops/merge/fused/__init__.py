"""`exact` as Triton kernels on a CUDA device, a few small ones a step; see ops/merge/README.md.

`forward.py` merges, `backward.py` undoes the merges, each with a file of kernels; here
they become one differentiable function.
"""

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import Function

from gumbeltree.device.triton_support import WIDEST, precision_of, why_not
from gumbeltree.layout import Layout
from gumbeltree.noise import is_keys
from gumbeltree.ops.first_derivative import OnlyFirst
from gumbeltree.ops.merge.problem import TreeProblem, TreeResult
from gumbeltree.registry import own
from gumbeltree.states import NodeState

if TYPE_CHECKING:
    from gumbeltree.ops.merge.fused.forward import Operands


def unsupported(cell: nn.Module, estimator: Any, sample: bool, by_name: bool = False) -> str | None:
    """Return why this implementation cannot run a case, or None if it can.

    Args:
        cell: composition.
        estimator: how the choice is differentiated.
        sample: whether merges are sampled.
        by_name: asked for by name. Triton's interpreter, which runs the kernels on a CPU, is far
            too slow to be chosen otherwise.
    """
    if own(cell, "kernels") != "treelstm":
        return f"its kernels are those of the cell TreeLSTMCell, got {type(cell).__name__}"
    if sample and getattr(estimator, "local", True) and own(estimator, "kernels") != "st_gumbel":
        return f"its kernels know StraightThroughGumbel only, got {type(estimator).__name__}"
    weight: Any = cell.weight
    if weight.shape[1] > 2 * WIDEST:
        return f"its tiles fit {WIDEST} units, the cell has {weight.shape[1] // 2}"
    return why_not(weight, by_name)


def prepare(cell: Any, query: Tensor, scale: float, layout: Layout) -> "Operands":
    """Return the weights as a merge wants them: beside the leaves' work, where there is a way."""
    # triton is imported when it is needed, not before
    from gumbeltree.ops.merge.fused.forward import Operands

    work = partial(Operands.of, cell, query, scale, precision_of(query.device.type))
    with torch.cuda.device_of(query):
        return work() if layout.overlap is None else layout.overlap.start(work)


def build_tree(problem: TreeProblem) -> TreeResult:
    """Merge each sentence into one node; nothing is read back from the device."""
    cell: Any = problem.cell
    layout, query, temperature = problem.layout, problem.query, problem.temperature
    if not isinstance(temperature, Tensor):
        with torch.no_grad():
            temperature = torch.full(
                (), temperature, dtype=problem.leaves.dtype, device=query.device
            )
    noise = problem.noise if problem.sample else None
    if noise is not None and not is_keys(noise):
        noise = noise.to(problem.leaves.dtype)
    # the bias' own gradient is that of the gates: the offset is a constant
    inputs = (problem.leaves, cell.weight, cell.bias, query)
    given = _Given(
        layout,
        None if noise is None else noise.contiguous(),
        temperature,
        None if problem.order is None else problem.order.contiguous(),
        problem.keep.nodes,
        problem.keep.scores,
        precision_of(query.device.type),
        torch.is_grad_enabled() and any(x.requires_grad for x in inputs),
        problem.scale,
        noise is not None and getattr(problem.estimator, "local", True),
        problem.operands or prepare(cell, query, problem.scale, layout),
    )
    if layout.overlap is not None:
        layout.overlap.wait()
    root, merged, made, scores = _FusedTree.apply(*inputs, given)
    nodes = None
    if made is not None:
        rows, exists = node_rows(layout)
        nodes = NodeState(*torch.where(exists[..., None], made[rows], 0.0).chunk(2, dim=-1))
    return TreeResult(root.index_select(0, layout.rank), merged, nodes, scores)


def node_rows(layout: Layout) -> tuple[Tensor, Tensor]:
    """Return the node at each place of the caller's sentences, and whether there is one.

    Returns:
        int64 and bool `[B, 2T-1]`: word i at i, the node made at step t at T + t. Nodes are
        numbered as in `forward.py`.
    """
    words = layout.start[:-1] + layout.rank[:, None]  # [B, T]
    exists = layout.node_mask()
    nodes = torch.cat([words, layout.cap + words[:, 1:]], dim=1)
    return torch.where(exists, nodes, 0), exists


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
    sample: bool
    """Whether the choice itself passes a gradient to the scores."""
    operands: "Operands"


class _FusedTree(Function):
    @staticmethod
    def forward(
        ctx: Any, leaves: Tensor, weight: Tensor, bias: Tensor, query: Tensor, given: _Given
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        from gumbeltree.ops.merge.fused.forward import forward

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
        root = trees.states[trees.node_state[given.layout.found.roots], : query.shape[0]]
        nodes = trees.states[trees.node_state] if given.keep_nodes else None
        scores = trees.scores if given.keep_scores else None
        ctx.mark_non_differentiable(trees.order)
        ctx.set_materialize_grads(False)
        ctx.given, ctx.shares = given, None
        if given.record:
            if given.layout.overlap is not None and given.sample and given.layout.T > 1:
                from gumbeltree.ops.merge.fused.backward import score_shares

                # needed at the start of the backward pass, and the head comes in between
                off = torch.autocast(leaves.device.type, enabled=False)
                with torch.cuda.device_of(leaves), off:
                    ctx.shares = given.layout.overlap.start(
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
        from gumbeltree.ops.merge.fused.backward import backward
        from gumbeltree.ops.merge.fused.forward import Trees

        leaves, weight, bias, query, *trees = ctx.saved_tensors
        given: _Given = ctx.given
        if ctx.shares is not None and given.layout.overlap is not None:
            given.layout.overlap.wait()
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
                sample=given.sample,
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
