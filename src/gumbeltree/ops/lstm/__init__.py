"""An LSTM over packed words (Eq. 13), with PyTorch operations or Triton kernels."""

from torch import Tensor

from gumbeltree.device.triton_support import precision_of, why_not
from gumbeltree.layout import Layout
from gumbeltree.ops.lstm import plain


def lstm(
    inputs: Tensor, weight_hh: Tensor, layout: Layout, reverse: bool = False, impl: str = "auto"
) -> Tensor:
    """Run an LSTM over the words of each sentence from a zero state, with gates i, f, g, o.

    Args:
        inputs: W_ih x + b_ih + b_hh of the words `[cap, 4D]`.
        weight_hh: Recurrent weight `[4D, D]`.
        layout: Layout of the words.
        reverse: Read each sentence from its last word to its first.
        impl: "auto" and "fused" use kernels if they can run, "fused" even in Triton's interpreter;
            any other value uses PyTorch operations.

    Returns:
        h and c of each word, concatenated, `[cap, 2D]`; kernels set rows past the words to zero.
    """
    if why_not_kernels(weight_hh, impl) is not None:
        return plain.lstm(inputs, weight_hh, layout, reverse)
    from gumbeltree.ops.lstm import fused

    precision = precision_of(weight_hh.device.type)
    inputs, start = inputs.to(weight_hh.dtype), layout.tables.start
    return fused.lstm(
        inputs, weight_hh, start, layout.T, layout.B, reverse, precision, layout.overlap
    )


def bilstm(
    there: tuple[Tensor, Tensor], back: tuple[Tensor, Tensor], layout: Layout, impl: str = "auto"
) -> tuple[Tensor, ...]:
    """Run an LSTM in each direction, on a CUDA device both at the same time.

    Args:
        there: inputs and recurrent weight of the LSTM that begins with the first words; see `lstm`.
        back: those of the LSTM that begins with the last words.
        layout: Layout of the words.
        impl: see `lstm`.

    Returns:
        h and c of each word, concatenated, `[cap, 2D]`, of each direction.
    """
    if why_not_kernels(there[1], impl) is not None:
        return tuple(plain.lstm(*x, layout, reverse=x is back) for x in (there, back))
    from gumbeltree.ops.lstm import fused

    precision = precision_of(there[1].device.type)
    plans = [fused.Plan(layout.T, layout.B, x, precision, layout.overlap) for x in (-1, 1)]
    given = [(inputs.to(weight.dtype), weight) for inputs, weight in (there, back)]
    return fused.directions(given, layout.tables.start, plans)


def why_not_kernels(weight_hh: Tensor, impl: str) -> str | None:
    """Return why an LSTM does not use kernels, or None if it does."""
    if impl not in ("auto", "fused"):
        return f"impl={impl!r} uses PyTorch operations"
    return why_not(weight_hh, by_name=impl == "fused")
