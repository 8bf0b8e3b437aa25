"""Affine leaf transformation with layer normalisation."""

from typing import Any

import torch
from torch import Tensor, nn

from gumbeltree.layout import Layout


class NormLeaf(nn.Module):
    """Compute r_i = LayerNorm(W x_i + b), the leaves of the gated recursive cell; c repeats h."""

    capturable = True

    def __init__(self, embedding_dim: int, hidden_dim: int, config: Any = None) -> None:
        super().__init__()
        self.linear = nn.Linear(embedding_dim, hidden_dim)
        self.norm = nn.LayerNorm(hidden_dim)

    def forward(self, words: Tensor, layout: Layout, impl: str = "auto") -> Tensor:
        """Return the leaf states of `words`, `[rows, 2D]`."""
        h = self.norm(self.linear(words))
        return torch.cat([h, h], dim=-1)
