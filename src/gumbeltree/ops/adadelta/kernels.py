"""Triton kernel of Adadelta for the rows of a matrix that have a gradient."""

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
