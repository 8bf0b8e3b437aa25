"""Choose the highest score regardless of rounding errors."""

import torch
from torch import Tensor


def first_best(scores: Tensor, size: Tensor) -> Tensor:
    """Return the leftmost position whose score is the maximum up to rounding, int64 `[n]`.

    Repeated words tie exactly, but a matrix product can round equal rows differently depending on
    their place in the batch, so a plain argmax would depend on the batch. Scores within 16 machine
    epsilons of the maximum therefore count as equal.

    Args:
        scores: `[n, K]`, -inf where there is no candidate; at least one per row is finite.
        size: Norm of the scaled query, a scalar. It bounds the rounding error of scores that are
            small sums of large terms.
    """
    best = scores.amax(1, keepdim=True)
    slack = 16 * torch.finfo(scores.dtype).eps * torch.maximum(best.abs(), size)
    return (scores >= best - slack).byte().argmax(1)
