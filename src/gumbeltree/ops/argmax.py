"""The choice among scores, the same whichever program computed them."""

import torch
from torch import Tensor


def first_best(scores: Tensor) -> Tensor:
    """Return the lowest position whose score is the highest but for rounding, int64 `[n]`.

    Repeated words make exact ties, and matrix products round equal rows differently according to
    their place in the batch. A plain argmax would then depend on the batch; so scores within 32
    units of rounding of the best count as equal, and the leftmost wins.

    Args:
        scores: `[n, K]`, -inf where there is no candidate, at least one finite a row.
    """
    best = scores.amax(1, keepdim=True)
    slack = 32 * torch.finfo(scores.dtype).eps * best.abs().clamp(min=1)
    return (scores >= best - slack).byte().argmax(1)
