"""ReinMax (Liu et al. 2023)."""

import torch
from torch import Tensor

from gumbeltree.config import ReinMaxConfig
from gumbeltree.nn.estimators.estimator import LocalEstimator, one_hot, softmax_jacobian


class ReinMax(LocalEstimator):
    """Approximate the gradient to second order; exact for quadratic losses at temperature 1."""

    Config = ReinMaxConfig
    kernels = "reinmax"

    def logit_gradient(
        self, dy: Tensor, logits: Tensor, noise: Tensor, choice: Tensor, temperature: float
    ) -> Tensor:
        """Return dL/da `[B, K]`: 2 J((p_T + D) / 2) dy - J(p) dy / 2.

        p is softmax(a), p_T is softmax(a / temperature), and D is one-hot at the choice.
        """
        warm = torch.softmax(logits / temperature, dim=-1)
        middle = (warm + one_hot(choice, logits)) / 2
        plain = torch.softmax(logits, dim=-1)
        return 2 * softmax_jacobian(middle, dy) - softmax_jacobian(plain, dy) / 2
