"""Base class of the NumPy encoders."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gumbeltree.encoded import VECTORS, Encoded, EncoderTraits, Keep
from gumbeltree.light.arrays import Array, Shapes, Weights


class LightEncoder(EncoderTraits):
    """Turns word vectors into sentence vectors. Subclasses define `shapes` and `encode`.

    Args:
        config: settings of the encoder.
        weights: its weights, by name.
    """

    def __init__(self, config: Any, weights: Weights) -> None:
        self.config = config

    @staticmethod
    def shapes(config: Any) -> Shapes:
        """Return the names and shapes of the weights."""
        raise NotImplementedError

    def encode(
        self,
        words: Array,
        lengths: NDArray[np.int64],
        keep: Keep = VECTORS,
        noise: Array | None = None,
    ) -> Encoded:
        """Encode a batch of sentences.

        Args:
            words: word vectors of all sentences, one sentence after the other, `[N, E]`.
            lengths: words per sentence, each at least 1, `[B]`.
            keep: what to return in addition to vectors and trees.
            noise: added to the scores when merges are chosen, `[B, T-1, T-1]` (sentence, layer,
                position); entries outside a sentence are never read. If None, the highest score
                wins.
        """
        raise NotImplementedError
