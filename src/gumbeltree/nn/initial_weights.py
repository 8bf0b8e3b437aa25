"""Initial weights that depend only on the seed, not on the CPU or its number of threads."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

PLACES = 16
"""Fractional bits to which orthogonal weights are rounded."""


def orthogonal_(weight: Tensor) -> Tensor:
    """Fill a matrix with orthonormal rows or columns, in place, and return it.

    The random numbers are those of `torch.nn.init.orthogonal_`. The factorisation runs in float64
    and its result is rounded to 16 fractional bits: the last bits depend on the CPU and the number
    of threads, and even such small differences change the trained model.
    """
    if weight.is_meta:
        # `load` replaces it
        return weight
    with torch.no_grad():
        draw = torch.empty_like(weight).normal_()
        wide = weight.shape[0] < weight.shape[1]
        q, r = torch.linalg.qr((draw.t() if wide else draw).double())
        # these signs make the distribution uniform over all such matrices
        q = (q * r.diagonal().sign()).mul_(2**PLACES).round_().div_(2**PLACES)
        return weight.copy_(q.t() if wide else q)


class SkipDraws(TorchFunctionMode):
    """Within this block, leave tensors of the meta device as they are instead of drawing numbers.

    They have no values, but torch would import its compiler to draw them, which takes a second.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call `func`, unless it initialises a meta tensor."""
        kwargs = kwargs or {}
        module = getattr(func, "__module__", None)
        if func in (Tensor.normal_, Tensor.uniform_) or module == nn.init.__name__:
            tensor = args[0] if args else kwargs["tensor"]
            if tensor.is_meta:
                return tensor
        return func(*args, **kwargs)
