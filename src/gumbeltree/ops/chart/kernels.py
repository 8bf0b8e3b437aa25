"""Triton kernels of charts: all splits of the spans of one length, forward and backward.

Program (i, b) handles one span of sentence b, of n words beginning with word i, and goes through
its splits, so that candidates are never stored. Spans of one length have no parts in common, so
each number is changed by one program per launch, and results are deterministic.

Legend, with the gates i, f_l, f_r, o, u:

    p_left, p_right      [T, B, T-1, 5D]  gates of the parts, see `_Parts`
    p_c_left, p_c_right  [T, B, T-1, D]   their cell states
    p_query              [D]              normalised query
    p_beta               []               factor of the cosines
"""

import triton
import triton.language as tl

from gumbeltree.device.kernel_math import sigmoid, tanh


@triton.jit
def split_at(n, T, B):
    """Return the first left and the first right part of a span, as rows of p_left and p_right."""
    i, b = tl.program_id(0).to(tl.int64), tl.program_id(1)
    return (i * B + b) * (T - 1), ((i + n - 1) * B + b) * (T - 1) + T - n


@triton.jit
def candidate(p_left, p_right, p_c_left, p_c_right, left, right, o_d, m, D: tl.constexpr):
    """Return the activated gates, both cell states, c and tanh(c) of a candidate."""
    p_l, p_r = p_left + left * (5 * D) + o_d, p_right + right * (5 * D) + o_d
    b_i = tl.load(p_l, mask=m, other=0.0) + tl.load(p_r, mask=m, other=0.0)
    b_fl = tl.load(p_l + D, mask=m, other=0.0) + tl.load(p_r + D, mask=m, other=0.0)
    b_fr = tl.load(p_l + 2 * D, mask=m, other=0.0) + tl.load(p_r + 2 * D, mask=m, other=0.0)
    b_o = tl.load(p_l + 3 * D, mask=m, other=0.0) + tl.load(p_r + 3 * D, mask=m, other=0.0)
    b_u = tl.load(p_l + 4 * D, mask=m, other=0.0) + tl.load(p_r + 4 * D, mask=m, other=0.0)
    b_cl = tl.load(p_c_left + left * D + o_d, mask=m, other=0.0)
    b_cr = tl.load(p_c_right + right * D + o_d, mask=m, other=0.0)
    b_i, b_fl, b_fr, b_o, b_u = sigmoid(b_i), sigmoid(b_fl), sigmoid(b_fr), sigmoid(b_o), tanh(b_u)
    b_c = b_i * b_u + b_fl * b_cl + b_fr * b_cr
    # zero in masked columns, where u and the cell states are
    return b_i, b_fl, b_fr, b_o, b_u, b_cl, b_cr, b_c, tanh(b_c)


@triton.jit
def scored(
    p_left, p_right, p_c_left, p_c_right, left, right, b_query, beta, o_d, m, TINY: tl.constexpr,
    D: tl.constexpr,
):  # fmt: skip
    """Return h, c and the score of a candidate."""
    _, _, _, b_o, _, _, _, b_c, b_tanh = candidate(
        p_left, p_right, p_c_left, p_c_right, left, right, o_d, m, D
    )
    b_h = b_o * b_tanh
    norm = tl.maximum(tl.sqrt(tl.sum(b_h * b_h, axis=0)), TINY)
    return b_h, b_c, beta * (tl.sum(b_h * b_query, axis=0) / norm)


