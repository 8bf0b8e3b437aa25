"""Triton kernels of the gates of a multiplicative LSTM, for the same symbol of all sentences.

Program (b, j) handles BD units of sentence b. Legend, with the gates i, f, o, u:

    p_gates              [n, 4D]  gates, before their functions in `gates_kernel`, later after them
    p_last_c, p_c, p_h   [n, D]   cell states before and after the symbol, states after it
    p_dh, p_dc           [n, D]   gradients of h and c
    p_dgates, p_dlast_c  [n, 4D]  gradients of the gates before their functions, and [n, D] of the
                                  cell states before the symbol, which receive their sum
"""

import triton
import triton.language as tl

from gumbeltree.device.kernel_math import sigmoid, tanh


@triton.jit
def gates_kernel(
    p_gates, p_last_c, p_c, p_h, D: tl.constexpr, BD: tl.constexpr, FIRST: tl.constexpr
):  # fmt: skip
    """Compute the gates in place, c and h; before the first symbol, the cell states are zero."""
    b = tl.program_id(0).to(tl.int64)
    o_d = tl.program_id(1) * BD + tl.arange(0, BD)
    m, row, p_g = o_d < D, b * D + o_d, p_gates + b * (4 * D) + o_d
    b_i = sigmoid(tl.load(p_g, mask=m, other=0.0))
    b_f = sigmoid(tl.load(p_g + D, mask=m, other=0.0))
    b_o = sigmoid(tl.load(p_g + 2 * D, mask=m, other=0.0))
    b_u = tanh(tl.load(p_g + 3 * D, mask=m, other=0.0))
    b_c = b_i * b_u
    if not FIRST:
        b_c += b_f * tl.load(p_last_c + row, mask=m, other=0.0)
    tl.store(p_g, b_i, mask=m)
    tl.store(p_g + D, b_f, mask=m)
    tl.store(p_g + 2 * D, b_o, mask=m)
    tl.store(p_g + 3 * D, b_u, mask=m)
    tl.store(p_c + row, b_c, mask=m)
    tl.store(p_h + row, b_o * tanh(b_c), mask=m)


@triton.jit
def gates_backward_kernel(
    p_gates, p_last_c, p_c, p_dh, p_dc, p_dgates, p_dlast_c,
    D: tl.constexpr, BD: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of the gates, and add those of the cell states before the symbol."""
    b = tl.program_id(0).to(tl.int64)
    o_d = tl.program_id(1) * BD + tl.arange(0, BD)
    m, row, gates = o_d < D, b * D + o_d, b * (4 * D) + o_d
    b_i = tl.load(p_gates + gates, mask=m, other=0.0)
    b_f = tl.load(p_gates + gates + D, mask=m, other=0.0)
    b_o = tl.load(p_gates + gates + 2 * D, mask=m, other=0.0)
    b_u = tl.load(p_gates + gates + 3 * D, mask=m, other=0.0)
    b_dh = tl.load(p_dh + row, mask=m, other=0.0)
    b_tanh = tanh(tl.load(p_c + row, mask=m, other=0.0))
    b_dc = tl.load(p_dc + row, mask=m, other=0.0) + b_dh * (b_o * (1 - b_tanh * b_tanh))
    b_df = b_dc * 0
    if not FIRST:
        b_df = b_dc * (tl.load(p_last_c + row, mask=m, other=0.0) * b_f * (1 - b_f))
        b_dlast = tl.load(p_dlast_c + row, mask=m, other=0.0) + b_dc * b_f
        tl.store(p_dlast_c + row, b_dlast, mask=m)
    tl.store(p_dgates + gates, b_dc * (b_u * b_i * (1 - b_i)), mask=m)
    tl.store(p_dgates + gates + D, b_df, mask=m)
    tl.store(p_dgates + gates + 2 * D, b_dh * (b_tanh * b_o * (1 - b_o)), mask=m)
    tl.store(p_dgates + gates + 3 * D, b_dc * (b_i * (1 - b_u * b_u)), mask=m)
