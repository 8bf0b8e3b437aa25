"""The temperature of the softmax in the backward pass."""

import math


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
