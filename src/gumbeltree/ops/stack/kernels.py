"""Triton kernels of shift-reduce: the parts of a step between its products.

A step has B merges, from row `offset` of what is stored for all steps. With a tracker, it has one
for each sentence, whether it exists or not. Program (i, j) handles BD columns of merge i. Merges of
a step share no rows of states but those that stand for missing nodes, to whose gradients only zeros
are added, and one that is written and never read. So there are no atomic additions, and results are
deterministic.

Legend, with state width D and tracker width d:

    p_rows     [3, steps]       rows of left child, right child and parent
    p_next     [steps]          row of the next word
    p_states   [rows, 2D]       h and c, concatenated
    p_inputs   [steps, WIDE]    inputs of the products; see `fused.StackColumns`
    p_gates    [steps, 5D]      gates i, f_l, f_r, g, o, which are activated in place
    p_track    [steps, 4d]      gates i, f, g, o of the tracker, which are activated in place
    p_tracked  [steps, 2d]      h and c of the tracker
    p_dread    [B, 2D + DP]     gradient of the inputs of the composition, in one step
    p_dview    [B, 3D + DP]     gradient of the inputs of the tracker, in one step
    p_kept     [steps, ...]     factors of dropout, if DROPS: of the children's h, [..., 2D], in
                                `read_kernel` and `add_kernel`, of g, [..., D], in the other two
    NODES                       first row that stands for a missing node
    DP                          d, padded
"""

import triton
import triton.language as tl

from gumbeltree.device.kernel_math import sigmoid, tanh


@triton.jit(do_not_specialize=["M"])
def spans_kernel(p_order, p_start, p_end, M, BT: tl.constexpr):
    """Find the spans of M merges, as `fused.spans_of` does, in one program per sentence; BT > M."""
    row = tl.program_id(0).to(tl.int64) * M
    word = tl.arange(0, BT)
    length = 1 + tl.sum((tl.load(p_order + row + word, mask=word < M, other=-1) >= 0).to(tl.int32))
    # whether a node without a parent begins with the word
    begins = (word < length).to(tl.int32)
    for t in range(0, BT):
        place = tl.load(p_order + row + t, mask=t < M, other=-1)
        made = place >= 0
        number = tl.where(begins > 0, tl.cumsum(begins, axis=0) - 1, -1)
        start = tl.sum(tl.where(number == place, word, 0))
        end = tl.sum(tl.where(number == place + 2, word, 0))
        # a word after the last node ends its span as well
        end = tl.where(end > 0, end, length)
        begins = tl.where(number == place + 1, 0, begins)
        tl.store(p_start + row + t, tl.where(made, start, 0).to(tl.int64), mask=t < M)
        tl.store(p_end + row + t, tl.where(made, end, 0).to(tl.int64), mask=t < M)


@triton.jit(do_not_specialize=["B", "T"])
def merges_kernel(p_order, p_sentence, p_lengths, p_rows, B, T, BT: tl.constexpr):
    """Write the rows of the merges of given trees; see `fused.merge_rows`.

    Program i handles sentence i of a layout with T rows each. p_order is [B, T-1], in the caller's
    order of the sentences. BT is at least T.
    """
    i = tl.program_id(0).to(tl.int64)
    p_merge = p_order + tl.load(p_sentence + i) * (T - 1)
    length = tl.load(p_lengths + i)
    # nodes, and their place among those without a parent; -1 if they have one
    place = tl.arange(0, BT)
    row = place * B + i
    steps = (T - 1) * B
    t = 0
    while t < T - 1:
        exists = t < length - 1
        left = tl.where(exists, tl.load(p_merge + t), 0)
        parent = (T + t) * B + i
        # one lane each
        p_child = p_rows + t * B + i + place * 0
        tl.store(p_child, row, mask=place == left)
        tl.store(p_child + steps, row, mask=place == left + 1)
        # where nothing is merged, the parent goes to a row that is not read
        made = tl.where(exists, parent, (2 * T - 1) * B + 3)
        tl.store(p_rows + 2 * steps + t * B + i, made)
        row = tl.where(place == left, parent, row)
        place = tl.where(place == left + 1, -1, tl.where(place > left, place - 1, place))
        t += 1


