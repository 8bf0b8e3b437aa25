"""Base classes of gradient estimators for the discrete choice of a merge, in three families.

Notation for one layer: logits a of the candidates `[B, K]`, -inf where there is none; noise g added
for sampling `[B, K]`, finite or -inf, zero where there is no candidate; the choice k, int64 `[B]`;
the mixing weights y, which determine the next layer's nodes (Eqs. S1-S7); and their gradient dy
`[B, K]`.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from gumbeltree.settings import PartConfig


class _Estimator:
    """Base class with settings.

    Args:
        config: an instance of `Config`; None for the defaults.
    """

    Config: ClassVar[type[Any]] = PartConfig

    def __init__(self, config: Any = None) -> None:
        self.config = self.Config() if config is None else config


class LocalEstimator(_Estimator, ABC):
    """One-hot weights; the gradient of the logits depends only on dy of the same layer.

    Because the forward pass never mixes candidates, `exact` supports these estimators.
    """

    mixes: ClassVar[bool] = False
    """Whether the next layer mixes candidates."""
    local: ClassVar[bool] = True
    """Whether the logits receive a gradient from dy of the same layer."""
    noise_scale: float = 1.0
    """Factor of the noise that is added for sampling."""

    @abstractmethod
    def logit_gradient(
        self, dy: Tensor, logits: Tensor, noise: Tensor, choice: Tensor, temperature: float
    ) -> Tensor:
        """Return dL/da `[B, K]`, zero where there is no candidate."""

    def weights(self, logits: Tensor, noise: Tensor, choice: Tensor, temperature: float) -> Tensor:
        """Return weights `[B, K]`, one-hot at `choice`, with `logit_gradient` as gradient."""
        found: Tensor = _OneHot.apply(logits, noise, choice, temperature, self)
        return found


def softmax_jacobian(weights: Tensor, dy: Tensor) -> Tensor:
    """Return J(w) dy = w (dy - w.dy) `[B, K]`, the product with the softmax Jacobian at `weights`.

    As w approaches one-hot, this suffers from cancellation. Only differences of dy matter, so they
    are taken relative to the entry with the largest weight.
    """
    u = dy - dy.gather(-1, weights.argmax(-1, keepdim=True))
    return weights * (u - (weights * u).sum(-1, keepdim=True))


def one_hot(choice: Tensor, like: Tensor) -> Tensor:
    """Return weights `[B, K]` that are 1 at `choice` `[B]`."""
    return torch.zeros_like(like).scatter(-1, choice[:, None], 1.0)


class AdvanceEstimator(_Estimator):
    """One-hot weights without a gradient; logits get theirs through `log_prob` and `entropy`.

    The encoding contains both for the choices made, and training adds `surrogate` to the loss; see
    `training.policy`. `exact` and `fused` support these estimators.
    """

    mixes: ClassVar[bool] = False
    local: ClassVar[bool] = False

    @property
    def updates(self) -> int:
        """Number of updates per batch."""
        return 1

    def surrogate(self, advantage: Tensor, log_prob: Tensor, drawn: Tensor) -> Tensor:
        """Return what to minimise for each example `[B]`.

        Args:
            advantage: loss of the tree minus a baseline, without gradient `[B]`.
            log_prob: log-probability of the tree `[B]`.
            drawn: its value when the tree was drawn, without gradient `[B]`; differs from
                `log_prob` only if there are several updates.
        """
        return advantage * log_prob

    def weights(self, logits: Tensor, noise: Tensor, choice: Tensor, temperature: float) -> Tensor:
        """Return weights `[B, K]`, one-hot at `choice`."""
        return one_hot(choice, logits)


class SoftEstimator(_Estimator, ABC):
    """Weights that mix candidates, so that every node changes at every layer.

    Only `reference` supports these estimators; autograd differentiates the forward pass.
    """

    mixes: ClassVar[bool] = True
    local: ClassVar[bool] = True

    @abstractmethod
    def weights(self, logits: Tensor, noise: Tensor, choice: Tensor, temperature: float) -> Tensor:
        """Return weights `[B, K]`, zero if there is no candidate; `choice` determines the tree."""


Estimator = LocalEstimator | AdvanceEstimator | SoftEstimator


class _OneHot(torch.autograd.Function):
    """One-hot in the forward pass; the backward pass applies a `LocalEstimator`."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        noise: Tensor,
        choice: Tensor,
        temperature: float,
        estimator: LocalEstimator,
    ) -> Tensor:
        ctx.save_for_backward(logits, noise, choice)
        ctx.temperature, ctx.estimator = temperature, estimator
        return one_hot(choice, logits)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        da = ctx.estimator.logit_gradient(dy, *ctx.saved_tensors, ctx.temperature)
        return da, None, None, None, None
