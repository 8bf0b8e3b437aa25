"""Features of a sentence pair (Eq. 16), with one kernel per pass on a CUDA device."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function

from gumbeltree.device.triton_support import why_not

DIFFERENCES: dict[str, Callable[[Tensor], Tensor]] = {
    "abs": torch.abs,
    "signed": lambda x: x,
    "squared": torch.square,
}
"""Functions of u - v, by name."""


def pair_features(u: Tensor, v: Tensor, difference: str = "abs") -> Tensor:
    """Return the features [u; v; |u-v|; u*v] `[B, 4D]` of vectors `[B, D]`.

    Args:
        u: vectors of the first sentences `[B, D]`.
        v: vectors of the second sentences `[B, D]`.
        difference: third feature, a key of `DIFFERENCES`; only abs has a kernel.
    """
    if difference != "abs" or u.dtype != v.dtype or why_not(u) is not None:
        return torch.cat([u, v, DIFFERENCES[difference](u - v), u * v], dim=-1)
    features: Tensor = PairFeatures.apply(u, v)
    return features


class PairFeatures(Function):
    """`pair_features` with Triton kernels; supports double backward."""

    @staticmethod
    def forward(u: Tensor, v: Tensor) -> Tensor:
        """Return the features."""
        # imported here so that Triton stays optional
        from gumbeltree.ops.pair_features.kernels import features_kernel

        u, v = u.contiguous(), v.contiguous()
        B, D = u.shape
        features = u.new_empty((B, 4 * D))
        with torch.cuda.device_of(u):
            features_kernel[(B,)](u, v, features, D=D, BD=1 << (D - 1).bit_length())
        return features

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Save the vectors for the backward pass."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, dfeatures: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of both vectors."""
        u, v = ctx.saved_tensors
        if torch.is_grad_enabled():
            # PyTorch operations support double backward
            du, dv, apart, times = dfeatures.chunk(4, dim=-1)
            apart = apart * (u - v).sign()
            return du + apart + times * v, dv - apart + times * u
        from gumbeltree.ops.pair_features.kernels import features_backward_kernel

        u, v = u.contiguous(), v.contiguous()
        B, D = u.shape
        du, dv = torch.empty_like(u), torch.empty_like(v)
        with torch.cuda.device_of(u):
            features_backward_kernel[(B,)](
                *(u, v, dfeatures.contiguous(), du, dv), D=D, BD=1 << (D - 1).bit_length()
            )
        return du, dv
