"""Triton kernels of Adadelta, for the rows of a matrix that have a gradient and for weights."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["V"])
def update_kernel(
    p_weight, p_gradient, p_squares, p_deltas, p_last, p_step, p_rate, p_scale, V,
    RHO: tl.constexpr, LOG_RHO: tl.constexpr, EPS: tl.constexpr, E: tl.constexpr,
    BV: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """Update the rows that have a gradient, as `update_rows` does; LOG_RHO is log2(RHO)."""
    i = tl.program_id(0).to(tl.int64) * BV + tl.arange(0, BV)
    o_e = tl.arange(0, BE)
    at = i[:, None] * E + o_e[None, :]
    m = (i < V)[:, None] & (o_e < E)[None, :]
    g = tl.load(p_gradient + at, mask=m, other=0.0)
    # also true for NaN
    found = tl.sum((g != 0).to(tl.int32), axis=1) > 0
    m = m & found[:, None]
    g = g / tl.load(p_scale)
    step = tl.load(p_step)
    missed = step - 1 - tl.load(p_last + i, mask=found, other=0.0)
    shrunk = tl.exp2(missed * LOG_RHO)[:, None]
    s = RHO * (shrunk * tl.load(p_squares + at, mask=m, other=0.0)) + (1 - RHO) * (g * g)
    d = shrunk * tl.load(p_deltas + at, mask=m, other=0.0)
    u = tl.sqrt(d + EPS) / tl.sqrt(s + EPS) * g
    w = tl.load(p_weight + at, mask=m, other=0.0) - tl.load(p_rate) * u
    tl.store(p_squares + at, s, mask=m)
    tl.store(p_deltas + at, RHO * d + (1 - RHO) * (u * u), mask=m)
    tl.store(p_weight + at, w, mask=m)
    # all warps read what few of their threads write now
    tl.debug_barrier()
    tl.store(p_last + i, step, mask=found)


@triton.jit
def update_weights_kernel(
    weights, gradients, squares, deltas, p_rate, p_scale, FIRSTS: tl.constexpr,
    SIZES: tl.constexpr, RHO: tl.constexpr, EPS: tl.constexpr, DECAY: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Update tensors, as `update_weights` does; programs FIRSTS[i] to FIRSTS[i + 1] have tensor i.

    The rounding is that of PyTorch: without fusion, apart from the explicit one.
    """
    program = tl.program_id(0)
    for i in tl.static_range(len(SIZES)):
        if (program >= FIRSTS[i]) & (program < FIRSTS[i + 1]):
            at = (program - FIRSTS[i]).to(tl.int64) * B + tl.arange(0, B)
            m = at < SIZES[i]
            w = tl.load(weights[i] + at, mask=m)
            s = tl.load(squares[i] + at, mask=m)
            d = tl.load(deltas[i] + at, mask=m)
            g = tl.div_rn(tl.load(gradients[i] + at, mask=m), tl.load(p_scale))
            if DECAY != 0.0:
                g = tl.fma(w, tl.full([B], DECAY, w.dtype), g)
            rest = tl.full([B], 1 - RHO, w.dtype)
            s = tl.fma(rest, g * g, RHO * s)
            u = tl.div_rn(tl.sqrt_rn(d + EPS), tl.sqrt_rn(s + EPS)) * g
            tl.store(squares[i] + at, s, mask=m)
            tl.store(deltas[i] + at, tl.fma(rest, u * u, RHO * d), mask=m)
            tl.store(weights[i] + at, w - u * tl.load(p_rate), mask=m)
