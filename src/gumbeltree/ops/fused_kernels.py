"""Triton kernels of `fused`; the layout of rows, nodes and candidates is told in fused.py.

Legend: t step, b rank of a sentence (sentences sorted by length), r = start[t+1] + b the merge that
sentence makes at step t, D state width. Programs whose sentences have all ended return at once.
"""

import triton
import triton.language as tl


@triton.jit
def sigmoid(x):
    """Return 1 / (1 + e^-x); tl.sigmoid cannot be interpreted once torch has imported Triton."""
    return 1 / (1 + tl.exp(-x))


@triton.jit
def tanh(x):
    """Return tanh, wrong by 2e-7 at most in float32."""
    return 2 / (1 + tl.exp(-2 * x)) - 1


@triton.jit
def dot(a, b, acc, PRECISION: tl.constexpr):
    """Return acc + a @ b; PRECISION is ieee, tf32 or bf16, sums are as wide as `acc`."""
    if PRECISION == "bf16":
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), acc)
    return tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=acc.dtype)


@triton.jit
def activate(i, f_l, f_r, g, o, c_l, c_r):
    """Return activated gates and the new state (Eqs. 1-3)."""
    i, f_l, f_r, g, o = sigmoid(i), sigmoid(f_l), sigmoid(f_r), tanh(g), sigmoid(o)
    c = f_l * c_l + f_r * c_r + i * g
    return i, f_l, f_r, g, o, o * tanh(c), c


@triton.jit
def store_candidate(
    row, m, o_d, i, f_l, f_r, g, o, h, c, query, states, gates, partial, i_d,
    cap, D: tl.constexpr, TILES: tl.constexpr, RECORD: tl.constexpr,
):  # fmt: skip
    """Store candidates `row` [BM]: state, activated gates, this tile's share of the score."""
    m_d = m[:, None] & (o_d < D)[None, :]
    at = states + (cap + row)[:, None] * (2 * D) + o_d[None, :]
    tl.store(at, h, mask=m_d)
    tl.store(at + D, c, mask=m_d)
    if RECORD:
        at = gates + row[:, None] * (5 * D) + o_d[None, :]
        tl.store(at, i, mask=m_d)
        tl.store(at + D, f_l, mask=m_d)
        tl.store(at + 2 * D, f_r, mask=m_d)
        tl.store(at + 3 * D, g, mask=m_d)
        tl.store(at + 4 * D, o, mask=m_d)
    q = tl.load(query + o_d, mask=o_d < D, other=0.0)
    share = tl.sum(tl.where(m_d, h * q[None, :], 0.0), axis=1)
    tl.store(partial + row * TILES + i_d, share, mask=m)


@triton.jit
def first_layer_kernel(
    gates_lr, bias, query, states, gates, partial, left, start, previous, words,
    cap, D: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr, TILES: tl.constexpr,
    RECORD: tl.constexpr,
):  # fmt: skip
    """Compose every pair of neighbouring words; candidate r is the pair that ends with word r."""
    i_m, i_d = tl.program_id(0), tl.program_id(1)
    lo = tl.load(start + 1)
    N = tl.load(words)
    if (i_m + 1) * BM <= lo or i_m * BM >= N:
        return
    row = (i_m * BM + tl.arange(0, BM)).to(tl.int64)
    o_d = i_d * BD + tl.arange(0, BD)
    m = (row >= lo) & (row < N)
    m_d = m[:, None] & (o_d < D)[None, :]
    before = tl.load(previous + row, mask=m, other=0).to(tl.int64)
    at_l = gates_lr + before[:, None] * (10 * D) + o_d[None, :]
    at_r = gates_lr + row[:, None] * (10 * D) + 5 * D + o_d[None, :]
    # no list in a kernel: five gates, one after the other; the bias is in the left products
    i = tl.load(at_l, mask=m_d, other=0.0) + tl.load(at_r, mask=m_d, other=0.0)
    f_l = tl.load(at_l + D, mask=m_d, other=0.0) + tl.load(at_r + D, mask=m_d, other=0.0)
    f_r = tl.load(at_l + 2 * D, mask=m_d, other=0.0) + tl.load(at_r + 2 * D, mask=m_d, other=0.0)
    g = tl.load(at_l + 3 * D, mask=m_d, other=0.0) + tl.load(at_r + 3 * D, mask=m_d, other=0.0)
    o = tl.load(at_l + 4 * D, mask=m_d, other=0.0) + tl.load(at_r + 4 * D, mask=m_d, other=0.0)
    c_l = tl.load(states + before[:, None] * (2 * D) + D + o_d[None, :], mask=m_d, other=0.0)
    c_r = tl.load(states + row[:, None] * (2 * D) + D + o_d[None, :], mask=m_d, other=0.0)
    i, f_l, f_r, g, o, h, c = activate(i, f_l, f_r, g, o, c_l, c_r)
    store_candidate(
        row, m, o_d, i, f_l, f_r, g, o, h, c, query, states, gates, partial, i_d,
        cap, D, TILES, RECORD,
    )  # fmt: skip


