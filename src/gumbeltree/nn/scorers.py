"""Scores of candidates that depend on their two children alone.

The query scores a candidate by its own state. A score of the children needs no gradient through the
cell: `exact` and the beam search differentiate it with autograd, for all candidates at once.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class PairScorer(nn.Module):
    """Score two children by a perceptron, out · GELU(W [l; r] + b), with D hidden units.

    Args:
        hidden_dim: state width D.
    """

    def __init__(self, hidden_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden_dim, 2 * hidden_dim))
        self.bias = nn.Parameter(torch.empty(hidden_dim))
        # a second bias would cancel in the softmax
        self.out = nn.Parameter(torch.empty(hidden_dim))
        limit = 1 / math.sqrt(2 * hidden_dim)
        nn.init.uniform_(self.weight, -limit, limit)
        nn.init.uniform_(self.bias, -limit, limit)
        nn.init.normal_(self.out, std=0.01)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the scores `[...]` of children, each `[..., D]`."""
        weight, bias, out = (x.to(left.dtype) for x in (self.weight, self.bias, self.out))
        hidden = F.gelu(F.linear(torch.cat([left, right], dim=-1), weight, bias))
        return (hidden * out).sum(-1)


class CosineScorer(nn.Module):
    """Score two children by the cosine of their states.

    Args:
        hidden_dim: state width D.
    """

    def __init__(self, hidden_dim: int) -> None:
        super().__init__()

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the scores `[...]` of children, each `[..., D]`."""
        return F.cosine_similarity(left, right, dim=-1)


SCORERS: dict[str, type[nn.Module]] = {"pair": PairScorer, "cosine": CosineScorer}
"""Scorers by `score` of the encoder."""
