"""Gumbel-softmax without the straight-through step: a soft mixture of all candidates (Eq. 8)."""

import torch
from torch import Tensor


class SoftGumbel:
    """Mix every candidate by its softmax weight, forward and backward.

    Every node of a layer then depends on every candidate, so only `reference` can run it. Its
    gradient is the derivative of its forward pass, which finite differences can check.
    """

    one_hot = False

    def weights(self, scores: Tensor, choice: Tensor, temperature: float) -> Tensor:
        """Return softmax(scores / temperature), `[B, K]`; `choice` only names the tree."""
        return torch.softmax(scores / temperature, dim=-1)
