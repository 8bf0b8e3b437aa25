"""NumPy versions of the heads: sentence vectors -> outputs."""

from typing import ClassVar

import numpy as np

from gumbeltree.answers import Prediction, class_answers
from gumbeltree.config import HeadConfig
from gumbeltree.encoded import VECTORS, Keep
from gumbeltree.light.arrays import Array, Shapes, Weights, within


class LightHead:
    """An MLP over features of the sentence vectors; see `nn.heads.classes.ClassHead`.

    Args:
        config: settings of the head.
        vector_dim: width of the sentence vectors.
        weights: weights of the head.
    """

    sentences: ClassVar[int] = 1
    """Sentences per example."""
    parts: ClassVar[int] = 1
    """Width of the features in multiples of the sentence vector."""
    keep: ClassVar[Keep] = VECTORS
    """Optional parts of an encoding that the head reads."""

    def __init__(self, config: HeadConfig, vector_dim: int, weights: Weights) -> None:
        self.config = config
        self.labels = config.labels
        self.hidden = [
            (weights[f"hidden.{i}.weight"].T, weights[f"hidden.{i}.bias"])
            for i in range(config.hidden_layers)
        ]
        self.last = weights["output.weight"].T, weights["output.bias"]
        self.norms = [
            _normalization(within(weights, name)) if config.batch_norm else None
            for name in ("batch_norm_in", "batch_norm_out")
        ]

    @classmethod
    def outputs(cls, config: HeadConfig) -> int:
        """Return the width of the output: one logit per class."""
        return len(config.labels)

    @classmethod
    def shapes(cls, config: HeadConfig, vector_dim: int) -> Shapes:
        """Return the names and shapes of the weights."""
        width, inputs, shapes = config.hidden_dim, vector_dim * cls.parts, Shapes()
        for name, size in {"batch_norm_in": inputs, "batch_norm_out": width}.items():
            if config.batch_norm:
                for vector in ("weight", "bias", "running_mean", "running_var"):
                    shapes[f"{name}.{vector}"] = (size,)
                shapes[f"{name}.num_batches_tracked"] = ()
        for i in range(config.hidden_layers):
            shapes[f"hidden.{i}.weight"] = (width, width if i else inputs)
            shapes[f"hidden.{i}.bias"] = (width,)
        outputs = cls.outputs(config)
        return {**shapes, "output.weight": (outputs, width), "output.bias": (outputs,)}

    def features(self, *vectors: Array) -> Array:
        """Return the MLP's input `[B, parts * D]` from vectors `[B, D]`."""
        return vectors[0]

    # some builds of BLAS raise floating-point flags on finite numbers
    @np.errstate(all="ignore")
    def output(self, *vectors: Array) -> Array:
        """Return the output of the head `[B, outputs]` from vectors `[B, D]`, one per sentence."""
        if len(vectors) != self.sentences:
            raise ValueError(
                f"{type(self).__name__} takes {self.sentences} vector(s), one per sentence of an "
                f"example, got {len(vectors)}"
            )
        before, after = self.norms
        x = self.features(*vectors)
        if before is not None:
            x = x * before[0] + before[1]
        for weight, bias in self.hidden:
            x = np.maximum(x @ weight + bias, 0)
        if after is not None:
            x = x * after[0] + after[1]
        scores: Array = x @ self.last[0] + self.last[1]
        return scores

    def answers(self, output: Array) -> list[Prediction]:
        """Return the most probable class of each row, with all probabilities."""
        return class_answers(output, self.labels)


class LightSingleHead(LightHead):
    """Classifier of single sentences."""


class LightPairHead(LightHead):
    """Classifier of sentence pairs."""

    sentences = 2
    parts = 4

    def features(self, *vectors: Array) -> Array:
        """Return [u; v; |u-v|; u*v]."""
        u, v = vectors
        return np.concatenate([u, v, np.abs(u - v), u * v], axis=-1)


def _normalization(weights: Weights) -> tuple[Array, Array]:
    """Return the factor and the offset of batch normalisation in evaluation mode."""
    # the epsilon of torch.nn.BatchNorm1d
    factor = weights["weight"] / np.sqrt(weights["running_var"] + 1e-5)
    return factor, weights["bias"] - weights["running_mean"] * factor
