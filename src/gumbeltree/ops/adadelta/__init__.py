"""Adadelta, in one kernel for word vectors and one for all other weights on a CUDA device."""

import math
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from gumbeltree.device.triton_support import why_not

ENTRIES = 2048
"""Entries per program of the kernel for rows, at least one row."""
SMALL = 1024
"""Entries per program of the kernel for whole weights."""
MOST = 32
"""Weights per launch of the kernel for whole weights."""


class Weights(NamedTuple):
    """Tensors that are updated in place, with their state.

    Attributes:
        weights: the tensors w.
        gradients: their gradients g, which are not changed.
        squares: running means s of g^2.
        deltas: running means d of u^2.
    """

    weights: list[Tensor]
    gradients: list[Tensor]
    squares: list[Tensor]
    deltas: list[Tensor]


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


class Coefficients(NamedTuple):
    """What the tensors of an update have in common.

    Attributes:
        rate: learning rate, a number or `[]`.
        scale: divides the gradients `[]`, unless it is None.
        rho: decay of the running means.
        eps: added under the roots.
        decay: weight decay.
    """

    rate: Tensor | float
    scale: Tensor | None
    rho: float
    eps: float
    decay: float = 0.0


def update_weights(tensors: Weights, coefficients: Coefficients) -> None:
    """Update tensors (Zeiler 2012, Algorithm 1).

    g = g / scale + decay * w; s = rho * s + (1 - rho) * g^2; u = sqrt(d + eps) / sqrt(s + eps) * g;
    d = rho * d + (1 - rho) * u^2; w = w - rate * u.

    Args:
        tensors: one tensor or more, and their state.
        coefficients: what they have in common.
    """
    one = tensors.weights[0]
    numbers = [x for x in coefficients if isinstance(x, Tensor)]
    # a kernel also reads only from its own device
    fused = why_not(one) is None and all(
        x.is_contiguous() and x.dtype == one.dtype and x.device == one.device
        for x in (*(y for field in tensors for y in field), *numbers)
    )
    (update_weights_fused if fused else update_weights_exact)(tensors, coefficients)


def update_weights_exact(tensors: Weights, coefficients: Coefficients) -> None:
    """Update tensors with PyTorch operations; see `update_weights`."""
    weights, gradients, squares, deltas = tensors
    rate, scale, rho, eps, decay = coefficients
    if scale is not None:
        gradients = list(torch._foreach_div(gradients, scale))
    if decay:
        gradients = list(torch._foreach_add(gradients, weights, alpha=decay))
    torch._foreach_mul_(squares, rho)
    torch._foreach_addcmul_(squares, gradients, gradients, 1 - rho)
    roots = torch._foreach_add(squares, eps)
    torch._foreach_sqrt_(roots)
    found = torch._foreach_add(deltas, eps)
    torch._foreach_sqrt_(found)
    torch._foreach_div_(found, roots)
    torch._foreach_mul_(found, gradients)
    torch._foreach_mul_(deltas, rho)
    torch._foreach_addcmul_(deltas, found, found, 1 - rho)
    torch._foreach_sub_(weights, torch._foreach_mul(found, rate))


def update_weights_fused(tensors: Weights, coefficients: Coefficients) -> None:
    """Update tensors with a Triton kernel, with the same rounding; see `update_weights`."""
    # imported here so that Triton stays optional
    from gumbeltree.ops.adadelta.kernels import update_weights_kernel

    one, scale = tensors.weights[0], coefficients.scale
    # filling a tensor can be captured, copying a number to the device cannot
    numbers = [
        x if isinstance(x, Tensor) else one.new_full((), x)
        for x in (coefficients.rate, 1.0 if scale is None else scale)
    ]
    for first in range(0, len(tensors.weights), MOST):
        part = [tuple(x[first : first + MOST]) for x in tensors]
        sizes = [x.numel() for x in part[0]]
        firsts = tuple(accumulate((-(-size // SMALL) for size in sizes), initial=0))
        constants = {
            "RHO": coefficients.rho,
            "EPS": coefficients.eps,
            "DECAY": coefficients.decay,
            "B": SMALL,
        }
        with torch.cuda.device_of(one):
            update_weights_kernel[(firsts[-1],)](
                *part, *numbers, FIRSTS=firsts, SIZES=tuple(sizes), **constants,
                # PyTorch rounds every product, but for those of addcmul
                enable_fp_fusion=False,
            )  # fmt: skip


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
