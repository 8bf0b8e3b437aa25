"""The features of a pair (Eq. 16) in one kernel each way, where `fused` made the vectors."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function, once_differentiable


class PairFeatures(Function):
    """[u; v; |u-v|; u*v] `[B, 4D]` of vectors `[2B, D]`, the first sentences before the second."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> Tensor:
        """Return the features."""
        # triton is imported when it is needed, not before
        from gumbeltree.ops.features_kernels import features_kernel

        vectors = vectors.contiguous()
        B, D = vectors.shape[0] // 2, vectors.shape[1]
        features = vectors.new_empty((B, 4 * D))
        with torch.cuda.device_of(vectors):
            features_kernel[(B,)](vectors, features, B, D=D, BD=1 << (D - 1).bit_length())
        ctx.save_for_backward(vectors)
        return features

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dfeatures: Tensor) -> Tensor:
        """Return the vectors' gradients."""
        from gumbeltree.ops.features_kernels import features_backward_kernel

        (vectors,) = ctx.saved_tensors
        B, D = vectors.shape[0] // 2, vectors.shape[1]
        dvectors = torch.empty_like(vectors)
        with torch.cuda.device_of(vectors):
            features_backward_kernel[(B,)](
                *(vectors, dfeatures.contiguous(), dvectors, B), D=D, BD=1 << (D - 1).bit_length()
            )
        return dvectors
