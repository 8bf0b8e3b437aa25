"""Classifiers of single sentences and of pairs: an MLP over sentence vectors (Eqs. 14-18)."""

import itertools
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from gumbeltree.answers import Prediction, class_answers
from gumbeltree.config import HeadConfig
from gumbeltree.nn.heads.class_evaluation import ClassEvaluation, buckets_of
from gumbeltree.nn.heads.head import Head, Part
from gumbeltree.ops.pair_features import pair_features
from gumbeltree.states import Encoding


class ClassHead(Head):
    """MLP over features of the sentence vectors, followed by a softmax.

    Batch normalisation and then dropout are applied to the input and the output of the MLP, not
    between its hidden layers.

    Args:
        config: see `HeadConfig`.
        vector_dim: width of the sentence vectors.
    """

    Config = HeadConfig
    measure = "accuracy"
    target_type = np.int64
    parts: ClassVar[int]
    """Width of the features in multiples of the sentence vector."""

    def __init__(self, config: HeadConfig, vector_dim: int) -> None:
        super().__init__()
        self.config = config
        self.labels = config.labels
        features = vector_dim * self.parts
        widths = [features, *[config.hidden_dim] * config.hidden_layers]
        normalize = nn.BatchNorm1d if config.batch_norm else lambda width: nn.Identity()
        self.batch_norm_in = normalize(features)
        self.hidden = nn.ModuleList(nn.Linear(*pair) for pair in itertools.pairwise(widths))
        self.batch_norm_out = normalize(config.hidden_dim)
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(config.hidden_dim, len(config.labels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the weights as in the paper's supplement."""
        for layer in self.hidden:
            assert isinstance(layer, nn.Linear)
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
        nn.init.uniform_(self.output.weight, -self.config.output_range, self.config.output_range)
        nn.init.zeros_(self.output.bias)

    def forward(self, *encodings: Encoding) -> Tensor:
        """Return logits `[B, C]`."""
        if len(encodings) != self.sentences:
            raise ValueError(
                f"{type(self).__name__} takes {self.sentences} encoding(s), one per sentence of an "
                f"example, got {len(encodings)}"
            )
        return self.classify(self.features(*(encoding.vector for encoding in encodings)))

    def features(self, *vectors: Tensor) -> Tensor:
        """Return the MLP's input `[B, parts * D]` from vectors `[B, D]`."""
        raise NotImplementedError

    def classify(self, features: Tensor) -> Tensor:
        """Return logits `[B, C]` for inputs of the MLP."""
        x = self.dropout(self.batch_norm_in(features))
        for layer in self.hidden:
            x = layer(x).relu()
        scores: Tensor = self.output(self.dropout(self.batch_norm_out(x)))
        return scores

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the cross entropy of each example `[B]`; `target` holds classes, int64 `[B]`."""
        return F.cross_entropy(output, target, reduction="none")

    def answers(self, output: NDArray[np.float32]) -> list[Prediction]:
        """Return the most probable class of each row, with all probabilities."""
        return class_answers(output, self.labels)

    def target(self, label: str) -> int:
        """Return the index of a class."""
        if label not in self.labels:
            raise ValueError(
                f"{label!r} is not a label of this model, which has {', '.join(self.labels)}; "
                "correct the label, or use another model"
            )
        return self.labels.index(label)

    def check_targets(self, targets: NDArray[Any]) -> None:
        """Raise ValueError unless all targets are class indices."""
        last = len(self.labels) - 1
        if len(targets) and not 0 <= targets.min() <= targets.max() <= last:
            raise ValueError(
                f"class indices must lie in 0..{last} for {', '.join(self.labels)}, got "
                f"{targets.min()}..{targets.max()}; number the labels in the model's order"
            )

    def evaluation(self, part: Part) -> ClassEvaluation:
        """Return accuracy, confusion matrix and accuracy by length."""
        classes = len(self.labels)
        classified = part.output.argmax(-1) if len(part.rows) else part.rows
        confusion = np.zeros((classes, classes), dtype=np.int64)
        np.add.at(confusion, (part.target, classified), 1)
        predictions = np.full(part.size, -1, dtype=np.int64)
        predictions[part.rows] = classified
        buckets = buckets_of(part.longest, classified == part.target)
        return ClassEvaluation(self.labels, part.loss, confusion, predictions, buckets)


class SingleHead(ClassHead):
    """Classifier of single sentences (Eqs. 17-18)."""

    sentences = 1
    parts = 1
    capturable = True

    def features(self, *vectors: Tensor) -> Tensor:
        """Return the sentence vectors."""
        return vectors[0]


class PairHead(ClassHead):
    """Classifier of sentence pairs (Eqs. 14-16)."""

    sentences = 2
    parts = 4
    capturable = True

    def features(self, *vectors: Tensor) -> Tensor:
        """Return [u; v; |u-v|; u*v]."""
        return pair_features(*vectors)
