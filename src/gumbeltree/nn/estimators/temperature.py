"""Temperature of the softmax in the backward pass."""

import math


def check_temperature(temperature: float) -> float:
    """Return `temperature` as a float; raise ValueError unless it is positive and finite."""
    if not (isinstance(temperature, int | float) and 0 < temperature < math.inf):
        raise ValueError(
            f"`temperature` must be a positive finite number, got {temperature!r}; for greedy "
            "choices (the limit of temperature 0), call the encoder with sample=False"
        )
    return float(temperature)


def annealed_temperature(step: int, rate: float, minimum: float = 0.5) -> float:
    """Return max(minimum, exp(-rate * step)), the optional annealing of the authors' code."""
    return max(minimum, math.exp(-rate * step))
