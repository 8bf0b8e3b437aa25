"""Forward kernels of the gated recursive cell; legend and numbering as in ../forward_kernels.py.

W is the width of the hidden layer, REC that of a record; see `__init__.py`. With dropout, LIMIT is
the rate times 2^32, SCALE the factor of the units that stay, and `codes` holds the code of each row
of the states. A dropped unit has the inner state OFF, whose GELU and slope are zero. Without
dropout, LIMIT is 0, SCALE is 1, and `codes` is not read.
"""

import triton
import triton.language as tl

from gumbeltree.device.kernel_math import dot, drop_key, dropped, join_chain, mixed, sigmoid
from gumbeltree.ops.merge import dropout
from gumbeltree.ops.merge.fused.forward_kernels import SIZES, choose, read_layer

LEFT, RIGHT = tl.constexpr(dropout.LEFT), tl.constexpr(dropout.RIGHT)
OFFSET = tl.constexpr(dropout.OFFSET)


@triton.jit
def gelu(x):
    """Return x times the normal distribution function of x."""
    return 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))


@triton.jit
def scaled(x, SCALE: tl.constexpr):
    """Return x times SCALE."""
    return x if SCALE == 1 else x * SCALE


@triton.jit
def parent_code(left, right):
    """Return the code of a candidate, given those of its children, as `dropout.parent_codes`."""
    return left * LEFT + right * RIGHT + OFFSET


# `sentence` is a slice of a buffer, whose alignment varies
@triton.jit(do_not_specialize_on_alignment=["sentence"])
def word_codes_kernel(keys, sentence, start, codes, BLOCK: tl.constexpr):
    """Store the codes of the words at one position, as `dropout.word_codes`."""
    t, i_b = tl.program_id(0), tl.program_id(1)
    first = tl.load(start + t)
    b = i_b * BLOCK + tl.arange(0, BLOCK)
    m = b < tl.load(start + t + 1) - first
    own = tl.load(sentence + b, mask=m, other=0)
    one = tl.load(keys + 2 * own, mask=m, other=0).to(tl.uint32)
    other = tl.load(keys + 2 * own + 1, mask=m, other=0).to(tl.uint32)
    # the keys 7 and 8 times 0x9E3779B9
    low = mixed(one ^ t.to(tl.uint32), 0x5384540F)
    high = mixed(other ^ t.to(tl.uint32), 0xF1BBCDC8)
    tl.store(codes + first + b, (high.to(tl.int64) << 32) + low.to(tl.int64), mask=m)


@triton.jit(do_not_specialize=SIZES)
def pairs_kernel(
    gates_lr, inner, record, codes, start, previous, T, cap, W: tl.constexpr, REC: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, RECORD: tl.constexpr, LIMIT: tl.constexpr,
    SCALE: tl.constexpr, OFF: tl.constexpr,
):  # fmt: skip
    """Store the GELU of the inner states of every adjacent pair of words in `inner` [cap, W].

    With dropout, store the codes of the pairs as well.
    """
    i_m, i_n = tl.program_id(0), tl.program_id(1)
    lo = tl.load(start + 1)
    N = tl.load(start + T)
    if (i_m + 1) * BM <= lo or i_m * BM >= N:
        return
    row = (i_m * BM + tl.arange(0, BM)).to(tl.int64)
    o_n = i_n * BN + tl.arange(0, BN)
    m = (row >= lo) & (row < N)
    m_n = m[:, None] & (o_n < W)[None, :]
    before = tl.load(previous + row, mask=m, other=0).to(tl.int64)
    # the left products include the bias
    u = tl.load(gates_lr + before[:, None] * (2 * W) + o_n[None, :], mask=m_n, other=0.0)
    u += tl.load(gates_lr + row[:, None] * (2 * W) + W + o_n[None, :], mask=m_n, other=0.0)
    if LIMIT > 0:
        l_code = tl.load(codes + before, mask=m, other=0)
        code = parent_code(l_code, tl.load(codes + row, mask=m, other=0))
        u = tl.where(dropped(drop_key(code)[:, None], o_n[None, :], LIMIT), OFF, u)
        tl.store(codes + cap + row, code, mask=m & (i_n == 0))
    tl.store(inner + row[:, None] * W + o_n[None, :], scaled(gelu(u), SCALE), mask=m_n)
    if RECORD:
        tl.store(record + row[:, None] * REC + o_n[None, :], u, mask=m_n)


