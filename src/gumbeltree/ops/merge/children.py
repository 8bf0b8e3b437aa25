"""Differentiate scores that depend on the children of a candidate; see `nn.scorers`."""

import torch
from torch import Tensor, nn


def to_scored_children(scorer: nn.Module, left: Tensor, right: Tensor) -> Tensor:
    """Return the gradients of children per unit of score gradient, `[n, 2, D]`.

    Args:
        scorer: returns one score per pair.
        left: h of the left children `[n, D]`.
        right: h of the right children.
    """
    with torch.enable_grad():
        pair = [x.detach().requires_grad_() for x in (left, right)]
        # each score depends on its own pair alone
        return torch.stack(torch.autograd.grad(scorer(*pair).sum(), pair), dim=1)


def scorer_gradients(
    scorer: nn.Module, left: Tensor, right: Tensor, dscore: Tensor
) -> tuple[Tensor, ...]:
    """Return the gradients of the scorer's parameters, given those of the scores `[n]`."""
    parameters = list(scorer.parameters())
    if not parameters:
        return ()
    needed = [p for p in parameters if p.requires_grad]
    with torch.enable_grad():
        total = (scorer(left.detach(), right.detach()) * dscore).sum()
        found = dict(zip(needed, torch.autograd.grad(total, needed) if needed else (), strict=True))
    return tuple(found.get(p, torch.zeros_like(p)) for p in parameters)
