"""Backward kernels of the gated recursive cell; legend and numbering as in forward_kernels.py.

The record of a dropped unit is OFF, so its gradients are zero without a mask.
"""

import triton
import triton.language as tl

from gumbeltree.device.kernel_math import dot, join_chain
from gumbeltree.ops.merge.fused.backward_kernels import gradient_row
from gumbeltree.ops.merge.fused.forward_kernels import SIZES
from gumbeltree.ops.merge.fused.gated.forward_kernels import gelu, scaled


@triton.jit
def gelu_slope(x):
    """Return the derivative of GELU: the normal distribution function plus x times its density."""
    return (
        0.5 * (1 + tl.erf(x * 0.7071067811865476)) + x * tl.exp(-0.5 * x * x) * 0.3989422804014327
    )


@triton.jit
def read_record(
    c, m, l_row, r_row, states, record, D: tl.constexpr, W: tl.constexpr, REC: tl.constexpr,
    BD: tl.constexpr,
):  # fmt: skip
    """Return z, h, c, v, the normalised state [BM, BD], its scale [BM, 1] and both children."""
    o_d = tl.arange(0, BD)[None, :]
    m_d = m[:, None] & (o_d < D)
    at = record + c[:, None] * REC + W + o_d
    z = tl.load(at, mask=m_d, other=0.0)
    h = tl.load(at + D, mask=m_d, other=0.0)
    g = tl.load(at + 2 * D, mask=m_d, other=0.0)
    v = tl.load(at + 3 * D, mask=m_d, other=0.0)
    normal = tl.load(at + 4 * D, mask=m_d, other=0.0)
    scale = tl.load(record + c * REC + W + 5 * D, mask=m, other=0.0)[:, None]
    l = tl.load(states + l_row[:, None] * D + o_d, mask=m_d, other=0.0)
    r = tl.load(states + r_row[:, None] * D + o_d, mask=m_d, other=0.0)
    return z, h, g, v, normal, scale, l, r


@triton.jit
def activate_backward(dnormal, z, h, g, v, normal, scale, l, r, D: tl.constexpr):
    """Return the gradients of the four gates before activation and, directly, of both children.

    All are [BM, BD]; where `scale` [BM, 1] and the record are zero, so is the result.
    """
    mean = tl.sum(dnormal, axis=1)[:, None] / D
    dmixed = (dnormal - mean - normal * (tl.sum(dnormal * normal, axis=1)[:, None] / D)) * scale
    return (
        dmixed * l * z * (1 - z),
        dmixed * r * h * (1 - h),
        dmixed * v * g * (1 - g),
        dmixed * g,
        dmixed * z,
        dmixed * h,
    )


