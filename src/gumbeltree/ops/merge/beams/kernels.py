"""Triton kernels of the beam search: one program per sentence, which handles all of its beams.

KB is the number of beams rounded up to a power of two, and BT that of positions. See `forward.py`
for the meaning of rows and hashes, and `fused.py` for the launches.
"""

import triton
import triton.language as tl


@triton.jit
def log_softmax(score, candidates, exists, NEVER: tl.constexpr):
    """Return the log-probabilities of candidates `[KB, BT]`, NEVER where there is none."""
    s = tl.load(score + candidates, mask=exists, other=NEVER)
    best = tl.max(s, axis=1)[:, None]
    total = tl.sum(tl.where(exists, tl.exp(s - best), 0.0), axis=1)[:, None]
    # finished sentences have no candidates
    return tl.where(exists, s - best - tl.log(tl.maximum(total, 1e-30)), NEVER)


@triton.jit
def entry(x, place, index):
    """Return the entry of a vector at `index`."""
    return tl.sum(tl.where(place == index, x, 0), axis=0)


@triton.jit(do_not_specialize=["t", "slots", "B", "T", "spare"])
def choose_kernel(
    t, slots, score, lengths, all_candidates, all_nodes, log_probs, all_codes, parents,
    positions, all_merged, left, right, hashes, change, B, T, spare,
    k: tl.constexpr, KB: tl.constexpr, BT: tl.constexpr,
    DISTINCT: tl.constexpr, NEVER: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    OFFSET: tl.constexpr,
):  # fmt: skip
    """Choose the merges of step t, advance the beams and number their new candidates.

    Candidates have `slots` tables for successive steps, nodes, log-probabilities and hashes two.
    After its last merge, a sentence merges row `spare + b`.
    """
    b = tl.program_id(0).to(tl.int64)
    K = T - 1 - t
    size = tl.full((), k, tl.int64) * B
    candidates = all_candidates + t % slots * size * T
    candidates_out = all_candidates + (t + 1) % slots * size * T
    nodes, nodes_out = all_nodes + t % 2 * size * T, all_nodes + (t + 1) % 2 * size * T
    log_prob, log_prob_out = log_probs + t % 2 * size, log_probs + (t + 1) % 2 * size
    code, code_out = all_codes + t % 2 * size, all_codes + (t + 1) % 2 * size
    beam, place = tl.arange(0, KB), tl.arange(0, BT)
    count = tl.load(lengths + b) - 1 - t
    active = count > 0
    inside = (beam < k)[:, None] & (place < K)[None, :]
    exists = inside & (place < count)[None, :]
    first = (b * k + beam)[:, None] * T
    rows = tl.load(candidates + first + place[None, :], mask=inside, other=0)
    logs = log_softmax(score, rows, exists, NEVER)
    keys = tl.where(inside, logs, 4 * NEVER)
    # the best k merges of each beam, [KB, KB]
    position = tl.zeros([KB, KB], tl.int32)
    value = tl.full([KB, KB], 3 * NEVER, logs.dtype)
    for i in tl.static_range(k):
        # NaN scores must not lead outside the layer
        best = tl.minimum(tl.argmax(keys, axis=1), K - 1)
        mine = place[None, :] == best[:, None]
        # fewer than k positions: do not propose one twice
        log = tl.where(
            tl.max(keys, axis=1) > 2 * NEVER, tl.sum(tl.where(mine, logs, 0.0), 1), NEVER
        )
        column = (beam == i)[None, :]
        position = tl.where(column, best[:, None], position)
        value = tl.where(column, log[:, None], value)
        keys = tl.where(mine, 3 * NEVER, keys)
    proposed = (beam < k)[:, None] & (beam < k)[None, :]
    merged = tl.load(candidates + first + position, mask=proposed, other=0)
    before = tl.load(log_prob + b * k + beam, mask=beam < k, other=0.0)
    codes = tl.load(code + b * k + beam, mask=beam < k, other=0)
    changed = codes[:, None] + tl.load(change + merged, mask=proposed, other=0)
    total = tl.where(proposed, before[:, None] + value, 1e4 * NEVER)
    # the best k of all
    N: tl.constexpr = KB * KB
    number = tl.arange(0, N)
    total, changed = tl.reshape(total, [N]), tl.reshape(changed, [N])
    position, merged = tl.reshape(position, [N]), tl.reshape(merged, [N])
    if DISTINCT:
        mine, other = total[:, None], total[None, :]
        better = (other > mine) | ((other == mine) & (number[None, :] < number[:, None]))
        same = changed[:, None] == changed[None, :]
        repeated = tl.max((same & better).to(tl.int32), axis=1) > 0
        total = tl.where(repeated, 1e3 * NEVER, total)
    made = 2 * T - 1 + 2 * k * t
    for j in tl.static_range(k):
        choice = tl.minimum(tl.argmax(total, axis=0), (k - 1) * (KB + 1))
        best = tl.max(total, axis=0)
        total = tl.where(number == choice, 1e5 * NEVER, total)
        # a finished sentence keeps its beams
        parent = tl.where(active, choice // KB, j)
        at = tl.where(active, entry(position, number, choice), K - 1)
        tl.store(parents + t * size + b * k + j, parent)
        tl.store(positions + t * size + b * k + j, at)
        kept = tl.where(active, best, entry(before, beam, j))
        tl.store(log_prob_out + b * k + j, kept)
        tl.store(code_out + b * k + j, entry(changed, number, choice))
        old = nodes + (b * k + parent) * T
        new = tl.where(active, entry(merged, number, choice), tl.load(old))
        tl.store(all_merged + b * k + j, tl.where(active, new, spare + b))
        row = tl.load(old + place + (place > at), mask=place < K, other=0)
        row = tl.where(place == at, new, row)
        tl.store(nodes_out + (b * k + j) * T + place, row, mask=place < K)
        if K > 1:
            # beyond the ends, compose anything: the result is not used
            previous = tl.load(old + at - 1, mask=at > 0, other=new)
            following = tl.load(old + at + 2, mask=at + 1 < K, other=new)
            one, other_one = (made + j) * B + b, (made + k + j) * B + b
            tl.store(left + one, previous)
            tl.store(right + one, new)
            tl.store(left + other_one, new)
            tl.store(right + other_one, following)
            a, c, d = tl.load(hashes + previous), tl.load(hashes + new), tl.load(hashes + following)
            hash_one = a * LEFT + c * RIGHT + OFFSET
            hash_other = c * LEFT + d * RIGHT + OFFSET
            tl.store(hashes + one, hash_one)
            tl.store(hashes + other_one, hash_other)
            tl.store(change + one, hash_one - a - c)
            tl.store(change + other_one, hash_other - c - d)
            former = candidates + (b * k + parent) * T + place + (place >= at)
            kept_rows = tl.load(former, mask=place < K - 1, other=0).to(tl.int64)
            kept_rows = tl.where(place == at - 1, one, kept_rows)
            kept_rows = tl.where(place == at, other_one, kept_rows)
            tl.store(candidates_out + (b * k + j) * T + place, kept_rows, mask=place < K - 1)


@triton.jit(do_not_specialize=["B", "T"])
def order_kernel(
    order, parents, positions, lengths, B, T, k: tl.constexpr, KB: tl.constexpr
):  # fmt: skip
    """Follow each surviving beam back to the first step; store its merges."""
    b = tl.program_id(0).to(tl.int64)
    beam = tl.arange(0, KB)
    length = tl.load(lengths + b)
    own = beam
    # not a for loop: the interpreter needs constant bounds
    t = T - 2
    while t >= 0:
        layer = (t * B + b) * k
        at = tl.load(positions + layer + own, mask=beam < k, other=0)
        at = tl.where(t < length - 1, at, -1)
        tl.store(order + (b * k + beam) * (T - 1) + t, at.to(tl.int64), mask=beam < k)
        own = tl.load(parents + layer + own, mask=beam < k, other=0)
        t -= 1


@triton.jit(do_not_specialize=["B", "T"])
def score_gradient_kernel(
    dlog_prob, score, sigma, lengths, candidates, parents, positions, B, T,
    k: tl.constexpr, KB: tl.constexpr, BT: tl.constexpr, NEVER: tl.constexpr,
):  # fmt: skip
    """Accumulate the gradients of all scores, from the last layer to the first."""
    b = tl.program_id(0).to(tl.int64)
    beam, place = tl.arange(0, KB), tl.arange(0, BT)
    length = tl.load(lengths + b)
    g = tl.load(dlog_prob + b * k + beam, mask=beam < k, other=0.0)
    t = T - 2
    while t >= 0:
        layer = (t * B + b).to(tl.int64) * k
        exists = (beam < k)[:, None] & (place < length - 1 - t)[None, :]
        rows = tl.load(
            candidates + (layer + beam)[:, None] * T + place[None, :], mask=exists, other=0
        )
        pi = tl.exp(log_softmax(score, rows, exists, NEVER))
        parent = tl.load(parents + layer + beam, mask=beam < k, other=-1)
        at = tl.load(positions + layer + beam, mask=beam < k, other=-1)
        mine = parent[None, :] == beam[:, None]  # [beam before, beam after]
        before = tl.sum(tl.where(mine, g[None, :], 0.0), axis=1)
        da = -before[:, None] * pi
        for j in tl.static_range(k):
            chosen = (beam == entry(parent, beam, j))[:, None] & (place == entry(at, beam, j))[
                None, :
            ]
            da += tl.where(chosen, entry(g, beam, j), 0.0)
        for j in tl.static_range(k):
            # one beam after the other: they share candidates
            there = place < length - 1 - t
            own = tl.load(candidates + (layer + j) * T + place, mask=there, other=0)
            share = tl.sum(tl.where((beam == j)[:, None], da, 0.0), axis=0)
            tl.store(sigma + own, tl.load(sigma + own, mask=there, other=0.0) + share, mask=there)
            tl.debug_barrier()
        g = before
        t -= 1


@triton.jit(do_not_specialize=["B", "n"])
def add_to_children_kernel(
    gradients, left, right, dh, dc_left, dc_right, B, n,
    D: tl.constexpr, BD: tl.constexpr, SINGLE: tl.constexpr, ONLY_H: tl.constexpr,
):  # fmt: skip
    """Add the gradients of the children of n candidates per sentence, one after the other."""
    b = tl.program_id(0).to(tl.int64)
    unit = tl.program_id(1) * BD + tl.arange(0, BD)
    inside = unit < D
    S: tl.constexpr = D if SINGLE else 2 * D
    i = 0
    while i < n:
        own = i * B + b
        for side in tl.static_range(2):
            child = tl.load((left if side == 0 else right) + own)
            to = gradients + child * S + unit
            share = tl.load(dh + own * 2 * D + side * D + unit, mask=inside)
            if not ONLY_H:
                from_c = tl.load((dc_left if side == 0 else dc_right) + own * D + unit, mask=inside)
                if SINGLE:
                    share += from_c
                else:
                    tl.store(to + D, tl.load(to + D, mask=inside) + from_c, mask=inside)
            tl.store(to, tl.load(to, mask=inside) + share, mask=inside)
        i += 1
