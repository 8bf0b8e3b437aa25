"""Gradient estimators. Without gradients, they differ only if sampling mixes the candidates."""

import numpy as np

from gumbeltree.light.arrays import Array


class HardChoice:
    """The new node is the chosen candidate."""

    mixes = False


class SoftChoice:
    """Sampling mixes all candidates by their softmax weights (Eq. 8)."""

    mixes = True

    @staticmethod
    def weights(scores: Array, temperature: float) -> Array:
        """Return the mixing weights of one layer `[K]`."""
        powers = np.exp((scores - scores.max()) / temperature)
        mixed: Array = powers / powers.sum()
        return mixed