@triton.jit
def activate(
    c, m, l_row, r_row, p_row, gates, query, gain, shift, states, record, cap,
    EPSILON: tl.constexpr, D: tl.constexpr, W: tl.constexpr, REC: tl.constexpr, BD: tl.constexpr,
    RECORD: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """Compute the states of candidates c [BM], masked by m; return their scores.

    The states of their children are in rows l_row and r_row, their gates, before activation, in
    row p_row of `gates`, which the previous kernel writes.
    """
    o_d = tl.arange(0, BD)[None, :]
    m_o = o_d < D
    m_d = m[:, None] & m_o
    l = tl.load(states + l_row[:, None] * D + o_d, mask=m_d, other=0.0)
    r = tl.load(states + r_row[:, None] * D + o_d, mask=m_d, other=0.0)
    q = tl.load(query + o_d, mask=m_o, other=0.0)
    factor = tl.load(gain + o_d, mask=m_o, other=0.0)
    offset = tl.load(shift + o_d, mask=m_o, other=0.0)
    join_chain(CHAIN)
    at = gates + p_row[:, None] * (4 * D) + o_d
    z = sigmoid(tl.load(at, mask=m_d, other=0.0))
    h = sigmoid(tl.load(at + D, mask=m_d, other=0.0))
    g = sigmoid(tl.load(at + 2 * D, mask=m_d, other=0.0))
    v = tl.load(at + 3 * D, mask=m_d, other=0.0)
    mixed = z * l + h * r + g * v
    mixed = tl.where(m_d, mixed - (tl.sum(mixed, axis=1) / D)[:, None], 0.0)
    scale = 1 / tl.sqrt(tl.sum(mixed * mixed, axis=1) / D + EPSILON)
    normal = mixed * scale[:, None]
    state = normal * factor + offset
    tl.store(states + (cap + c)[:, None] * D + o_d, state, mask=m_d)
    if RECORD:
        at = record + c[:, None] * REC + W + o_d
        tl.store(at, z, mask=m_d)
        tl.store(at + D, h, mask=m_d)
        tl.store(at + 2 * D, g, mask=m_d)
        tl.store(at + 3 * D, v, mask=m_d)
        tl.store(at + 4 * D, normal, mask=m_d)
        tl.store(record + c * REC + W + 5 * D, scale, mask=m)
    return tl.sum(tl.where(m_d, state * q, 0.0), axis=1)


@triton.jit(do_not_specialize=SIZES)
def first_layer_kernel(
    gates, query, gain, shift, states, record, score, start, previous, T, cap,
    EPSILON: tl.constexpr, D: tl.constexpr, W: tl.constexpr, REC: tl.constexpr, BM: tl.constexpr,
    BD: tl.constexpr, RECORD: tl.constexpr,
):  # fmt: skip
    """Compose and score every adjacent pair of words; candidate r ends with word r."""
    i_m = tl.program_id(0)
    lo = tl.load(start + 1)
    N = tl.load(start + T)
    if (i_m + 1) * BM <= lo or i_m * BM >= N:
        return
    row = (i_m * BM + tl.arange(0, BM)).to(tl.int64)
    m = (row >= lo) & (row < N)
    before = tl.load(previous + row, mask=m, other=0).to(tl.int64)
    s = activate(
        row, m, before, row, row, gates, query, gain, shift, states, record, cap, EPSILON, D, W,
        REC, BD, RECORD, False,
    )  # fmt: skip
    tl.store(score + row, s, mask=m)


# some arguments are slices of one buffer, whose alignment varies
@triton.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=["noise", "sentence"])
def step_kernel(
    t, cand, node, score, noise, forced, order, tape_rows, tape_y, scores_out, chosen, position,
    node_state, left, right, gates, query, gain, shift, states, record, lengths, start, sentence,
    size, temperature, B, T, cap, SLACK: tl.constexpr, EPSILON: tl.constexpr, D: tl.constexpr,
    W: tl.constexpr, REC: tl.constexpr, BD: tl.constexpr, BT: tl.constexpr, BEGIN: tl.constexpr,
    SAMPLE: tl.constexpr, FROM_KEYS: tl.constexpr, NOISE_SCALE: tl.constexpr,
    SOFTMAX: tl.constexpr, FORCED: tl.constexpr, RECORD: tl.constexpr, KEEP_SCORES: tl.constexpr,
    CHAIN: tl.constexpr,
):  # fmt: skip
    """Run step t of one sentence.

    Unless BEGIN, compose and score the two candidates next to the node of the previous merge, whose
    gates are in rows 2b and 2b + 1 of `gates` [2B, 4D]. Then choose a merge.
    """
    # the first step reads what the previous kernel wrote
    tl.static_assert(not (BEGIN and CHAIN))
    b = tl.program_id(0)
    length = tl.load(lengths + b)
    now = tl.load(start + t + 1)
    last = tl.load(start + t)
    own = tl.load(sentence + b)
    K = length - 1 - t
    if K < 1:
        join_chain(CHAIN)
        return
    # load everything before the first store
    c, c_next, n_here, n_next, s, added = read_layer(
        t, b, own, K, cand, node, score, noise, B, T, BT, SAMPLE, FROM_KEYS
    )
    if not BEGIN:
        side = tl.arange(0, 2)
        born = (cap + 2 * (last + b)).to(tl.int64)
        a = born + side
        l_node = tl.load(left + a).to(tl.int64)
        r_node = tl.load(right + a).to(tl.int64)
        exists = (l_node >= 0) & (r_node >= 0)
        l_row = tl.load(node_state + l_node, mask=exists, other=0).to(tl.int64)
        r_row = tl.load(node_state + r_node, mask=exists, other=0).to(tl.int64)
        made = activate(
            a, exists, l_row, r_row, 2 * b.to(tl.int64) + side, gates, query, gain, shift, states,
            record, cap, EPSILON, D, W, REC, BD, RECORD, CHAIN,
        )  # fmt: skip
        tl.store(score + a, made, mask=exists)
        inside = tl.arange(0, BT) < K
        s = tl.where(inside & (c == born), tl.sum(tl.where(side == 0, made, 0.0)), s)
        s = tl.where(inside & (c == born + 1), tl.sum(tl.where(side == 1, made, 0.0)), s)
    choose(
        t, b, own, K, (now + b).to(tl.int64), c, c_next, n_here, n_next, s, added, cand, node,
        forced, order, tape_rows, tape_y, scores_out, chosen, position, node_state, left, right,
        size, temperature, B, T, cap, SLACK, BT, SAMPLE, NOISE_SCALE, SOFTMAX, FORCED, RECORD,
        KEEP_SCORES,
    )  # fmt: skip


