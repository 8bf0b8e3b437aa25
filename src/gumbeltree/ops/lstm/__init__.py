"""An LSTM over rows of words (Eq. 13), by operations of torch or by kernels."""

from torch import Tensor

from gumbeltree.device.triton_support import precision_of, why_not
from gumbeltree.layout import Layout
from gumbeltree.ops.lstm import plain


def lstm(
    inputs: Tensor, weight_hh: Tensor, layout: Layout, reverse: bool = False, impl: str = "auto"
) -> Tensor:
    """Run an LSTM over the words of each sentence, from a zero state; gates are i, f, g, o.

    Args:
        inputs: W_ih x + b_ih + b_hh of the words `[cap, 4D]`.
        weight_hh: `[4D, D]`.
        layout: where the words stand.
        reverse: read from the last word to the first.
        impl: auto or fused: by kernels where they run; otherwise by operations of torch. Triton's
            interpreter counts for fused only.

    Returns:
        h and c of each word, side by side, `[cap, 2D]`; by kernels, zero beyond the words.
    """
    if why_not_kernels(weight_hh, impl) is not None:
        return plain.lstm(inputs, weight_hh, layout, reverse)
    from gumbeltree.ops.lstm import fused

    precision = precision_of(weight_hh.device.type)
    inputs, start = inputs.to(weight_hh.dtype), layout.found.start
    return fused.lstm(
        inputs, weight_hh, start, layout.T, layout.B, reverse, precision, layout.overlap
    )


def why_not_kernels(weight_hh: Tensor, impl: str) -> str | None:
    """Return why an LSTM does not run by kernels, or None if it does."""
    if impl not in ("auto", "fused"):
        return f"impl={impl!r} is by operations of torch"
    return why_not(weight_hh, by_name=impl == "fused")
