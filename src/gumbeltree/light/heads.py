"""NumPy versions of the heads: sentence vectors -> outputs."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from gumbeltree.answers import (
    Answer,
    BinsPrediction,
    NumberPrediction,
    Prediction,
    TagsPrediction,
    bin_answers,
    bin_positions,
    class_answers,
    number_answers,
    similarity_answers,
    tag_answers,
)
from gumbeltree.config import BinsConfig, HeadConfig, NumberConfig, TagsConfig
from gumbeltree.encoded import VECTORS, Keep
from gumbeltree.light.arrays import Array, Shapes, Weights, unit, within


class LightHead(ABC):
    """Turns sentence vectors into outputs, and outputs into predictions.

    Args:
        config: settings of the head.
        vector_dim: width of the sentence vectors.
        weights: weights of the head.
    """

    sentences: ClassVar[int] = 1
    """Sentences per example."""
    keep: ClassVar[Keep] = VECTORS
    """Optional parts of an encoding that the head reads."""
    labels: tuple[str, ...] = ()
    """Names of the classes; empty if the head does not predict classes."""

    def __init__(self, config: Any, vector_dim: int, weights: Weights) -> None:
        self.config = config

    @classmethod
    def shapes(cls, config: Any, vector_dim: int) -> Shapes:
        """Return the names and shapes of the weights; none by default."""
        return Shapes()

    # some builds of BLAS raise floating-point flags on finite numbers
    @np.errstate(all="ignore")
    def output(self, *vectors: Array) -> Array:
        """Return the output of the head `[B, ...]` from vectors `[B, D]`, one per sentence."""
        if len(vectors) != self.sentences:
            raise ValueError(
                f"{type(self).__name__} takes {self.sentences} vector(s), one per sentence of an "
                f"example, got {len(vectors)}"
            )
        return self.compute(*vectors)

    @abstractmethod
    def compute(self, *vectors: Array) -> Array:
        """Return the output of the head; see `output`."""

    @abstractmethod
    def answers(self, output: Array) -> Sequence[Answer]:
        """Return the prediction for each row of an output."""


class LightMLP(LightHead):
    """An MLP over features of the sentence vectors; see `nn.heads.mlp.MLPHead`.

    Args:
        config: settings of the head.
        vector_dim: width of the sentence vectors.
        weights: weights of the head.
    """

    parts: ClassVar[int] = 1
    """Width of the features in multiples of the sentence vector."""

    def __init__(self, config: Any, vector_dim: int, weights: Weights) -> None:
        super().__init__(config, vector_dim, weights)
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
    @abstractmethod
    def outputs(cls, config: Any) -> int:
        """Return the width of the output."""

    @classmethod
    def shapes(cls, config: Any, vector_dim: int) -> Shapes:
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

    @abstractmethod
    def features(self, *vectors: Array) -> Array:
        """Return the MLP's input `[B, parts * D]` from vectors `[B, D]`."""

    def compute(self, *vectors: Array) -> Array:
        """Return the output of the MLP `[B, outputs]`."""
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


class LightSentences(LightMLP):
    """An MLP over the vectors of single sentences."""

    def features(self, *vectors: Array) -> Array:
        """Return the sentence vectors."""
        return vectors[0]


class LightPairs(LightMLP):
    """An MLP over features of sentence pairs."""

    sentences = 2
    parts = 4

    def features(self, *vectors: Array) -> Array:
        """Return [u; v; |u-v|; u*v]."""
        u, v = vectors
        return np.concatenate([u, v, np.abs(u - v), u * v], axis=-1)


class LightClassHead(LightMLP):
    """Classifier; see `nn.heads.classes.ClassHead`."""

    config: HeadConfig

    def __init__(self, config: HeadConfig, vector_dim: int, weights: Weights) -> None:
        super().__init__(config, vector_dim, weights)
        self.labels = config.labels

    @classmethod
    def outputs(cls, config: HeadConfig) -> int:
        """Return the number of classes."""
        return len(config.labels)

    @classmethod
    def shapes(cls, config: HeadConfig, vector_dim: int) -> Shapes:
        """Return the names and shapes of the weights, including those of the classes."""
        shapes = super().shapes(config, vector_dim)
        if isinstance(config.class_weights, dict):
            shapes["class_weights"] = (len(config.labels),)
        return shapes

    def answers(self, output: Array) -> list[Prediction]:
        """Return the most probable class of each row, with all probabilities."""
        return class_answers(output, self.labels)


class LightNumberHead(LightMLP):
    """Regression; see `nn.heads.numbers.NumberHead`."""

    config: NumberConfig

    @classmethod
    def outputs(cls, config: NumberConfig) -> int:
        """Return 1, for the standardised number."""
        return 1

    def answers(self, output: Array) -> list[NumberPrediction]:
        """Return the number of each row."""
        return number_answers(output, *self.config.scale)


class LightBinsHead(LightMLP):
    """Distribution over bins; see `nn.heads.numbers.BinsHead`."""

    config: BinsConfig

    @classmethod
    def outputs(cls, config: BinsConfig) -> int:
        """Return the number of bins."""
        return config.bins

    def answers(self, output: Array) -> list[BinsPrediction]:
        """Return mean and distribution of each row."""
        return bin_answers(output, bin_positions(self.config.bins, *self.config.range))


class LightTagsHead(LightMLP):
    """Any number of tags; see `nn.heads.tags.TagsHead`."""

    config: TagsConfig

    @classmethod
    def outputs(cls, config: TagsConfig) -> int:
        """Return the number of tags."""
        return len(config.tags)

    def answers(self, output: Array) -> list[TagsPrediction]:
        """Return the tags of each row, with the probabilities of all."""
        config = self.config
        return tag_answers(output, config.tags, config.threshold, config.tag_separator)


class LightSingleHead(LightSentences, LightClassHead):
    """Classifier of single sentences."""


class LightPairHead(LightPairs, LightClassHead):
    """Classifier of sentence pairs."""


class LightSingleNumberHead(LightSentences, LightNumberHead):
    """Regression of single sentences."""


class LightPairNumberHead(LightPairs, LightNumberHead):
    """Regression of sentence pairs."""


class LightSingleBinsHead(LightSentences, LightBinsHead):
    """Regression of single sentences, by a distribution over bins."""


class LightPairBinsHead(LightPairs, LightBinsHead):
    """Regression of sentence pairs, by a distribution over bins."""


class LightSingleTagsHead(LightSentences, LightTagsHead):
    """Tags of single sentences."""


class LightPairTagsHead(LightPairs, LightTagsHead):
    """Tags of sentence pairs."""


class LightSimilarityHead(LightHead):
    """Cosine of two sentences; see `nn.heads.similarity.SimilarityHead`."""

    sentences = 2

    def compute(self, *vectors: Array) -> Array:
        """Return both vectors, scaled to length 1, `[B, 2, D]`."""
        return unit(np.stack(vectors, 1))

    def answers(self, output: Array) -> list[NumberPrediction]:
        """Return the cosine of each pair."""
        return similarity_answers(output)


def _normalization(weights: Weights) -> tuple[Array, Array]:
    """Return the factor and the offset of batch normalisation in evaluation mode."""
    # the epsilon of torch.nn.BatchNorm1d
    factor = weights["weight"] / np.sqrt(weights["running_var"] + 1e-5)
    return factor, weights["bias"] - weights["running_mean"] * factor
