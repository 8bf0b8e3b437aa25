"""Straight-through: one-hot forward, softmax without noise backward (Bengio et al. 2013)."""

import torch
from torch import Tensor

from gumbeltree.config import SampledConfig
from gumbeltree.nn.estimators.estimator import LocalEstimator, softmax_jacobian


class StraightThrough(LocalEstimator):
    """Sample from softmax(a / forward_temperature); differentiate softmax(a / temperature).

    With a forward temperature other than 1, this is the decoupled estimator of Shah et al. (2024).
    """

    Config = SampledConfig
    kernels = "st"

    @property
    def noise_scale(self) -> float:  # type: ignore[override]
        """Factor of the noise: argmax(a + t g) samples from softmax(a / t)."""
        scale: float = self.config.forward_temperature
        return scale

    def logit_gradient(
        self, dy: Tensor, logits: Tensor, noise: Tensor, choice: Tensor, temperature: float
    ) -> Tensor:
        """Return dL/da `[B, K]`: J(softmax(a / temperature)) dy / temperature."""
        return softmax_jacobian(torch.softmax(logits / temperature, dim=-1), dy) / temperature
