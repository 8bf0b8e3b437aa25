"""The algorithm of `exact` as a few small Triton kernels per step; see ops/merge/README.md.

`forward.py` builds the trees, `backward.py` undoes the merges, each with a module of kernels; this
module combines them into one differentiable function.
"""

from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import Function

from gumbeltree.device.triton_support import WIDEST, precision_of, why_not
from gumbeltree.layout import Layout
from gumbeltree.noise import is_keys
from gumbeltree.ops.first_derivative import FirstDerivativeOnly
from gumbeltree.ops.merge.dropout import rate_of
from gumbeltree.ops.merge.fused.estimators import (
    SETTINGS,
    ST_GUMBEL,
    Kernel,
    is_supported,
    kernel_of,
)
from gumbeltree.ops.merge.problem import MergeGradients, TreeProblem, TreeResult
from gumbeltree.registry import own
from gumbeltree.states import NodeState

CELLS = {"treelstm": __name__, "gated": f"{__name__}.gated"}
"""Package of the modules `forward` and `backward`, by `kernels` of the cell."""


def unsupported(cell: nn.Module, estimator: Any, sample: bool, by_name: bool = False) -> str | None:
    """Return why this implementation cannot run, or None if it can.

    Triton's interpreter, which runs the kernels on a CPU, is so slow that it runs only `by_name`.
    """
    if own(cell, "kernels") not in CELLS:
        name = type(cell).__name__
        return f"its kernels support the cells TreeLSTMCell and GatedCell only, got {name}"
    if sample and getattr(estimator, "local", True) and not is_supported(estimator):
        name = type(estimator).__name__
        return f"its kernels support the estimators {', '.join(SETTINGS)}, got {name}"
    weight: Any = cell.weight
    if weight.shape[1] > 2 * WIDEST:
        return f"its kernels support at most {WIDEST} units, got {weight.shape[1] // 2}"
    return why_not(weight, by_name)


def prepare(cell: Any, query: Tensor, scale: float, layout: Layout) -> Any:
    """Return the weights as the kernels need them, using the second stream if there is one."""
    # imported here so that Triton stays optional
    prepared = import_module(f"{CELLS[cell.kernels]}.forward").prepared
    work = partial(prepared, cell, query, scale, precision_of(query.device.type))
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
    single = getattr(cell, "single_state", False)
    leaves = problem.leaves[:, : query.shape[0]] if single else problem.leaves
    # not `gate_bias()`: its constant offset needs no gradient
    others = cell.others() if hasattr(cell, "others") else ()
    inputs = (leaves, query, cell.weight, cell.bias, *others)
    local = noise is not None and getattr(problem.estimator, "local", True)
    operands = problem.operands or prepare(cell, query, problem.scale, layout)
    if problem.dropout is not None:
        operands = operands._replace(rate=rate_of(cell), keys=problem.dropout.contiguous())
    options = _Options(
        layout,
        CELLS[cell.kernels],
        None if noise is None else noise.contiguous(),
        temperature,
        None if problem.order is None else problem.order.contiguous(),
        problem.keep.nodes,
        problem.keep.scores,
        precision_of(query.device.type),
        torch.is_grad_enabled() and any(x.requires_grad for x in inputs),
        problem.scale,
        local,
        kernel_of(problem.estimator) if local else ST_GUMBEL,
        problem.noise_scale,
        operands,
    )
    if layout.overlap is not None:
        layout.overlap.wait()
    root, merged, made, scores = _FusedTree.apply(options, *inputs)
    nodes = None
    if made is not None:
        rows, exists = node_rows(layout)
        made = torch.where(exists[..., None], made[rows], 0.0)
        nodes = NodeState(made, made) if single else NodeState(*made.chunk(2, dim=-1))
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
    package: str
    """One of `CELLS`."""
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
    estimator: Kernel
    noise_scale: float
    operands: Any
    """Result of `prepared` in the module `forward` of the package, with the keys for dropout."""


class _FusedTree(Function):
    @staticmethod
    def forward(
        ctx: Any, options: _Options, leaves: Tensor, query: Tensor, *weights: Tensor
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
                noise_scale=options.noise_scale,
                softmax=options.estimator.recorded,
            )
        root = trees.states[trees.node_state[options.layout.tables.roots], : query.shape[0]]
        nodes = trees.states[trees.node_state] if options.keep_nodes else None
        scores = trees.scores if options.keep_scores else None
        ctx.mark_non_differentiable(trees.order)
        ctx.set_materialize_grads(False)
        ctx.options, ctx.shares, ctx.weights = options, None, len(weights)
        if options.record:
            if options.layout.overlap is not None and options.sample and options.layout.T > 1:
                score_shares = import_module(f"{options.package}.backward").score_shares
                # the backward pass needs these first; compute them while the head runs
                off = torch.autocast(leaves.device.type, enabled=False)
                with torch.cuda.device_of(leaves), off:
                    ctx.shares = options.layout.overlap.start(
                        partial(
                            score_shares,
                            trees,
                            weights,
                            options.operands,
                            options.layout,
                            options.precision,
                        )
                    )
            ctx.save_for_backward(leaves, query, *weights, *trees)
        return root, trees.order, nodes, scores

    @staticmethod
    def backward(
        ctx: Any, droot: Tensor | None, _: None, dnodes: Tensor | None, dscores: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        from gumbeltree.ops.merge.fused.forward import Trees

        count = 2 + ctx.weights
        inputs, trees = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        leaves, _, *weights = inputs
        options: _Options = ctx.options
        if ctx.shares is not None and options.layout.overlap is not None:
            options.layout.overlap.wait()
        backward = import_module(f"{options.package}.backward").backward
        device = torch.cuda.device_of(leaves)
        with device, torch.no_grad(), torch.autocast(leaves.device.type, enabled=False):
            found: MergeGradients = backward(
                Trees(*trees),
                weights,
                options.operands,
                options.layout,
                droot,
                dnodes=None if dnodes is None else dnodes.contiguous(),
                dscores=None if dscores is None else dscores.contiguous(),
                sample=options.sample,
                temperature=options.temperature,
                precision=options.precision,
                scale=options.scale,
                shares=ctx.shares,
                estimator=options.estimator,
                noise=options.noise,
            )
        gradients = (found.leaves, found.query, found.weight, found.bias, *found.others)
        if torch.is_grad_enabled():
            cotangents = [x for x in (droot, dnodes, dscores) if x is not None]
            gradients = FirstDerivativeOnly.apply("fused", count, *gradients, *inputs, *cotangents)
        return (None, *gradients)
