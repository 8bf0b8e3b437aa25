"""Gumbel-Rao: ST-Gumbel with less variance (Paulus et al. 2021)."""

import torch
from torch import Tensor
from torch.nn import functional as F

from gumbeltree.config import GumbelRaoConfig
from gumbeltree.nn.estimators.estimator import LocalEstimator
from gumbeltree.noise import mixed

AT_ONCE = 16
"""Number of draws that are computed at once."""


class GumbelRao(LocalEstimator):
    """Average the gradient of ST-Gumbel over several draws of the noise with the same choice."""

    Config = GumbelRaoConfig
    kernels = "gumbel_rao"

    def logit_gradient(
        self, dy: Tensor, logits: Tensor, noise: Tensor, choice: Tensor, temperature: float
    ) -> Tensor:
        """Return dL/da `[B, K]`, the mean over `samples` draws."""
        # only differences matter; the choice has the largest weight in every draw
        u = dy - dy.gather(-1, choice[:, None])
        parts = uniform_parts(noise)
        total = torch.zeros_like(logits)
        for some in torch.arange(self.config.samples, device=noise.device).split(AT_ONCE):
            drawn = exponentials(parts, some, logits.dtype)
            y = torch.softmax(conditional_logits(logits, choice, drawn) / temperature, dim=-1)
            total += (y * (u - (y * u).sum(-1, keepdim=True))).sum(0)
        mean: Tensor = total / (self.config.samples * temperature)
        return mean


def uniform_parts(noise: Tensor) -> Tensor:
    """Return which of 2^23 equal parts of [0, 1] the noise was computed from, int64 `[B, K]`.

    Keyed noise comes from the middle of a part. Its last bits depend on the device, its part does
    not.
    """
    return ((-(-noise.double()).exp()).exp() * 2.0**23).long()


def exponentials(parts: Tensor, samples: Tensor, dtype: torch.dtype) -> Tensor:
    """Return exponentially distributed numbers `[S, B, K]` that are functions of the noise.

    Hashing `uniform_parts` of the noise, its position and the number of the sample `[S]` gives
    every implementation the same numbers without another source of randomness.
    """
    places = mixed(parts, 0) ^ torch.arange(parts.shape[-1], device=parts.device)
    bits = mixed(places, samples[:, None, None] + 1) >> 9
    return bits.to(dtype).add_(0.5).mul_(2.0**-23).log_().neg_()


def conditional_logits(logits: Tensor, choice: Tensor, drawn: Tensor) -> Tensor:
    """Return noisy logits `[S, B, K]` given that `choice` `[B]` has the largest.

    Args:
        logits: a `[B, K]`, -inf where there is no candidate.
        choice: index k of the largest.
        drawn: exponentially distributed numbers E `[S, B, K]`.

    The largest is log Z - log E_k with Z the sum of exp(a); the others are
    -log(E_i / exp(a_i) + E_k / Z).
    """
    logs, at = drawn.log(), choice[:, None].expand(len(drawn), -1, 1)
    best = logits.logsumexp(-1, keepdim=True) - logs.gather(-1, at)
    # best - log(1 + exp(log E_i - a_i + best)); above the threshold, the 1 has no effect
    others = best - F.softplus(logs - logits + best, threshold=40)
    return others.scatter(-1, at, best)
