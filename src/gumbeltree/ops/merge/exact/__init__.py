"""Compute the trees and gradients of `reference` with O(T) compositions; see ops/merge/README.md.

`forward.py` builds the trees, `backward.py` undoes the merges; this module combines them into one
differentiable function.
"""

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import Function

from gumbeltree.layout import Layout
from gumbeltree.ops.first_derivative import FirstDerivativeOnly
from gumbeltree.ops.merge.exact import backward as backward_pass
from gumbeltree.ops.merge.exact import forward as forward_pass
from gumbeltree.ops.merge.exact.forward import Products, SortedNoise
from gumbeltree.ops.merge.exact.tape import Tape
from gumbeltree.ops.merge.problem import TreeProblem, TreeResult
from gumbeltree.states import NodeState

# attributes that a cell must have in addition to its forward pass; `weight` is [gates, 2D]
HOOKS = ("weight", "gate_bias", "activate", "activate_backward")


def unsupported(cell: nn.Module, estimator: Any, sample: bool, by_name: bool = False) -> str | None:
    """Return why this implementation cannot run, or None if it can."""
    missing = [name for name in HOOKS if not hasattr(cell, name)]
    if missing:
        return (
            f"the cell {type(cell).__name__} does not define `{'`, `'.join(missing)}`, so its "
            "gates cannot be computed from one product per child"
        )
    if sample and getattr(estimator, "mixes", True):
        name = type(estimator).__name__
        return f"the estimator {name} mixes candidates, so every node changes at every layer"
    return None


def prepare(cell: nn.Module, query: Tensor, scale: float, layout: Layout) -> None:
    """Do nothing: the weights need no preparation."""


def build_tree(problem: TreeProblem) -> TreeResult:
    """Merge each sentence into one node."""
    layout = problem.layout
    cell: Any = problem.cell
    inputs = (problem.leaves, cell.weight, cell.gate_bias(), problem.query)
    others = cell.others() if hasattr(cell, "others") else ()
    if problem.scorer is not None:
        others = (*others, *problem.scorer.parameters())
    record = torch.is_grad_enabled() and any(x.requires_grad for x in (*inputs, *others))
    root, order, nodes, scores = _ExactTree.apply(*inputs, problem, record, *others)
    vector = root.index_select(0, layout.rank)
    order = order.index_select(0, layout.rank)
    if nodes is not None:
        nodes = NodeState(*layout.unpack_nodes(nodes).chunk(2, dim=-1))
    if scores is not None:
        scores = scores.index_select(0, layout.rank)
    return TreeResult(vector, order, nodes, scores)


class _ExactTree(Function):
    @staticmethod
    def forward(
        ctx: Any,
        leaves: Tensor,
        weight: Tensor,
        bias: Tensor,
        query: Tensor,
        problem: TreeProblem,
        record: bool,
        *others: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        device = leaves.device.type
        autocast = torch.is_autocast_enabled(device)
        ctx.product = Products(torch.get_autocast_dtype(device) if autocast else weight.dtype)
        # states, scores and sums are float32 or wider
        dtype = torch.promote_types(leaves.dtype, torch.float32)
        ctx.noise = SortedNoise(problem) if problem.sample else None
        with torch.autocast(device, enabled=False):
            result = forward_pass.forward(
                leaves.to(dtype),
                weight,
                bias.to(dtype),
                query.to(dtype),
                problem,
                ctx.noise,
                ctx.product,
                record,
            )
        ctx.mark_non_differentiable(result.order)
        ctx.set_materialize_grads(False)
        # drop references to tensors that are saved elsewhere
        ctx.problem = dataclasses.replace(problem, leaves=leaves[:0], noise=None, order=None)
        if result.tape is not None:
            ctx.save_for_backward(leaves, weight, bias, query, *result.tape, *others)
            ctx.others = len(others)
        nodes = None if result.nodes is None else result.nodes.to(leaves.dtype)
        return result.root.to(leaves.dtype), result.order, nodes, result.scores

    @staticmethod
    def backward(
        ctx: Any, droot: Tensor | None, _: None, dnodes: Tensor | None, dscores: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        leaves, weight, bias, query, *rest = ctx.saved_tensors
        tape, others = rest[: len(rest) - ctx.others], rest[len(rest) - ctx.others :]
        with torch.no_grad(), torch.autocast(leaves.device.type, enabled=False):
            gradients = backward_pass.backward(
                Tape(*tape),
                weight,
                query,
                ctx.problem,
                ctx.noise,
                ctx.product,
                droot,
                dnodes,
                dscores,
            )
        inputs = (leaves, weight, bias, query, *others)
        found = (*gradients[:4], *gradients.others)
        narrow = [g.to(x.dtype) for g, x in zip(found, inputs, strict=True)]
        if torch.is_grad_enabled():
            cotangents = [x for x in (droot, dnodes, dscores) if x is not None]
            narrow = FirstDerivativeOnly.apply("exact", len(narrow), *narrow, *inputs, *cotangents)
        return (*narrow[:4], None, None, *narrow[4:])