@triton.jit(do_not_specialize=["B", "T", "ORDER"])
def advance_kernel(
    p_wanted, p_lengths, p_stack, p_size, p_merged, p_order, p_rows, p_view, B, T, ORDER,
    BS: tl.constexpr,
):  # fmt: skip
    """Make one step of all stacks; see `machine.Machine.advance`.

    Program i handles BS sentences of a layout with T rows each. It writes what the merges read and
    write to p_rows [3, B], and top node, second node and next word after the step to p_view [B, 3].
    p_stack is [B, T], p_order [B, ORDER].
    """
    o_b = tl.program_id(0) * BS + tl.arange(0, BS)
    m_b = o_b < B
    o_b = o_b.to(tl.int64)
    size = tl.load(p_size + o_b, mask=m_b, other=0)
    merged = tl.load(p_merged + o_b, mask=m_b, other=0)
    length = tl.load(p_lengths + o_b, mask=m_b, other=0)
    wanted = tl.load(p_wanted + o_b, mask=m_b, other=0) != 0
    nodes = (2 * T - 1) * B
    read = size + merged
    can_shift = read < length
    reduces = (size > 1) & (wanted | (read >= length))
    shifts = can_shift & (reduces == 0)
    p_here = p_stack + o_b * T + size
    top = tl.load(p_here - 1, mask=m_b & (size > 0), other=nodes)
    second = tl.load(p_here - 2, mask=m_b & (size > 1), other=nodes + 1)
    third = tl.load(p_here - 3, mask=m_b & (size > 2), other=nodes + 1)
    parent, word = (T + merged) * B + o_b, read * B + o_b
    # where nothing is merged, the parent goes to a row that is not read
    tl.store(p_rows + o_b, tl.where(reduces, second, o_b), mask=m_b)
    tl.store(p_rows + B + o_b, tl.where(reduces, top, o_b), mask=m_b)
    tl.store(p_rows + 2 * B + o_b, tl.where(reduces, parent, nodes + 3), mask=m_b)
    tl.store(p_order + o_b * ORDER + merged, size - 2, mask=m_b & reduces)
    tl.store(p_here - 2, parent, mask=m_b & reduces)
    tl.store(p_here, word, mask=m_b & shifts)
    read += tl.where(shifts, 1, 0)
    new_second = tl.where(reduces, third, tl.where(size > 0, top, nodes + 1))
    second = tl.where(reduces | shifts, new_second, second)
    top = tl.where(reduces, parent, tl.where(shifts, word, top))
    tl.store(p_view + o_b * 3, top, mask=m_b)
    tl.store(p_view + o_b * 3 + 1, second, mask=m_b)
    tl.store(p_view + o_b * 3 + 2, tl.where(read < length, read * B + o_b, nodes + 2), mask=m_b)
    tl.store(p_size + o_b, size + tl.where(shifts, 1, 0) - tl.where(reduces, 1, 0), mask=m_b)
    tl.store(p_merged + o_b, merged + tl.where(reduces, 1, 0), mask=m_b)