@triton.jit(do_not_specialize=SIZES)
def project_kernel(
    t, both, both_bias, states, gates_lr, inner, record, codes, left, right, node_state, start, cap,
    D: tl.constexpr, W: tl.constexpr, REC: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, RECORD: tl.constexpr, LIMIT: tl.constexpr, SCALE: tl.constexpr,
    OFF: tl.constexpr, PRECISION: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """Multiply the nodes of step t by W1 and compute the inner states of their candidates.

    The product with the weights of a left child, plus that of the node on the right as a right
    child, is the inner state of the candidate on the right, and vice versa. Its GELU is stored in
    `inner` [2B, W], in row 2b for the candidate on the left and 2b + 1 for that on the right. With
    dropout, the codes of the candidates are stored as well.
    """
    i_m, i_n = tl.program_id(0), tl.program_id(1)
    # sentences that continue after this merge
    n = tl.load(start + t + 3) - tl.load(start + t + 2)
    first = tl.load(start + t + 1)
    join_chain(CHAIN)
    if i_m * BM >= n:
        return
    b = i_m * BM + tl.arange(0, BM)
    m = b < n
    r = (first + b).to(tl.int64)
    new = tl.load(node_state + cap + r, mask=m, other=0).to(tl.int64)
    born = cap + 2 * r
    before = tl.load(left + born, mask=m, other=-1).to(tl.int64)
    after = tl.load(right + born + 1, mask=m, other=-1).to(tl.int64)
    o_n = i_n * BN + tl.arange(0, BN)
    m_n = o_n < 2 * W
    acc = tl.full((BM, BN), 0.0, dtype=states.dtype.element_ty)
    for i_k in range(0, D, BK):
        o_k = i_k + tl.arange(0, BK)
        m_k = o_k < D
        h = tl.load(
            states + new[:, None] * D + o_k[None, :], mask=m[:, None] & m_k[None, :], other=0.0
        )
        w = tl.load(
            both + o_n[None, :] * D + o_k[:, None], mask=m_k[:, None] & m_n[None, :], other=0.0
        )
        acc = dot(h, w, acc, PRECISION)
    acc += tl.load(both_bias + o_n, mask=m_n, other=0.0)[None, :]
    m_s = m[:, None] & m_n[None, :]
    tl.store(gates_lr + (cap + r)[:, None] * (2 * W) + o_n[None, :], acc, mask=m_s)
    as_left = (o_n < W)[None, :]
    other = tl.where(as_left, after[:, None], before[:, None])
    m_s = m_s & (other >= 0)
    o_u = tl.where(o_n < W, o_n, o_n - W)[None, :]
    at = other * (2 * W) + o_u + tl.where(as_left, W, 0)
    acc += tl.load(gates_lr + at, mask=m_s, other=0.0)
    side = tl.where(as_left, 1, 0)
    if LIMIT > 0:
        # the codes of the three nodes are those of words or of candidates of earlier steps
        m_b, m_a = m & (before >= 0), m & (after >= 0)
        code = tl.load(codes + new, mask=m, other=0)
        l_row = tl.load(node_state + before, mask=m_b, other=0)
        r_row = tl.load(node_state + after, mask=m_a, other=0)
        l_code = parent_code(tl.load(codes + l_row, mask=m_b, other=0), code)
        r_code = parent_code(code, tl.load(codes + r_row, mask=m_a, other=0))
        key = tl.where(as_left, drop_key(r_code)[:, None], drop_key(l_code)[:, None])
        acc = tl.where(dropped(key, o_u, LIMIT), OFF, acc)
        tl.store(codes + cap + born, l_code, mask=m_b & (i_n == 0))
        tl.store(codes + cap + born + 1, r_code, mask=m_a & (i_n == 0))
    at = inner + (2 * b.to(tl.int64)[:, None] + side) * W + o_u
    tl.store(at, scaled(gelu(acc), SCALE), mask=m_s)
    if RECORD:
        tl.store(record + (born[:, None] + side) * REC + o_u, acc, mask=m_s)


@triton.jit(do_not_specialize=SIZES)
def gates_kernel(
    t, weight, bias, inner, gates, start, W: tl.constexpr, COLUMNS: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """Multiply the new candidates of step t by W2: `inner` [2B, W] to `gates` [2B, COLUMNS]."""
    i_m, i_n = tl.program_id(0), tl.program_id(1)
    n = 2 * (tl.load(start + t + 3) - tl.load(start + t + 2))
    if i_m * BM >= n:
        join_chain(CHAIN)
        return
    row = (i_m * BM + tl.arange(0, BM)).to(tl.int64)
    m = row < n
    o_n = i_n * BN + tl.arange(0, BN)
    m_n = o_n < COLUMNS
    acc = tl.full((BM, BN), 0.0, dtype=gates.dtype.element_ty)
    acc += tl.load(bias + o_n, mask=m_n, other=0.0)[None, :]
    join_chain(CHAIN)
    for i_k in range(0, W, BK):
        o_k = i_k + tl.arange(0, BK)
        m_k = o_k < W
        x = tl.load(
            inner + row[:, None] * W + o_k[None, :], mask=m[:, None] & m_k[None, :], other=0.0
        )
        w = tl.load(
            weight + o_n[None, :] * W + o_k[:, None], mask=m_k[:, None] & m_n[None, :], other=0.0
        )
        acc = dot(x, w, acc, PRECISION)
    tl.store(gates + row[:, None] * COLUMNS + o_n[None, :], acc, mask=m[:, None] & m_n[None, :])
