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

LONGEST = 1024
"""Rows up to which the product is used; torch adds atomically up to four per multiprocessor."""
MANY = 16
"""Lookups per row from which on the product is used; torch adds atomically from 30."""
ENTRIES = 2**22
"""Maximum size of the matrix of zeros and ones."""
TF32_BITS = -(1 << 13)
"""Mask of the bits of a float32 number that TF32 keeps."""


def lookup(table: Tensor, rows: Tensor) -> Tensor:
    """Return the rows of a table `[V, E]`, `[*rows.shape, E]`, for their numbers of any shape."""
    learns = table.is_cuda and table.requires_grad and torch.is_grad_enabled()
    if learns and len(table) <= LONGEST and rows.numel() >= MANY * len(table):
        found: Tensor = Lookup.apply(table, rows.flatten())
        return found.view(*rows.shape, table.shape[1])
    return F.embedding(rows, table)


class Lookup(Function):
    """Rows of a table; the gradient is a sum of products."""

    generate_vmap_rule = True

    @staticmethod
    def forward(table: Tensor, rows: Tensor) -> Tensor:
        """Return `[N, E]` for numbers `[N]`."""
        return F.embedding(rows, table)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Save the numbers."""
        ctx.save_for_backward(inputs[1])
        ctx.length = len(inputs[0])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of the table, `[V, E]`."""
        (rows,) = ctx.saved_tensors
        wide = gradient.float() if gradient.dtype.itemsize < 4 else gradient
        parts = [wide]
        if wide.dtype == torch.float32:
            # a product in TF32 does not round the first part, and hardly the second
            high = (wide.detach().view(torch.int32) & TF32_BITS).view(torch.float32)
            parts = [high, wide - high]
        numbers = torch.arange(ctx.length, device=rows.device)[:, None]
        total = wide.new_zeros(ctx.length, len(parts) * wide.shape[1])
        step = ENTRIES // ctx.length
        pieces = zip(rows.split(step), torch.cat(parts, dim=1).split(step), strict=True)
        with torch.autocast(rows.device.type, enabled=False):
            for some, added in pieces:
                total = total + (numbers == some).to(wide.dtype) @ added
        summed: Tensor = sum(total.chunk(len(parts), dim=1), start=wide.new_zeros(()))
        return summed.to(gradient.dtype), None
