"""A multiplicative LSTM over packed symbols, with a backward pass written by hand."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from gumbeltree.layout import Layout


def mlstm(
    factors: Tensor, inputs: Tensor, state_factor: Tensor, states: Tensor, layout: Layout
) -> tuple[Tensor, Tensor]:
    """Run a multiplicative LSTM from a zero state (Radford et al. 2017).

    Autograd would compute gradients of the weights at every symbol; here, they take one product
    each. Products follow `torch.set_float32_matmul_precision`, but not autocast.

    Args:
        factors: W_mx x of the symbols `[N, D]`.
        inputs: W_x x + b of the symbols, with gates i, f, o, u, `[N, 4D]`.
        state_factor: W_mh `[D, D]`.
        states: W_h `[4D, D]`.
        layout: layout of the symbols; inside a graph, one with T rows per sentence.

    Returns:
        h and c after each symbol, `[N, D]` each.
    """
    dtype = state_factor.dtype
    found: tuple[Tensor, Tensor] = _MLSTM.apply(
        factors.to(dtype), inputs.to(dtype), state_factor, states, layout
    )
    return found


class _MLSTM(Function):
    @staticmethod
    def forward(
        ctx: Any,
        factors: Tensor,
        inputs: Tensor,
        state_factor: Tensor,
        states: Tensor,
        layout: Layout,
    ) -> tuple[Tensor, Tensor]:
        (N, D), active = factors.shape, list(layout.active)
        h, c, mixed, m = factors.new_empty((4, N, D)).unbind()
        # the first symbols see a zero state
        mixed[: layout.B] = m[: layout.B] = 0
        gates = inputs.clone()
        tapes = zip(*(x.split(active) for x in (h, c, mixed, m, gates, factors)), strict=True)
        from_state, from_m = state_factor.t(), states.t()
        last_h = last_c = None
        for now_h, now_c, now_mixed, now_m, now_gates, factor in tapes:
            if last_h is not None:
                torch.mm(last_h[: len(now_h)], from_state, out=now_mixed)  # W_mh h
                torch.mul(factor, now_mixed, out=now_m)
                now_gates.addmm_(now_m, from_m)
            ifo, u = now_gates.split([3 * D, D], dim=1)
            i, f, o = ifo.sigmoid_().chunk(3, dim=1)
            torch.mul(i, u.tanh_(), out=now_c)
            if last_c is not None:
                now_c.addcmul_(f, last_c[: len(now_c)])
            torch.mul(o, now_c.tanh(), out=now_h)
            last_h, last_c = now_h, now_c
        ctx.save_for_backward(h, c, mixed, m, gates, factors, state_factor, states)
        ctx.layout = layout
        return h, c

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dh: Tensor, dc: Tensor) -> tuple[Tensor | None, ...]:
        h, c, mixed, m, gates, factors, state_factor, states = ctx.saved_tensors
        layout, active, before = ctx.layout, list(ctx.layout.active), ctx.layout.rows_before()
        last_c = torch.cat([torch.zeros_like(c[: layout.B]), c[before]])
        i, f, o, u = gates.chunk(4, dim=1)
        tanh = c.tanh()
        # derivatives that the recurrence does not change: of h by c, and of c and h by the gates
        by_c = o * (1 - tanh * tanh)
        slopes = torch.stack(
            [u * i * (1 - i), last_c * f * (1 - f), tanh * o * (1 - o), i * (1 - u * u)], dim=1
        )  # [N, 4, D]
        dh, dc, dgates = dh.clone(), dc.clone(), torch.empty_like(slopes)
        dm, dmixed = h.new_zeros((2, *h.shape)).unbind()
        rows = [dh, dc, dgates, dm, dmixed, slopes, by_c, f, factors]
        steps = list(zip(*(x.split(active) for x in rows), strict=True))
        for now, earlier in zip(steps[::-1], [*steps[-2::-1], None], strict=True):
            now_dh, now_dc, now_dgates, now_dm, now_dmixed, slope, dh_dc, forget, factor = now
            now_dc.addcmul_(now_dh, dh_dc)
            torch.mul(now_dc[:, None], slope, out=now_dgates)
            torch.mul(now_dh, slope[:, 2], out=now_dgates[:, 2])
            if earlier is not None:
                torch.mm(now_dgates.flatten(1), states, out=now_dm)
                torch.mul(now_dm, factor, out=now_dmixed)
                earlier[0][: len(now_dh)].addmm_(now_dmixed, state_factor)
                earlier[1][: len(now_dh)].addcmul_(now_dc, forget)
        dgates = dgates.flatten(1)
        dstate_factor = dmixed[layout.B :].t() @ h[before]
        return dm * mixed, dgates, dstate_factor, dgates.t() @ m, None
