"""Forward Triton kernels of `fused`; rows, nodes and candidates are numbered as in forward.py.

Legend: t step, b rank of a sentence (sentences are sorted by length), r = start[t+1] + b the merge
of that sentence at step t, D state width, K candidates of the sentence at step t. Programs without
active sentences return immediately.
"""

import triton
import triton.language as tl

from gumbeltree.device.kernel_math import dot, join_chain, mixed, sigmoid, tanh

# these change from launch to launch: do not compile variants for 1 or for multiples of 16
SIZES = ["t", "B", "T", "cap"]


@triton.jit(do_not_specialize=SIZES)
def begin_kernel(
    left, right, node_state, node, cand, order, previous, start, B, T, cap, BLOCK: tl.constexpr
):
    """Initialize the first layer: children of its candidates, nodes and candidates by position."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    word = i < cap
    before = tl.load(previous + i, mask=word, other=-1)
    tl.store(left + i, before, mask=i < 3 * cap)
    tl.store(right + i, tl.where(word, i, -1), mask=i < 3 * cap)
    tl.store(node_state + i, tl.where(word, i, i - cap), mask=i < 2 * cap)
    b, t = i // T, i % T
    inside = b < B
    here = tl.load(start + t, mask=inside, other=0)
    after = tl.load(start + t + 1, mask=inside, other=0)
    tl.store(node + i, here + b, mask=inside)
    tl.store(cand + i, after + b, mask=inside)
    tl.store(order + i, -1, mask=i < B.to(tl.int64) * (T - 1))


@triton.jit
def activate(i, f_l, f_r, g, o, c_l, c_r):
    """Return the activated gates and the new state h, c (Eqs. 1-3)."""
    i, f_l, f_r, g, o = sigmoid(i), sigmoid(f_l), sigmoid(f_r), tanh(g), sigmoid(o)
    c = f_l * c_l + f_r * c_r + i * g
    return i, f_l, f_r, g, o, o * tanh(c), c


@triton.jit
def store_candidate(
    row, m, o_d, i, f_l, f_r, g, o, h, c, states, gates, cap, D: tl.constexpr, RECORD: tl.constexpr
):
    """Store states and, if RECORD, activated gates of candidates `row`, masked by m."""
    at = states + (cap + row) * (2 * D) + o_d
    tl.store(at, h, mask=m)
    tl.store(at + D, c, mask=m)
    if RECORD:
        at = gates + row * (5 * D) + o_d
        tl.store(at, i, mask=m)
        tl.store(at + D, f_l, mask=m)
        tl.store(at + 2 * D, f_r, mask=m)
        tl.store(at + 3 * D, g, mask=m)
        tl.store(at + 4 * D, o, mask=m)


@triton.jit(do_not_specialize=SIZES)
def first_layer_kernel(
    gates_lr, query, states, gates, partial, start, previous,
    T, cap, D: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr, TILES: tl.constexpr,
    RECORD: tl.constexpr,
):  # fmt: skip
    """Compose every adjacent pair of words; candidate r is the pair that ends with word r."""
    i_m, i_d = tl.program_id(0), tl.program_id(1)
    lo = tl.load(start + 1)
    N = tl.load(start + T)
    if (i_m + 1) * BM <= lo or i_m * BM >= N:
        return
    row = (i_m * BM + tl.arange(0, BM)).to(tl.int64)
    o_d = i_d * BD + tl.arange(0, BD)
    m = (row >= lo) & (row < N)
    m_d = m[:, None] & (o_d < D)[None, :]
    before = tl.load(previous + row, mask=m, other=0).to(tl.int64)
    at_l = gates_lr + before[:, None] * (10 * D) + o_d[None, :]
    at_r = gates_lr + row[:, None] * (10 * D) + 5 * D + o_d[None, :]
    # Triton has no lists, so the five gates are spelled out; the left products include the bias
    i = tl.load(at_l, mask=m_d, other=0.0) + tl.load(at_r, mask=m_d, other=0.0)
    f_l = tl.load(at_l + D, mask=m_d, other=0.0) + tl.load(at_r + D, mask=m_d, other=0.0)
    f_r = tl.load(at_l + 2 * D, mask=m_d, other=0.0) + tl.load(at_r + 2 * D, mask=m_d, other=0.0)
    g = tl.load(at_l + 3 * D, mask=m_d, other=0.0) + tl.load(at_r + 3 * D, mask=m_d, other=0.0)
    o = tl.load(at_l + 4 * D, mask=m_d, other=0.0) + tl.load(at_r + 4 * D, mask=m_d, other=0.0)
    c_l = tl.load(states + before[:, None] * (2 * D) + D + o_d[None, :], mask=m_d, other=0.0)
    c_r = tl.load(states + row[:, None] * (2 * D) + D + o_d[None, :], mask=m_d, other=0.0)
    i, f_l, f_r, g, o, h, c = activate(i, f_l, f_r, g, o, c_l, c_r)
    store_candidate(
        row[:, None], m_d, o_d[None, :], i, f_l, f_r, g, o, h, c, states, gates, cap, D, RECORD
    )
    q = tl.load(query + o_d, mask=o_d < D, other=0.0)
    share = tl.sum(tl.where(m_d, h * q[None, :], 0.0), axis=1)
    tl.store(partial + row * TILES + i_d, share, mask=m)


@triton.jit
def compose_new(
    a, r, gates_lr, query, states, gates, score, node_state, left, right, cap, D: tl.constexpr,
    BD: tl.constexpr, RECORD: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """Compose candidates a and a + 1, left and right of the node of merge r; return their scores.

    Either or both may be missing.
    """
    o_d = tl.arange(0, BD)
    m_o = o_d < D
    before = tl.load(left + a).to(tl.int64)
    after = tl.load(right + a + 1).to(tl.int64)
    new = tl.load(node_state + cap + r).to(tl.int64)
    has_b, has_a = before >= 0, after >= 0
    m_b, m_a = m_o & has_b, m_o & has_a
    at_b = tl.load(node_state + before, mask=has_b, other=0).to(tl.int64)
    at_a = tl.load(node_state + after, mask=has_a, other=0).to(tl.int64)
    # load everything before the first store
    c_new = tl.load(states + new * (2 * D) + D + o_d, mask=m_o, other=0.0)
    at = gates_lr + before * (10 * D) + o_d
    r_i = tl.load(at, mask=m_b, other=0.0)
    r_fl = tl.load(at + D, mask=m_b, other=0.0)
    r_fr = tl.load(at + 2 * D, mask=m_b, other=0.0)
    r_g = tl.load(at + 3 * D, mask=m_b, other=0.0)
    r_o = tl.load(at + 4 * D, mask=m_b, other=0.0)
    c_b = tl.load(states + at_b * (2 * D) + D + o_d, mask=m_b, other=0.0)
    at = gates_lr + after * (10 * D) + 5 * D + o_d
    l_i = tl.load(at, mask=m_a, other=0.0)
    l_fl = tl.load(at + D, mask=m_a, other=0.0)
    l_fr = tl.load(at + 2 * D, mask=m_a, other=0.0)
    l_g = tl.load(at + 3 * D, mask=m_a, other=0.0)
    l_o = tl.load(at + 4 * D, mask=m_a, other=0.0)
    c_a = tl.load(states + at_a * (2 * D) + D + o_d, mask=m_a, other=0.0)
    q = tl.load(query + o_d, mask=m_o, other=0.0)
    # the previous kernel computes the products of the new node
    join_chain(CHAIN)
    at = gates_lr + (cap + r).to(tl.int64) * (10 * D) + o_d
    l_i += tl.load(at, mask=m_a, other=0.0)
    l_fl += tl.load(at + D, mask=m_a, other=0.0)
    l_fr += tl.load(at + 2 * D, mask=m_a, other=0.0)
    l_g += tl.load(at + 3 * D, mask=m_a, other=0.0)
    l_o += tl.load(at + 4 * D, mask=m_a, other=0.0)
    r_i += tl.load(at + 5 * D, mask=m_b, other=0.0)
    r_fl += tl.load(at + 6 * D, mask=m_b, other=0.0)
    r_fr += tl.load(at + 7 * D, mask=m_b, other=0.0)
    r_g += tl.load(at + 8 * D, mask=m_b, other=0.0)
    r_o += tl.load(at + 9 * D, mask=m_b, other=0.0)
    i, f_l, f_r, g, o, h, c = activate(r_i, r_fl, r_fr, r_g, r_o, c_b, c_new)
    s_a = tl.sum(tl.where(m_b, h * q, 0.0))
    store_candidate(a, m_b, o_d, i, f_l, f_r, g, o, h, c, states, gates, cap, D, RECORD)
    i, f_l, f_r, g, o, h, c = activate(l_i, l_fl, l_fr, l_g, l_o, c_new, c_a)
    s_b = tl.sum(tl.where(m_a, h * q, 0.0))
    store_candidate(a + 1, m_a, o_d, i, f_l, f_r, g, o, h, c, states, gates, cap, D, RECORD)
    tl.store(score + a, s_a, mask=has_b)
    tl.store(score + a + 1, s_b, mask=has_a)
    return s_a, s_b


@triton.jit
def noise_parts(keys, own, t, j):
    """Return which of 2^23 parts of [0, 1] the noise of sentence `own` comes from.

    It is that of layer t and positions j, determined by the two keys of the sentence.
    """
    first = tl.load(keys + 2 * own).to(tl.uint32)
    second = tl.load(keys + 2 * own + 1).to(tl.uint32)
    counter = (j + (t << 16)).to(tl.uint32)
    return mixed(mixed(counter ^ first, 0) ^ second, 0x9E3779B9) >> 9


@triton.jit
def gumbel(keys, own, t, j):
    """Return the noise of sentence `own` at layer t and positions j, from its two keys."""
    # 23 bits are exact in float32
    u = (noise_parts(keys, own, t, j).to(tl.int32).to(tl.float32) + 0.5) * 1.1920928955078125e-07
    return -tl.log(-tl.log(u))


@triton.jit
def read_layer(
    t, b, own, K, cand, node, score, noise, B, T, BT: tl.constexpr, SAMPLE: tl.constexpr,
    FROM_KEYS: tl.constexpr,
):  # fmt: skip
    """Return candidates and nodes of layer t, each also from one position further right, [BT].

    Return scores and noise as well; without SAMPLE, the noise is unused.
    """
    j = tl.arange(0, BT)
    inside = j < K
    half = (t % 2) * B.to(tl.int64) * T + b.to(tl.int64) * T + j
    c = tl.load(cand + half, mask=inside, other=0)
    n_here = tl.load(node + half, mask=inside, other=0)
    n_next = tl.load(node + half + 1, mask=inside, other=0)
    c_next = tl.load(cand + half + 1, mask=j < K - 1, other=0)
    s = tl.load(score + c, mask=inside, other=-float("inf"))
    added = s
    if SAMPLE:
        if FROM_KEYS:
            added = gumbel(noise, own, t, j).to(s.dtype)
        else:
            added = tl.load(noise + (own * (T - 1) + t) * (T - 1) + j, mask=inside, other=0.0)
    return c, c_next, n_here, n_next, s, added


@triton.jit
def choose(
    t, b, own, K, r, c, c_next, n_here, n_next, s, added, cand, node, forced, order, tape_rows,
    tape_y, scores_out, chosen, position, node_state, left, right, size, temperature, B, T, cap,
    SLACK: tl.constexpr, BT: tl.constexpr, SAMPLE: tl.constexpr, NOISE_SCALE: tl.constexpr,
    SOFTMAX: tl.constexpr, FORCED: tl.constexpr, RECORD: tl.constexpr, KEEP_SCORES: tl.constexpr,
):  # fmt: skip
    """Choose a merge (Eq. S8) from `read_layer` and shift the nodes and candidates right of it.

    The rows of the next layer are written to the other half of a double buffer. For the backward
    pass, record the weights of Eq. 8 if SOFTMAX, else the scores without noise.
    """
    j = tl.arange(0, BT)
    inside = j < K
    other = ((t + 1) % 2) * B.to(tl.int64) * T + b.to(tl.int64) * T
    if KEEP_SCORES:
        tl.store(scores_out + (own * (T - 1) + t) * (T - 1) + j, s, mask=inside)
    logits = s
    if SAMPLE:
        s += added if NOISE_SCALE == 1 else NOISE_SCALE * added
    best = tl.max(s)
    if FORCED:
        k = tl.load(forced + own * (T - 1) + t).to(tl.int32)
    else:
        slack = SLACK * tl.maximum(tl.abs(best), tl.load(size))
        k = tl.min(tl.where(inside & (s >= best - slack), j, BT))
        # if all scores are NaN, any choice will do: the result is NaN as well
        k = tl.where(k < K, k, 0)
    tl.store(order + own * (T - 1) + t, k)
    if RECORD:
        tape = (t * B.to(tl.int64) + b) * (T - 1) + j
        tl.store(tape_rows + tape, c, mask=inside)
        if SAMPLE and SOFTMAX:
            e = tl.where(inside, tl.exp((s - best) / tl.load(temperature)), 0.0)
            tl.store(tape_y + tape, e / tl.sum(e), mask=inside)
        elif SAMPLE:
            tl.store(tape_y + tape, logits, mask=inside)
    merged = tl.sum(tl.where(j == k, c, 0))
    tl.store(chosen + r, merged)
    tl.store(position + r, k)
    tl.store(node_state + cap + r, cap + merged)
    if K > 1:
        # layer t + 1: K nodes, K - 1 candidates
        n = tl.where(j > k, n_next, n_here)
        n = tl.where(j == k, cap + r, n)
        tl.store(node + other + j, n, mask=inside)
        before = tl.sum(tl.where(j == k - 1, n, 0))
        after = tl.sum(tl.where(j == k + 1, n, 0))
        born = cap + 2 * r
        tl.store(left + born, tl.where(k > 0, before, -1))
        tl.store(right + born, cap + r)
        tl.store(left + born + 1, cap + r)
        tl.store(right + born + 1, tl.where(k < K - 1, after, -1))
        moved = tl.where(j >= k, c_next, c)
        moved = tl.where(j == k - 1, born, moved)
        moved = tl.where(j == k, born + 1, moved)
        tl.store(cand + other + j, moved, mask=j < K - 1)


# some arguments are slices of one buffer, whose alignment varies
@triton.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=["noise", "sentence"])
def step_kernel(
    t, cand, node, score, noise, forced, order, tape_rows, tape_y, scores_out, chosen, position,
    node_state, left, right, gates_lr, query, states, gates, lengths, start, sentence, size,
    temperature, B, T, cap, SLACK: tl.constexpr, D: tl.constexpr, BD: tl.constexpr,
    BT: tl.constexpr, BEGIN: tl.constexpr, SAMPLE: tl.constexpr, FROM_KEYS: tl.constexpr,
    NOISE_SCALE: tl.constexpr, SOFTMAX: tl.constexpr, FORCED: tl.constexpr, RECORD: tl.constexpr,
    KEEP_SCORES: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """Run step t of one sentence.

    Unless BEGIN, compose (Eqs. 1-3) and score the two candidates next to the node of the previous
    merge. Then choose a merge.
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
        a = (cap + 2 * (last + b)).to(tl.int64)
        s_a, s_b = compose_new(
            a, last + b, gates_lr, query, states, gates, score, node_state, left, right, cap, D,
            BD, RECORD, CHAIN,
        )  # fmt: skip
        inside = tl.arange(0, BT) < K
        s = tl.where(inside & (c == a), s_a, s)
        s = tl.where(inside & (c == a + 1), s_b, s)
    choose(
        t, b, own, K, (now + b).to(tl.int64), c, c_next, n_here, n_next, s, added, cand, node,
        forced, order, tape_rows, tape_y, scores_out, chosen, position, node_state, left, right,
        size, temperature, B, T, cap, SLACK, BT, SAMPLE, NOISE_SCALE, SOFTMAX, FORCED, RECORD,
        KEEP_SCORES,
    )  # fmt: skip


@triton.jit(do_not_specialize=SIZES)
def project_kernel(
    t, both, both_bias, states, gates_lr, node_state, start, cap, D: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
    CHAIN: tl.constexpr,
):  # fmt: skip
    """Multiply the nodes of step t by the weights of a left and of a right child."""
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
    o_n = i_n * BN + tl.arange(0, BN)
    m_n = o_n < 10 * D
    acc = tl.full((BM, BN), 0.0, dtype=states.dtype.element_ty)
    for i_k in range(0, D, BK):
        o_k = i_k + tl.arange(0, BK)
        m_k = o_k < D
        h = tl.load(
            states + new[:, None] * (2 * D) + o_k[None, :],
            mask=m[:, None] & m_k[None, :],
            other=0.0,
        )
        w = tl.load(
            both + o_n[None, :] * D + o_k[:, None], mask=m_k[:, None] & m_n[None, :], other=0.0
        )
        acc = dot(h, w, acc, PRECISION)
    acc += tl.load(both_bias + o_n, mask=m_n, other=0.0)[None, :]
    at = gates_lr + (cap + r)[:, None] * (10 * D) + o_n[None, :]
    tl.store(at, acc, mask=m[:, None] & m_n[None, :])
