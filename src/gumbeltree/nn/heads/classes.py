"""Classifiers of single sentences and of pairs: an MLP over sentence vectors (Eqs. 14-18)."""

import dataclasses
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from gumbeltree.answers import Prediction, class_answers
from gumbeltree.config import HeadConfig
from gumbeltree.nn.heads.class_evaluation import ClassEvaluation, buckets_of
from gumbeltree.nn.heads.head import Head, Part
from gumbeltree.nn.heads.mlp import MLPHead, OfPairs, OfSentences
from gumbeltree.states import Encoding


class Classifier(Head):
    """Base class of heads that return the logits of classes, `[B, C]`."""

    config: Any
    """Settings, which include `labels`."""
    predicts = "classes"
    measure = "accuracy"
    metrics: ClassVar[tuple[str, ...]] = ("macro_f1", "macro_precision", "macro_recall")
    label_metrics = ("f1", "precision", "recall")
    target_type = np.int64

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


class ClassHead(Classifier, MLPHead):
    """MLP over features of the sentence vectors, followed by a softmax.

    Args:
        config: see `HeadConfig`.
        vector_dim: width of the sentence vectors.
    """

    Config: ClassVar[Any] = HeadConfig
    averages_answers = True
    class_weights: Tensor | None

    def __init__(self, config: HeadConfig, vector_dim: int) -> None:
        super().__init__(config, vector_dim, len(config.labels))
        self.labels = config.labels
        weights = None
        if isinstance(config.class_weights, dict):
            weights = torch.tensor([config.class_weights.get(x, 1.0) for x in config.labels])
        # a tensor, since a captured graph cannot read Python numbers
        self.register_buffer("class_weights", weights)

    def forward(self, *encodings: Encoding) -> Tensor:
        """Return logits `[B, C]`.

        If the encodings have alternatives, the logits are the logarithms of the mean probabilities
        of the classes, weighted by those of the alternatives; pairs combine all of theirs.
        """
        trees = [x.alternatives for x in encodings if x.alternatives is not None]
        if len(trees) < len(encodings):
            return super().forward(*encodings)
        vectors, weights = [trees[0].vector], trees[0].log_prob.log_softmax(-1)
        for tree in trees[1:]:
            n, k = weights.shape[1], tree.log_prob.shape[1]
            vectors = [*(x.repeat_interleave(k, 1) for x in vectors), tree.vector.repeat(1, n, 1)]
            weights = (weights[..., None] + tree.log_prob.log_softmax(-1)[:, None]).flatten(1)
        logits = self.classify(self.features(*(x.flatten(0, 1) for x in vectors)))
        logs = logits.to(weights.dtype).log_softmax(-1).unflatten(0, weights.shape)  # [B, n, C]
        # finite, so that a tree that does not exist has a gradient of zero
        mean: Tensor = (weights.clamp(min=-1e4)[..., None] + logs).logsumexp(1)
        return mean

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the weighted cross entropy of each example `[B]`; `target`: classes, int64 `[B]`.

        The mean over the examples is not divided by their weights.
        """
        smoothing = self.config.label_smoothing if self.training else 0.0
        weights = self.class_weights
        if weights is not None:
            weights = weights.to(output.dtype)
        return F.cross_entropy(output, target, weights, reduction="none", label_smoothing=smoothing)

    @classmethod
    def completed(cls, config: Any, labels: tuple[str, ...], targets: NDArray[Any]) -> Any:
        """Return settings with the labels of the data and the weight of each class."""
        config = super().completed(config, labels, targets)
        weights = config.class_weights
        if isinstance(weights, dict):
            if unknown := sorted(weights.keys() - set(labels)):
                raise ValueError(
                    f"`head.class_weights` has a weight for {unknown[0]!r}, which is not a label "
                    f"of the data; the labels are {', '.join(labels)}"
                )
            weights = {label: weights.get(label, 1.0) for label in labels}
        elif weights == "balanced":
            counts = np.bincount(targets, minlength=len(labels))
            # a label without training examples never counts in the loss
            balanced = len(targets) / (len(labels) * np.maximum(counts, 1))
            weights = dict(zip(labels, balanced.tolist(), strict=True))
        return dataclasses.replace(config, class_weights=weights)


class SingleHead(OfSentences, ClassHead):
    """Classifier of single sentences (Eqs. 17-18)."""

    capturable = True


class PairHead(OfPairs, ClassHead):
    """Classifier of sentence pairs (Eqs. 14-16)."""

    capturable = True
