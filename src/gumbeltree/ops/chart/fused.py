"""Launch the kernels of charts: the spans of one length in the first sentences of a batch."""

import torch
from torch import Tensor

TINY = 1e-8
"""Lower limit of the norms in a cosine, as in `torch.nn.functional.cosine_similarity`."""


def fill(
    parts: tuple[Tensor, ...],
    query: Tensor,
    beta: Tensor,
    charts: tuple[Tensor, Tensor, Tensor],
    n: int,
    sentences: int,
) -> None:
    """Compute the spans of n words.

    Args:
        parts: gates of left and right parts `[T, B, T-1, 5D]`, and cell states `[T, B, T-1, D]`.
        query: normalised query `[D]`.
        beta: factor of the cosines `[]`.
        charts: receive h and c, `[T, T, B, D]`, and the best splits `[T, T, B]`.
        n: number of words, at least 2.
        sentences: number of sentences.
    """
    from gumbeltree.ops.chart import kernels

    T, B = parts[0].shape[:2]
    # Triton launches on the current device, not on that of the tensors
    with torch.cuda.device_of(query):
        kernels.fill_kernel[T - n + 1, sentences](
            *parts, query, beta, *charts, n, T, B, **sizes(query)
        )


def fill_backward(
    parts: tuple[Tensor, ...],
    query: Tensor,
    beta: Tensor,
    given: tuple[Tensor, Tensor],
    sums: tuple[Tensor, ...],
    n: int,
    sentences: int,
) -> None:
    """Add the gradients of spans of n words.

    Args:
        parts: see `fill`.
        query: normalised query.
        beta: factor of the cosines.
        given: gradients of h and c of the spans, `[T-n+1, B, D]`.
        sums: receive the gradients of the parts, and that of the query for each last word and
            sentence `[T, B, D]`.
        n: number of words, at least 2.
        sentences: number of sentences.
    """
    from gumbeltree.ops.chart import kernels

    T, B = parts[0].shape[:2]
    dh, dc = (x.contiguous() for x in given)
    with torch.cuda.device_of(query):
        kernels.fill_backward_kernel[T - n + 1, sentences](
            *parts, query, beta, dh, dc, *sums, n, T, B, **sizes(query)
        )


def sizes(query: Tensor) -> dict[str, float]:
    """Return the constants of both kernels; a warp has up to 128 columns."""
    D = len(query)
    block = 1 << (D - 1).bit_length()
    return {"TINY": TINY, "D": D, "BD": block, "num_warps": max(1, block // 128)}
