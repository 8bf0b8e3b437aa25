"""NumPy versions of the encoders without a tree."""

import numpy as np
from numpy.typing import NDArray

from gumbeltree.config import BagConfig, LSTMConfig
from gumbeltree.encoded import VECTORS, Encoded, Keep
from gumbeltree.light.arrays import (
    Array,
    Shapes,
    Weights,
    named,
    packed_blocks,
    within,
)
from gumbeltree.light.encoders import LightEncoder
from gumbeltree.light.leaves import LightLSTMLeaf


class LightBag(LightEncoder):
    """Average W x + b over the words.

    Args:
        config: settings of the encoder.
        weights: `word.weight` and `word.bias`.
    """

    def __init__(self, config: BagConfig, weights: Weights) -> None:
        super().__init__(config, weights)
        self.weight, self.bias = weights["word.weight"].T, weights["word.bias"]

    @staticmethod
    def shapes(config: BagConfig) -> Shapes:
        """Return the names and shapes of the weights."""
        E, D = config.embedding_dim, config.hidden_dim
        return {"word.weight": (D, E), "word.bias": (D,)}

    def encode(
        self,
        words: Array,
        lengths: NDArray[np.int64],
        keep: Keep = VECTORS,
        noise: Array | None = None,
    ) -> Encoded:
        """Return the mean of each sentence; see `LightEncoder.encode`."""
        mean = np.add.reduceat(words, np.cumsum(lengths) - lengths)
        mean /= lengths[:, None].astype(mean.dtype)
        return Encoded(mean @ self.weight + self.bias)


class LightLSTM(LightEncoder):
    """Encode a sentence as the last state of the leaf LSTM (Eq. 13).

    Args:
        config: settings of the encoder.
        weights: those of the leaf.
    """

    block = 256, 8192
    """Maximum numbers of sentences and words encoded at once."""

    def __init__(self, config: LSTMConfig, weights: Weights) -> None:
        super().__init__(config, weights)
        sizes = config.embedding_dim, config.hidden_dim
        self.leaf = LightLSTMLeaf(*sizes, config, within(weights, "leaf"))

    @staticmethod
    def shapes(config: LSTMConfig) -> Shapes:
        """Return the names and shapes of the weights."""
        sizes = config.embedding_dim, config.hidden_dim
        return named(LightLSTMLeaf.shapes(*sizes, config), "leaf")

    def encode(
        self,
        words: Array,
        lengths: NDArray[np.int64],
        keep: Keep = VECTORS,
        noise: Array | None = None,
    ) -> Encoded:
        """Return the last state of each sentence; see `LightEncoder.encode`."""
        vector = np.empty((len(lengths), self.vector_dim), words.dtype)
        for batch in packed_blocks(lengths, *self.block):
            h, _ = self.leaf(words.take(batch.words, 0), batch)
            last = np.array(batch.start)[batch.lengths - 1] + np.arange(len(batch.lengths))
            vector[batch.sentences] = h[last]
        return Encoded(vector)
