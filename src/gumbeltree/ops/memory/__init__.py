"""A memory of all words that an LSTM rewrites word by word (`nn/encoders/nse.py`).

On a CUDA device, one Triton kernel per word writes to the memory and reads it for the next word,
and the backward pass is written by hand.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function, once_differentiable
from torch.nn import functional as F

from gumbeltree.device.triton_support import operand, precision_of, product, why_not
from gumbeltree.layout import Layout

BLOCK, WARPS = 8192, 8
"""Numbers of the memory that a program handles at once, and its warps."""

Weights = tuple[Tensor, ...]
Drop = Callable[[Tensor], Tensor]


def rewrite(
    memory: Tensor,
    read: Tensor,
    writer: Weights,
    compose: Weights | None,
    layout: Layout,
    drop: Drop | None = None,
) -> Tensor:
    """Return the states h that are written to a memory, `[N, D]`.

    With the slots j of a sentence and o of each of its words:

        z_j = softmax_j(o . M_j)
        m   = sum_j z_j M_j
        h   = writer(drop(W [o; m] + b))
        M_j = (1 - z_j) M_j + z_j h

    Even under autocast, memory and states keep their precision.

    Args:
        memory: M before the first word, sentences longest first, `[B, T, D]`.
        read: o of the words `[N, D]`.
        writer: W_ih `[4D, 2D]`, W_hh `[4D, D]` and b `[4D]` of an LSTM with gates i, f, g, o.
        compose: W `[2D, 2D]` and b `[2D]`; without them, the writer reads drop([o; m]).
        layout: layout of the words; inside a graph, one with T rows per sentence.
        drop: dropout on the inputs of the writer `[..., 2D]`.
    """
    D, (of_x, of_h, bias) = read.shape[1], writer
    if why_not(of_h) is not None:
        return _plain(memory, read, writer, compose, layout, drop)
    mask = None if drop is None else drop(read.new_ones((len(read), 2 * D)))
    of_m = None
    # x and the inputs of the gates, as far as they do not depend on the memory
    if compose is None:
        of_o, of_x = of_x.split(D, dim=1)
        inputs = F.linear(read if mask is None else read * mask[:, :D], of_o, bias)
        x, mask = torch.zeros_like(read), None if mask is None else mask[:, D:]
    else:
        of_o, of_m = compose[0].split(D, dim=1)
        x, inputs = F.linear(read, of_o, compose[1]), bias.expand(len(read), -1)
    tensors = memory, read, torch.cat([of_x, of_h], dim=1), F.pad(x, (0, D)), inputs
    given = [x.to(of_h.dtype) for x in tensors]
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in given)
    states: Tensor = _Rewrite.apply(layout, learns, mask, of_m, *given)
    return states


def _plain(
    memory: Tensor,
    read: Tensor,
    writer: Weights,
    compose: Weights | None,
    layout: Layout,
    drop: Drop | None,
) -> Tensor:
    """Return the states, with a backward pass by autograd."""
    D, (of_x, of_h, bias) = read.shape[1], writer
    # added to the scores
    outside = read.new_zeros(()).where(layout.valid(layout.T), -torch.inf)[..., None]
    # the half of the product that does not depend on the memory
    fed = read if compose is None else F.linear(read, compose[0][:, :D], compose[1])
    h = c = memory.new_zeros((layout.B, D))
    states = []
    steps = [x.split(list(layout.active)) for x in (read, fed)]
    for n, now, part in zip(layout.active, *steps, strict=True):
        if n < len(memory):
            # inside a graph, all sentences have the same length
            memory, outside, h, c = memory[:n], outside[:n], h[:n], c[:n]
        scores = torch.baddbmm(outside, memory, now[..., None]).squeeze(-1)  # [n, T]
        z = scores.softmax(-1, dtype=memory.dtype)
        m = (z[:, None] @ memory).squeeze(1)  # [n, D]
        if compose is None:
            x = torch.cat([now, m], dim=-1)
        else:
            x = part + F.linear(m, compose[0][:, D:])
        gates = F.linear(x if drop is None else drop(x), of_x, bias) + F.linear(h, of_h)
        i, f, g, o = gates.to(c.dtype).chunk(4, dim=-1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        # (1 - z) M + z h
        memory = memory.lerp(h[:, None], z[..., None])
        states.append(h)
    return torch.cat(states)


class _Rewrite(Function):
    """`rewrite` with kernels.

    The tensors are the memory `[B, T, D]`; o `[N, D]`; W_ih and W_hh side by side, `[4D, K]`, where
    W_ih may be the half for m; x and the last h, `[N, K]`, and the gates `[N, 4D]`, both without
    what depends on the memory. `of_m` is the half of W for m `[2D, D]`, and `mask` that of dropout.
    """

    @staticmethod
    def forward(
        ctx: Any,
        layout: Layout,
        learns: bool,
        mask: Tensor | None,
        of_m: Tensor | None,
        *given: Tensor,
    ) -> Tensor:
        # imported here so that Triton stays optional
        from gumbeltree.ops.memory.kernels import word_kernel

        start, read, factor = given[:3]
        x_h, gates = (x.clone(memory_format=torch.contiguous_format) for x in given[3:])
        (B, T, D), (N, K) = start.shape, x_h.shape
        # without gradients, all words share a memory
        memory = start.new_empty((N if learns else B, T, D))
        memory[:B] = start
        scores, norm, read = read.new_empty((N, T)), read.new_empty(N), read.contiguous()
        x, (c, h, m) = x_h[:, : K - D], read.new_empty((3, N, D)).unbind()
        if of_m is None and mask is None:
            m = x
        precision = precision_of(read.device.type)
        from_m = None if of_m is None else operand(of_m.t(), precision)
        from_x_h = operand(factor.t(), precision)
        tensors = layout.lengths, read, memory, scores, norm, m, x_h, gates, c, h
        for rows, before, now, n in _launches(layout):
            if now > 0:
                now_m, now_x, now_gates = m[rows], x[rows], gates[rows]
                if from_m is not None:
                    now_m = product(now_m, from_m, precision, out=now_x, bias=now_x)
                if mask is not None:
                    torch.mul(now_m, mask[rows], out=now_x)
                product(x_h[rows], from_x_h, precision, out=now_gates, bias=now_gates)
            with torch.cuda.device_of(h):
                word_kernel[rows.stop - rows.start,](
                    *(*tensors, before, rows.start, now, n, T, m.stride(0)),
                    **{"FIRST": now == 0, "KEPT": learns, "K": K, **sizes(D)},
                )
        if learns:
            ctx.save_for_backward(*tensors, of_m, factor, mask)
            ctx.layout, ctx.precision = layout, precision
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dh: Tensor) -> tuple[Tensor | None, ...]:
        from gumbeltree.ops.memory.kernels import word_backward_kernel

        *tensors, of_m, factor, mask = ctx.saved_tensors
        _, read, memory, _, norm, m, x_h, gates, _, h = tensors
        layout, precision = ctx.layout, ctx.precision
        (T, D), K = memory.shape[1:], x_h.shape[1]
        dread, dgates, dx_h, dnorm = (torch.empty_like(x) for x in (read, gates, x_h, norm))
        dmemory, dc = memory.new_zeros((layout.B, T, D)), h.new_zeros((layout.B, D))
        dx = dx_h[:, : K - D]
        dm = dx if of_m is None else torch.empty_like(h)
        to_m = None if of_m is None else operand(of_m, precision)
        to_x_h = operand(factor, precision)
        tensors += dm, dx_h, dh.contiguous(), dread, dmemory, dc, dnorm, dgates
        for rows, before, now, n in reversed(list(_launches(layout))):
            with torch.cuda.device_of(h):
                word_backward_kernel[rows.stop - rows.start,](
                    *(*tensors, before, rows.start, now, n, T, m.stride(0), dm.stride(0)),
                    **{"FIRST": now == 0, "K": K, **sizes(D)},
                )
            if now > 0:
                product(dgates[rows], to_x_h, precision, out=dx_h[rows])
                now_dx = dx[rows]
                if mask is not None:
                    now_dx *= mask[rows]
                if to_m is not None:
                    product(now_dx, to_m, precision, out=dm[rows])
        dof_m = None if of_m is None else product(dx.t(), m, precision)
        dfactor = product(dgates.t(), x_h, precision)
        return None, None, None, dof_m, dmemory, dread, dfactor, dx_h, dgates


def sizes(D: int) -> dict[str, int]:
    """Return the compile-time sizes of the kernels."""
    BD = 1 << (D - 1).bit_length()
    return {"D": D, "BD": BD, "BT": max(1, BLOCK // BD), "num_warps": WARPS}


def _launches(layout: Layout) -> Iterator[tuple[slice, int, int, int]]:
    """Yield the rows of the last word, and `before`, `now` and n of `kernels`, for each launch.

    In the first launch, the last word has the rows of the first one; after the last word, n is 0.
    """
    rows, before = slice(0, layout.B), 0
    for now, n in zip(layout.starts, (*layout.active, 0), strict=True):
        yield rows, before, now, n
        rows, before = slice(now, now + n), rows.start
