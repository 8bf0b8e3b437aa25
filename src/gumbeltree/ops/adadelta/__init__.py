"""Adadelta for the rows of a matrix that have a gradient, in one kernel on a CUDA device."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gumbeltree.device.triton_support import why_not

ENTRIES = 2048
"""Entries per program of the kernel, at least one row."""


class Rows(NamedTuple):
    """A matrix whose rows are updated in place, with its state.

    Attributes:
        weight: the matrix w `[V, E]`.
        gradient: its gradient g `[V, E]`, which is not changed.
        squares: running means s of g^2 `[V, E]`.
        deltas: running means d of u^2 `[V, E]`.
        last: the step in which each row was last updated `[V]`, 0 if in none.
    """

    weight: Tensor
    gradient: Tensor
    squares: Tensor
    deltas: Tensor
    last: Tensor


class Scalars(NamedTuple):
    """Numbers of an update, on the device `[]`.

    Attributes:
        step: number of this step, from 1 on.
        rate: learning rate.
        scale: divides the gradient.
    """

    step: Tensor
    rate: Tensor
    scale: Tensor


def update_rows(rows: Rows, scalars: Scalars, rho: float, eps: float) -> None:
    """Update the rows whose gradient is not zero (Zeiler 2012, Algorithm 1).

    s = rho * s + (1 - rho) * g^2; u = sqrt(d + eps) / sqrt(s + eps) * g; d = rho * d + (1 - rho) *
    u^2; w = w - rate * u. In a step without a gradient, w stays, and s and d shrink by rho; a row
    makes up for such steps in its next update.

    Args:
        rows: the matrix and its state.
        scalars: step, learning rate and scale.
        rho: decay of the running means.
        eps: added under the roots.
    """
    fused = why_not(rows.weight) is None and all(x.is_contiguous() for x in rows)
    (update_fused if fused else update_exact)(rows, scalars, rho, eps)


def update_exact(rows: Rows, scalars: Scalars, rho: float, eps: float) -> None:
    """Update the rows with PyTorch operations; see `update_rows`."""
    weight, gradient, squares, deltas, last = rows
    step, rate, scale = scalars
    # on other devices than a CPU, finding the rows would wait for the device
    found = gradient.any(1).nonzero().squeeze(1) if weight.is_cpu else slice(None)
    g = gradient[found] / scale
    missed = rho ** (step - 1 - last[found]).unsqueeze(1)
    s = (squares[found] * missed).mul_(rho).addcmul_(g, g, value=1 - rho)
    d = deltas[found] * missed
    u = (d + eps).sqrt_().div_((s + eps).sqrt_()).mul_(g)
    squares[found] = s
    deltas[found] = d.mul_(rho).addcmul_(u, u, value=1 - rho)
    weight[found] -= rate * u
    last[found] = step.to(last.dtype)


def update_fused(rows: Rows, scalars: Scalars, rho: float, eps: float) -> None:
    """Update the rows with a Triton kernel; see `update_rows`."""
    # imported here so that Triton stays optional
    from gumbeltree.ops.adadelta.kernels import update_kernel

    V, E = rows.weight.shape
    BV, BE = block(E)
    constants = {"RHO": rho, "LOG_RHO": math.log2(rho), "EPS": eps, "E": E, "BV": BV, "BE": BE}
    with torch.cuda.device_of(rows.weight):
        update_kernel[(-(-V // BV),)](*rows, *scalars, V, **constants)


def block(E: int) -> tuple[int, int]:
    """Return rows per program of the kernel, and a power of two >= E."""
    BE = 1 << (E - 1).bit_length()
    return max(1, ENTRIES // BE), BE
