"""The algorithm of `exact` as a few small Triton kernels per step; see ops/merge/README.md.

`forward.py` builds the trees, `backward.py` undoes the merges, each with a module of kernels; this
module combines them into one differentiable function.
"""

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import Function

from gumbeltree.device.triton_support import WIDEST, precision_of, why_not
from gumbeltree.layout import Layout
from gumbeltree.noise import is_keys
from gumbeltree.ops.first_derivative import FirstDerivativeOnly
from gumbeltree.ops.merge.problem import TreeProblem, TreeResult
from gumbeltree.registry import own
from gumbeltree.states import NodeState

if TYPE_CHECKING:
    from gumbeltree.ops.merge.fused.forward import Operands


def unsupported(cell: nn.Module, estimator: Any, sample: bool, by_name: bool = False) -> str | None:
    """Return why this implementation cannot run, or None if it can.

    Triton's interpreter, which runs the kernels on a CPU, is so slow that it runs only `by_name`.
    """
    if own(cell, "kernels") != "treelstm":
        return f"its kernels support the cell TreeLSTMCell only, got {type(cell).__name__}"
    if sample and getattr(estimator, "local", True) and own(estimator, "kernels") != "st_gumbel":
        name = type(estimator).__name__
        return f"its kernels support the estimator StraightThroughGumbel only, got {name}"
    weight: Any = cell.weight
    if weight.shape[1] > 2 * WIDEST:
        return f"its kernels support at most {WIDEST} units, got {weight.shape[1] // 2}"
    return why_not(weight, by_name)


def prepare(cell: Any, query: Tensor, scale: float, layout: Layout) -> "Operands":
    """Return the weights as the kernels need them, using the second stream if there is one."""
    # imported here so that Triton stays optional
    from gumbeltree.ops.merge.fused.forward import Operands

    work = partial(Operands.of, cell, query, scale, precision_of(query.device.type))
    with torch.cuda.device_of(query):
        return work() if layout.overlap is None else layout.overlap.start(work)


def build_tree(problem: TreeProblem) -> TreeResult:
    """Merge each sentence into one node, without synchronizing with the device."""
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
    # not `gate_bias()`: its constant offset needs no gradient
    inputs = (problem.leaves, cell.weight, cell.bias, query)
    options = _Options(
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
    root, merged, made, scores = _FusedTree.apply(*inputs, options)
    nodes = None
    if made is not None:
        rows, exists = node_rows(layout)
        nodes = NodeState(*torch.where(exists[..., None], made[rows], 0.0).chunk(2, dim=-1))
    return TreeResult(root.index_select(0, layout.rank), merged, nodes, scores)


def node_rows(layout: Layout) -> tuple[Tensor, Tensor]:
    """Return the node at each entry, in the caller's order, and whether there is one.

    Both are `[B, 2T-1]`: word i at i, the node of step t at T + t. Nodes are numbered as in
    `forward.py`.
    """
    words = layout.start[:-1] + layout.rank[:, None]  # [B, T]
    exists = layout.node_mask()
    nodes = torch.cat([words, layout.cap + words[:, 1:]], dim=1)
    return torch.where(exists, nodes, 0), exists


class _Options(NamedTuple):
    """Inputs of the merge that are not differentiated."""

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
    """Whether the estimator propagates gradients through the choice."""
    operands: "Operands"


class _FusedTree(Function):
    @staticmethod
    def forward(
        ctx: Any, leaves: Tensor, weight: Tensor, bias: Tensor, query: Tensor, options: _Options
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        from gumbeltree.ops.merge.fused.forward import forward

        # Triton launches on the current device, not on that of the tensors
        with torch.cuda.device_of(leaves), torch.autocast(leaves.device.type, enabled=False):
            trees = forward(
                leaves,
                options.operands,
                options.layout,
                noise=options.noise,
                forced=options.order,
                temperature=options.temperature,
                record=options.record,
                keep_scores=options.keep_scores,
                precision=options.precision,
            )
        root = trees.states[trees.node_state[options.layout.tables.roots], : query.shape[0]]
        nodes = trees.states[trees.node_state] if options.keep_nodes else None
        scores = trees.scores if options.keep_scores else None
        ctx.mark_non_differentiable(trees.order)
        ctx.set_materialize_grads(False)
        ctx.options, ctx.shares = options, None
        if options.record:
            if options.layout.overlap is not None and options.sample and options.layout.T > 1:
                from gumbeltree.ops.merge.fused.backward import score_shares

                # the backward pass needs these first; compute them while the head runs
                off = torch.autocast(leaves.device.type, enabled=False)
                with torch.cuda.device_of(leaves), off:
                    ctx.shares = options.layout.overlap.start(
                        partial(
                            score_shares,
                            trees,
                            weight,
                            options.operands.query,
                            options.layout,
                            options.precision,
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
        options: _Options = ctx.options
        if ctx.shares is not None and options.layout.overlap is not None:
            options.layout.overlap.wait()
        device = torch.cuda.device_of(leaves)
        with device, torch.no_grad(), torch.autocast(leaves.device.type, enabled=False):
            gradients = backward(
                Trees(*trees),
                weight,
                options.operands.query,
                options.layout,
                droot,
                dnodes=None if dnodes is None else dnodes.contiguous(),
                dscores=None if dscores is None else dscores.contiguous(),
                sample=options.sample,
                temperature=options.temperature,
                precision=options.precision,
                scale=options.scale,
                shares=ctx.shares,
            )
        result: tuple[Tensor, ...] = gradients[:4]
        if torch.is_grad_enabled():
            cotangents = [x for x in (droot, dnodes, dscores) if x is not None]
            inputs = (leaves, weight, bias, query)
            result = FirstDerivativeOnly.apply("fused", 4, *result, *inputs, *cotangents)
        return (*result, None)
