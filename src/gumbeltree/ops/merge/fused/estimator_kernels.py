"""Score gradients of all estimators but ST-Gumbel, for `undo_kernel`; legend as in forward_kernels.

They are computed from the scores a of a layer, its choice k and the gradient dy of its weights. For
all but SPIGOT they are sums of w J(p) dy = w p (dy - p.dy) over points p of the simplex, rows of a
tile [DRAWS, BT]. The points do not depend on dy, so they are computed before the previous kernel
has finished.
"""

import triton
import triton.language as tl

from gumbeltree.device.kernel_math import join_chain
from gumbeltree.ops.merge.fused.forward_kernels import mixed, noise_parts


@triton.jit
def softmax(x):
    """Return the softmax of x [BT], 0 where x is -inf."""
    e = tl.exp(x - tl.max(x))
    return e / tl.sum(e)


@triton.jit
def exponential(place, draw, kind: tl.constexpr):
    """Return exponentially distributed numbers, as `gumbel_rao.exponentials` does."""
    bits = mixed(place + (draw + 1).to(tl.uint32) * 0x9E3779B9, 0) >> 9
    return -tl.log((bits.to(tl.int32).to(kind) + 0.5) * 1.1920928955078125e-07)


@triton.jit
def hashed_noise(noise, own, t, j, m, T, FROM_KEYS: tl.constexpr):
    """Hash positions j with the part of [0, 1] that the noise of sentence `own` comes from."""
    if FROM_KEYS:
        parts = noise_parts(noise, own, t, j)
    else:
        g = tl.load(noise + (own * (T - 1) + t) * (T - 1) + j, mask=m, other=0.0).to(tl.float64)
        parts = (tl.exp(-tl.exp(-g)) * 8388608).to(tl.int32).to(tl.uint32)
    return mixed(parts, 0) ^ j.to(tl.uint32)


@triton.jit
def conditional_points(
    first, a, k, j, own, t, noise, T, tau, SAMPLES: tl.constexpr, DRAWS: tl.constexpr,
    FROM_KEYS: tl.constexpr,
):  # fmt: skip
    """Return softmax weights [DRAWS, BT] of noisy scores given the choice, and factors [DRAWS].

    Candidate i is behind the choice by log(1 + E_i Z / (E_k exp(a_i))), with exponentially
    distributed E and Z the sum of exp(a). The draws are those from `first` on; those past SAMPLES
    get a factor of zero.
    """
    kind: tl.constexpr = a.dtype
    draw = first + tl.arange(0, DRAWS)
    places = hashed_noise(noise, own, t, j, a > -float("inf"), T, FROM_KEYS)
    place = hashed_noise(noise, own, t, k, k >= 0, T, FROM_KEYS)
    ratio = exponential(places[None, :], draw[:, None], kind)
    ratio *= (1 / exponential(place, draw, kind))[:, None]
    best = tl.max(a)
    gap = best + tl.log(tl.sum(tl.exp(a - best))) - a
    # exp(gap) could overflow; above 60, the 1 in the logarithm has no effect
    least = tl.minimum(gap, 60.0)
    behind = tl.log(1 + ratio * tl.exp(least)[None, :]) + (gap - least)[None, :]
    e = tl.where((j == k)[None, :], 1.0, tl.exp(behind * (-1 / tau)))
    p = e * (1 / tl.sum(e, axis=1))[:, None]
    return p, tl.where(draw < SAMPLES, 1 / (SAMPLES * tau), 0.0)


@triton.jit
def points(
    a, k, j, own, t, noise, T, tau, ESTIMATOR: tl.constexpr, SETTING: tl.constexpr,
    DRAWS: tl.constexpr, FROM_KEYS: tl.constexpr,
):  # fmt: skip
    """Return points [DRAWS, BT] of an estimator, their largest entries and their factors [DRAWS].

    Of Gumbel-Rao, these are the first DRAWS draws.
    """
    row = tl.arange(0, DRAWS)
    winner = row * 0 + k
    if ESTIMATOR == "st":
        p = softmax(a / tau)[None, :]
        winner = row + tl.argmax(a, axis=0)
        factor = row + 1 / tau
    elif ESTIMATOR == "gapped":
        best = tl.max(a)
        shifted = tl.where(j == k, best, tl.minimum(a, best - SETTING))
        p = softmax((shifted - best) / tau)[None, :]
        factor = row + 1 / tau
    elif ESTIMATOR == "reinmax":
        middle = (softmax(a / tau) + tl.where(j == k, 1.0, 0.0)) / 2
        p = tl.where((row == 0)[:, None], middle[None, :], softmax(a)[None, :])
        winner = tl.where(row == 0, k, tl.argmax(a, axis=0))
        factor = tl.where(row == 0, 2.0, -0.5)
    else:
        tl.static_assert(ESTIMATOR == "gumbel_rao")
        p, factor = conditional_points(0, a, k, j, own, t, noise, T, tau, SETTING, DRAWS, FROM_KEYS)
    return p, winner, factor


