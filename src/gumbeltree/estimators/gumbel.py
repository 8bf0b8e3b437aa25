"""Gumbel noise and the temperature."""

import math

import torch
from torch import Tensor


def gumbel_noise(
    shape: tuple[int, ...],
    *,
    device: torch.device | str | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw Gumbel noise in float32, g = -log(-log(u + e) + e) with e = 1e-20 (Eqs. S9, S10)."""
    u = torch.rand(shape, device=device, generator=generator, dtype=torch.float32)
    return u.add_(1e-20).log_().neg_().add_(1e-20).log_().neg_()


def check_temperature(temperature: float) -> float:
    """Return `temperature` if it is a positive number, else raise."""
    if not (isinstance(temperature, int | float) and 0 < temperature < math.inf):
        raise ValueError(
            f"`temperature` must be a positive finite number, got {temperature!r}; the limit 0 is "
            "greedy choice: call the encoder with sample=False instead"
        )
    return float(temperature)


def annealed_temperature(step: int, rate: float, minimum: float = 0.5) -> float:
    """Return max(minimum, exp(-rate * step)), the authors' optional annealing."""
    return max(minimum, math.exp(-rate * step))
