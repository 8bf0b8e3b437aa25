"""Functions that all Triton kernels of the package share."""

import triton
import triton.language as tl

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:  # made for other cards, where `chain_options` does not ask for it
    gdc_launch_dependents = gdc_wait = None


@triton.jit
def sigmoid(x):
    """Return 1 / (1 + e^-x); tl.sigmoid cannot be interpreted once torch has imported Triton."""
    return 1 / (1 + tl.exp(-x))


@triton.jit
def tanh(x):
    """Return tanh, wrong by 2e-7 at most in float32; libdevice's cannot be interpreted."""
    return 2 / (1 + tl.exp(-2 * x)) - 1


@triton.jit
def join_chain(CHAIN: tl.constexpr):
    """Wait for the kernel before to end, then let the one behind come and wait for this one.

    A kernel of a CHAIN (`triton_support.chain_options`) is started while the one before it still
    runs. Before this call it may read what kernels further back have written, and write nothing.
    Every program must come here, also one with nothing to do: else its kernel could end before the
    one it follows, and the next would believe that both have.
    """
    if CHAIN:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def dot(a, b, acc, PRECISION: tl.constexpr):
    """Return acc + a @ b in the type of b; PRECISION is that of float32: ieee or tf32."""
    return tl.dot(a.to(b.dtype), b, acc, input_precision=PRECISION, out_dtype=acc.dtype)
