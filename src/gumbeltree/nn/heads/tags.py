"""Classifiers that assign any number of labels, called tags, to a sentence or pair."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from gumbeltree.answers import TagsPrediction, sigmoid, tag_answers
from gumbeltree.config import LABELS_FROM_DATA, TagsConfig
from gumbeltree.nn.heads.head import Part
from gumbeltree.nn.heads.mlp import MLPHead, OfPairs, OfSentences
from gumbeltree.nn.heads.tag_evaluation import TagEvaluation
from gumbeltree.tasks.checks import split_tags


class TagsHead(MLPHead):
    """MLP over features of the sentence vectors, followed by one sigmoid per tag.

    Args:
        config: see `TagsConfig`.
        vector_dim: width of the sentence vectors.
    """

    Config = TagsConfig
    predicts = "tags"
    measure = "micro_f1"
    metrics = ("macro_f1", "micro_precision", "micro_recall", "exact_match")
    label_metrics = ("f1", "precision", "recall")
    target_type = np.uint8

    def __init__(self, config: TagsConfig, vector_dim: int) -> None:
        super().__init__(config, vector_dim, len(config.tags))
        self.tags = config.tags

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the mean binary cross entropy of the tags of each example, `[B]`.

        Args:
            output: logits `[B, C]`.
            target: 1 for each tag of an example and 0 for all others, `[B, C]`.
        """
        wanted = target.to(output.dtype)
        return F.binary_cross_entropy_with_logits(output, wanted, reduction="none").mean(-1)

    def answers(self, output: NDArray[np.float32]) -> list[TagsPrediction]:
        """Return the tags of each row, with the probabilities of all."""
        config = self.config
        return tag_answers(output, self.tags, config.threshold, config.tag_separator)

    def target(self, label: str) -> NDArray[np.uint8]:
        """Return 1 for each tag in a label such as "plot|music" and 0 for all others, `[C]`."""
        target = np.zeros(len(self.tags), np.uint8)
        for tag in split_tags(label, self.config.tag_separator):
            if tag not in self.tags:
                raise ValueError(
                    f"{tag!r} is not a tag of this model, which has {', '.join(self.tags)}; "
                    "correct the label, or use another model"
                )
            target[self.tags.index(tag)] = 1
        return target

    def check_targets(self, targets: NDArray[Any]) -> None:
        """Raise ValueError unless the targets hold 0 or 1 for each tag."""
        if len(targets) and (
            targets.shape[1:] != (len(self.tags),) or not np.isin(targets, (0, 1)).all()
        ):
            raise ValueError(
                f"targets must be 0 or 1 for each of {len(self.tags)} tags, got {targets.dtype} "
                f"{list(targets.shape)}; use data that was prepared for this model"
            )

    @classmethod
    def completed(cls, config: Any, labels: tuple[str, ...], targets: NDArray[Any]) -> Any:
        """Return settings with the tags of the data."""
        if not labels or targets.ndim != 2:
            raise ValueError(
                f"the head {config.kind!r} predicts tags, but the data was prepared for a head "
                "that does not; prepare it again with this recipe"
            )
        if config.tags != LABELS_FROM_DATA and set(config.tags) != set(labels):
            raise ValueError(
                f"the recipe has the tags {', '.join(config.tags)}, but the data has "
                f"{', '.join(labels)}; use --set head.tags to match the data"
            )
        return dataclasses.replace(config, tags=labels)

    def evaluation(self, part: Part) -> TagEvaluation:
        """Return F1, exact matches and the scores of each tag."""
        predictions, gold = np.full((2, part.size, len(self.tags)), -1, np.int8)
        if len(part.rows):
            predictions[part.rows] = sigmoid(part.output) >= self.config.threshold
            gold[part.rows] = part.target
        return TagEvaluation(self.tags, part.loss, predictions, gold, self.config.tag_separator)


class SingleTagsHead(OfSentences, TagsHead):
    """Tags of single sentences."""

    capturable = True


class PairTagsHead(OfPairs, TagsHead):
    """Tags of sentence pairs."""

    capturable = True
