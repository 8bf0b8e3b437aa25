"""Functions that all Triton kernels of the package share."""

import triton
import triton.language as tl


@triton.jit
def sigmoid(x):
    """Return 1 / (1 + e^-x); tl.sigmoid cannot be interpreted once torch has imported Triton."""
    return 1 / (1 + tl.exp(-x))


@triton.jit
def tanh(x):
    """Return tanh, wrong by 2e-7 at most in float32; libdevice's cannot be interpreted."""
    return 2 / (1 + tl.exp(-2 * x)) - 1


@triton.jit
def dot(a, b, acc, PRECISION: tl.constexpr):
    """Return acc + a @ b in the type of b; PRECISION is that of float32: ieee or tf32."""
    return tl.dot(a.to(b.dtype), b, acc, input_precision=PRECISION, out_dtype=acc.dtype)
