"""Rows of a table by their numbers, with a gradient that has the same bits in every run.

On CUDA devices, torch adds the gradients of a short table with many lookups, such as the word
vectors of ListOps, by atomic additions, whose order varies from run to run. A product with a matrix
of zeros and ones adds them in a fixed order.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function
from torch.nn import functional as F

MANY = 16
"""Lookups per row from which on the product is used; torch adds atomically from 30."""
ENTRIES = 2**22
"""Maximum size of the matrix of zeros and ones."""


def lookup(table: Tensor, rows: Tensor) -> Tensor:
    """Return `table[rows]`.

    Args:
        table: `[V, E]`.
        rows: numbers of rows, of any shape.

    Returns:
        `[*rows.shape, E]`.
    """
    if table.is_cuda and rows.numel() >= MANY * len(table):
        found: Tensor = Lookup.apply(table, rows.flatten())
        return found.view(*rows.shape, table.shape[1])
    return F.embedding(rows, table)


class Lookup(Function):
    """Rows of a table; the gradient is a sum of products."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, rows: Tensor) -> Tensor:
        """Return `[N, E]` for numbers `[N]`."""
        ctx.save_for_backward(rows)
        ctx.length = len(table)
        return F.embedding(rows, table)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of the table, `[V, E]`."""
        (rows,) = ctx.saved_tensors
        numbers = torch.arange(ctx.length, device=rows.device)[:, None]
        total = gradient.new_zeros(ctx.length, gradient.shape[1])
        step = max(ENTRIES // ctx.length, 1)
        for part, added in zip(rows.split(step), gradient.split(step), strict=True):
            total = total + (numbers == part).to(gradient.dtype) @ added
        return total, None
