"""Starting weights that a seed decides alone, whatever the machine."""

import torch
from torch import Tensor


def orthogonal_(weight: Tensor) -> Tensor:
    """Fill a matrix with orthonormal rows or columns, in place, and return it.

    The draw is that of `torch.nn.init.orthogonal_`, up to float32 rounding. The factorisation runs
    in float64: in float32 its last bits depend on the CPU and on the number of threads, and two
    trainings that start that far apart end with different models.
    """
    with torch.no_grad():
        draw = torch.empty_like(weight).normal_()
        wide = weight.shape[0] < weight.shape[1]
        q, r = torch.linalg.qr((draw.t() if wide else draw).double())
        # this sign makes the distribution uniform over all such matrices
        q = q * r.diagonal().sign()
        return weight.copy_(q.t() if wide else q)
