"""Gapped straight-through (Fan et al. 2022)."""

import torch
from torch import Tensor

from gumbeltree.config import GappedConfig
from gumbeltree.nn.estimators.estimator import LocalEstimator, softmax_jacobian


class GappedStraightThrough(LocalEstimator):
    """Differentiate a softmax in which the choice leads all others by at least `gap`.

    Instead of noise, constant shifts make the chosen logit the largest, so that different choices
    have different gradients without further randomness.
    """

    Config = GappedConfig
    kernels = "gapped"

    def logit_gradient(
        self, dy: Tensor, logits: Tensor, noise: Tensor, choice: Tensor, temperature: float
    ) -> Tensor:
        """Return dL/da `[B, K]`: the shifts of the logits are constants."""
        best = logits.amax(-1, keepdim=True)
        shifted = torch.minimum(logits, best - self.config.gap)
        shifted = shifted.scatter(-1, choice[:, None], best)
        return softmax_jacobian(torch.softmax(shifted / temperature, dim=-1), dy) / temperature
