"""Gumbel-softmax without the straight-through step: a soft mixture of all candidates (Eq. 8)."""

import torch
from torch import Tensor

from gumbeltree.nn.estimators.estimator import SoftEstimator


class SoftGumbel(SoftEstimator):
    """Mix all candidates by their softmax weights, forward and backward."""

    def weights(self, logits: Tensor, noise: Tensor, choice: Tensor, temperature: float) -> Tensor:
        """Return softmax((logits + noise) / temperature), `[B, K]`."""
        return torch.softmax((logits + noise) / temperature, dim=-1)
