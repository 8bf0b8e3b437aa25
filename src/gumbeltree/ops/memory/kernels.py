"""Triton kernels of a memory that is rewritten word by word (`ops/memory`).

Program b handles sentence b, and goes through its slots in blocks of BT. A launch lies between two
words, of which the first rows are `last` and `now`; `before` is that of the word before `last`, or
`last` if there is none. Only the first n sentences have the word `now`. K is the width of x and h
together. Legend:

    p_lengths            [B]        slots of each sentence
    p_read               [N, D]     o, what is compared with the memory
    p_memory             [N, T, D]  memory before each word; that of the first words is given
    p_scores, p_norm     [N, T], [N]  scores of the slots, and log(sum(exp(score)))
    p_m                  [N, D]     what is read from the memory, with the stride m_stride
    p_inputs             [N, K]     inputs of the products of the gates: x and the last h
    p_gates              [N, 4D]    gates i, f, g, o before their functions
    p_c, p_h             [N, D]     states after each word
    p_dm, p_dinputs, p_dread, p_dgates  gradients of p_m (stride dm_stride), p_inputs, p_read, and
                                        of the gates before their functions
    p_dh                 [N, D]     gradient of the states from outside
    p_dmemory            [B, T, D]  gradient of the memory, first of that after the word `now`
    p_dc                 [B, D]     gradient of the cell states
    p_dshares            [N]        sum_j z_j dz_j, as far as it comes from writing
"""

import triton
import triton.language as tl

from gumbeltree.device.kernel_math import sigmoid, tanh


@triton.jit
def shares(p_scores, p_norm, row, o_j, there, T):
    """Return the softmax z of some slots, zero past the last one."""
    b_score = tl.load(p_scores + row * T + o_j, mask=there, other=float("-inf"))
    return tl.exp(b_score - tl.load(p_norm + row))[:, None]


@triton.jit
def activated(p_gates, m, D: tl.constexpr):
    """Return the gates i, f, g and o of a word after their functions."""
    b_i = sigmoid(tl.load(p_gates, mask=m, other=0.0))
    b_f = sigmoid(tl.load(p_gates + D, mask=m, other=0.0))
    b_g = tanh(tl.load(p_gates + 2 * D, mask=m, other=0.0))
    return b_i, b_f, b_g, sigmoid(tl.load(p_gates + 3 * D, mask=m, other=0.0))


