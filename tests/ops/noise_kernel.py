"""A kernel that stores the noise that `step_kernel` computes."""

import triton
import triton.language as tl

from gumbeltree.ops.merge.fused.forward_kernels import gumbel


@triton.jit
def noise_kernel(keys, layers, out, B, WIDTH: tl.constexpr):
    """Store the noise of each layer and sentence, [layers, B, WIDTH]."""
    i, b = tl.program_id(0), tl.program_id(1)
    j = tl.arange(0, WIDTH)
    x = gumbel(keys, b, tl.load(layers + i), j)
    tl.store(out + (i * B + b) * WIDTH + j, x)
