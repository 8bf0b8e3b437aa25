"""Affine leaf transformation (Eq. 10)."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gumbeltree.layout import Layout


class AffineLeaf(nn.Module):
    """Compute r_i = W x_i + b, with He normal initialisation of W and zero b."""

    capturable = True

    def __init__(self, embedding_dim: int, hidden_dim: int, config: Any = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2 * hidden_dim, embedding_dim))
        self.bias = nn.Parameter(torch.empty(2 * hidden_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the weights."""
        nn.init.kaiming_normal_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, words: Tensor, layout: Layout, impl: str = "auto") -> Tensor:
        """Return the leaf states of `words`, `[rows, 2D]`."""
        return F.linear(words, self.weight, self.bias)