@triton.jit(do_not_specialize=["before", "last", "now", "n", "T", "m_stride"])
def word_kernel(
    p_lengths, p_read, p_memory, p_scores, p_norm, p_m, p_inputs, p_gates, p_c, p_h,
    before, last, now, n, T, m_stride, FIRST: tl.constexpr, KEPT: tl.constexpr,
    K: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """Compute the states after the last word, write them to the memory, read it for this word.

    FIRST: there is no last word. KEPT: p_memory has the memory before each word, not only one.
    """
    b = tl.program_id(0).to(tl.int64)
    o_d = tl.arange(0, BD)
    m, earlier, here = o_d < D, last + b, now + b
    b_h = tl.zeros([BD], p_h.dtype.element_ty)
    if not FIRST:
        b_i, b_f, b_g, b_o = activated(p_gates + earlier * (4 * D) + o_d, m, D)
        b_last_c = tl.load(p_c + (before + b) * D + o_d, mask=m & (before < last), other=0.0)
        b_c = b_f * b_last_c + b_i * b_g
        b_h = b_o * tanh(b_c)
        tl.store(p_c + earlier * D + o_d, b_c, mask=m)
        tl.store(p_h + earlier * D + o_d, b_h, mask=m)
    if b < n:
        b_read = tl.load(p_read + here * D + o_d, mask=m, other=0.0)
        j, length = 0, tl.load(p_lengths + b)
        p_old = p_memory + (earlier if KEPT else b) * T * D
        p_new = p_memory + (here if KEPT else b) * T * D
        # a softmax that goes through the slots once, rescaled when a higher score appears
        top, total, b_m = float("-inf"), 0.0, tl.zeros([BD], p_h.dtype.element_ty)
        while j < length:
            o_j = j + tl.arange(0, BT)
            there = o_j < length
            inside = there[:, None] & m[None, :]
            slots = o_j[:, None] * D + o_d[None, :]
            b_memory = tl.load(p_old + slots, mask=inside, other=0.0)
            if not FIRST:
                b_z = shares(p_scores, p_norm, earlier, o_j, there, T)
                b_memory = (1 - b_z) * b_memory + b_z * b_h[None, :]
                tl.store(p_new + slots, b_memory, mask=inside)
            b_score = tl.sum(b_memory * b_read[None, :], axis=1)
            tl.store(p_scores + here * T + o_j, b_score, mask=there)
            b_score = tl.where(there, b_score, float("-inf"))
            higher = tl.maximum(top, tl.max(b_score, axis=0))
            b_power, scale = tl.exp(b_score - higher), tl.exp(top - higher)
            total = total * scale + tl.sum(b_power, axis=0)
            b_m = b_m * scale + tl.sum(b_power[:, None] * b_memory, axis=0)
            top = higher
            j += BT
        tl.store(p_norm + here, top + tl.log(total))
        tl.store(p_m + here * m_stride + o_d, b_m / total, mask=m)
        if not FIRST:
            tl.store(p_inputs + here * K + (K - D) + o_d, b_h, mask=m)


@triton.jit(do_not_specialize=["before", "last", "now", "n", "T", "m_stride", "dm_stride"])
def word_backward_kernel(
    p_lengths, p_read, p_memory, p_scores, p_norm, p_m, p_inputs, p_gates, p_c, p_h,
    p_dm, p_dinputs, p_dh, p_dread, p_dmemory, p_dc, p_dshares, p_dgates,
    before, last, now, n, T, m_stride, dm_stride, FIRST: tl.constexpr,
    K: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """Undo `word_kernel`: compute the gradients of p_read and the memory, then those of the gates.

    p_dmemory becomes the gradient of the memory before this word.
    """
    b = tl.program_id(0).to(tl.int64)
    o_d = tl.arange(0, BD)
    m, earlier, here = o_d < D, last + b, now + b
    b_dh = tl.zeros([BD], p_h.dtype.element_ty)
    # as a tensor, since the branch changes it
    dshares = tl.sum(b_dh, axis=0)
    if b < n:
        b_h = tl.load(p_h + here * D + o_d, mask=m, other=0.0)[None, :]
        b_last_h = tl.load(p_h + earlier * D + o_d, mask=m, other=0.0)[None, :]
        b_read = tl.load(p_read + here * D + o_d, mask=m, other=0.0)[None, :]
        b_m = tl.load(p_m + here * m_stride + o_d, mask=m, other=0.0)
        b_dm = tl.load(p_dm + here * dm_stride + o_d, mask=m, other=0.0)
        # sum_j z_j dz_j over all slots, known before the first one
        total = tl.load(p_dshares + here) + tl.sum(b_dm * b_m, axis=0)
        b_dread = tl.zeros([BD], p_h.dtype.element_ty)
        j, length = 0, tl.load(p_lengths + b)
        while j < length:
            o_j = j + tl.arange(0, BT)
            there = o_j < length
            inside = there[:, None] & m[None, :]
            slots = o_j[:, None] * D + o_d[None, :]
            b_z = shares(p_scores, p_norm, here, o_j, there, T)
            b_memory = tl.load(p_memory + here * T * D + slots, mask=inside, other=0.0)
            p_to = p_dmemory + b * T * D + slots
            b_dmemory = tl.load(p_to, mask=inside, other=0.0)
            b_dz = b_dmemory * (b_h - b_memory) + b_dm[None, :] * b_memory
            b_dscore = b_z * (tl.sum(b_dz, axis=1)[:, None] - total)
            b_dread += tl.sum(b_dscore * b_memory, axis=0)
            b_dmemory = (1 - b_z) * b_dmemory + b_z * b_dm[None, :] + b_dscore * b_read
            tl.store(p_to, b_dmemory, mask=inside)
            if not FIRST:
                b_z = shares(p_scores, p_norm, earlier, o_j, there, T)
                b_memory = tl.load(p_memory + earlier * T * D + slots, mask=inside, other=0.0)
                b_dmemory *= b_z
                b_dh += tl.sum(b_dmemory, axis=0)
                b_dz = tl.sum(b_dmemory * (b_last_h - b_memory), axis=1)
                dshares += tl.sum(b_dz, axis=0)
            j += BT
        tl.store(p_dread + here * D + o_d, b_dread, mask=m)
        if not FIRST:
            b_dh += tl.load(p_dinputs + here * K + (K - D) + o_d, mask=m, other=0.0)
    if not FIRST:
        tl.store(p_dshares + earlier, dshares)
        b_dh += tl.load(p_dh + earlier * D + o_d, mask=m, other=0.0)
        gates = earlier * (4 * D) + o_d
        b_i, b_f, b_g, b_o = activated(p_gates + gates, m, D)
        b_last_c = tl.load(p_c + (before + b) * D + o_d, mask=m & (before < last), other=0.0)
        b_tanh = tanh(tl.load(p_c + earlier * D + o_d, mask=m, other=0.0))
        b_dc = tl.load(p_dc + b * D + o_d, mask=m, other=0.0)
        b_dc += b_dh * (b_o * (1 - b_tanh * b_tanh))
        tl.store(p_dc + b * D + o_d, b_dc * b_f, mask=m)
        tl.store(p_dgates + gates, b_dc * (b_g * b_i * (1 - b_i)), mask=m)
        tl.store(p_dgates + gates + D, b_dc * (b_last_c * b_f * (1 - b_f)), mask=m)
        tl.store(p_dgates + gates + 2 * D, b_dc * (b_i * (1 - b_g * b_g)), mask=m)
        tl.store(p_dgates + gates + 3 * D, b_dh * (b_tanh * b_o * (1 - b_o)), mask=m)
