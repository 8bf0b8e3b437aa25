"""Backward Triton kernels of `fused`; legend and numbering as in forward_kernels.py."""

import triton
import triton.language as tl

from gumbeltree.device.kernel_math import dot, join_chain, tanh
from gumbeltree.ops.merge.fused.estimator_kernels import store_estimated_gradients
from gumbeltree.ops.merge.fused.forward_kernels import SIZES


@triton.jit
def activate_backward(dh, dc, i, f_l, f_r, g, o, c, c_l, c_r):
    """Return the gradients of the five gates before activation and of c of both children."""
    tanh_c = tanh(c)
    dc += dh * o * (1 - tanh_c * tanh_c)
    d_i = dc * g * i * (1 - i)
    d_fl = dc * c_l * f_l * (1 - f_l)
    d_fr = dc * c_r * f_r * (1 - f_r)
    d_g = dc * i * (1 - g * g)
    d_o = dh * tanh_c * o * (1 - o)
    return d_i, d_fl, d_fr, d_g, d_o, dc * f_l, dc * f_r


@triton.jit(do_not_specialize=SIZES)
def score_backward_kernel(
    query, states, gates, left, right, node_state, start, dgates, v_c,
    T, cap, D: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Compute dgates and v_c of `Shares`.

    Zero the rows without a candidate in dgates, v_c and states, and the rows without a merge in the
    last cap rows of dgates, so that sums over all rows need no mask.
    """
    i_m, i_d = tl.program_id(0), tl.program_id(1)
    c = (i_m * BM + tl.arange(0, BM)).to(tl.int64)
    o_d = i_d * BD + tl.arange(0, BD)
    N = tl.load(start + T)
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
    nothing = dh * 0
    m_s = (m_all & ~m)[:, None] & (o_d < D)[None, :]
    tl.store(states + (cap + c)[:, None] * (2 * D) + o_d[None, :], nothing, mask=m_s)
    m_s = ((c < cap) & ~word)[:, None] & (o_d < D)[None, :]
    at = dgates + (3 * cap + c)[:, None] * (5 * D) + o_d[None, :]
    for gate in tl.static_range(5):
        tl.store(at + gate * D, nothing, mask=m_s)


@triton.jit(do_not_specialize=SIZES)
def roots_kernel(
    G, droot, roots, start, B, T, D: tl.constexpr, STATE: tl.constexpr, BD: tl.constexpr,
    HAS_DROOT: tl.constexpr,
):  # fmt: skip
    """Initialize the gradients of the roots, and zero the rows past the words.

    Rows have STATE numbers; the first D are those of h.
    """
    i = tl.program_id(0).to(tl.int64)
    o_d = tl.arange(0, BD)
    nothing = tl.full((BD,), 0.0, dtype=G.dtype.element_ty)
    if i >= tl.load(start + T):
        tl.store(G + i * STATE + o_d, nothing, mask=o_d < D)
        tl.store(G + i * STATE + D + o_d, nothing, mask=o_d < STATE - D)
    if i < B:
        at = G + tl.load(roots + i) * STATE + o_d
        gradient = nothing
        if HAS_DROOT:
            gradient = tl.load(droot + i * D + o_d, mask=o_d < D, other=0.0)
        tl.store(at, gradient, mask=o_d < D)
        tl.store(at + D, nothing, mask=o_d < STATE - D)


@triton.jit
def score_gradients(
    b, t, numbers, tape_y, dscores, sentence, temperature, K, B, T, kind: tl.constexpr,
    BT: tl.constexpr, PIECES: tl.constexpr, SAMPLE: tl.constexpr, HAS_DSCORES: tl.constexpr,
):  # fmt: skip
    """Return the score gradients of layer t, [BT], and the same shifted by one position."""
    j = tl.arange(0, BT)
    m = j < K
    m_p = (j > 0) & (j <= K)
    ds = tl.full((BT,), 0.0, dtype=kind)
    ds_p = tl.full((BT,), 0.0, dtype=kind)
    if SAMPLE:
        # partial sums of X and Y from `send_kernel`, [B, 2, PIECES, T]
        at = numbers + b.to(tl.int64) * (2 * PIECES) * T + j
        x = tl.full((BT,), 0.0, dtype=kind)
        own = tl.full((BT,), 0.0, dtype=kind)
        own_p = tl.full((BT,), 0.0, dtype=kind)
        for piece in tl.static_range(PIECES):
            x += tl.load(at + piece * T, mask=m, other=0.0)
            own += tl.load(at + (PIECES + piece) * T, mask=m, other=0.0)
            own_p += tl.load(at + (PIECES + piece) * T - 1, mask=m_p, other=0.0)
        tape = (t * B.to(tl.int64) + b) * (T - 1) + j
        y = tl.load(tape_y + tape, mask=m, other=0.0)
        y_p = tl.load(tape_y + tape - 1, mask=m_p, other=0.0)
        tau = tl.load(temperature)
        later = tl.cumsum(x, axis=0, reverse=True)  # x_j + x_{j+1} + ...
        dy = own + later - x
        # relative to the largest weight, which avoids cancellation
        winner = tl.argmax(tl.where(m, y, -1.0), axis=0)
        centre = tl.sum(tl.where(j == winner, dy, 0.0))
        u = tl.where(m, dy - centre, 0.0)
        mean = tl.sum(y * u)
        ds = y * (u - mean) / tau
        ds_p = tl.where(m_p, y_p * (own_p + later - centre - mean) / tau, 0.0)
    if HAS_DSCORES:
        out = (tl.load(sentence + b) * (T - 1) + t) * (T - 1) + j
        ds += tl.load(dscores + out, mask=m, other=0.0)
        ds_p += tl.load(dscores + out - 1, mask=m_p, other=0.0)
    return ds, ds_p


@triton.jit
def store_score_gradients(
    b, t, numbers, tape_y, dscores, sentence, temperature, lengths, out, B, T, BT: tl.constexpr,
    PIECES: tl.constexpr, SAMPLE: tl.constexpr, HAS_DSCORES: tl.constexpr,
):  # fmt: skip
    """Store `score_gradients` of the sentence of rank b, [B, 2, T], if it has a layer t."""
    K = tl.load(lengths + b, mask=b < B, other=0) - 1 - t
    if K >= 1:
        ds, ds_p = score_gradients(
            b, t, numbers, tape_y, dscores, sentence, temperature, K, B, T, out.dtype.element_ty,
            BT, PIECES, SAMPLE, HAS_DSCORES,
        )  # fmt: skip
        j = tl.arange(0, BT)
        at = out + b.to(tl.int64) * 2 * T + j
        tl.store(at, ds, mask=j < T)
        tl.store(at + T, ds_p, mask=j < T)


@triton.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=["noise", "sentence"])
def undo_kernel(
    t, weight_t, G, rest, direct, merge_dgates, left, right, chosen, start, numbers, tape_y,
    position, noise, dscores, sentence, temperature, lengths, ds_out, B, T, cap, D: tl.constexpr,
    STATE: tl.constexpr, GATES: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, PARTS: tl.constexpr, PRECISION: tl.constexpr, BT: tl.constexpr,
    PIECES: tl.constexpr, SPAN: tl.constexpr, SAMPLE: tl.constexpr, HAS_DSCORES: tl.constexpr,
    FROM_KEYS: tl.constexpr, ESTIMATOR: tl.constexpr, SETTING: tl.constexpr, DRAWS: tl.constexpr,
    HAS_DIRECT: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """Propagate the gradients of the GATES of the merges of step t to h of both children.

    With HAS_DIRECT, add `direct` [cap, 2D], the gradient that reaches h without the gates.

    The sum is split into PARTS: the first is stored in the children, the others in `rest`
    [PARTS - 1, cap, 2D], from which `send_kernel` adds them. The remaining programs, which run on
    multiprocessors that the product leaves idle, store the score gradients of layer t for
    `send_kernel`, SPAN sentences per program. Unless ESTIMATOR is ST-Gumbel, `tape_y` holds scores.
    """
    i_m, i_n, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if part >= PARTS:
        estimated: tl.constexpr = SAMPLE and ESTIMATOR != "st_gumbel"
        if not estimated:
            join_chain(CHAIN)
        i = ((part - PARTS) * tl.num_programs(1) + i_n) * tl.num_programs(0) + i_m
        for k in range(SPAN):
            if estimated:
                store_estimated_gradients(
                    i * SPAN + k, t, numbers, tape_y, position, noise, dscores, sentence,
                    temperature, lengths, start, ds_out, B, T, BT, PIECES, HAS_DSCORES, FROM_KEYS,
                    ESTIMATOR, SETTING, DRAWS, CHAIN,
                )  # fmt: skip
            else:
                store_score_gradients(
                    i * SPAN + k, t, numbers, tape_y, dscores, sentence, temperature, lengths,
                    ds_out, B, T, BT, PIECES, SAMPLE, HAS_DSCORES,
                )  # fmt: skip
        return
    first = tl.load(start + t + 1)
    n = tl.load(start + t + 2) - first
    if i_m * BM >= n:
        join_chain(CHAIN)
        return
    b = i_m * BM + tl.arange(0, BM)
    m = b < n
    r = (first + b).to(tl.int64)
    c = tl.load(chosen + r, mask=m, other=0).to(tl.int64)
    l_node = tl.load(left + c, mask=m, other=0).to(tl.int64)
    r_node = tl.load(right + c, mask=m, other=0).to(tl.int64)
    o_n = i_n * BN + tl.arange(0, BN)
    m_n = o_n < 2 * D
    # every part but the last is a whole number of blocks
    share: tl.constexpr = (GATES + PARTS * BK - 1) // (PARTS * BK) * BK
    acc = tl.full((BM, BN), 0.0, dtype=G.dtype.element_ty)
    join_chain(CHAIN)
    for i_k in range(0, share, BK):
        o_k = part * share + i_k + tl.arange(0, BK)
        m_k = o_k < GATES
        a = tl.load(
            merge_dgates + r[:, None] * GATES + o_k[None, :],
            mask=m[:, None] & m_k[None, :],
            other=0.0,
        )
        w = tl.load(
            weight_t + o_n[None, :] * GATES + o_k[:, None],
            mask=m_k[:, None] & m_n[None, :],
            other=0.0,
        )
        acc = dot(a, w, acc, PRECISION)
    m_s = m[:, None] & m_n[None, :]
    if part == 0:
        if HAS_DIRECT:
            acc += tl.load(direct + r[:, None] * (2 * D) + o_n[None, :], mask=m_s, other=0.0)
        node = tl.where((o_n < D)[None, :], l_node[:, None], r_node[:, None])
        unit = tl.where(o_n < D, o_n, o_n - D)
        tl.store(G + node * STATE + unit[None, :], acc, mask=m_s)
    else:
        row = (part - 1).to(tl.int64) * cap + r
        tl.store(rest + row[:, None] * (2 * D) + o_n[None, :], acc, mask=m_s)


@triton.jit(do_not_specialize=SIZES)
def send_kernel(
    t, G, rest, dnodes, states, gates, merge_dgates, v_h, v_c, next_numbers, ds_stored, rows, left,
    right, node_state, chosen, position, sigma, lengths, start, B, T, cap, D: tl.constexpr,
    BJ: tl.constexpr, BD: tl.constexpr, PIECES: tl.constexpr, PARTS: tl.constexpr,
    SCORED: tl.constexpr, SAMPLE: tl.constexpr, HAS_DNODES: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """Propagate the score gradients of layer t to its nodes, then undo merge t - 1, elementwise.

    Node j of the layer gets a share from candidate j, whose left child it is, and from j - 1, whose
    right child it is. The gradient of the node of merge t - 1 is then complete and propagates to
    the gates of that merge and to c of its children; h of the children needs a product with the
    weights, in `undo_kernel`. A program handles BJ nodes and BD units.

    The complete gradients G yield the products of the layer below (see ../README.md): for each
    of its candidates, X = G.(r - l) and Y = G.(own - l). A program stores its partial sums.
    """
    b, i_d, i_j = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + b)
    r = (tl.load(start + t) + b).to(tl.int64)
    K = length - 1 - t
    if (K < 0) | (i_j * BJ > K):
        join_chain(CHAIN)
        return
    kind: tl.constexpr = G.dtype.element_ty
    o_d = i_d * BD + tl.arange(0, BD)
    m_o = o_d < D
    # position of the node of merge t - 1, and whether this program handles it
    undoes = t > 0
    place = tl.load(position + r, mask=undoes, other=-1)
    if SCORED:
        undoes = undoes & (place >= i_j * BJ) & (place < (i_j + 1) * BJ)
    m_u = m_o & undoes
    # load everything before the first store, results of the forward pass before the rest
    chosen_c = tl.load(chosen + r, mask=undoes, other=0).to(tl.int64)
    l_node = tl.load(left + chosen_c, mask=undoes, other=0).to(tl.int64)
    r_node = tl.load(right + chosen_c, mask=undoes, other=0).to(tl.int64)
    s_l = tl.load(node_state + l_node, mask=undoes, other=0).to(tl.int64)
    s_r = tl.load(node_state + r_node, mask=undoes, other=0).to(tl.int64)
    at = gates + chosen_c * (5 * D) + o_d
    i = tl.load(at, mask=m_u, other=0.0)
    f_l = tl.load(at + D, mask=m_u, other=0.0)
    f_r = tl.load(at + 2 * D, mask=m_u, other=0.0)
    g = tl.load(at + 3 * D, mask=m_u, other=0.0)
    o = tl.load(at + 4 * D, mask=m_u, other=0.0)
    own = tl.load(states + (cap + chosen_c) * (2 * D) + D + o_d, mask=m_u, other=0.0)
    c_l = tl.load(states + s_l * (2 * D) + D + o_d, mask=m_u, other=0.0)
    c_r = tl.load(states + s_r * (2 * D) + D + o_d, mask=m_u, other=0.0)
    p_new = (cap + r) * (2 * D) + o_d
    dh = tl.full((BD,), 0.0, dtype=kind)
    dc = tl.full((BD,), 0.0, dtype=kind)
    if HAS_DNODES:
        dh += tl.load(dnodes + p_new, mask=m_u, other=0.0)
        dc += tl.load(dnodes + p_new + D, mask=m_u, other=0.0)
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
        m_j = m[:, None] & m_o[None, :]
        m_q = m_p[:, None] & m_o[None, :]
        m_n = (j <= K)[:, None] & m_o[None, :]
        p_g = G + node[:, None] * (2 * D) + o_d[None, :]
        p_v = c[:, None] * (2 * D) + o_d[None, :]
        p_w = c_p[:, None] * (2 * D) + D + o_d[None, :]
        # the children of merge t
        r_t = (tl.load(start + t + 1, mask=K > 0, other=0) + b).to(tl.int64)
        k_t = tl.load(position + r_t, mask=K > 0, other=-2)
        m_r = ((j == k_t) | (j == k_t + 1)) & (K > 0)
        p_rest = rest + r_t * (2 * D) + tl.where(j == k_t, 0, D)[:, None] + o_d[None, :]
        l_h = tl.load(v_h + p_v, mask=m_j, other=0.0)
        r_h = tl.load(v_h + p_w, mask=m_q, other=0.0)
        l_c = tl.load(v_c + p_v, mask=m_j, other=0.0)
        r_c = tl.load(v_c + p_w, mask=m_q, other=0.0)
        before = tl.load(sigma + c, mask=m & (i_d == 0), other=0.0)
        if SAMPLE:
            # r - l and own - l of the candidates of the layer below
            m_b = (j <= K) & (t > 0)
            m_bd = m_b[:, None] & m_o[None, :]
            c_b = tl.load(rows + tape - B.to(tl.int64) * (T - 1), mask=m_b, other=0).to(tl.int64)
            b_l = tl.load(left + c_b, mask=m_b, other=0).to(tl.int64)
            b_r = tl.load(right + c_b, mask=m_b, other=0).to(tl.int64)
            b_l = tl.load(node_state + b_l, mask=m_b, other=0).to(tl.int64)
            b_r = tl.load(node_state + b_r, mask=m_b, other=0).to(tl.int64)
            p_l = states + b_l[:, None] * (2 * D) + o_d[None, :]
            p_r = states + b_r[:, None] * (2 * D) + o_d[None, :]
            p_own = states + (cap + c_b)[:, None] * (2 * D) + o_d[None, :]
            at_l = tl.load(p_l, mask=m_bd, other=0.0)
            x_h = tl.load(p_r, mask=m_bd, other=0.0) - at_l
            y_h = tl.load(p_own, mask=m_bd, other=0.0) - at_l
            at_l = tl.load(p_l + D, mask=m_bd, other=0.0)
            x_c = tl.load(p_r + D, mask=m_bd, other=0.0) - at_l
            y_c = tl.load(p_own + D, mask=m_bd, other=0.0) - at_l
        join_chain(CHAIN)
        g_h = tl.load(p_g, mask=m_n, other=0.0)
        g_c = tl.load(p_g + D, mask=m_n, other=0.0)
        for part in tl.static_range(PARTS - 1):
            # the other parts of the product
            at = p_rest + cap.to(tl.int64) * (part * 2 * D)
            g_h += tl.load(at, mask=m_r[:, None] & m_o[None, :], other=0.0)
        at = ds_stored + b.to(tl.int64) * 2 * T + j
        ds = tl.load(at, mask=m, other=0.0)
        ds_p = tl.load(at + T, mask=m_p, other=0.0)
        g_h += ds[:, None] * l_h + ds_p[:, None] * r_h
        g_c += ds[:, None] * l_c + ds_p[:, None] * r_c
        if K > 0:
            tl.store(p_g, g_h, mask=m_n)
            tl.store(p_g + D, g_c, mask=m_n)
        tl.store(sigma + c, before + ds, mask=m & (i_d == 0))
        is_new = (j == place)[:, None]
        if HAS_DNODES:
            # to the new node only: others get theirs at the layer where they are created
            g_h += tl.where(is_new, dh[None, :], 0.0)
            g_c += tl.where(is_new, dc[None, :], 0.0)
        dh = tl.sum(tl.where(is_new, g_h, 0.0), axis=0)
        dc = tl.sum(tl.where(is_new, g_c, 0.0), axis=0)
        if SAMPLE:
            x = tl.sum(g_h * x_h + g_c * x_c, axis=1)
            y = tl.sum(g_h * y_h + g_c * y_c, axis=1)
            p_x = next_numbers + (b.to(tl.int64) * (2 * PIECES) + i_d) * T + j
            tl.store(p_x, x, mask=m_b)
            tl.store(p_x + PIECES * T, y, mask=m_b)
    else:
        join_chain(CHAIN)
        dh += tl.load(G + p_new, mask=m_u, other=0.0)
        dc += tl.load(G + p_new + D, mask=m_u, other=0.0)
    d_i, d_fl, d_fr, d_g, d_o, dc_l, dc_r = activate_backward(
        dh, dc, i, f_l, f_r, g, o, own, c_l, c_r
    )
    at = merge_dgates + r * (5 * D) + o_d
    tl.store(at, d_i, mask=m_u)
    tl.store(at + D, d_fl, mask=m_u)
    tl.store(at + 2 * D, d_fr, mask=m_u)
    tl.store(at + 3 * D, d_g, mask=m_u)
    tl.store(at + 4 * D, d_o, mask=m_u)
    tl.store(G + l_node * (2 * D) + D + o_d, dc_l, mask=m_u)
    tl.store(G + r_node * (2 * D) + D + o_d, dc_r, mask=m_u)


@triton.jit
def gradient_row(i, left, right, chosen, sigma, start, T, cap, offset):
    """Return candidate, children, existence and factor of row i of the gate gradients.

    The first `offset` rows are candidates, whose factor is their summed score gradient; the others
    are merges.
    """
    first = tl.load(start + 1)
    N = tl.load(start + T)
    r = i - offset
    is_merge = r >= 0
    merge = is_merge & (r >= first) & (r < N)
    c = tl.where(is_merge, tl.load(chosen + r, mask=merge, other=0).to(tl.int64), i)
    l_node = tl.load(left + c).to(tl.int64)
    r_node = tl.load(right + c).to(tl.int64)
    word = (c >= first) & (c < N)
    exists = (word | ((c >= cap) & (l_node >= 0) & (r_node >= 0))) & (merge | (r < 0))
    scale = tl.load(sigma + c, mask=exists & (r < 0), other=1.0)
    return c, l_node, r_node, exists, scale


@triton.jit(do_not_specialize=["T", "cap", "offset"])
def children_kernel(
    states, left, right, node_state, chosen, sigma, start, children, T, cap, offset,
    D: tl.constexpr, STATE: tl.constexpr, WIDTH: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    """Store h of both children, and a 1 for the bias, times the factor of each `gradient_row`.

    Rows without a candidate or merge are zero.
    """
    i = tl.program_id(0).to(tl.int64)
    o = tl.arange(0, BW)
    _, l_node, r_node, exists, scale = gradient_row(
        i, left, right, chosen, sigma, start, T, cap, offset
    )
    s_l = tl.load(node_state + l_node, mask=exists, other=0).to(tl.int64)
    s_r = tl.load(node_state + r_node, mask=exists, other=0).to(tl.int64)
    at = tl.where(o < D, s_l * STATE + o, s_r * STATE + o - D)
    x = tl.load(states + at, mask=exists & (o < 2 * D), other=0.0)
    x = tl.where(exists & (o == 2 * D), 1.0, x) * scale
    tl.store(children + i * WIDTH + o, x, mask=o < WIDTH)
