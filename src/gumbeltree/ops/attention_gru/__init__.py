"""A GRU over packed words with a gate per word, and a backward pass written by hand.

On a CUDA device, a word takes a product and one kernel in each direction.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from gumbeltree.device.triton_support import operand, precision_of, product, why_not
from gumbeltree.layout import Layout


def attention_gru(inputs: Tensor, gates: Tensor, weight: Tensor, layout: Layout) -> Tensor:
    """Run the attention GRU of Kumar et al. (2016) from a zero state.

    A word with the gate g changes the state e as follows, in the notation of `torch.nn.GRU`:

        r, z = sigmoid(x_rz + (W e)_rz)
        n = tanh(x_n + r * (W e)_n)
        e <- e + g (1 - z) * (n - e)

    Autograd would compute the gradient of W at every word; here, it takes one product. Under
    autocast, products are in bfloat16, while states and gates are not.

    Args:
        inputs: W_x x + b of the words, with parts r, z, n, `[N, 3D]`.
        gates: g of the words `[N, 1]`; zero in spare rows.
        weight: W `[3D, D]`.
        layout: layout of the words; inside a graph, one with T rows per sentence.

    Returns:
        The last state of each sorted sentence `[B, D]`.
    """
    given = *(x.to(weight.dtype).contiguous() for x in (inputs, gates)), weight
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in given)
    last: Tensor = _AttentionGRU.apply(*given, layout, precision_of(weight.device.type), learns)
    return last


class _AttentionGRU(Function):
    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        gates: Tensor,
        weight: Tensor,
        layout: Layout,
        precision: str,
        learns: bool,
    ) -> Tensor:
        (N, D), factor = (len(inputs), weight.shape[1]), operand(weight, precision)
        e = inputs.new_zeros((layout.B, D))
        # the states as products read them: the same tensor, unless products are in bfloat16
        read = e.to(factor.dtype)
        # without gradients, all words share the rows of one
        hidden = factor.new_empty((N if learns else layout.B, 3 * D))
        before = e.new_empty((N, D)) if learns else None
        # the first words see a zero state
        hidden[: layout.B] = 0
        ctx.fused = why_not(weight) is None
        apply = apply_fused if ctx.fused else apply_exact
        for t, (first, n) in enumerate(zip(layout.starts, layout.active, strict=False)):
            rows = slice(first, first + n)
            tape = hidden[rows] if learns else hidden[:n]
            if t:
                torch.mm(read[:n], factor.t(), out=tape)
            kept = None if before is None else before[rows]
            apply(inputs[rows], tape, gates[rows], e[:n], read[:n], kept)
        if before is not None:
            ctx.save_for_backward(inputs, gates, factor, hidden, before)
            ctx.layout, ctx.precision = layout, precision
        return e

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, de: Tensor) -> tuple[Tensor | None, ...]:
        inputs, gates, factor, hidden, before = ctx.saved_tensors
        layout = ctx.layout
        dinputs, dhidden, dgates = (torch.empty_like(x) for x in (inputs, hidden, gates))
        de = de.clone(memory_format=torch.contiguous_format)
        # the part of `de` that comes from the product of the following word
        through = torch.zeros_like(de, dtype=factor.dtype)
        step = fused_gradients if ctx.fused else exact_gradients
        for t, n in reversed(list(enumerate(layout.active))):
            rows = slice(layout.starts[t], layout.starts[t] + n)
            step(
                inputs[rows], hidden[rows], gates[rows], before[rows], de[:n], through[:n],
                dinputs[rows], dhidden[rows], dgates[rows],
            )  # fmt: skip
            if t:
                torch.mm(dhidden[rows], factor, out=through[:n])
        dweight = product(dhidden.t(), before, ctx.precision)
        return dinputs, dgates, dweight, None, None, None


def apply_exact(
    inputs: Tensor, hidden: Tensor, gate: Tensor, e: Tensor, read: Tensor, before: Tensor | None
) -> None:
    """Compute the states of n sentences after a word in place.

    Args:
        inputs: of the word `[n, 3D]`.
        hidden: W e `[n, 3D]`.
        gate: g of the word `[n, 1]`.
        e: states before the word, which become those after it `[n, D]`.
        read: receives the states in the dtype of products, unless it is `e`.
        before: receives the states before the word, if not None.
    """
    _, z, new, _ = _activated(inputs, hidden)
    if before is not None:
        before.copy_(e)
    e.addcmul_(gate * (1 - z), new - e)
    if read.dtype != e.dtype:
        read.copy_(e)


def apply_fused(
    inputs: Tensor, hidden: Tensor, gate: Tensor, e: Tensor, read: Tensor, before: Tensor | None
) -> None:
    """Compute the states with a Triton kernel; see `apply_exact`."""
    # imported here so that Triton stays optional
    from gumbeltree.ops.attention_gru.kernels import step_kernel

    kept = e if before is None else before
    with torch.cuda.device_of(e):
        step_kernel[len(e),](
            *(inputs, hidden, gate, e, read, kept), **_sizes(e), KEEP=before is not None
        )


def exact_gradients(
    inputs: Tensor,
    hidden: Tensor,
    gate: Tensor,
    before: Tensor,
    de: Tensor,
    through: Tensor,
    dinputs: Tensor,
    dhidden: Tensor,
    dgate: Tensor,
) -> None:
    """Compute the gradients of a word, from those of the states after it.

    Args:
        inputs: of the word `[n, 3D]`.
        hidden: W e `[n, 3D]`.
        gate: g of the word `[n, 1]`.
        before: states before the word `[n, D]`.
        de: gradient of the states after the word, without `through`; becomes that of the states
            before the word, without the part that comes from W e, `[n, D]`.
        through: gradient of the states after the word from the following product `[n, D]`.
        dinputs: receives the gradient of `inputs`.
        dhidden: receives the gradient of `hidden`.
        dgate: receives the gradient of `gate`.
    """
    r, z, new, hidden_new = _activated(inputs, hidden)
    de += through
    share, dshare = gate * (1 - z), de * (new - before)
    dnew = de * share * (1 - new * new)
    dr, dz = dnew * hidden_new * r * (1 - r), -dshare * share * z
    torch.sum(dshare * (1 - z), dim=1, keepdim=True, out=dgate)
    dinputs.copy_(torch.cat([dr, dz, dnew], dim=1))
    dhidden.copy_(torch.cat([dr, dz, dnew * r], dim=1))
    de *= 1 - share


def fused_gradients(*tensors: Tensor) -> None:
    """Compute the gradients of a word with a Triton kernel; see `exact_gradients`."""
    from gumbeltree.ops.attention_gru.kernels import step_backward_kernel

    de = tensors[4]
    with torch.cuda.device_of(de):
        step_backward_kernel[len(de),](*tensors, **_sizes(de))


def _sizes(e: Tensor) -> dict[str, int]:
    """Return the sizes of the kernels, whose programs cover all units of a sentence."""
    D = e.shape[1]
    return {"D": D, "BD": 1 << (D - 1).bit_length()}


def _activated(inputs: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return r, z, n and the product of the part n, `[n, D]` each."""
    D = inputs.shape[1] // 3
    r, z = (inputs[:, : 2 * D] + hidden[:, : 2 * D]).sigmoid().chunk(2, dim=1)
    hidden_new = hidden[:, 2 * D :]
    return r, z, (inputs[:, 2 * D :] + r * hidden_new).tanh(), hidden_new