@triton.jit(do_not_specialize=["n", "T", "B"])
def fill_kernel(
    p_left, p_right, p_c_left, p_c_right, p_query, p_beta, p_h, p_c, p_split, n, T, B,
    TINY: tl.constexpr, D: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Compute the spans of n words and their best splits; p_h, p_c and p_split are charts."""
    o_d = tl.arange(0, BD)
    m = o_d < D
    left, right = split_at(n, T, B)
    b_query, beta = tl.load(p_query + o_d, mask=m, other=0.0), tl.load(p_beta)
    b_h, b_c = b_query * 0, b_query * 0
    # with NaN, no split is better than the first
    best, highest, total = 1, beta * 0 - float("inf"), beta * 0
    k = 0
    while k < n - 1:
        b_one, b_own, score = scored(
            p_left, p_right, p_c_left, p_c_right, left + k, right + k, b_query, beta, o_d, m, TINY,
            D,
        )  # fmt: skip
        best = tl.where(score > highest, k + 1, best)
        higher = tl.maximum(score, highest)
        # the sums so far are relative to the highest score so far
        before, weight = tl.exp(highest - higher), tl.exp(score - higher)
        highest, total = higher, total * before + weight
        b_h, b_c = b_h * before + weight * b_one, b_c * before + weight * b_own
        k += 1
    i, b = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = ((n - 1) * T + i + n - 1) * B + b
    tl.store(p_h + at * D + o_d, b_h / total, mask=m)
    tl.store(p_c + at * D + o_d, b_c / total, mask=m)
    tl.store(p_split + at, best)


@triton.jit(do_not_specialize=["n", "T", "B"])
def fill_backward_kernel(
    p_left, p_right, p_c_left, p_c_right, p_query, p_beta, p_dh, p_dc, p_dleft, p_dright,
    p_dc_left, p_dc_right, p_dquery, n, T, B, TINY: tl.constexpr, D: tl.constexpr,
    BD: tl.constexpr,
):  # fmt: skip
    """Add the gradients of the parts of spans of n words, given p_dh and p_dc [T-n+1, B, D].

    p_dquery [T, B, D] collects that of the query by last word and sentence.
    """
    o_d = tl.arange(0, BD)
    m = o_d < D
    left, right = split_at(n, T, B)
    i, b = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b_query, beta = tl.load(p_query + o_d, mask=m, other=0.0), tl.load(p_beta)
    b_dh = tl.load(p_dh + (i * B + b) * D + o_d, mask=m, other=0.0)
    b_dc = tl.load(p_dc + (i * B + b) * D + o_d, mask=m, other=0.0)
    # first the softmax and the mean gradient of its weights
    highest, total, mean = beta * 0 - float("inf"), beta * 0, beta * 0
    k = 0
    while k < n - 1:
        b_one, b_own, score = scored(
            p_left, p_right, p_c_left, p_c_right, left + k, right + k, b_query, beta, o_d, m, TINY,
            D,
        )  # fmt: skip
        higher = tl.maximum(score, highest)
        before, weight = tl.exp(highest - higher), tl.exp(score - higher)
        dweight = tl.sum(b_one * b_dh + b_own * b_dc, axis=0)
        highest, total = higher, total * before + weight
        mean = mean * before + weight * dweight
        k += 1
    mean = mean / total
    b_dquery = b_query * 0
    k = 0
    while k < n - 1:
        b_i, b_fl, b_fr, b_o, b_u, b_cl, b_cr, b_own, b_tanh = candidate(
            p_left, p_right, p_c_left, p_c_right, left + k, right + k, o_d, m, D
        )
        b_one = b_o * b_tanh
        length = tl.sqrt(tl.sum(b_one * b_one, axis=0))
        norm = tl.maximum(length, TINY)
        cosine = tl.sum(b_one * b_query, axis=0) / norm
        weight = tl.exp(beta * cosine - highest) / total
        dweight = tl.sum(b_one * b_dh + b_own * b_dc, axis=0)
        # gradient of the product with the query
        slope = beta * weight * (dweight - mean) / norm
        # below its limit, the norm is a constant
        shrink = tl.where(length > TINY, slope * cosine / norm, 0.0)
        b_each = weight * b_dh + slope * b_query - shrink * b_one
        b_each_c = (1 - b_tanh * b_tanh) * b_o * b_each + weight * b_dc
        b_dquery += slope * b_one
        b_di = b_each_c * b_u * b_i * (1 - b_i)
        b_dfl = b_each_c * b_cl * b_fl * (1 - b_fl)
        b_dfr = b_each_c * b_cr * b_fr * (1 - b_fr)
        b_do = b_each * b_tanh * b_o * (1 - b_o)
        b_du = b_each_c * b_i * (1 - b_u * b_u)
        add_gates(p_dleft + (left + k) * (5 * D) + o_d, b_di, b_dfl, b_dfr, b_do, b_du, m, D)
        add_gates(p_dright + (right + k) * (5 * D) + o_d, b_di, b_dfl, b_dfr, b_do, b_du, m, D)
        add(p_dc_left + (left + k) * D + o_d, b_each_c * b_fl, m)
        add(p_dc_right + (right + k) * D + o_d, b_each_c * b_fr, m)
        k += 1
    add(p_dquery + ((i + n - 1) * B + b) * D + o_d, b_dquery, m)


@triton.jit
def add_gates(p, b_i, b_fl, b_fr, b_o, b_u, m, D: tl.constexpr):
    """Add to the five gates at p."""
    add(p, b_i, m)
    add(p + D, b_fl, m)
    add(p + 2 * D, b_fr, m)
    add(p + 3 * D, b_o, m)
    add(p + 4 * D, b_u, m)


@triton.jit
def add(p, b_x, m):
    """Add to the numbers at p, which no other program changes; atomically, to wait for no load."""
    tl.atomic_add(p, b_x, mask=m, sem="relaxed")
