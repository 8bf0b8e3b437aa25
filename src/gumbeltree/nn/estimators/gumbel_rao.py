"""Gumbel-Rao: ST-Gumbel with less variance (Paulus et al. 2021)."""

import torch
from torch import Tensor

from gumbeltree.config import GumbelRaoConfig
from gumbeltree.nn.estimators.estimator import LocalEstimator, softmax_jacobian
from gumbeltree.noise import mixed


class GumbelRao(LocalEstimator):
    """Average the gradient of ST-Gumbel over several draws of the noise with the same choice."""

    Config = GumbelRaoConfig

    def logit_gradient(
        self, dy: Tensor, logits: Tensor, noise: Tensor, choice: Tensor, temperature: float
    ) -> Tensor:
        """Return dL/da `[B, K]`, the mean over `samples` draws."""
        total = torch.zeros_like(logits)
        for sample in range(self.config.samples):
            noisy = conditional_logits(logits, choice, exponentials(noise, sample))
            y = torch.softmax(noisy / temperature, dim=-1)
            total += softmax_jacobian(y, dy)
        mean: Tensor = total / (self.config.samples * temperature)
        return mean


def exponentials(noise: Tensor, sample: int) -> Tensor:
    """Return exponentially distributed numbers `[B, K]` that are functions of the noise.

    Hashing the noise, its position and the number of the sample gives every implementation the same
    numbers without another source of randomness.
    """
    bits = noise.float().view(torch.int32).to(torch.int64) & 0xFFFF_FFFF
    place = torch.arange(noise.shape[-1], device=noise.device)
    parts = mixed(mixed(bits, 2 * sample + 1) ^ place, 2 * sample + 2) >> 9
    return -((parts.to(noise.dtype) + 0.5) * 2.0**-23).log()


def conditional_logits(logits: Tensor, choice: Tensor, drawn: Tensor) -> Tensor:
    """Return noisy logits `[B, K]` given that `choice` `[B]` has the largest.

    Args:
        logits: a, -inf where there is no candidate.
        choice: index k of the largest.
        drawn: exponentially distributed numbers E `[B, K]`.

    The largest is log Z - log E_k with Z the sum of exp(a); the others are
    -log(E_i / exp(a_i) + E_k / Z).
    """
    total = logits.logsumexp(-1, keepdim=True)
    best = total - drawn.gather(-1, choice[:, None]).log()
    # -log(exp(log E_i - a_i) + exp(-best)), without overflow
    others = -torch.logaddexp(drawn.log() - logits, -best)
    return others.scatter(-1, choice[:, None], best)
