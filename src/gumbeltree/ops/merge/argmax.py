"""The choice among scores, the same whichever program computed them."""

import torch
from torch import Tensor


def first_best(scores: Tensor, size: Tensor) -> Tensor:
    """Return the lowest position whose score is the highest but for rounding, int64 `[n]`.

    Repeated words make exact ties, and matrix products round equal rows differently according to
    their place in the batch. A plain argmax would then depend on the batch; so scores within 16
    units of rounding of the best count as equal, and the leftmost wins.

    Args:
        scores: `[n, K]`, -inf where there is no candidate, at least one finite a row.
        size: length of the scaled query vector, a scalar: what a score's rounding is measured by
            when the score itself is a small sum of larger terms.
    """
    best = scores.amax(1, keepdim=True)
    slack = 16 * torch.finfo(scores.dtype).eps * torch.maximum(best.abs(), size)
    return (scores >= best - slack).byte().argmax(1)
