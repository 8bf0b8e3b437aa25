"""Triton kernels of the pair features (Eq. 16), one sentence pair per program."""

import triton
import triton.language as tl


# u and v are halves of one tensor, so v can have any alignment
@triton.jit(do_not_specialize_on_alignment=["p_u", "p_v"])
def features_kernel(p_u, p_v, p_features, D: tl.constexpr, BD: tl.constexpr):
    """Compute [u; v; |u-v|; u*v] [B, 4D] from u and v [B, D]."""
    i = tl.program_id(0).to(tl.int64)
    o_d = tl.arange(0, BD)
    m = o_d < D
    u = tl.load(p_u + i * D + o_d, mask=m, other=0.0)
    v = tl.load(p_v + i * D + o_d, mask=m, other=0.0)
    at = p_features + i * (4 * D) + o_d
    tl.store(at, u, mask=m)
    tl.store(at + D, v, mask=m)
    tl.store(at + 2 * D, tl.abs(u - v), mask=m)
    tl.store(at + 3 * D, u * v, mask=m)


@triton.jit(do_not_specialize_on_alignment=["p_u", "p_v"])
def features_backward_kernel(p_u, p_v, p_dfeatures, p_du, p_dv, D: tl.constexpr, BD: tl.constexpr):
    """Compute the gradients of u and v; |u-v| contributes zero where u = v."""
    i = tl.program_id(0).to(tl.int64)
    o_d = tl.arange(0, BD)
    m = o_d < D
    u = tl.load(p_u + i * D + o_d, mask=m, other=0.0)
    v = tl.load(p_v + i * D + o_d, mask=m, other=0.0)
    at = p_dfeatures + i * (4 * D) + o_d
    du = tl.load(at, mask=m, other=0.0)
    dv = tl.load(at + D, mask=m, other=0.0)
    apart = tl.load(at + 2 * D, mask=m, other=0.0)
    times = tl.load(at + 3 * D, mask=m, other=0.0)
    apart = tl.where(u > v, apart, tl.where(u < v, -apart, apart * 0))
    tl.store(p_du + i * D + o_d, du + apart + times * v, mask=m)
    tl.store(p_dv + i * D + o_d, dv - apart + times * u, mask=m)