@triton.jit(do_not_specialize=["offset", "B", "steps"])
def read_kernel(
    p_rows, p_next, p_states, p_tracked, p_inputs, offset, B, steps, p_kept, D: tl.constexpr,
    d: tl.constexpr, FIRST: tl.constexpr, WIDE: tl.constexpr, BD: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """Write h of the children and, with a tracker, of the next word and the last tracker state."""
    at = (offset + tl.program_id(0)).to(tl.int64)
    o_d = tl.program_id(1) * BD + tl.arange(0, BD)
    m_d = o_d < D
    p_to = p_inputs + at * WIDE + o_d
    left, right = tl.load(p_rows + at), tl.load(p_rows + steps + at)
    b_left = tl.load(p_states + left * (2 * D) + o_d, mask=m_d, other=0.0)
    b_right = tl.load(p_states + right * (2 * D) + o_d, mask=m_d, other=0.0)
    if DROPS:
        b_left *= tl.load(p_kept + at * (2 * D) + o_d, mask=m_d, other=0.0)
        b_right *= tl.load(p_kept + at * (2 * D) + D + o_d, mask=m_d, other=0.0)
    tl.store(p_to + FIRST, b_left, mask=m_d)
    tl.store(p_to + FIRST + D, b_right, mask=m_d)
    if d > 0:
        word = tl.load(p_next + at)
        tl.store(p_to, tl.load(p_states + word * (2 * D) + o_d, mask=m_d, other=0.0), mask=m_d)
        if offset > 0:
            m_e = o_d < d
            b_e = tl.load(p_tracked + (at - B) * (2 * d) + o_d, mask=m_e, other=0.0)
            tl.store(p_to + D, b_e, mask=m_e)


@triton.jit(do_not_specialize=["offset", "B"])
def track_kernel(
    p_track, p_tracked, p_inputs, offset, B, D: tl.constexpr, d: tl.constexpr, FIRST: tl.constexpr,
    WIDE: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Compute the state of the tracker, which is also an input of the composition."""
    at = (offset + tl.program_id(0)).to(tl.int64)
    o_d = tl.program_id(1) * BD + tl.arange(0, BD)
    m = o_d < d
    p_gate = p_track + at * (4 * d) + o_d
    b_i = sigmoid(tl.load(p_gate, mask=m, other=0.0))
    b_f = sigmoid(tl.load(p_gate + d, mask=m, other=0.0))
    b_g = tanh(tl.load(p_gate + 2 * d, mask=m, other=0.0))
    b_o = sigmoid(tl.load(p_gate + 3 * d, mask=m, other=0.0))
    b_c = b_i * b_g
    if offset > 0:
        b_c += b_f * tl.load(p_tracked + (at - B) * (2 * d) + d + o_d, mask=m, other=0.0)
    b_h = b_o * tanh(b_c)
    tl.store(p_gate, b_i, mask=m)
    tl.store(p_gate + d, b_f, mask=m)
    tl.store(p_gate + 2 * d, b_g, mask=m)
    tl.store(p_gate + 3 * d, b_o, mask=m)
    tl.store(p_tracked + at * (2 * d) + o_d, b_h, mask=m)
    tl.store(p_tracked + at * (2 * d) + d + o_d, b_c, mask=m)
    tl.store(p_inputs + at * WIDE + FIRST + 2 * D + o_d, b_h, mask=m)


@triton.jit(do_not_specialize=["offset", "steps"])
def compose_kernel(
    p_rows, p_states, p_gates, offset, steps, p_kept, D: tl.constexpr, BD: tl.constexpr,
    DROPS: tl.constexpr,
):  # fmt: skip
    """Compute the parents from the gates (Eqs. 1-3)."""
    at = (offset + tl.program_id(0)).to(tl.int64)
    o_d = tl.program_id(1) * BD + tl.arange(0, BD)
    m = o_d < D
    left, right = tl.load(p_rows + at), tl.load(p_rows + steps + at)
    made = tl.load(p_rows + 2 * steps + at)
    b_left = tl.load(p_states + left * (2 * D) + D + o_d, mask=m, other=0.0)
    b_right = tl.load(p_states + right * (2 * D) + D + o_d, mask=m, other=0.0)
    p_gate = p_gates + at * (5 * D) + o_d
    b_i = sigmoid(tl.load(p_gate, mask=m, other=0.0))
    b_fl = sigmoid(tl.load(p_gate + D, mask=m, other=0.0))
    b_fr = sigmoid(tl.load(p_gate + 2 * D, mask=m, other=0.0))
    b_g = tanh(tl.load(p_gate + 3 * D, mask=m, other=0.0))
    b_o = sigmoid(tl.load(p_gate + 4 * D, mask=m, other=0.0))
    tl.store(p_gate, b_i, mask=m)
    tl.store(p_gate + D, b_fl, mask=m)
    tl.store(p_gate + 2 * D, b_fr, mask=m)
    tl.store(p_gate + 3 * D, b_g, mask=m)
    tl.store(p_gate + 4 * D, b_o, mask=m)
    if DROPS:
        b_g *= tl.load(p_kept + at * D + o_d, mask=m, other=0.0)
    b_c = b_fl * b_left + b_fr * b_right + b_i * b_g
    tl.store(p_states + made * (2 * D) + o_d, b_o * tanh(b_c), mask=m)
    tl.store(p_states + made * (2 * D) + D + o_d, b_c, mask=m)


@triton.jit(do_not_specialize=["offset", "steps", "NODES"])
def compose_backward_kernel(
    p_rows, p_states, p_gates, p_dstates, p_dgates, offset, steps, NODES, p_kept, D: tl.constexpr,
    BD: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of the gates; add that of the children's c.

    It is zero where there is no merge, whose parent is past the nodes.
    """
    at = (offset + tl.program_id(0)).to(tl.int64)
    o_d = tl.program_id(1) * BD + tl.arange(0, BD)
    made = tl.load(p_rows + 2 * steps + at)
    m = (o_d < D) & (made < NODES)
    o_left = tl.load(p_rows + at) * (2 * D) + D + o_d
    o_right = tl.load(p_rows + steps + at) * (2 * D) + D + o_d
    p_gate = p_gates + at * (5 * D) + o_d
    b_i = tl.load(p_gate, mask=m, other=0.0)
    b_fl = tl.load(p_gate + D, mask=m, other=0.0)
    b_fr = tl.load(p_gate + 2 * D, mask=m, other=0.0)
    b_g = tl.load(p_gate + 3 * D, mask=m, other=0.0)
    b_o = tl.load(p_gate + 4 * D, mask=m, other=0.0)
    b_tanh = tanh(tl.load(p_states + made * (2 * D) + D + o_d, mask=m, other=0.0))
    b_dh = tl.load(p_dstates + made * (2 * D) + o_d, mask=m, other=0.0)
    b_dc = tl.load(p_dstates + made * (2 * D) + D + o_d, mask=m, other=0.0)
    b_dc += b_dh * b_o * (1 - b_tanh * b_tanh)
    b_left = tl.load(p_states + o_left, mask=m, other=0.0)
    b_right = tl.load(p_states + o_right, mask=m, other=0.0)
    p_dgate, there = p_dgates + at * (5 * D) + o_d, o_d < D
    b_dnew = b_dc
    if DROPS:
        b_dnew *= tl.load(p_kept + at * D + o_d, mask=m, other=0.0)
    tl.store(p_dgate, b_dnew * b_g * b_i * (1 - b_i), mask=there)
    tl.store(p_dgate + D, b_dc * b_left * b_fl * (1 - b_fl), mask=there)
    tl.store(p_dgate + 2 * D, b_dc * b_right * b_fr * (1 - b_fr), mask=there)
    tl.store(p_dgate + 3 * D, b_dnew * b_i * (1 - b_g * b_g), mask=there)
    tl.store(p_dgate + 4 * D, b_dh * b_tanh * b_o * (1 - b_o), mask=there)
    b_dleft = tl.load(p_dstates + o_left, mask=m, other=0.0) + b_dc * b_fl
    b_dright = tl.load(p_dstates + o_right, mask=m, other=0.0) + b_dc * b_fr
    tl.store(p_dstates + o_left, b_dleft, mask=m)
    tl.store(p_dstates + o_right, b_dright, mask=m)


@triton.jit(do_not_specialize=["offset", "B"])
def track_backward_kernel(
    p_track, p_tracked, p_dtracked, p_dread, p_dview, p_carried, p_dtrack, offset, B,
    D: tl.constexpr, d: tl.constexpr, DP: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of the tracker's gates.

    p_dview is that of the following step, and p_carried [B, d] the gradient of the tracker's c.
    """
    i = tl.program_id(0).to(tl.int64)
    at = offset + i
    o_d = tl.program_id(1) * BD + tl.arange(0, BD)
    m = o_d < d
    p_gate = p_track + at * (4 * d) + o_d
    b_i = tl.load(p_gate, mask=m, other=0.0)
    b_f = tl.load(p_gate + d, mask=m, other=0.0)
    b_g = tl.load(p_gate + 2 * d, mask=m, other=0.0)
    b_o = tl.load(p_gate + 3 * d, mask=m, other=0.0)
    b_dh = tl.load(p_dtracked + at * (2 * d) + o_d, mask=m, other=0.0)
    b_dh += tl.load(p_dread + i * (2 * D + DP) + 2 * D + o_d, mask=m, other=0.0)
    b_dh += tl.load(p_dview + i * (3 * D + DP) + D + o_d, mask=m, other=0.0)
    b_tanh = tanh(tl.load(p_tracked + at * (2 * d) + d + o_d, mask=m, other=0.0))
    b_dc = tl.load(p_dtracked + at * (2 * d) + d + o_d, mask=m, other=0.0)
    b_dc += tl.load(p_carried + i * d + o_d, mask=m, other=0.0)
    b_dc += b_dh * b_o * (1 - b_tanh * b_tanh)
    b_df = tl.full((BD,), 0.0, b_dc.dtype)
    if offset > 0:
        b_before = tl.load(p_tracked + (at - B) * (2 * d) + d + o_d, mask=m, other=0.0)
        b_df = b_dc * b_before * b_f * (1 - b_f)
    p_dgate = p_dtrack + at * (4 * d) + o_d
    tl.store(p_dgate, b_dc * b_g * b_i * (1 - b_i), mask=m)
    tl.store(p_dgate + d, b_df, mask=m)
    tl.store(p_dgate + 2 * d, b_dc * b_i * (1 - b_g * b_g), mask=m)
    tl.store(p_dgate + 3 * d, b_dh * b_tanh * b_o * (1 - b_o), mask=m)
    tl.store(p_carried + i * d + o_d, b_dc * b_f, mask=m)


@triton.jit(do_not_specialize=["offset", "steps", "NODES"])
def add_kernel(
    p_rows, p_next, p_dread, p_dview, p_dstates, offset, steps, NODES, p_kept, D: tl.constexpr,
    d: tl.constexpr, DP: tl.constexpr, BD: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """Add the gradients of all inputs to those of the nodes that were read."""
    i = tl.program_id(0).to(tl.int64)
    at = offset + i
    o_d = tl.program_id(1) * BD + tl.arange(0, BD)
    m_d = o_d < D
    left, right = tl.load(p_rows + at), tl.load(p_rows + steps + at)
    b_left = tl.load(p_dread + i * (2 * D + DP) + o_d, mask=m_d, other=0.0)
    b_right = tl.load(p_dread + i * (2 * D + DP) + D + o_d, mask=m_d, other=0.0)
    if DROPS:
        b_left *= tl.load(p_kept + at * (2 * D) + o_d, mask=m_d, other=0.0)
        b_right *= tl.load(p_kept + at * (2 * D) + D + o_d, mask=m_d, other=0.0)
    if d > 0:
        p_from = p_dview + i * (3 * D + DP) + o_d
        b_left += tl.load(p_from + D + DP, mask=m_d, other=0.0)
        b_right += tl.load(p_from + 2 * D + DP, mask=m_d, other=0.0)
        word = tl.load(p_next + at)
        p_word = p_dstates + word * (2 * D) + o_d
        m = m_d & (word < NODES)
        b_word = tl.load(p_from, mask=m_d, other=0.0)
        tl.store(p_word, tl.load(p_word, mask=m, other=0.0) + b_word, mask=m)
    p_left, p_right = p_dstates + left * (2 * D) + o_d, p_dstates + right * (2 * D) + o_d
    m_l, m_r = m_d & (left < NODES), m_d & (right < NODES)
    b_left += tl.load(p_left, mask=m_l, other=0.0)
    tl.store(p_left, b_left, mask=m_l)
    b_right += tl.load(p_right, mask=m_r, other=0.0)
    tl.store(p_right, b_right, mask=m_r)
