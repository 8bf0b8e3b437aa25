"""Straight-through Gumbel-softmax: one-hot forward, softmax backward (Eqs. 8, 9, S11)."""

import torch
from torch import Tensor

from gumbeltree.nn.estimators.estimator import LocalEstimator, softmax_jacobian


class StraightThroughGumbel(LocalEstimator):
    """The paper's estimator."""

    kernels = "st_gumbel"

    def weights(self, logits: Tensor, noise: Tensor, choice: Tensor, temperature: float) -> Tensor:
        """Return y-bar of Eq. S11: one-hot at `choice`, with the gradient of Eq. 8."""
        y = torch.softmax((logits + noise) / temperature, dim=-1)
        y_st = torch.zeros_like(y).scatter(-1, choice[:, None], 1.0)
        # detach(y_st - y) + y, written so that the value is exactly one-hot in floating point
        return y_st + (y - y.detach())

    def logit_gradient(
        self, dy: Tensor, logits: Tensor, noise: Tensor, choice: Tensor, temperature: float
    ) -> Tensor:
        """Return dL/da `[B, K]` from dL/dy-bar: the gradient of the softmax of the noisy logits."""
        y = torch.softmax((logits + noise) / temperature, dim=-1)
        return softmax_jacobian(y, dy) / temperature