@triton.jit
def select_kernel(
    t, cand, node, score, partial, noise, forced, order, tape_rows, tape_y, scores_out,
    chosen, position, node_state, left, right, lengths, start, sentence, size, temperature,
    B, T, cap, SLACK: tl.constexpr, BT: tl.constexpr, TILES: tl.constexpr, BTILES: tl.constexpr,
    SAMPLE: tl.constexpr, FORCED: tl.constexpr, RECORD: tl.constexpr, KEEP_SCORES: tl.constexpr,
):  # fmt: skip
    """Choose the merge of each sentence at step t (Eq. S8), and move what stands right of it.

    Rows of candidates and nodes are read from one half of their buffers and written to the other.
    """
    b = tl.program_id(0)
    length = tl.load(lengths + b)
    K = length - 1 - t
    if K < 1:
        return
    r = (tl.load(start + t + 1) + b).to(tl.int64)
    j = tl.arange(0, BT)
    inside = j < K
    half = (t % 2) * B * T
    other = ((t + 1) % 2) * B * T
    c = tl.load(cand + half + b * T + j, mask=inside, other=0)
    s = tl.load(score + c, mask=inside, other=-float("inf"))
    if t > 0:
        # the two candidates of the last merge: their scores are still in parts
        a = (cap + 2 * (tl.load(start + t) + b)).to(tl.int64)
        tile = tl.arange(0, BTILES)
        m_tile = tile < TILES
        s_a = tl.sum(tl.load(partial + a * TILES + tile, mask=m_tile, other=0.0))
        s_b = tl.sum(tl.load(partial + (a + 1) * TILES + tile, mask=m_tile, other=0.0))
        s = tl.where(inside & (c == a), s_a, s)
        s = tl.where(inside & (c == a + 1), s_b, s)
        tl.store(score + c, s, mask=inside & ((c == a) | (c == a + 1)))
    own = tl.load(sentence + b)
    if KEEP_SCORES:
        tl.store(scores_out + (own * (T - 1) + t) * (T - 1) + j, s, mask=inside)
    if SAMPLE:
        s += tl.load(noise + (own * (T - 1) + t) * (T - 1) + j, mask=inside, other=0.0)
    best = tl.max(s)
    if FORCED:
        k = tl.load(forced + own * (T - 1) + t).to(tl.int32)
    else:
        slack = SLACK * tl.maximum(tl.abs(best), tl.load(size))
        k = tl.min(tl.where(inside & (s >= best - slack), j, BT))
    tl.store(order + own * (T - 1) + t, k)
    if RECORD:
        tape = ((t * B) + b) * (T - 1) + j
        tl.store(tape_rows + tape, c, mask=inside)
        if SAMPLE:
            e = tl.where(inside, tl.exp((s - best) / temperature), 0.0)
            tl.store(tape_y + tape, e / tl.sum(e), mask=inside)
    merged = tl.sum(tl.where(j == k, c, 0))
    tl.store(chosen + r, merged)
    tl.store(position + r, k)
    tl.store(node_state + cap + r, cap + merged)
    if K == 1:
        return
    # layer t + 1: K nodes, K - 1 candidates
    from_node = half + b * T + j + tl.where(j > k, 1, 0)
    n = tl.load(node + from_node, mask=inside, other=0)
    n = tl.where(j == k, cap + r, n)
    tl.store(node + other + b * T + j, n, mask=inside)
    before = tl.sum(tl.where(j == k - 1, n, 0))
    after = tl.sum(tl.where(j == k + 1, n, 0))
    born = cap + 2 * r
    tl.store(left + born, tl.where(k > 0, before, -1))
    tl.store(right + born, cap + r)
    tl.store(left + born + 1, cap + r)
    tl.store(right + born + 1, tl.where(k < K - 1, after, -1))
    moved = tl.load(cand + half + b * T + j + tl.where(j >= k, 1, 0), mask=j < K - 1, other=0)
    moved = tl.where(j == k - 1, born, moved)
    moved = tl.where(j == k, born + 1, moved)
    tl.store(cand + other + b * T + j, moved, mask=j < K - 1)