@triton.jit
def jacobians(p, winner, factor, dy, j):
    """Return the sum of factor J(p) dy over points p.

    Differences are relative to the entry with the largest weight, which avoids cancellation.
    """
    centre = tl.sum(tl.where(j[None, :] == winner[:, None], dy[None, :], 0.0), axis=1)
    u = dy[None, :] - centre[:, None]
    mean = tl.sum(p * u, axis=1)
    return tl.sum(factor[:, None] * p * (u - mean[:, None]), axis=0)


@triton.jit
def spigot_gradient(dy, a, k, j, K, STEP: tl.constexpr, VARIANT: tl.constexpr):
    """Return how far a step against dy, kept in the simplex, moves a point.

    The projection of z subtracts a threshold and clips at zero. Newton's method finds the
    threshold: it increases until no further entry falls below it.
    """
    # a common term of dy has no effect, but would cost precision
    step = STEP * (dy - tl.sum(tl.where(j == k, dy, 0.0)))
    start = tl.where(j == k, 1.0, 0.0).to(a.dtype) if VARIANT == "spigot" else softmax(a)
    if VARIANT == "eg":
        return start - softmax(a - step)
    z = tl.where(j < K, start - step, -float("inf"))
    threshold = tl.max(z) - 1
    before, count = K + 2, K + 1
    while count < before:
        before = count
        above = z >= threshold
        count = tl.sum(tl.where(above, 1, 0))
        excess = tl.sum(tl.where(above, start, 0.0)) - 1 - tl.sum(tl.where(above, step, 0.0))
        threshold = tl.maximum(threshold, excess / count)
    # start - max(z - threshold, 0)
    return tl.where(j < K, tl.minimum(step + threshold, start), 0.0)


@triton.jit
def estimate(
    b, t, K, numbers, logits, position, noise, dscores, sentence, temperature, start, B, T,
    kind: tl.constexpr, BT: tl.constexpr, PIECES: tl.constexpr, HAS_DSCORES: tl.constexpr,
    FROM_KEYS: tl.constexpr, ESTIMATOR: tl.constexpr, SETTING: tl.constexpr, DRAWS: tl.constexpr,
    CHAIN: tl.constexpr,
):  # fmt: skip
    """Return the score gradients of layer t, [BT]."""
    j = tl.arange(0, BT)
    m = j < K
    own = tl.load(sentence + b)
    k = tl.load(position + tl.load(start + t + 1) + b)
    a = tl.load(logits + (t * B.to(tl.int64) + b) * (T - 1) + j, mask=m, other=-float("inf"))
    tau = tl.load(temperature)
    has_points: tl.constexpr = ESTIMATOR != "spigot" and ESTIMATOR != "ce" and ESTIMATOR != "eg"
    if has_points:
        p, winner, factor = points(
            a, k, j, own, t, noise, T, tau, ESTIMATOR, SETTING, DRAWS, FROM_KEYS
        )
    join_chain(CHAIN)
    # partial sums of X and Y from `send_kernel`, [B, 2, PIECES, T]
    at = numbers + b.to(tl.int64) * (2 * PIECES) * T + j
    x = tl.full((BT,), 0.0, dtype=kind)
    dy = tl.full((BT,), 0.0, dtype=kind)
    for piece in tl.static_range(PIECES):
        x += tl.load(at + piece * T, mask=m, other=0.0)
        dy += tl.load(at + (PIECES + piece) * T, mask=m, other=0.0)
    dy += tl.cumsum(x, axis=0, reverse=True) - x
    if has_points:
        ds = jacobians(p, winner, factor, dy, j)
    else:
        ds = spigot_gradient(dy, a, k, j, K, SETTING, ESTIMATOR)
    if ESTIMATOR == "gumbel_rao":
        for first in range(DRAWS, SETTING, DRAWS):
            p, factor = conditional_points(
                first, a, k, j, own, t, noise, T, tau, SETTING, DRAWS, FROM_KEYS
            )
            ds += jacobians(p, winner, factor, dy, j)
    if HAS_DSCORES:
        ds += tl.load(dscores + (own * (T - 1) + t) * (T - 1) + j, mask=m, other=0.0)
    return ds


@triton.jit
def store_estimated_gradients(
    b, t, numbers, logits, position, noise, dscores, sentence, temperature, lengths, start, out,
    B, T, BT: tl.constexpr, PIECES: tl.constexpr, HAS_DSCORES: tl.constexpr,
    FROM_KEYS: tl.constexpr, ESTIMATOR: tl.constexpr, SETTING: tl.constexpr, DRAWS: tl.constexpr,
    CHAIN: tl.constexpr,
):  # fmt: skip
    """Join the chain and store `estimate` of the sentence of rank b, [B, 2, T], if it has layer t.

    The second row is the first one shifted by one position.
    """
    K = tl.load(lengths + b, mask=b < B, other=0) - 1 - t
    if K >= 1:
        ds = estimate(
            b, t, K, numbers, logits, position, noise, dscores, sentence, temperature, start, B, T,
            out.dtype.element_ty, BT, PIECES, HAS_DSCORES, FROM_KEYS, ESTIMATOR, SETTING, DRAWS,
            CHAIN,
        )  # fmt: skip
        j = tl.arange(0, BT)
        at = out + b.to(tl.int64) * 2 * T + j
        tl.store(at, ds, mask=j < K)
        tl.store(at + T + 1, ds, mask=j < K)
    else:
        join_chain(CHAIN)
