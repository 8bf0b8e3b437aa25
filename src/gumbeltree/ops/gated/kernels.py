"""Triton kernels of the gated recursive cell (`nn/cells/gated.py`): one program per candidate.

A record holds W1 [l; r] + b1 `[W]`, the gates z, h, c, v `[4D]`, the normalised state `[D]` and the
inverse deviation; REC is its width.
"""

import triton
import triton.language as tl

from gumbeltree.device.kernel_math import drop_key, dropped, sigmoid


@triton.jit
def normalise_kernel(
    record, left, right, gain, shift, parent, left_stride, right_stride, EPSILON: tl.constexpr,
    W: tl.constexpr, REC: tl.constexpr, D: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Activate the gates, mix the children and normalise; complete the record."""
    i = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BD)
    there = d < D
    gates = record + i * REC + W + d
    z = sigmoid(tl.load(gates, mask=there, other=0.0))
    h = sigmoid(tl.load(gates + D, mask=there, other=0.0))
    c = sigmoid(tl.load(gates + 2 * D, mask=there, other=0.0))
    v = tl.load(gates + 3 * D, mask=there, other=0.0)
    tl.store(gates, z, mask=there)
    tl.store(gates + D, h, mask=there)
    tl.store(gates + 2 * D, c, mask=there)
    l_state = tl.load(left + i * left_stride + d, mask=there, other=0.0)
    r_state = tl.load(right + i * right_stride + d, mask=there, other=0.0)
    mixed = z * l_state + h * r_state + c * v
    mixed = tl.where(there, mixed - tl.sum(mixed, axis=0) / D, 0.0)
    scale = 1 / tl.sqrt(tl.sum(mixed * mixed, axis=0) / D + EPSILON)
    normal = mixed * scale
    tl.store(gates + 4 * D, normal, mask=there)
    tl.store(record + i * REC + W + 5 * D, scale)
    gained = normal * tl.load(gain + d, mask=there, other=0.0)
    tl.store(parent + i * D + d, gained + tl.load(shift + d, mask=there, other=0.0), mask=there)


@triton.jit
def normalise_backward_kernel(
    dh, dc, record, left, right, gain, drecord, dleft, dright, h_stride, c_stride, left_stride,
    right_stride, HAS_DC: tl.constexpr, W: tl.constexpr, REC: tl.constexpr, D: tl.constexpr,
    BD: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of the gates and of the children as far as they are mixed."""
    i = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BD)
    there = d < D
    dparent = tl.load(dh + i * h_stride + d, mask=there, other=0.0)
    if HAS_DC:
        dparent += tl.load(dc + i * c_stride + d, mask=there, other=0.0)
    gates = record + i * REC + W + d
    normal = tl.load(gates + 4 * D, mask=there, other=0.0)
    scale = tl.load(record + i * REC + W + 5 * D)
    dnormal = dparent * tl.load(gain + d, mask=there, other=0.0)
    dmixed = dnormal - tl.sum(dnormal, axis=0) / D
    dmixed = (dmixed - normal * (tl.sum(dnormal * normal, axis=0) / D)) * scale
    z = tl.load(gates, mask=there, other=0.0)
    h = tl.load(gates + D, mask=there, other=0.0)
    c = tl.load(gates + 2 * D, mask=there, other=0.0)
    v = tl.load(gates + 3 * D, mask=there, other=0.0)
    l_state = tl.load(left + i * left_stride + d, mask=there, other=0.0)
    r_state = tl.load(right + i * right_stride + d, mask=there, other=0.0)
    out = drecord + i * REC + W + d
    tl.store(out, dmixed * l_state * z * (1 - z), mask=there)
    tl.store(out + D, dmixed * r_state * h * (1 - h), mask=there)
    tl.store(out + 2 * D, dmixed * v * c * (1 - c), mask=there)
    tl.store(out + 3 * D, dmixed * c, mask=there)
    tl.store(out + 4 * D, dparent, mask=there)
    tl.store(dleft + i * D + d, dmixed * z, mask=there)
    tl.store(dright + i * D + d, dmixed * h, mask=there)


@triton.jit
def slope_kernel(
    dinner, record, drecord, W: tl.constexpr, REC: tl.constexpr, BW: tl.constexpr
):  # fmt: skip
    """Multiply the gradients of the hidden layer by the derivative of GELU."""
    i = tl.program_id(0).to(tl.int64)
    o = tl.program_id(1) * BW + tl.arange(0, BW)
    there = o < W
    x = tl.load(record + i * REC + o, mask=there, other=0.0)
    # the normal distribution function plus x times its density
    slope = 0.5 * (1 + tl.erf(x * 0.7071067811865476))
    slope += x * tl.exp(-0.5 * x * x) * 0.3989422804014327
    g = tl.load(dinner + i * W + o, mask=there, other=0.0)
    tl.store(drecord + i * REC + o, g * slope, mask=there)


@triton.jit
def drop_kernel(
    inner, codes, stride, LIMIT: tl.constexpr, OFF: tl.constexpr, W: tl.constexpr, BW: tl.constexpr
):  # fmt: skip
    """Set hidden units to OFF where `noise.dropped_units` drops them."""
    i = tl.program_id(0).to(tl.int64)
    o = tl.program_id(1) * BW + tl.arange(0, BW)
    key = drop_key(tl.load(codes + i))
    tl.store(inner + i * stride + o, OFF, mask=(o < W) & dropped(key, o, LIMIT))
