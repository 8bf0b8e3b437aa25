"""Starting weights that depend on the seed, not on how many threads a machine has."""

import torch
from torch import Tensor

PLACES = 16
"""Binary places to which orthogonal weights are rounded."""


def orthogonal_(weight: Tensor) -> Tensor:
    """Fill a matrix with orthonormal rows or columns, in place, and return it.

    The draw is that of `torch.nn.init.orthogonal_`. The factorisation runs in float64, and its
    result is rounded to 16 binary places: its last bits depend on the CPU and on the number of
    threads, and two trainings that start that far apart end with different models. The normal
    numbers themselves are torch's, the same with AVX2 and AVX-512, others without.
    """
    with torch.no_grad():
        draw = torch.empty_like(weight).normal_()
        wide = weight.shape[0] < weight.shape[1]
        q, r = torch.linalg.qr((draw.t() if wide else draw).double())
        # this sign makes the distribution uniform over all such matrices
        q = (q * r.diagonal().sign()).mul_(2**PLACES).round_().div_(2**PLACES)
        return weight.copy_(q.t() if wide else q)
