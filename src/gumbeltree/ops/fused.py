"""`exact` as Triton kernels on a CUDA device, a few small ones a step; see ops/README.md.

`fused_forward.py` merges, `fused_backward.py` undoes the merges, `fused_kernels.py` has the
kernels; here they become one differentiable function.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import Function

from gumbeltree.cells.treelstm import TreeLSTMCell
from gumbeltree.estimators.st_gumbel import StraightThroughGumbel
from gumbeltree.ops.first_derivative import OnlyFirst
from gumbeltree.ops.problem import TreeProblem, TreeResult
from gumbeltree.ops.triton_support import WIDEST, precision_of, why_not
from gumbeltree.states import NodeState


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
    if not by_name:
        return "it is new, and runs when asked for by name"
    if cell.weight.shape[1] > 2 * WIDEST:
        return f"its tiles fit {WIDEST} units, the cell has {cell.weight.shape[1] // 2}"
    return why_not(cell.weight, by_name)


def build_tree(problem: TreeProblem) -> TreeResult:
    """Merge each sentence into one node."""
    packing = problem.packing
    cell: Any = problem.cell
    leaves = torch.cat(problem.leaves, dim=-1)  # [N, 2D]
    inputs = (leaves, cell.weight, cell.gate_bias(), problem.query * problem.scale)
    record = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    root, order, nodes, scores = _FusedTree.apply(*inputs, problem, record)
    vector = root.index_select(0, packing.rank)
    if nodes is not None:
        nodes = NodeState(*packing.unpack_nodes(nodes).chunk(2, dim=-1))
    return TreeResult(vector, order, nodes, scores)


class _FusedTree(Function):
    @staticmethod
    def forward(
        ctx: Any,
        leaves: Tensor,
        weight: Tensor,
        bias: Tensor,
        query: Tensor,
        problem: TreeProblem,
        record: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        # triton is imported when it is needed, not before
        from gumbeltree.ops.fused_forward import Layout, Trees, forward, root_nodes

        packing, device = problem.packing, leaves.device.type
        N, B, D = packing.N, packing.B, query.shape[0]
        layout = Layout.of(packing)
        noise, forced = problem.noise, problem.order
        ctx.precision = precision_of(device)
        with torch.autocast(device, enabled=False):
            trees: Trees = forward(
                leaves,
                weight,
                bias,
                query,
                layout,
                noise=noise.to(leaves.dtype).contiguous()
                if problem.sample and noise is not None
                else None,
                forced=None if forced is None else forced.contiguous(),
                temperature=problem.temperature,
                record=record,
                keep_scores=problem.keep_scores,
                precision=ctx.precision,
            )
        root = trees.states[trees.node_state[root_nodes(layout)], :D]
        nodes = None
        if problem.keep_nodes:
            made = trees.states[trees.node_state]
            nodes = torch.cat([made[:N], made[N + B :]])
        scores = trees.scores if problem.keep_scores else None
        ctx.mark_non_differentiable(trees.order)
        ctx.set_materialize_grads(False)
        ctx.layout, ctx.sample, ctx.temperature = layout, problem.sample, problem.temperature
        if record:
            ctx.save_for_backward(leaves, weight, bias, query, *trees)
        return root, trees.order, nodes, scores

    @staticmethod
    def backward(
        ctx: Any, droot: Tensor | None, _: None, dnodes: Tensor | None, dscores: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        from gumbeltree.ops.fused_backward import backward
        from gumbeltree.ops.fused_forward import Trees

        leaves, weight, bias, query, *trees = ctx.saved_tensors
        N, B = ctx.layout.cap, ctx.layout.B
        with torch.no_grad(), torch.autocast(leaves.device.type, enabled=False):
            spread = None
            if dnodes is not None:
                spread = dnodes.new_zeros((2 * N, dnodes.shape[1]))
                spread[:N], spread[N + B :] = dnodes[:N], dnodes[N:]
            gradients = backward(
                Trees(*trees),
                weight,
                query,
                ctx.layout,
                droot,
                dnodes=spread,
                dscores=None if dscores is None else dscores.contiguous(),
                sample=ctx.sample,
                temperature=ctx.temperature,
                precision=ctx.precision,
            )
        result: tuple[Tensor, ...] = tuple(gradients)
        if torch.is_grad_enabled():
            cotangents = [x for x in (droot, dnodes, dscores) if x is not None]
            inputs = (leaves, weight, bias, query)
            result = OnlyFirst.apply("fused", 4, *result, *inputs, *cotangents)
        return (*result, None, None)
