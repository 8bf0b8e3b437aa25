"""SPIGOT and its relatives: a projected gradient step on the choice."""

import torch
from torch import Tensor

from gumbeltree.config import SpigotConfig
from gumbeltree.nn.estimators.estimator import LocalEstimator, one_hot


class Spigot(LocalEstimator):
    """Return how a gradient step on the choice, kept in the simplex, changes it.

    `spigot` (Peng et al. 2018) starts at the one-hot choice; `ce` and `eg` (Mihaylova et al. 2020)
    start at the softmax, and `eg` takes an exponentiated step instead of a projected one.
    """

    Config = SpigotConfig
    kernels = "spigot"

    def logit_gradient(
        self, dy: Tensor, logits: Tensor, noise: Tensor, choice: Tensor, temperature: float
    ) -> Tensor:
        """Return dL/da `[B, K]`; the temperature has no effect."""
        step = self.config.step * dy
        there = logits > -torch.inf
        if self.config.variant == "spigot":
            start = one_hot(choice, logits)
            return start - project(start - step, there)
        plain = torch.softmax(logits, dim=-1)
        if self.config.variant == "ce":
            return plain - project(plain - step, there)
        return plain - torch.softmax(torch.where(there, logits - step, -torch.inf), dim=-1)


def project(points: Tensor, there: Tensor) -> Tensor:
    """Return the nearest points of the simplex `[B, K]`; entries that are not `there` are zero.

    Subtracting a threshold and clipping at zero gives the nearest point. The threshold follows from
    the largest number of sorted entries that stay positive (Duchi et al. 2008).
    """
    ranked = torch.where(there, points, -torch.inf).sort(-1, descending=True).values
    finite = ranked > -torch.inf
    number = torch.arange(1, points.shape[-1] + 1, device=points.device)
    excess = torch.where(finite, ranked, 0.0).cumsum(-1) - 1
    positive = finite & (ranked * number > excess)
    last = positive.sum(-1, keepdim=True).clamp(min=1) - 1
    threshold = excess.gather(-1, last) / (last + 1)
    return torch.where(there, (points - threshold).clamp(min=0), 0.0)