@triton.jit(do_not_specialize=SIZES)
def score_backward_kernel(
    query, gain, states, record, left, right, node_state, start, dgates, v, T, cap,
    D: tl.constexpr, W: tl.constexpr, REC: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Compute dgates of `GatedShares`, and of v the part that does not pass through the gates.

    Zero the rows without a candidate in dgates, v and the normalised states, so that sums over all
    rows need no mask.
    """
    c = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    o_d = tl.arange(0, BD)[None, :]
    m_all = c < 3 * cap
    l_node = tl.load(left + c, mask=m_all, other=-1).to(tl.int64)
    r_node = tl.load(right + c, mask=m_all, other=-1).to(tl.int64)
    word = (c >= tl.load(start + 1)) & (c < tl.load(start + T))
    m = m_all & (word | ((c >= cap) & (l_node >= 0) & (r_node >= 0)))
    l_row = tl.load(node_state + l_node, mask=m, other=0).to(tl.int64)
    r_row = tl.load(node_state + r_node, mask=m, other=0).to(tl.int64)
    z, h, g, x, normal, scale, l, r = read_record(c, m, l_row, r_row, states, record, D, W, REC, BD)
    m_o = o_d < D
    dnormal = tl.load(query + o_d, mask=m_o, other=0.0) * tl.load(gain + o_d, mask=m_o, other=0.0)
    d_z, d_h, d_g, d_v, to_l, to_r = activate_backward(dnormal, z, h, g, x, normal, scale, l, r, D)
    m_s = m_all[:, None] & m_o
    at = dgates + c[:, None] * (4 * D) + o_d
    tl.store(at, d_z, mask=m_s)
    tl.store(at + D, d_h, mask=m_s)
    tl.store(at + 2 * D, d_g, mask=m_s)
    tl.store(at + 3 * D, d_v, mask=m_s)
    at = v + c[:, None] * (2 * D) + o_d
    tl.store(at, to_l, mask=m_s)
    tl.store(at + D, to_r, mask=m_s)
    # zero where there is no candidate
    tl.store(record + c[:, None] * REC + W + 4 * D + o_d, normal, mask=m_s & ~m[:, None])


@triton.jit(do_not_specialize=SIZES)
def slope_kernel(
    dinner, record, left, right, start, T, cap, W: tl.constexpr, REC: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    """Multiply rows of `dinner` by SCALE times the derivative of GELU.

    Zero those without a candidate.
    """
    c = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    o_n = tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
    m_all = c < 3 * cap
    word = (c >= tl.load(start + 1)) & (c < tl.load(start + T))
    pair = (c >= cap) & (tl.load(left + c, mask=m_all, other=-1) >= 0)
    pair = pair & (tl.load(right + c, mask=m_all, other=-1) >= 0)
    m = (m_all & (word | pair))[:, None] & (o_n < W)
    u = tl.load(record + c[:, None] * REC + o_n, mask=m, other=0.0)
    at = dinner + c[:, None] * W + o_n
    x = scaled(tl.load(at, mask=m, other=0.0) * gelu_slope(u), SCALE)
    tl.store(at, x, mask=m_all[:, None] & (o_n < W))


@triton.jit(do_not_specialize=SIZES)
def inner_kernel(
    t, weight_out_t, merge_dgates, merge_dinner, record, chosen, start, W: tl.constexpr,
    REC: tl.constexpr, COLUMNS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    SCALE: tl.constexpr, PRECISION: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """Propagate the gate gradients [cap, COLUMNS] of the merges of step t to the inner states."""
    i_m, i_n = tl.program_id(0), tl.program_id(1)
    first = tl.load(start + t + 1)
    n = tl.load(start + t + 2) - first
    if i_m * BM >= n:
        join_chain(CHAIN)
        return
    b = i_m * BM + tl.arange(0, BM)
    m = b < n
    r = (first + b).to(tl.int64)
    c = tl.load(chosen + r, mask=m, other=0).to(tl.int64)
    o_n = i_n * BN + tl.arange(0, BN)
    m_n = o_n < W
    m_s = m[:, None] & m_n[None, :]
    u = tl.load(record + c[:, None] * REC + o_n[None, :], mask=m_s, other=0.0)
    acc = tl.full((BM, BN), 0.0, dtype=merge_dinner.dtype.element_ty)
    join_chain(CHAIN)
    for i_k in range(0, COLUMNS, BK):
        o_k = i_k + tl.arange(0, BK)
        m_k = o_k < COLUMNS
        x = tl.load(
            merge_dgates + r[:, None] * COLUMNS + o_k[None, :],
            mask=m[:, None] & m_k[None, :],
            other=0.0,
        )
        w = tl.load(
            weight_out_t + o_n[None, :] * COLUMNS + o_k[:, None],
            mask=m_k[:, None] & m_n[None, :],
            other=0.0,
        )
        acc = dot(x, w, acc, PRECISION)
    at = merge_dinner + r[:, None] * W + o_n[None, :]
    tl.store(at, scaled(acc * gelu_slope(u), SCALE), mask=m_s)


@triton.jit(do_not_specialize=SIZES)
def send_kernel(
    t, G, rest, direct, dnodes, gain, states, record, merge_dgates, parents, v, next_numbers,
    ds_stored, rows, left, right, node_state, chosen, position, sigma, lengths, start, B, T, cap,
    D: tl.constexpr, W: tl.constexpr, REC: tl.constexpr, BJ: tl.constexpr, BD: tl.constexpr,
    PARTS: tl.constexpr, SCORED: tl.constexpr, SAMPLE: tl.constexpr, HAS_DNODES: tl.constexpr,
    CHAIN: tl.constexpr,
):  # fmt: skip
    """Propagate the score gradients of layer t to its nodes, then undo merge t - 1, elementwise.

    As `send_kernel` in ../backward_kernels.py, but a program handles all units of BJ nodes, since
    the normalisation needs sums over the units. The gradients of a merge are stored in
    `merge_dgates`; what reaches the children without the gates, in `direct` [cap, 2D]; the
    gradient of the parent and its product with the normalised state, in `parents` [cap, 2D].
    """
    b, i_j = tl.program_id(0), tl.program_id(1)
    length = tl.load(lengths + b)
    r = (tl.load(start + t) + b).to(tl.int64)
    K = length - 1 - t
    if (K < 0) | (i_j * BJ > K):
        join_chain(CHAIN)
        return
    o_d = tl.arange(0, BD)[None, :]
    m_o = o_d < D
    # position of the node of merge t - 1, and whether this program handles it
    undoes = t > 0
    place = tl.load(position + r, mask=undoes, other=-1)
    if SCORED:
        undoes = undoes & (place >= i_j * BJ) & (place < (i_j + 1) * BJ)
    m_u = m_o & undoes
    # load everything before the first store, results of the forward pass before the rest
    one = tl.arange(0, 1)
    m_one = (one == 0) & undoes
    c_u = tl.load(chosen + r + one, mask=m_one, other=0).to(tl.int64)
    l_node = tl.load(left + c_u, mask=m_one, other=0).to(tl.int64)
    r_node = tl.load(right + c_u, mask=m_one, other=0).to(tl.int64)
    l_row = tl.load(node_state + l_node, mask=m_one, other=0).to(tl.int64)
    r_row = tl.load(node_state + r_node, mask=m_one, other=0).to(tl.int64)
    z, h, g, x, normal, scale, l, r_state = read_record(
        c_u, m_one, l_row, r_row, states, record, D, W, REC, BD
    )
    factor = tl.load(gain + o_d, mask=m_o, other=0.0)
    p_new = (cap + r) * D + o_d
    dh = tl.full((1, BD), 0.0, dtype=G.dtype.element_ty)
    if HAS_DNODES:
        dh += tl.load(dnodes + p_new, mask=m_u, other=0.0)
    if SCORED:
        j = i_j * BJ + tl.arange(0, BJ)
        m = j < K
        m_p = (j > 0) & (j <= K)
        tape = (t * B.to(tl.int64) + b) * (T - 1) + j
        c = tl.load(rows + tape, mask=m, other=0).to(tl.int64)
        c_p = tl.load(rows + tape - 1, mask=m_p, other=0).to(tl.int64)
        node = tl.load(left + c, mask=m, other=0)
        # the last node is a right child only
        node = tl.where(m, node, tl.load(right + c_p, mask=m_p & (j == K), other=0))
        # without candidates, the single node is that of the last merge or the only word
        node = tl.where(K == 0, tl.where(t > 0, cap + r, r), node.to(tl.int64))
        m_n = (j <= K)[:, None] & m_o
        p_g = G + node[:, None] * D + o_d
        # the children of merge t
        r_t = (tl.load(start + t + 1, mask=K > 0, other=0) + b).to(tl.int64)
        k_t = tl.load(position + r_t, mask=K > 0, other=-2)
        m_r = ((j == k_t) | (j == k_t + 1)) & (K > 0)
        p_rest = rest + r_t * (2 * D) + tl.where(j == k_t, 0, D)[:, None] + o_d
        to_l = tl.load(v + c[:, None] * (2 * D) + o_d, mask=m[:, None] & m_o, other=0.0)
        to_r = tl.load(v + c_p[:, None] * (2 * D) + D + o_d, mask=m_p[:, None] & m_o, other=0.0)
        before = tl.load(sigma + c, mask=m, other=0.0)
        if SAMPLE:
            # r - l and own - l of the candidates of the layer below
            m_b = (j <= K) & (t > 0)
            m_bd = m_b[:, None] & m_o
            c_b = tl.load(rows + tape - B.to(tl.int64) * (T - 1), mask=m_b, other=0).to(tl.int64)
            b_l = tl.load(left + c_b, mask=m_b, other=0).to(tl.int64)
            b_r = tl.load(right + c_b, mask=m_b, other=0).to(tl.int64)
            b_l = tl.load(node_state + b_l, mask=m_b, other=0).to(tl.int64)
            b_r = tl.load(node_state + b_r, mask=m_b, other=0).to(tl.int64)
            at_l = tl.load(states + b_l[:, None] * D + o_d, mask=m_bd, other=0.0)
            d = tl.load(states + b_r[:, None] * D + o_d, mask=m_bd, other=0.0) - at_l
            e = tl.load(states + (cap + c_b)[:, None] * D + o_d, mask=m_bd, other=0.0) - at_l
        join_chain(CHAIN)
        gradient = tl.load(p_g, mask=m_n, other=0.0)
        for part in tl.static_range(PARTS - 1):
            # the other parts of the product
            at = p_rest + cap.to(tl.int64) * (part * 2 * D)
            gradient += tl.load(at, mask=m_r[:, None] & m_o, other=0.0)
        at = ds_stored + b.to(tl.int64) * 2 * T + j
        ds = tl.load(at, mask=m, other=0.0)
        ds_p = tl.load(at + T, mask=m_p, other=0.0)
        gradient += ds[:, None] * to_l + ds_p[:, None] * to_r
        if K > 0:
            tl.store(p_g, gradient, mask=m_n)
        tl.store(sigma + c, before + ds, mask=m)
        is_new = (j == place)[:, None]
        if HAS_DNODES:
            # to the new node only: others get theirs at the layer where they are created
            gradient += tl.where(is_new, dh, 0.0)
        dh = tl.sum(tl.where(is_new, gradient, 0.0), axis=0)[None, :]
        if SAMPLE:
            p_x = next_numbers + b.to(tl.int64) * 2 * T + j
            tl.store(p_x, tl.sum(gradient * d, axis=1), mask=m_b)
            tl.store(p_x + T, tl.sum(gradient * e, axis=1), mask=m_b)
    else:
        join_chain(CHAIN)
        dh += tl.load(G + p_new, mask=m_u, other=0.0)
    d_z, d_h, d_g, d_v, to_left, to_right = activate_backward(
        dh * factor, z, h, g, x, normal, scale, l, r_state, D
    )
    at = merge_dgates + r * (4 * D) + o_d
    tl.store(at, d_z, mask=m_u)
    tl.store(at + D, d_h, mask=m_u)
    tl.store(at + 2 * D, d_g, mask=m_u)
    tl.store(at + 3 * D, d_v, mask=m_u)
    at = r * (2 * D) + o_d
    tl.store(direct + at, to_left, mask=m_u)
    tl.store(direct + at + D, to_right, mask=m_u)
    tl.store(parents + at, dh, mask=m_u)
    tl.store(parents + at + D, dh * normal, mask=m_u)


@triton.jit(do_not_specialize=["T", "cap", "offset"])
def inner_rows_kernel(
    record, left, right, chosen, sigma, start, inner, T, cap, offset, W: tl.constexpr,
    REC: tl.constexpr, WIDTH: tl.constexpr, BN: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    """Store the hidden units, and a 1 for the bias, times the `gradient_row` factor.

    The hidden units are SCALE times the GELU of the inner states. Rows without a candidate or merge
    are zero.
    """
    i = tl.program_id(0).to(tl.int64)
    o = tl.program_id(1) * BN + tl.arange(0, BN)
    c, _, _, exists, factor = gradient_row(i, left, right, chosen, sigma, start, T, cap, offset)
    x = scaled(gelu(tl.load(record + c * REC + o, mask=exists & (o < W), other=0.0)), SCALE)
    x = tl.where(exists & (o == W), 1.0, x) * factor
    tl.store(inner + i * WIDTH + o, x, mask=o < WIDTH)
