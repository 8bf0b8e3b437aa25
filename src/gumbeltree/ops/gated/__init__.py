"""The element-wise part of the gated recursive cell as Triton kernels; see `nn.cells.gated`.

Each function replaces a dozen small operations on a CUDA device. Legend: n candidates, state width
D, hidden width W, record width R.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

BLOCK = 512
"""Columns per program of `slope_kernel`."""


def complete(
    record: Tensor,
    left: Tensor,
    right: Tensor,
    weight_out: Tensor,
    bias_out: Tensor,
    gain: Tensor,
    shift: Tensor,
    epsilon: float,
    scale: float = 1.0,
) -> Tensor:
    """Complete records `[n, R]` that start with W1 [l; r] + b1; return the parents `[n, D]`.

    Args:
        record: records, contiguous.
        left: states of the left children `[n, D]`.
        right: states of the right children.
        weight_out: W2, `[4D, W]`.
        bias_out: b2, `[4D]`.
        gain: gain of the layer normalisation `[D]`.
        shift: its shift.
        epsilon: added to the variance.
        scale: factor of the hidden units.
    """
    # imported here so that Triton stays optional
    from gumbeltree.ops.gated.kernels import normalise_kernel

    (n, R), (D, W) = record.shape, (len(gain), weight_out.shape[1])
    hidden = F.gelu(record[:, :W])
    record[:, W : W + 4 * D] = torch.addmm(bias_out, hidden, weight_out.t(), alpha=scale)
    parent = record.new_empty((n, D))
    if n:
        normalise_kernel[(n,)](
            record, left, right, gain, shift, parent, left.stride(0), right.stride(0),
            EPSILON=epsilon, W=W, REC=R, D=D, **_row(D),
        )  # fmt: skip
    return parent


def undo(
    dh: Tensor,
    dc: Tensor | None,
    record: Tensor,
    left: Tensor,
    right: Tensor,
    weight_out: Tensor,
    gain: Tensor,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of records, `left` and `right`; see `GatedCell.activate_backward`."""
    from gumbeltree.ops.gated.kernels import normalise_backward_kernel, slope_kernel

    (n, R), (D, W) = record.shape, (len(gain), weight_out.shape[1])
    drecord, dleft, dright = torch.empty_like(record), *record.new_empty((2, n, D))
    if not n:
        return drecord, dleft, dright
    c = dh if dc is None else dc
    normalise_backward_kernel[(n,)](
        dh, c, record, left, right, gain, drecord, dleft, dright, dh.stride(0), c.stride(0),
        left.stride(0), right.stride(0), HAS_DC=dc is not None, W=W, REC=R, D=D, **_row(D),
    )  # fmt: skip
    dinner = drecord[:, W : W + 4 * D] @ weight_out
    if scale != 1:
        dinner *= scale
    BW = min(BLOCK, _power(W))
    slope_kernel[(n, -(-W // BW))](dinner, record, drecord, W=W, REC=R, BW=BW, num_warps=4)
    return drecord, dleft, dright


def drop(inner: Tensor, codes: Tensor, rate: float, off: float) -> None:
    """Set hidden units `[n, W]` to `off` where `dropped_units` of the codes `[n]` is true."""
    from gumbeltree.ops.gated.kernels import drop_kernel

    n, W = inner.shape
    BW = min(BLOCK, _power(W))
    if n:
        drop_kernel[(n, -(-W // BW))](
            inner, codes, inner.stride(0), LIMIT=int(rate * 2**32), OFF=off, W=W, BW=BW, num_warps=4
        )


def _power(n: int) -> int:
    """Return the smallest power of two of at least n."""
    return 1 << (n - 1).bit_length()


def _row(D: int) -> dict[str, int]:
    """Return the block size and warps of a program that handles one candidate."""
    return {"BD": _power(D), "num_warps": 1 if D <= 128 else 4}
