"""Triton kernels of a GRU with attention, for the same word of all sentences.

Program b handles all D units of sentence b. Legend, for the n sentences that have the word:

    p_inputs, p_hidden    [n, 3D]  inputs and products of the parts r, z and n
    p_gate                [n]      g of the word
    p_e, p_read           [n, D]   states, which the word changes; the same as products read them
    p_before              [n, D]   states before the word
    p_de, p_through       [n, D]   gradient of the states without and from the following product
    p_dinputs, p_dhidden  [n, 3D]  gradients of inputs and products
    p_dgate               [n]      gradient of g
"""

import triton
import triton.language as tl

from gumbeltree.device.kernel_math import sigmoid, tanh


@triton.jit
def activated(p_inputs, p_hidden, at, m, D: tl.constexpr):
    """Return r, z, n and the product of the part n, given the offset of part r.

    Products may be in bfloat16; sums with float32 are in float32.
    """
    b_r = tl.load(p_inputs + at, mask=m, other=0.0)
    b_z = tl.load(p_inputs + at + D, mask=m, other=0.0)
    b_n = tl.load(p_inputs + at + 2 * D, mask=m, other=0.0)
    b_hidden = tl.load(p_hidden + at + 2 * D, mask=m, other=0.0)
    b_r = sigmoid(b_r + tl.load(p_hidden + at, mask=m, other=0.0))
    b_z = sigmoid(b_z + tl.load(p_hidden + at + D, mask=m, other=0.0))
    return b_r, b_z, tanh(b_n + b_r * b_hidden), b_hidden


# the address of a number per sentence can have any alignment
@triton.jit(do_not_specialize_on_alignment=["p_gate"])
def step_kernel(
    p_inputs, p_hidden, p_gate, p_e, p_read, p_before,
    D: tl.constexpr, BD: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Compute the states after the word in place; with KEEP, store those before it."""
    b, o_d = tl.program_id(0).to(tl.int64), tl.arange(0, BD)
    m, row, at = o_d < D, b * D + o_d, b * (3 * D) + o_d
    _, b_z, b_n, _ = activated(p_inputs, p_hidden, at, m, D)
    b_e = tl.load(p_e + row, mask=m, other=0.0)
    if KEEP:
        tl.store(p_before + row, b_e, mask=m)
    b_e += tl.load(p_gate + b) * (1 - b_z) * (b_n - b_e)
    tl.store(p_e + row, b_e, mask=m)
    tl.store(p_read + row, b_e, mask=m)


@triton.jit(do_not_specialize_on_alignment=["p_gate", "p_dgate"])
def step_backward_kernel(
    p_inputs, p_hidden, p_gate, p_before, p_de, p_through, p_dinputs, p_dhidden, p_dgate,
    D: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of a word, and in place the direct one of the states before it."""
    b, o_d = tl.program_id(0).to(tl.int64), tl.arange(0, BD)
    m, row, at = o_d < D, b * D + o_d, b * (3 * D) + o_d
    b_r, b_z, b_n, b_hidden = activated(p_inputs, p_hidden, at, m, D)
    b_g = tl.load(p_gate + b)
    b_de = tl.load(p_de + row, mask=m, other=0.0)
    b_de += tl.load(p_through + row, mask=m, other=0.0)
    b_share = b_g * (1 - b_z)
    b_dshare = b_de * (b_n - tl.load(p_before + row, mask=m, other=0.0))
    b_dn = b_de * b_share * (1 - b_n * b_n)
    b_dr = b_dn * b_hidden * b_r * (1 - b_r)
    b_dz = -b_dshare * b_share * b_z
    tl.store(p_dgate + b, tl.sum(b_dshare * (1 - b_z), axis=0))
    tl.store(p_dinputs + at, b_dr, mask=m)
    tl.store(p_dinputs + at + D, b_dz, mask=m)
    tl.store(p_dinputs + at + 2 * D, b_dn, mask=m)
    tl.store(p_dhidden + at, b_dr, mask=m)
    tl.store(p_dhidden + at + D, b_dz, mask=m)
    tl.store(p_dhidden + at + 2 * D, b_dn * b_r, mask=m)
    tl.store(p_de + row, b_de * (1 - b_share), mask=m)
