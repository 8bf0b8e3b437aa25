"""Device functions shared by all Triton kernels of the package."""

import triton
import triton.language as tl

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:  # Triton built for other GPUs, on which `chain_options` never enables these
    gdc_launch_dependents = gdc_wait = None


@triton.jit
def sigmoid(x):
    """Return 1 / (1 + exp(-x)); tl.sigmoid fails in the interpreter once torch imports Triton."""
    return 1 / (1 + tl.exp(-x))


@triton.jit
def tanh(x):
    """Return the tanh of x, accurate to 2e-7; that of libdevice does not run in the interpreter."""
    return 2 / (1 + tl.exp(-2 * x)) - 1


@triton.jit
def mixed(bits, KEY: tl.constexpr):
    """Hash 32 bits as `noise.mixed` does; KEY is a key times 0x9E3779B9, modulo 2^32."""
    bits = bits.to(tl.uint32) + KEY
    bits = (bits ^ (bits >> 16)) * 0x7FEB352D
    bits = (bits ^ (bits >> 15)) * 0x846CA68B
    return bits ^ (bits >> 16)


@triton.jit
def drop_key(code):
    """Return the 32 bits of codes, int64, that `dropped` needs."""
    # the keys 9 and 10 times 0x9E3779B9
    first = mixed((code & 0xFFFFFFFF).to(tl.uint32), 0x8FF34781)
    return mixed(first ^ (code >> 32 & 0xFFFFFFFF).to(tl.uint32), 0x2E2AC13A)


@triton.jit
def dropped(key, unit, LIMIT: tl.constexpr):
    """Return whether `noise.dropped_units` drops units, given the `drop_key` of their codes.

    Keys and units broadcast; LIMIT is the rate times 2^32, rounded down.
    """
    # the key 11 times 0x9E3779B9
    return mixed(unit.to(tl.uint32) ^ key, 0xCC623AF3).to(tl.int64) < LIMIT


@triton.jit
def join_chain(CHAIN: tl.constexpr):
    """Wait for the previous kernel to finish, then allow the next one to launch.

    With CHAIN (`triton_support.chain_options`), a kernel is launched while the previous one still
    runs. Before this call, a kernel may read what kernels before the previous one wrote, and
    must not write. Every program must call it, even one without work: otherwise its kernel could
    finish before the previous one, and the next kernel would assume that both have finished.
    """
    if CHAIN:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def dot(a, b, acc, PRECISION: tl.constexpr):
    """Return acc + a @ b in the dtype of b; PRECISION, ieee or tf32, applies to float32."""
    return tl.dot(a.to(b.dtype), b, acc, input_precision=PRECISION, out_dtype=acc.dtype)
