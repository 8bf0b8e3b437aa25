"""Triton kernels of the leaf LSTM: one step of all sentences, forward and backward.

Program (i_m, i_d) handles BM sentences and BD units of all four gates. A forward step is one
kernel: a product with the previous states, then the elementwise cell. A backward step is two,
because the sum over the gates is four times as long and is split among programs. A kernel writes
only rows of its own position and reads only rows of others, so programs of a launch are
independent, and there are no atomic additions: results are deterministic.

Legend, with N rows, D units and an upper bound B on the sentences:

    p_start    [steps + 1]    first row of each position, then the number of words
    p_states   [N, 2D]        h and c, concatenated
    p_gates    [N, 4D]        activated gates i, f, g, o
    p_dgates   [N, 4D]        gradient of the gates before activation
    p_parts    [PARTS, B, D]  partial sums of the gradient of h from the following word
    t          position of the words
    BACK       offset of the previous word: -1, or 1 if read from last word to first
    BK         block size along the reduction
    CHAIN      see `join_chain`
"""

import triton
import triton.language as tl

from gumbeltree.device.kernel_math import dot, join_chain, sigmoid, tanh


@triton.jit
def words_at(p_start, t, steps):
    """Return the first row and the number of words at position t, both 0 outside 0..steps-1."""
    m_t = (t >= 0) & (t < steps)
    first = tl.load(p_start + t, mask=m_t, other=0)
    end = tl.load(p_start + t + 1, mask=m_t, other=0)
    # row * 4D can exceed 2^31
    return first.to(tl.int64), (end - first).to(tl.int32)


@triton.jit(do_not_specialize=["steps", "N"])
def clear_kernel(p_x, p_start, steps, N, WIDTH: tl.constexpr, BW: tl.constexpr, BM: tl.constexpr):
    """Zero the rows of p_x [N, WIDTH] past the words, BM rows per program."""
    i = tl.program_id(0)
    words = tl.load(p_start + steps)
    if (i + 1) * BM <= words:
        return
    o_w = tl.arange(0, BW)
    nothing = tl.full((BW,), 0.0, p_x.dtype.element_ty)
    for k in range(BM):
        row = (i * BM + k).to(tl.int64)
        m = (row >= words) & (row < N)
        tl.store(p_x + row * WIDTH + o_w, nothing, mask=m & (o_w < WIDTH))


