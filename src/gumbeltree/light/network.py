"""A whole model: word ids -> sentence vectors and trees -> outputs."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gumbeltree.config import ModelConfig
from gumbeltree.encoded import VECTORS, Encoded, Keep
from gumbeltree.light.arrays import Array, Weights, named, within
from gumbeltree.light.encoders import LightEncoder
from gumbeltree.light.heads import LightHead
from gumbeltree.light.weights import read_weights
from gumbeltree.parts import ENCODERS, HEADS
from gumbeltree.store import WORD_VECTORS


class Network:
    """Embedding, encoder and head.

    Args:
        config: settings of the model.
        weights: weights of the model.
        dtype: dtype of the model in its file.

    Attributes:
        encoder: the encoder.
        head: the head.
        vectors: word vectors as stored, `[V, E]`.
    """

    def __init__(self, config: ModelConfig, weights: Weights, dtype: str = "float32") -> None:
        encoder = within(weights, "encoder")
        self.config, self.weights, self.stored_dtype = config, weights, dtype
        self.vectors = weights[WORD_VECTORS]
        self.dtype = next(iter(encoder.values())).dtype
        self.encoder: LightEncoder = ENCODERS.light_version(config.encoder.kind)(
            config.encoder, encoder
        )
        self.head: LightHead = HEADS.light_version(config.head.kind)(
            config.head, self.encoder.vector_dim, within(weights, "head")
        )

    @classmethod
    def read(cls, path: Path, config: ModelConfig, words: int) -> "Network":
        """Read a model.

        Args:
            path: its file of weights.
            config: its settings.
            words: number of words in its vocabulary.

        Raises:
            NeedsTorchError: If a part has no NumPy version.
            ValueError: If the file is damaged or does not match the settings.
        """
        encoder = ENCODERS.light_version(config.encoder.kind)
        head = HEADS.light_version(config.head.kind)
        shapes = {
            WORD_VECTORS: (words, config.encoder.embedding_dim),
            **named(encoder.shapes(config.encoder), "encoder"),
            **named(head.shapes(config.head, config.encoder.hidden_dim), "head"),
        }
        # version 1 saved a query vector with fixed trees, too
        unused = ("encoder.query",) if encoder.trees == "fixed" else ()
        return cls(config, *read_weights(path, shapes, unused))

    # some builds of BLAS raise floating-point flags on finite numbers
    @np.errstate(all="ignore")
    def encode(
        self,
        ids: Sequence[Sequence[int]],
        keep: Keep = VECTORS,
        noise: Array | None = None,
    ) -> Encoded:
        """Encode sentences.

        Args:
            ids: word ids of each sentence, at least one.
            keep: see `LightEncoder.encode`.
            noise: see `LightEncoder.encode`.
        """
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        flat = np.fromiter(chain.from_iterable(ids), np.int64, int(lengths.sum()))
        return self.encoder.encode(self.embed(flat), lengths, keep, noise)

    def embed(self, ids: Sequence[int] | NDArray[np.int64]) -> Array:
        """Return the vectors of words `[N, E]`."""
        words: Array = self.vectors[ids].astype(self.dtype, copy=False)
        return words
