"""What an estimator is: a rule for the gradient of a discrete choice, in one of three families.

A layer has the logits a of its candidates, `[B, K]`, -inf where there is none, the noise g that
sampling adds to them, `[B, K]`, finite or -inf, zero where there is no candidate, and the choice k,
int64 `[B]`. The mixing weights y of the layer decide which nodes go on (Eqs. S1-S7); dy is the
gradient that they get, `[B, K]`.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from gumbeltree.settings import PartConfig


class _Estimator:
    """What all have: settings.

    Args:
        config: of the class `Config`; None for its defaults.
    """

    Config: ClassVar[type[Any]] = PartConfig

    def __init__(self, config: Any = None) -> None:
        self.config = self.Config() if config is None else config


class LocalEstimator(_Estimator, ABC):
    """One-hot weights, whose logits' gradient follows from dy of the same layer.

    The forward pass then never mixes candidates, so `exact` can run it.
    """

    mixes: ClassVar[bool] = False
    """Whether the next layer mixes candidates."""
    local: ClassVar[bool] = True
    """Whether the logits get a gradient from dy of the same layer."""

    @abstractmethod
    def logit_gradient(
        self, dy: Tensor, logits: Tensor, noise: Tensor, choice: Tensor, temperature: float
    ) -> Tensor:
        """Return dL/da `[B, K]`, zero where there is no candidate."""

    def weights(self, logits: Tensor, noise: Tensor, choice: Tensor, temperature: float) -> Tensor:
        """Return weights `[B, K]`, one-hot at `choice`, with the gradient of `logit_gradient`."""
        found: Tensor = _OneHot.apply(logits, noise, choice, temperature, self)
        return found


class AdvanceEstimator(_Estimator):
    """One-hot weights without a gradient: the logits' gradient is known before the backward pass.

    The encoding then has `log_prob` and `entropy` of the choices, and training weighs them by how
    good the trees turned out (Williams 1992). `exact` and `fused` run it.
    """

    mixes: ClassVar[bool] = False
    local: ClassVar[bool] = False

    def weights(self, logits: Tensor, noise: Tensor, choice: Tensor, temperature: float) -> Tensor:
        """Return weights `[B, K]`, one-hot at `choice`."""
        return torch.zeros_like(logits).scatter(-1, choice[:, None], 1.0)


class SoftEstimator(_Estimator, ABC):
    """Weights that mix candidates: every node then changes at every layer.

    Only `reference` can run it; its gradient is the derivative of its forward pass.
    """

    mixes: ClassVar[bool] = True
    local: ClassVar[bool] = True

    @abstractmethod
    def weights(self, logits: Tensor, noise: Tensor, choice: Tensor, temperature: float) -> Tensor:
        """Return weights `[B, K]`, zero where there is no candidate; `choice` names the tree."""


Estimator = LocalEstimator | AdvanceEstimator | SoftEstimator


class _OneHot(torch.autograd.Function):
    """One-hot by value; backward, the rule of a `LocalEstimator`."""

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
        return torch.zeros_like(logits).scatter(-1, choice[:, None], 1.0)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        da = ctx.estimator.logit_gradient(dy, *ctx.saved_tensors, ctx.temperature)
        return da, None, None, None, None
