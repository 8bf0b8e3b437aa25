"""Triton kernels of the features of a pair (Eq. 16), forward and backward."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["B"])
def features_kernel(p_vectors, p_features, B, D: tl.constexpr, BD: tl.constexpr):
    """Lay out [u; v; |u-v|; u*v] `[B, 4D]` of the vectors `[2B, D]`, first sentences first."""
    i = tl.program_id(0).to(tl.int64)
    o_d = tl.arange(0, BD)
    m = o_d < D
    u = tl.load(p_vectors + i * D + o_d, mask=m, other=0.0)
    v = tl.load(p_vectors + (B + i) * D + o_d, mask=m, other=0.0)
    at = p_features + i * (4 * D) + o_d
    tl.store(at, u, mask=m)
    tl.store(at + D, v, mask=m)
    tl.store(at + 2 * D, tl.abs(u - v), mask=m)
    tl.store(at + 3 * D, u * v, mask=m)


@triton.jit(do_not_specialize=["B"])
def features_backward_kernel(
    p_vectors, p_dfeatures, p_dvectors, B, D: tl.constexpr, BD: tl.constexpr
):
    """Send the features' gradients to the vectors; that of |u-v| is zero where u = v."""
    i = tl.program_id(0).to(tl.int64)
    o_d = tl.arange(0, BD)
    m = o_d < D
    u = tl.load(p_vectors + i * D + o_d, mask=m, other=0.0)
    v = tl.load(p_vectors + (B + i) * D + o_d, mask=m, other=0.0)
    at = p_dfeatures + i * (4 * D) + o_d
    du = tl.load(at, mask=m, other=0.0)
    dv = tl.load(at + D, mask=m, other=0.0)
    apart = tl.load(at + 2 * D, mask=m, other=0.0)
    times = tl.load(at + 3 * D, mask=m, other=0.0)
    apart = tl.where(u > v, apart, tl.where(u < v, -apart, apart * 0))
    tl.store(p_dvectors + i * D + o_d, du + apart + times * v, mask=m)
    tl.store(p_dvectors + (B + i) * D + o_d, dv - apart + times * u, mask=m)