@triton.jit
def compose_kernel(
    t, weight, bias, query, states, gates_lr, gates, partial, node_state, left, right, start,
    cap, D: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr, BK: tl.constexpr,
    TILES: tl.constexpr, RECORD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Project the nodes made at step t, and compose the two candidates beside each (Eqs. 1-3)."""
    i_m, i_d = tl.program_id(0), tl.program_id(1)
    # sentences that go on after this merge
    n = tl.load(start + t + 3) - tl.load(start + t + 2)
    if i_m * BM >= n:
        return
    b = i_m * BM + tl.arange(0, BM)
    m = b < n
    r = (tl.load(start + t + 1) + b).to(tl.int64)
    o_d = i_d * BD + tl.arange(0, BD)
    m_d = m[:, None] & (o_d < D)[None, :]
    new = tl.load(node_state + cap + r, mask=m, other=0).to(tl.int64)
    kind = query.dtype.element_ty
    # ten gates in two wide products, gate by gate within a unit: i fl fr g o as left child and
    # i fl fr as right child, then g o as right child
    o_8 = tl.arange(0, 8 * BD)
    unit_8 = i_d * BD + o_8 // 8
    gate_8 = o_8 % 8
    w_8 = tl.where(gate_8 < 5, gate_8 * D, (gate_8 - 5) * D) + unit_8
    w_8 = w_8 * (2 * D) + tl.where(gate_8 < 5, 0, D)
    o_2 = tl.arange(0, 2 * BD)
    unit_2 = i_d * BD + o_2 // 2
    w_2 = ((3 + o_2 % 2) * D + unit_2) * (2 * D) + D
    acc_8 = tl.full((BM, 8 * BD), 0.0, dtype=kind)
    acc_2 = tl.full((BM, 2 * BD), 0.0, dtype=kind)
    for i_k in range(0, D, BK):
        o_k = i_k + tl.arange(0, BK)
        m_k = o_k < D
        h = tl.load(
            states + new[:, None] * (2 * D) + o_k[None, :],
            mask=m[:, None] & m_k[None, :],
            other=0.0,
        )
        m_w = m_k[:, None] & (unit_8 < D)[None, :]
        acc_8 = dot(
            h, tl.load(weight + w_8[None, :] + o_k[:, None], mask=m_w, other=0.0), acc_8, PRECISION
        )
        m_w = m_k[:, None] & (unit_2 < D)[None, :]
        acc_2 = dot(
            h, tl.load(weight + w_2[None, :] + o_k[:, None], mask=m_w, other=0.0), acc_2, PRECISION
        )
    even, odd = tl.split(tl.reshape(acc_8, (BM, BD, 2, 2, 2)))
    even_0, even_1 = tl.split(even)
    odd_0, odd_1 = tl.split(odd)
    l_i, l_o = tl.split(even_0)
    l_fr, r_fl = tl.split(even_1)
    l_fl, r_i = tl.split(odd_0)
    l_g, r_fr = tl.split(odd_1)
    r_g, r_o = tl.split(tl.reshape(acc_2, (BM, BD, 2)))
    m_o = o_d < D
    l_i += tl.load(bias + o_d, mask=m_o, other=0.0)[None, :]
    l_fl += tl.load(bias + D + o_d, mask=m_o, other=0.0)[None, :]
    l_fr += tl.load(bias + 2 * D + o_d, mask=m_o, other=0.0)[None, :]
    l_g += tl.load(bias + 3 * D + o_d, mask=m_o, other=0.0)[None, :]
    l_o += tl.load(bias + 4 * D + o_d, mask=m_o, other=0.0)[None, :]
    at = gates_lr + (cap + r)[:, None] * (10 * D) + o_d[None, :]
    tl.store(at, l_i, mask=m_d)
    tl.store(at + D, l_fl, mask=m_d)
    tl.store(at + 2 * D, l_fr, mask=m_d)
    tl.store(at + 3 * D, l_g, mask=m_d)
    tl.store(at + 4 * D, l_o, mask=m_d)
    at += 5 * D
    tl.store(at, r_i, mask=m_d)
    tl.store(at + D, r_fl, mask=m_d)
    tl.store(at + 2 * D, r_fr, mask=m_d)
    tl.store(at + 3 * D, r_g, mask=m_d)
    tl.store(at + 4 * D, r_o, mask=m_d)
    c_new = tl.load(states + new[:, None] * (2 * D) + D + o_d[None, :], mask=m_d, other=0.0)
    born = cap + 2 * r

    # left of the new node
    near = tl.load(left + born, mask=m, other=-1).to(tl.int64)
    m_n = m & (near >= 0)
    m_nd = m_n[:, None] & (o_d < D)[None, :]
    at = gates_lr + near[:, None] * (10 * D) + o_d[None, :]
    r_i += tl.load(at, mask=m_nd, other=0.0)
    r_fl += tl.load(at + D, mask=m_nd, other=0.0)
    r_fr += tl.load(at + 2 * D, mask=m_nd, other=0.0)
    r_g += tl.load(at + 3 * D, mask=m_nd, other=0.0)
    r_o += tl.load(at + 4 * D, mask=m_nd, other=0.0)
    state = tl.load(node_state + near, mask=m_n, other=0).to(tl.int64)
    c_near = tl.load(states + state[:, None] * (2 * D) + D + o_d[None, :], mask=m_nd, other=0.0)
    i, f_l, f_r, g, o, h, c = activate(r_i, r_fl, r_fr, r_g, r_o, c_near, c_new)
    store_candidate(
        born, m_n, o_d, i, f_l, f_r, g, o, h, c, query, states, gates, partial, i_d,
        cap, D, TILES, RECORD,
    )  # fmt: skip

    # right of it
    near = tl.load(right + born + 1, mask=m, other=-1).to(tl.int64)
    m_n = m & (near >= 0)
    m_nd = m_n[:, None] & (o_d < D)[None, :]
    at = gates_lr + near[:, None] * (10 * D) + 5 * D + o_d[None, :]
    l_i += tl.load(at, mask=m_nd, other=0.0)
    l_fl += tl.load(at + D, mask=m_nd, other=0.0)
    l_fr += tl.load(at + 2 * D, mask=m_nd, other=0.0)
    l_g += tl.load(at + 3 * D, mask=m_nd, other=0.0)
    l_o += tl.load(at + 4 * D, mask=m_nd, other=0.0)
    state = tl.load(node_state + near, mask=m_n, other=0).to(tl.int64)
    c_near = tl.load(states + state[:, None] * (2 * D) + D + o_d[None, :], mask=m_nd, other=0.0)
    i, f_l, f_r, g, o, h, c = activate(l_i, l_fl, l_fr, l_g, l_o, c_new, c_near)
    store_candidate(
        born + 1, m_n, o_d, i, f_l, f_r, g, o, h, c, query, states, gates, partial, i_d,
        cap, D, TILES, RECORD,
    )  # fmt: skip


@triton.jit
def activate_backward(dh, dc, i, f_l, f_r, g, o, c, c_l, c_r):
    """Return gradients of the five gates before activation and of both children's c."""
    tanh_c = tanh(c)
    dc += dh * o * (1 - tanh_c * tanh_c)
    d_i = dc * g * i * (1 - i)
    d_fl = dc * c_l * f_l * (1 - f_l)
    d_fr = dc * c_r * f_r * (1 - f_r)
    d_g = dc * i * (1 - g * g)
    d_o = dh * tanh_c * o * (1 - o)
    return d_i, d_fl, d_fr, d_g, d_o, dc * f_l, dc * f_r


@triton.jit
def score_backward_kernel(
    query, states, gates, left, right, node_state, start, words, dgates, v_c,
    cap, D: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """For each candidate: what a unit of its score sends to its gates and its children's c.

    Slots without a candidate get zeros.
    """
    i_m, i_d = tl.program_id(0), tl.program_id(1)
    c = (i_m * BM + tl.arange(0, BM)).to(tl.int64)
    o_d = i_d * BD + tl.arange(0, BD)
    N = tl.load(words)
    m_all = c < 3 * cap
    l = tl.load(left + c, mask=m_all, other=-1).to(tl.int64)
    r = tl.load(right + c, mask=m_all, other=-1).to(tl.int64)
    word = (c >= tl.load(start + 1)) & (c < N)
    m = m_all & (word | ((c >= cap) & (l >= 0) & (r >= 0)))
    m_d = m[:, None] & (o_d < D)[None, :]
    s_l = tl.load(node_state + l, mask=m, other=0).to(tl.int64)
    s_r = tl.load(node_state + r, mask=m, other=0).to(tl.int64)
    at = gates + c[:, None] * (5 * D) + o_d[None, :]
    i = tl.load(at, mask=m_d, other=0.0)
    f_l = tl.load(at + D, mask=m_d, other=0.0)
    f_r = tl.load(at + 2 * D, mask=m_d, other=0.0)
    g = tl.load(at + 3 * D, mask=m_d, other=0.0)
    o = tl.load(at + 4 * D, mask=m_d, other=0.0)
    own = tl.load(states + (cap + c)[:, None] * (2 * D) + D + o_d[None, :], mask=m_d, other=0.0)
    c_l = tl.load(states + s_l[:, None] * (2 * D) + D + o_d[None, :], mask=m_d, other=0.0)
    c_r = tl.load(states + s_r[:, None] * (2 * D) + D + o_d[None, :], mask=m_d, other=0.0)
    q = tl.load(query + o_d, mask=o_d < D, other=0.0)
    dh = tl.where(m_d, q[None, :], 0.0)
    d_i, d_fl, d_fr, d_g, d_o, dc_l, dc_r = activate_backward(
        dh, dh * 0, i, f_l, f_r, g, o, own, c_l, c_r
    )
    m_s = m_all[:, None] & (o_d < D)[None, :]
    at = dgates + c[:, None] * (5 * D) + o_d[None, :]
    tl.store(at, d_i, mask=m_s)
    tl.store(at + D, d_fl, mask=m_s)
    tl.store(at + 2 * D, d_fr, mask=m_s)
    tl.store(at + 3 * D, d_g, mask=m_s)
    tl.store(at + 4 * D, d_o, mask=m_s)
    at = v_c + c[:, None] * (2 * D) + o_d[None, :]
    tl.store(at, dc_l, mask=m_s)
    tl.store(at + D, dc_r, mask=m_s)


@triton.jit
def undo_kernel(
    t, weight_t, G, merge_dgates, left, right, chosen, start,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Send the gates' gradients of the merges of step t to the h of both children."""
    i_m, i_n = tl.program_id(0), tl.program_id(1)
    n = tl.load(start + t + 2) - tl.load(start + t + 1)
    if i_m * BM >= n:
        return
    b = i_m * BM + tl.arange(0, BM)
    m = b < n
    r = (tl.load(start + t + 1) + b).to(tl.int64)
    c = tl.load(chosen + r, mask=m, other=0).to(tl.int64)
    l_node = tl.load(left + c, mask=m, other=0).to(tl.int64)
    r_node = tl.load(right + c, mask=m, other=0).to(tl.int64)
    o_n = i_n * BN + tl.arange(0, BN)
    m_n = o_n < 2 * D
    acc = tl.full((BM, BN), 0.0, dtype=G.dtype.element_ty)
    for i_k in range(0, 5 * D, BK):
        o_k = i_k + tl.arange(0, BK)
        m_k = o_k < 5 * D
        a = tl.load(
            merge_dgates + r[:, None] * (5 * D) + o_k[None, :],
            mask=m[:, None] & m_k[None, :],
            other=0.0,
        )
        w = tl.load(
            weight_t + o_n[None, :] * (5 * D) + o_k[:, None],
            mask=m_k[:, None] & m_n[None, :],
            other=0.0,
        )
        acc = dot(a, w, acc, PRECISION)
    is_left = (o_n < D)[None, :]
    node = tl.where(is_left, l_node[:, None], r_node[:, None])
    unit = tl.where(o_n < D, o_n, o_n - D)
    tl.store(G + node * (2 * D) + unit[None, :], acc, mask=m[:, None] & m_n[None, :])


@triton.jit
def dots_kernel(
    t, G, dnodes, states, left, right, node_state, position, rows, numbers, lengths, start,
    B, T, cap, D: tl.constexpr, BJ: tl.constexpr, BK: tl.constexpr, HAS_DNODES: tl.constexpr,
):  # fmt: skip
    """For each candidate of layer t: X = G'.(r - l) and Y = G'.(own - l) (ops/README.md).

    G' is the gradient of the node that stands at its position in the layer above.
    """
    b, i_j = tl.program_id(0), tl.program_id(1)
    K = tl.load(lengths + b) - 1 - t
    if i_j * BJ >= K:
        return
    r = (tl.load(start + t + 1) + b).to(tl.int64)
    k = tl.load(position + r)
    j = i_j * BJ + tl.arange(0, BJ)
    m = j < K
    c = tl.load(rows + (t * B + b) * (T - 1) + j, mask=m, other=0).to(tl.int64)
    l_node = tl.load(left + c, mask=m, other=0).to(tl.int64)
    r_node = tl.load(right + c, mask=m, other=0).to(tl.int64)
    node = tl.where(j < k, l_node, tl.where(j > k, r_node, cap + r))
    s_l = tl.load(node_state + l_node, mask=m, other=0).to(tl.int64)
    s_r = tl.load(node_state + r_node, mask=m, other=0).to(tl.int64)
    x = tl.full((BJ,), 0.0, dtype=states.dtype.element_ty)
    y = tl.full((BJ,), 0.0, dtype=states.dtype.element_ty)
    for i_k in range(0, 2 * D, BK):
        o_k = i_k + tl.arange(0, BK)
        m_k = m[:, None] & (o_k < 2 * D)[None, :]
        g = tl.load(G + node[:, None] * (2 * D) + o_k[None, :], mask=m_k, other=0.0)
        if HAS_DNODES:
            m_new = m_k & (j == k)[:, None]
            g += tl.load(dnodes + node[:, None] * (2 * D) + o_k[None, :], mask=m_new, other=0.0)
        at_l = tl.load(states + s_l[:, None] * (2 * D) + o_k[None, :], mask=m_k, other=0.0)
        at_r = tl.load(states + s_r[:, None] * (2 * D) + o_k[None, :], mask=m_k, other=0.0)
        own = tl.load(states + (cap + c)[:, None] * (2 * D) + o_k[None, :], mask=m_k, other=0.0)
        x += tl.sum(g * (at_r - at_l), axis=1)
        y += tl.sum(g * (own - at_l), axis=1)
    at = numbers + (b * T + j) * 2
    tl.store(at, x, mask=m)
    tl.store(at + 1, y, mask=m)


@triton.jit
def send_kernel(
    t, G, dnodes, states, gates, merge_dgates, v_h, v_c, numbers, tape_y, rows, left, right,
    node_state, chosen, position, sigma, dscores, sentence, lengths, start, temperature,
    B, T, cap, D: tl.constexpr, BJ: tl.constexpr, BD: tl.constexpr, SAMPLE: tl.constexpr,
    HAS_DSCORES: tl.constexpr, HAS_DNODES: tl.constexpr,
):  # fmt: skip
    """Send the score gradients of layer t to its nodes, then undo merge t - 1, element by element.

    Node j of the layer gets from candidate j, of which it is the left child, and from j - 1. The
    node that merge t - 1 made is then complete: its gradient goes to the merge's gates and to its
    children's c; their h waits for a product with the weights.
    """
    b, i_d = tl.program_id(0), tl.program_id(1)
    K = tl.load(lengths + b) - 1 - t
    if K < 0:
        return
    o_d = i_d * BD + tl.arange(0, BD)
    m_o = o_d < D
    kind = G.dtype.element_ty
    # merge t - 1 made this node; its gradient, if nothing is sent to it
    r = (tl.load(start + t) + b).to(tl.int64)
    p_new = G + (cap + r) * (2 * D) + o_d
    dh = tl.load(p_new, mask=m_o & (t > 0), other=0.0)
    dc = tl.load(p_new + D, mask=m_o & (t > 0), other=0.0)
    if (SAMPLE or HAS_DSCORES) and K > 0:
        j = tl.arange(0, BJ)
        m = j < K
        m_p = (j > 0) & (j <= K)
        at = (t * B + b) * (T - 1) + j
        ds = tl.full((BJ,), 0.0, dtype=kind)
        ds_p = tl.full((BJ,), 0.0, dtype=kind)
        if SAMPLE:
            x = tl.load(numbers + (b * T + j) * 2, mask=m, other=0.0)
            later = tl.cumsum(x, axis=0, reverse=True)  # x_j + x_{j+1} + ...
            dy = tl.load(numbers + (b * T + j) * 2 + 1, mask=m, other=0.0) + later - x
            dy_p = tl.load(numbers + (b * T + j - 1) * 2 + 1, mask=m_p, other=0.0) + later
            y = tl.load(tape_y + at, mask=m, other=0.0)
            y_p = tl.load(tape_y + at - 1, mask=m_p, other=0.0)
            # centred on the largest weight: small differences keep their digits
            winner = tl.argmax(tl.where(m, y, -1.0), axis=0)
            centre = tl.sum(tl.where(j == winner, dy, 0.0))
            u = tl.where(m, dy - centre, 0.0)
            mean = tl.sum(y * u)
            ds = y * (u - mean) / temperature
            ds_p = tl.where(m_p, y_p * (dy_p - centre - mean) / temperature, 0.0)
        if HAS_DSCORES:
            out = (tl.load(sentence + b) * (T - 1) + t) * (T - 1) + j
            ds += tl.load(dscores + out, mask=m, other=0.0)
            ds_p += tl.load(dscores + out - 1, mask=m_p, other=0.0)
        c = tl.load(rows + at, mask=m, other=0).to(tl.int64)
        c_p = tl.load(rows + at - 1, mask=m_p, other=0).to(tl.int64)
        if i_d == 0:
            tl.store(sigma + c, tl.load(sigma + c, mask=m, other=0.0) + ds, mask=m)
        node = tl.load(left + c, mask=m, other=0)
        node = tl.where(m, node, tl.load(right + c_p, mask=m_p, other=0)).to(tl.int64)
        m_j = m[:, None] & m_o[None, :]
        m_q = m_p[:, None] & m_o[None, :]
        m_n = (j <= K)[:, None] & m_o[None, :]
        p_g = G + node[:, None] * (2 * D) + o_d[None, :]
        p_v = c[:, None] * (2 * D) + o_d[None, :]
        p_w = c_p[:, None] * (2 * D) + D + o_d[None, :]
        is_new = (j == tl.load(position + r, mask=t > 0, other=-1))[:, None]
        g = tl.load(p_g, mask=m_n, other=0.0)
        g += ds[:, None] * tl.load(v_h + p_v, mask=m_j, other=0.0)
        g += ds_p[:, None] * tl.load(v_h + p_w, mask=m_q, other=0.0)
        tl.store(p_g, g, mask=m_n)
        dh = tl.sum(tl.where(is_new, g, 0.0), axis=0)
        g = tl.load(p_g + D, mask=m_n, other=0.0)
        g += ds[:, None] * tl.load(v_c + p_v, mask=m_j, other=0.0)
        g += ds_p[:, None] * tl.load(v_c + p_w, mask=m_q, other=0.0)
        tl.store(p_g + D, g, mask=m_n)
        dc = tl.sum(tl.where(is_new, g, 0.0), axis=0)
    if t == 0:
        return
    if HAS_DNODES:
        at = dnodes + (cap + r) * (2 * D) + o_d
        dh += tl.load(at, mask=m_o, other=0.0)
        dc += tl.load(at + D, mask=m_o, other=0.0)
    c = tl.load(chosen + r).to(tl.int64)
    l_node = tl.load(left + c).to(tl.int64)
    r_node = tl.load(right + c).to(tl.int64)
    at = gates + c * (5 * D) + o_d
    i = tl.load(at, mask=m_o, other=0.0)
    f_l = tl.load(at + D, mask=m_o, other=0.0)
    f_r = tl.load(at + 2 * D, mask=m_o, other=0.0)
    g = tl.load(at + 3 * D, mask=m_o, other=0.0)
    o = tl.load(at + 4 * D, mask=m_o, other=0.0)
    own = tl.load(states + (cap + c) * (2 * D) + D + o_d, mask=m_o, other=0.0)
    s_l = tl.load(node_state + l_node).to(tl.int64)
    s_r = tl.load(node_state + r_node).to(tl.int64)
    c_l = tl.load(states + s_l * (2 * D) + D + o_d, mask=m_o, other=0.0)
    c_r = tl.load(states + s_r * (2 * D) + D + o_d, mask=m_o, other=0.0)
    d_i, d_fl, d_fr, d_g, d_o, dc_l, dc_r = activate_backward(
        dh, dc, i, f_l, f_r, g, o, own, c_l, c_r
    )
    at = merge_dgates + r * (5 * D) + o_d
    tl.store(at, d_i, mask=m_o)
    tl.store(at + D, d_fl, mask=m_o)
    tl.store(at + 2 * D, d_fr, mask=m_o)
    tl.store(at + 3 * D, d_g, mask=m_o)
    tl.store(at + 4 * D, d_o, mask=m_o)
    tl.store(G + l_node * (2 * D) + D + o_d, dc_l, mask=m_o)
    tl.store(G + r_node * (2 * D) + D + o_d, dc_r, mask=m_o)
