"""A multiplicative LSTM over packed symbols, with a backward pass written by hand.

On a CUDA device, one kernel computes all gates of a symbol, and another one their gradients.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from gumbeltree.device.triton_support import why_not
from gumbeltree.layout import Layout

Gradients = Callable[[slice, slice | None, Tensor, Tensor, Tensor], None]

BD = 256
"""Units per program of the kernels."""
CONTIGUOUS = torch.contiguous_format
"""What the kernels expect."""


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
    given = factors.to(state_factor.dtype), inputs.to(state_factor.dtype), state_factor, states
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in given)
    found: tuple[Tensor, Tensor] = _MLSTM.apply(*given, layout, learns)
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
        learns: bool,
    ) -> tuple[Tensor, Tensor]:
        N, D = factors.shape
        h, c = factors.new_empty((2, N, D)).unbind()
        # without gradients, all steps share the rows of one
        kept = N if learns else layout.B
        mixed, m = factors.new_empty((2, kept, D)).unbind()
        gates = (
            inputs.clone(memory_format=CONTIGUOUS) if learns else inputs.new_empty((kept, 4 * D))
        )
        # the first symbols see a zero state
        mixed[: layout.B] = m[: layout.B] = 0
        from_state, from_m = state_factor.t(), states.t()
        ctx.fused = why_not(states) is None
        apply = apply_fused if ctx.fused else apply_exact
        last_h = last_c = None
        for first, n in zip(layout.starts, layout.active, strict=False):
            rows = slice(first, first + n)
            tape = rows if learns else slice(n)
            now_h, now_c, now_gates = h[rows], c[rows], gates[tape]
            if not learns:
                now_gates.copy_(inputs[rows])
            if last_h is not None:
                torch.mm(last_h[:n], from_state, out=mixed[tape])  # W_mh h
                torch.mul(factors[rows], mixed[tape], out=m[tape])
                now_gates.addmm_(m[tape], from_m)
            apply(now_gates, None if last_c is None else last_c[:n], now_c, now_h)
            last_h, last_c = now_h, now_c
        if learns:
            ctx.save_for_backward(h, c, mixed, m, gates, factors, state_factor, states)
            ctx.layout = layout
        return h, c

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dh: Tensor, dc: Tensor) -> tuple[Tensor | None, ...]:
        h, c, mixed, m, gates, factors, state_factor, states = ctx.saved_tensors
        layout, before = ctx.layout, ctx.layout.rows_before()
        dh, dc = (x.clone(memory_format=CONTIGUOUS) for x in (dh, dc))
        dgates = torch.empty_like(gates)
        step = (fused_gradients if ctx.fused else exact_gradients)(gates, c, before)
        dm, dmixed = h.new_zeros((2, *h.shape)).unbind()
        starts = layout.starts
        for t, n in reversed(list(enumerate(layout.active))):
            rows = slice(starts[t], starts[t] + n)
            earlier = slice(starts[t - 1], starts[t - 1] + n) if t else None
            step(rows, earlier, dh, dc, dgates)
            if earlier is not None:
                torch.mm(dgates[rows], states, out=dm[rows])
                torch.mul(dm[rows], factors[rows], out=dmixed[rows])
                dh[earlier].addmm_(dmixed[rows], state_factor)
        dstate_factor = dmixed[layout.B :].t() @ h[before]
        return dm * mixed, dgates, dstate_factor, dgates.t() @ m, None, None


def apply_exact(gates: Tensor, last_c: Tensor | None, c: Tensor, h: Tensor) -> None:
    """Compute the gates of a symbol `[n, 4D]` in place, and c and h `[n, D]`.

    Args:
        gates: before their functions; i, f, o and u afterwards.
        last_c: cell states before the symbol `[n, D]`; None if they are zero.
        c: receives the cell states.
        h: receives the states.
    """
    D = c.shape[1]
    ifo, u = gates.split([3 * D, D], dim=1)
    i, f, o = ifo.sigmoid_().chunk(3, dim=1)
    torch.mul(i, u.tanh_(), out=c)
    if last_c is not None:
        c.addcmul_(f, last_c)
    torch.mul(o, c.tanh(), out=h)


def apply_fused(gates: Tensor, last_c: Tensor | None, c: Tensor, h: Tensor) -> None:
    """Compute the gates with a Triton kernel; see `apply_exact`."""
    # imported here so that Triton stays optional
    from gumbeltree.ops.mlstm.kernels import gates_kernel

    n, D = c.shape
    with torch.cuda.device_of(c):
        gates_kernel[n, -(-D // BD)](
            gates, c if last_c is None else last_c, c, h, D=D, BD=BD, FIRST=last_c is None
        )


def exact_gradients(gates: Tensor, c: Tensor, before: Tensor) -> Gradients:
    """Return a function that computes gradients of the gates, symbol by symbol from the last.

    It receives the rows of n symbols and those of the symbols before them, None for the first; the
    gradients of h, complete for these rows, and of c, without those that come from h of the same
    symbol, `[N, D]`; and those of the gates before their functions `[N, 4D]`, whose rows it fills.
    It adds to the gradients of c before these symbols.

    Args:
        gates: i, f, o and u of all symbols `[N, 4D]`.
        c: cell states after all symbols `[N, D]`.
        before: row of the symbol before each symbol but the first ones, int64 `[N - B]`.
    """
    last_c = torch.cat([torch.zeros_like(c[: len(c) - len(before)]), c[before]])
    i, f, o, u = gates.chunk(4, dim=1)
    tanh = c.tanh()
    # derivatives that the recurrence does not change: of h by c, and of c and h by the gates
    by_c = o * (1 - tanh * tanh)
    slopes = torch.stack(
        [u * i * (1 - i), last_c * f * (1 - f), tanh * o * (1 - o), i * (1 - u * u)], dim=1
    )  # [N, 4, D]

    def step(rows: slice, earlier: slice | None, dh: Tensor, dc: Tensor, dgates: Tensor) -> None:
        now_dh, now_dc, slope = dh[rows], dc[rows], slopes[rows]
        now_dgates = dgates[rows].view_as(slope)
        now_dc.addcmul_(now_dh, by_c[rows])
        torch.mul(now_dc[:, None], slope, out=now_dgates)
        torch.mul(now_dh, slope[:, 2], out=now_dgates[:, 2])
        if earlier is not None:
            dc[earlier].addcmul_(now_dc, f[rows])

    return step


def fused_gradients(gates: Tensor, c: Tensor, before: Tensor) -> Gradients:
    """Return a function that launches a Triton kernel for each symbol; see `exact_gradients`."""
    from gumbeltree.ops.mlstm.kernels import gates_backward_kernel

    D = c.shape[1]

    def step(rows: slice, earlier: slice | None, dh: Tensor, dc: Tensor, dgates: Tensor) -> None:
        last = rows if earlier is None else earlier
        with torch.cuda.device_of(c):
            gates_backward_kernel[rows.stop - rows.start, -(-D // BD)](
                *(gates[rows], c[last], c[rows], dh[rows], dc[rows], dgates[rows], dc[last]),
                **{"D": D, "BD": BD, "FIRST": earlier is None},
            )

    return step