# t changes with every launch: do not compile variants for 1 or for multiples of 16
@triton.jit(do_not_specialize=["t", "steps"])
def lstm_fwd_kernel(
    p_inputs, p_weight, p_start, p_states, p_gates, t, steps, D: tl.constexpr, BACK: tl.constexpr,
    SAVE: tl.constexpr, PRECISION: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr,
    BK: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """Compute the states at position t from those at t + BACK; store the gates if SAVE.

    p_inputs is W_ih x + b [N, 4D]; p_weight is W_hh [4D, D] in the dtype of the products.
    """
    i_m, i_d = tl.program_id(0), tl.program_id(1)
    # loaded together to pay the latency once
    first, n = words_at(p_start, t, steps)
    before, n_before = words_at(p_start, t + BACK, steps)
    if i_m * BM >= n:
        join_chain(CHAIN)
        return
    o_m = i_m * BM + tl.arange(0, BM)
    o_d = i_d * BD + tl.arange(0, BD)
    # the previous position has at least as many sentences, or fewer if read backwards
    m_before = o_m < tl.minimum(n, n_before)
    m_d = o_d < D
    m = (o_m < n)[:, None] & m_d[None, :]
    o_gate = (first + o_m)[:, None] * (4 * D) + o_d[None, :]
    o_state = (first + o_m)[:, None] * (2 * D) + o_d[None, :]
    o_before = (before + o_m)[:, None] * (2 * D) + o_d[None, :]

    # these loads overlap with the products
    b_xi = tl.load(p_inputs + o_gate, mask=m, other=0.0)
    b_xf = tl.load(p_inputs + o_gate + D, mask=m, other=0.0)
    b_xg = tl.load(p_inputs + o_gate + 2 * D, mask=m, other=0.0)
    b_xo = tl.load(p_inputs + o_gate + 3 * D, mask=m, other=0.0)
    join_chain(CHAIN)
    b_before = tl.load(p_states + o_before + D, mask=m_before[:, None] & m_d[None, :], other=0.0)

    # one product for all gates, with column 4 * unit + gate: given several products in a loop,
    # Triton 3.6 lays out the warps along one axis, and in small tiles they duplicate work
    o_n = tl.arange(0, 4 * BD)
    o_unit = i_d * BD + o_n // 4
    o_row = (o_n % 4) * D + o_unit
    dtype = p_states.dtype.element_ty
    b_gates = tl.full((BM, 4 * BD), 0.0, dtype)
    if i_m * BM < n_before:
        for k in range(0, D, BK):
            o_k = k + tl.arange(0, BK)
            m_k = o_k < D
            p_a = p_states + (before + o_m)[:, None] * (2 * D) + o_k[None, :]
            b_h = tl.load(p_a, mask=m_before[:, None] & m_k[None, :], other=0.0)
            p_w = p_weight + o_row[None, :] * D + o_k[:, None]
            b_w = tl.load(p_w, mask=m_k[:, None] & (o_unit < D)[None, :], other=0.0)
            b_gates = dot(b_h, b_w, b_gates, PRECISION)
    b_ig, b_fo = tl.split(tl.reshape(b_gates, (BM, BD, 2, 2)))
    b_i, b_g = tl.split(b_ig)
    b_f, b_o = tl.split(b_fo)

    b_i = sigmoid(b_i + b_xi)
    b_f = sigmoid(b_f + b_xf)
    b_g = tanh(b_g + b_xg)
    b_o = sigmoid(b_o + b_xo)
    b_c = b_f * b_before + b_i * b_g
    tl.store(p_states + o_state + D, b_c, mask=m)
    tl.store(p_states + o_state, b_o * tanh(b_c), mask=m)
    if SAVE:
        tl.store(p_gates + o_gate, b_i, mask=m)
        tl.store(p_gates + o_gate + D, b_f, mask=m)
        tl.store(p_gates + o_gate + 2 * D, b_g, mask=m)
        tl.store(p_gates + o_gate + 3 * D, b_o, mask=m)


@triton.jit(do_not_specialize=["t", "steps", "B"])
def lstm_bwd_product_kernel(
    p_weight, p_start, p_dgates, p_parts, t, steps, B, D: tl.constexpr, BACK: tl.constexpr,
    PARTS: tl.constexpr, PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """Propagate the gate gradients at position t - BACK to h at position t.

    The sum over the gates is split into PARTS, one per program: with so few columns, whole sums
    would leave most of the GPU idle. p_weight is W_hh transposed [D, 4D], because TF32 needs both
    operands contiguous along the reduction.
    """
    i_m, i_n, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    _, n = words_at(p_start, t, steps)
    after, n_after = words_at(p_start, t - BACK, steps)
    n = tl.minimum(tl.minimum(n, n_after), B)
    join_chain(CHAIN)
    if i_m * BM >= n:
        return
    o_m = i_m * BM + tl.arange(0, BM)
    o_n = i_n * BN + tl.arange(0, BN)
    m_m, m_n = o_m < n, o_n < D
    # every part but the last is a whole number of blocks
    share: tl.constexpr = (4 * D + PARTS * BK - 1) // (PARTS * BK) * BK
    b_sum = tl.full((BM, BN), 0.0, p_parts.dtype.element_ty)
    for k in range(0, share, BK):
        o_k = part * share + k + tl.arange(0, BK)
        m_k = o_k < 4 * D
        p_a = p_dgates + (after + o_m)[:, None] * (4 * D) + o_k[None, :]
        p_w = p_weight + o_n[None, :] * (4 * D) + o_k[:, None]
        b_a = tl.load(p_a, mask=m_m[:, None] & m_k[None, :], other=0.0)
        b_w = tl.load(p_w, mask=m_k[:, None] & m_n[None, :], other=0.0)
        b_sum = dot(b_a, b_w, b_sum, PRECISION)
    row = part.to(tl.int64) * B + o_m
    tl.store(p_parts + row[:, None] * D + o_n[None, :], b_sum, mask=m_m[:, None] & m_n[None, :])


@triton.jit(do_not_specialize=["t", "steps", "B"])
def lstm_bwd_kernel(
    p_start, p_states, p_gates, p_dstates, p_carried, p_parts, p_dgates, p_before, t, steps, B,
    D: tl.constexpr, BACK: tl.constexpr, GATHER: tl.constexpr, PARTS: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """Compute the gate gradients at position t, elementwise.

    p_dstates [N, 2D] is the incoming gradient of h and c, p_carried [N, D] the gradient of the cell
    state before each word, read at t - BACK and written at t. If GATHER, p_before [N, D] receives
    the h before each word.
    """
    i_m, i_d = tl.program_id(0), tl.program_id(1)
    first, n = words_at(p_start, t, steps)
    before, n_before = words_at(p_start, t + BACK, steps)
    after, n_after = words_at(p_start, t - BACK, steps)
    n = tl.minimum(n, B)
    if i_m * BM >= n:
        join_chain(CHAIN)
        return
    o_m = i_m * BM + tl.arange(0, BM)
    o_d = i_d * BD + tl.arange(0, BD)
    m_d = (o_d < D)[None, :]
    m = (o_m < n)[:, None] & m_d
    m_before = (o_m < tl.minimum(n, n_before))[:, None] & m_d
    m_after = (o_m < tl.minimum(n, n_after))[:, None] & m_d
    o_own = (first + o_m)[:, None] * D + o_d[None, :]
    o_state = (first + o_m)[:, None] * (2 * D) + o_d[None, :]
    o_before = (before + o_m)[:, None] * (2 * D) + o_d[None, :]
    o_after = (after + o_m)[:, None] * D + o_d[None, :]
    o_gate = (first + o_m)[:, None] * (4 * D) + o_d[None, :]

    # load everything before the first store; only p_parts is written by the previous kernel,
    # p_carried by the one before it
    b_dh = tl.load(p_dstates + o_state, mask=m, other=0.0)
    b_dc = tl.load(p_dstates + o_state + D, mask=m, other=0.0)
    b_carried = tl.load(p_carried + o_after, mask=m_after, other=0.0)
    b_i = tl.load(p_gates + o_gate, mask=m, other=0.0)
    b_f = tl.load(p_gates + o_gate + D, mask=m, other=0.0)
    b_g = tl.load(p_gates + o_gate + 2 * D, mask=m, other=0.0)
    b_o = tl.load(p_gates + o_gate + 3 * D, mask=m, other=0.0)
    b_c = tl.load(p_states + o_state + D, mask=m, other=0.0)
    b_before = tl.load(p_states + o_before + D, mask=m_before, other=0.0)
    if GATHER:
        b_h = tl.load(p_states + o_before, mask=m_before, other=0.0)
    join_chain(CHAIN)
    for part in tl.static_range(PARTS):
        row = (B.to(tl.int64) * part + o_m)[:, None] * D
        b_dh += tl.load(p_parts + row + o_d[None, :], mask=m_after, other=0.0)

    b_y = tanh(b_c)
    b_dc += b_carried + b_dh * b_o * (1 - b_y * b_y)
    tl.store(p_carried + o_own, b_dc * b_f, mask=m)
    tl.store(p_dgates + o_gate, b_dc * b_g * b_i * (1 - b_i), mask=m)
    tl.store(p_dgates + o_gate + D, b_dc * b_before * b_f * (1 - b_f), mask=m)
    tl.store(p_dgates + o_gate + 2 * D, b_dc * b_i * (1 - b_g * b_g), mask=m)
    tl.store(p_dgates + o_gate + 3 * D, b_dh * b_y * b_o * (1 - b_o), mask=m)
    if GATHER:
        tl.store(p_before + o_own, b_h, mask=m)
