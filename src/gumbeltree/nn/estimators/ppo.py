"""Proximal policy optimisation (Schulman et al. 2017), for trees by Havrylov et al. (2019)."""

import torch
from torch import Tensor

from gumbeltree.config import PPOConfig
from gumbeltree.nn.estimators.estimator import AdvanceEstimator


class PPO(AdvanceEstimator):
    """Update several times on each drawn tree, as long as its probability stays near the first."""

    Config = PPOConfig

    @property
    def updates(self) -> int:
        """Number of updates per batch."""
        count: int = self.config.updates
        return count

    def surrogate(self, advantage: Tensor, log_prob: Tensor, drawn: Tensor) -> Tensor:
        """Return max(r A, clip(r) A) `[B]` for the ratio r of the probabilities now and drawn.

        Its gradient is zero once r has left 1 - epsilon .. 1 + epsilon in the direction that
        lowers the loss.
        """
        # many merges can change the probability by more than float32 can represent
        ratio = (log_prob - drawn).clamp(max=60).exp()
        near = ratio.clamp(1 - self.config.epsilon, 1 + self.config.epsilon)
        return torch.maximum(ratio * advantage, near * advantage)
