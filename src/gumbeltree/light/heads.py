"""NumPy versions of the heads: sentence vectors -> outputs."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
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
from gumbeltree.peers import MaxoutConfig

_DIFFERENCES: dict[str, Callable[[Array], Array]] = {
    "abs": np.abs,
    "signed": lambda x: x,
    "squared": np.square,
}
"""Functions of u - v, by name."""


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
        self.norms = {
            name: _normalization(within(weights, name)) for name in self.normalized(config)
        }

    @classmethod
    @abstractmethod
    def outputs(cls, config: Any) -> int:
        """Return the width of the output."""

    @staticmethod
    def normalized(config: Any) -> list[str]:
        """Return the names of the batch normalisations: of the input, then of hidden layers."""
        if not config.batch_norm:
            return []
        if not config.hidden_layers:
            return ["batch_norm_in"]
        places = config.hidden_layers - 1 if config.normalise == "every" else 0
        between = [f"batch_norm_between.{i}" for i in range(places)]
        return ["batch_norm_in", *between, "batch_norm_out"]

    @classmethod
    def shapes(cls, config: Any, vector_dim: int) -> Shapes:
        """Return the names and shapes of the weights."""
        width, inputs, shapes = config.hidden_dim, vector_dim * cls.parts, Shapes()
        last = width if config.hidden_layers else inputs
        for name in cls.normalized(config):
            shapes |= _normalization_shapes(name, inputs if name == "batch_norm_in" else width)
        for i in range(config.hidden_layers):
            shapes[f"hidden.{i}.weight"] = (width, width + inputs * config.skip if i else inputs)
            shapes[f"hidden.{i}.bias"] = (width,)
        outputs = cls.outputs(config)
        return {**shapes, "output.weight": (outputs, last), "output.bias": (outputs,)}

    @abstractmethod
    def features(self, *vectors: Array) -> Array:
        """Return the MLP's input `[B, parts * D]` from vectors `[B, D]`."""

    def compute(self, *vectors: Array) -> Array:
        """Return the output of the MLP `[B, outputs]`."""
        x = features = self._normalize(self.features(*vectors), "batch_norm_in")
        for i, (weight, bias) in enumerate(self.hidden):
            if i and self.config.skip:
                x = np.concatenate([x, features], axis=-1)
            x = self._normalize(np.maximum(x @ weight + bias, 0), f"batch_norm_between.{i}")
        x = self._normalize(x, "batch_norm_out")
        scores: Array = x @ self.last[0] + self.last[1]
        return scores

    def _normalize(self, x: Array, name: str) -> Array:
        """Return normalised values; unchanged if there is no batch normalisation of this name."""
        if name not in self.norms:
            return x
        factor, offset = self.norms[name]
        return x * factor + offset


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
        """Return [u; v; |u-v|; u*v], or another difference."""
        u, v = vectors
        return np.concatenate([u, v, _DIFFERENCES[self.config.difference](u - v), u * v], axis=-1)


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


class LightMaxoutHead(LightHead):
    """Maxout layers; see `nn.heads.maxout.SingleMaxoutHead`.

    Args:
        config: settings of the head.
        vector_dim: width of the sentence vectors.
        weights: weights of the head.
    """

    config: MaxoutConfig

    def __init__(self, config: MaxoutConfig, vector_dim: int, weights: Weights) -> None:
        super().__init__(config, vector_dim, weights)
        self.labels = config.labels
        self.layers = []
        for i in range(len(config.hidden_dims) + 1):
            weight, bias = weights[f"layers.{i}.weight"], weights[f"layers.{i}.bias"]
            if config.batch_norm:
                factor, offset = _normalization(within(weights, f"batch_norms.{i}"))
                weight, bias = weight * factor, bias + weight @ offset
            self.layers.append((weight.T, bias))

    @classmethod
    def shapes(cls, config: MaxoutConfig, vector_dim: int) -> Shapes:
        """Return the names and shapes of the weights."""
        shapes, before = Shapes(), vector_dim
        for i, width in enumerate((*config.hidden_dims, len(config.labels))):
            if config.batch_norm:
                shapes |= _normalization_shapes(f"batch_norms.{i}", before)
            shapes[f"layers.{i}.weight"] = (width * config.pieces, before)
            shapes[f"layers.{i}.bias"] = (width * config.pieces,)
            before = width
        if isinstance(config.class_weights, dict):
            shapes["class_weights"] = (len(config.labels),)
        return shapes

    def compute(self, *vectors: Array) -> Array:
        """Return the scores of the classes `[B, C]`."""
        (x,) = vectors
        for weight, bias in self.layers:
            x = (x @ weight + bias).reshape(len(x), -1, self.config.pieces).max(-1)
        return x

    def answers(self, output: Array) -> list[Prediction]:
        """Return the most probable class of each row, with all probabilities."""
        return class_answers(output, self.labels)


class LightSimilarityHead(LightHead):
    """Cosine of two sentences; see `nn.heads.similarity.SimilarityHead`."""

    sentences = 2

    def compute(self, *vectors: Array) -> Array:
        """Return both vectors, scaled to length 1, `[B, 2, D]`."""
        return unit(np.stack(vectors, 1))

    def answers(self, output: Array) -> list[NumberPrediction]:
        """Return the cosine of each pair."""
        return similarity_answers(output)


def _normalization_shapes(name: str, width: int) -> Shapes:
    """Return the names and shapes of the weights of batch normalisation."""
    vectors = ("weight", "bias", "running_mean", "running_var")
    shapes: Shapes = {f"{name}.{vector}": (width,) for vector in vectors}
    return {**shapes, f"{name}.num_batches_tracked": ()}


def _normalization(weights: Weights) -> tuple[Array, Array]:
    """Return the factor and the offset of batch normalisation in evaluation mode."""
    # the epsilon of torch.nn.BatchNorm1d
    factor = weights["weight"] / np.sqrt(weights["running_var"] + 1e-5)
    return factor, weights["bias"] - weights["running_mean"] * factor
