"""Find the most probable trees of each sentence by beam search, and differentiate their vectors.

A beam is a row of nodes, like a layer of the merge. At every step, each beam proposes its most
probable merges, and the most probable beams survive. A merge changes only the two candidates next
to the new node, so k beams over T words take T - 1 + 2k(T - 2) compositions. If a scorer reads the
children, only merged pairs are composed, k(T - 1).

The trees are constants of the backward pass. The gradient of a tree's log-probability is therefore
known for all scores before the states are differentiated, which takes one pass over the candidates
in reverse order of creation. Nothing is read back from the device, so CUDA graphs can capture both
passes.

Legend: B sentences, T words in the longest, k beams, K candidates of a layer, D state width.
"""

from collections.abc import Generator
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import Function

from gumbeltree.device.triton_support import why_not as why_not_triton
from gumbeltree.ops.first_derivative import FirstDerivativeOnly
from gumbeltree.ops.merge.beams import forward as torch_operations
from gumbeltree.ops.merge.beams.backward import Recorded, backward
from gumbeltree.ops.merge.beams.forward import NEVER, BeamStates
from gumbeltree.ops.merge.exact import HOOKS
from gumbeltree.states import BestTrees

MOST_BEAMS = 16
"""Largest number of beams that the Triton kernels support."""


class Beams(NamedTuple):
    """The trees found, best first."""

    vector: Tensor
    """h of each root `[B, k, D]`."""
    log_prob: Tensor
    """Log-probability of all merges `[B, k]`; -inf if there are fewer than k trees."""
    order: Tensor
    """Position of each merge, int64 `[B, k, T-1]`, -1 past the end of a sentence."""


def why_not(cell: Any) -> str | None:
    """Return why a cell cannot be used with beams, or None if it can."""
    missing = [name for name in HOOKS if not hasattr(cell, name)]
    if not missing:
        return None
    return (
        f"the cell {type(cell).__name__} does not define `{'`, `'.join(missing)}`, which beams need"
    )


def search(
    leaves: Tensor,
    lengths: Tensor,
    cell: Any,
    query: Tensor,
    k: int,
    noise: Tensor | None = None,
    distinct: bool = True,
    impl: str = "auto",
    dropout: Tensor | None = None,
    scorer: nn.Module | None = None,
) -> Beams:
    """Return the best trees that k beams find.

    Args:
        leaves: states of the words `[B, T, 2D]`, [h; c].
        lengths: words per sentence `[B]`.
        cell: composition cell.
        query: scaled query vector `[D]`.
        k: number of beams.
        noise: Gumbel noise `[B, k, T-1, T-1]` (sentence, beam, layer, position). It is added when a
            beam proposes its merges (stochastic top-k).
        distinct: drop beams with the same nodes as a better one.
        impl: auto, fused (Triton kernels) or exact (torch operations).
        dropout: keys of the dropout inside the cell, int64 `[B, 2]`; None for no dropout.
        scorer: scores candidates by their children; the query must be zero.
    """
    others = cell.others() if hasattr(cell, "others") else ()
    if scorer is not None:
        others = (*others, *scorer.parameters())
    inputs = (leaves, cell.weight, cell.gate_bias(), query, *others)
    record = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    vector, log_prob, order = _Search.apply(
        *inputs[:4],
        lengths,
        cell,
        k,
        noise,
        distinct,
        kernels_for(cell, k, noise is not None, impl),
        record,
        dropout,
        scorer,
        *others,
    )
    return Beams(vector, log_prob, order)


def searching(
    leaves: Tensor, lengths: Tensor, cell: Any, query: Tensor, k: int, scorer: nn.Module | None
) -> Generator[None, None, BestTrees]:
    """Search with torch operations in short steps, without gradients and autocast; see `search`."""
    bias = cell.gate_bias()
    states = BeamStates(leaves, cell.weight, bias, query, cell, k, record=False, scorer=scorer)
    found = yield from torch_operations.forward_steps(states, lengths, k, None, True)
    root, log_prob, choices = found
    order = torch_operations.orders(choices, root, lengths)
    return BestTrees(order, torch.where(log_prob > NEVER / 2, log_prob, -torch.inf))


def kernels_for(cell: Any, k: int, drawn: bool, impl: str) -> Any:
    """Return the module of the Triton kernels, or None to use torch operations."""
    if impl not in ("auto", "fused"):
        return None
    reason = why_not_triton(cell.weight, by_name=impl == "fused")
    if drawn:
        reason = "its kernels do not draw beams at random"
    if reason is None and k > MOST_BEAMS:
        reason = f"its kernels support at most {MOST_BEAMS} beams, got {k}"
    if reason is None:
        # imported here so that Triton stays optional
        return import_module(f"{__name__}.fused")
    if impl == "fused":
        raise NotImplementedError(f"impl='fused' is not available here: {reason}; use impl='auto'")
    return None


class _Search(Function):
    @staticmethod
    def forward(
        ctx: Any,
        leaves: Tensor,
        weight: Tensor,
        bias: Tensor,
        query: Tensor,
        lengths: Tensor,
        cell: Any,
        k: int,
        noise: Tensor | None,
        distinct: bool,
        fused: Any,
        record: bool,
        dropout: Tensor | None,
        scorer: nn.Module | None,
        *others: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        with torch.autocast(leaves.device.type, enabled=False):
            states = BeamStates(leaves, weight, bias, query, cell, k, record, dropout, scorer)
            way = torch_operations if fused is None else fused
            root, log_prob, choices = way.forward(states, lengths, k, noise, distinct)
        order = way.orders(choices, root, lengths)
        ctx.mark_non_differentiable(order)
        if record:
            ctx.search = Recorded(states, choices, root, lengths, cell, fused)
            ctx.save_for_backward(leaves, weight, bias, query, *others)
        vector = states.rows[:, : states.D][root].to(leaves.dtype)
        # -inf marks beams without a tree
        return vector, torch.where(log_prob > NEVER / 2, log_prob, -torch.inf), order

    @staticmethod
    def backward(ctx: Any, dvector: Tensor, dlog_prob: Tensor, _: Tensor) -> Any:
        inputs = ctx.saved_tensors
        device = dvector.device.type
        with torch.no_grad(), torch.autocast(device, enabled=False):
            found = backward(ctx.search, dvector, dlog_prob)
        narrow = [g.to(x.dtype) for g, x in zip(found, inputs, strict=True)]
        if torch.is_grad_enabled():
            cotangents = (dvector, dlog_prob)
            narrow = FirstDerivativeOnly.apply("beams", len(narrow), *narrow, *inputs, *cotangents)
        return (*narrow[:4], *[None] * 9, *narrow[4:])
