"""Similarity of sentence pairs: the cosine of their vectors, trained with a contrastive loss."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from gumbeltree.answers import NumberPrediction, cosines, similarity_answers
from gumbeltree.config import SimilarityConfig
from gumbeltree.nn.heads.head import Head, Part
from gumbeltree.nn.heads.similarity_evaluation import SimilarityEvaluation
from gumbeltree.states import Encoding

KINDS = ("different", "similar")
"""Kinds of pairs, by their number in the targets."""


class SimilarityHead(Head):
    """Compare two sentences by the cosine of their vectors.

    In training, the second sentence of a similar pair has to be found among the second sentences of
    the batch (Henderson et al. 2017). Those of pairs that are not similar are further candidates.
    They are the hardest if their first sentence is the same, so batches keep such pairs together.

    A target is `[kind, group]`: 1 for a similar pair, else 0, and the number of its first sentence.
    The head has no weights.

    Args:
        config: see `SimilarityConfig`.
        vector_dim: width of the sentence vectors.
    """

    Config = SimilarityConfig
    sentences = 2
    capturable = True
    grouped = True
    predicts = "similarity"
    measure = "triplets"
    target_type = np.int64

    def __init__(self, config: SimilarityConfig, vector_dim: int) -> None:
        super().__init__()
        self.config = config

    def forward(self, *encodings: Encoding) -> Tensor:
        """Return both vectors, scaled to length 1, `[B, 2, D]`."""
        if len(encodings) != 2:
            raise ValueError(f"SimilarityHead takes 2 encodings, got {len(encodings)}")
        return F.normalize(torch.stack([encoding.vector for encoding in encodings], 1), dim=-1)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the loss of each pair `[B]`; `target` is `[B, 2]`.

        In training, it is the cross entropy of the softmax over the batch, and 0 for pairs that are
        not similar. In evaluation, it does not depend on other pairs: 1 - cosine for similar pairs,
        and the cosine, if positive, for others.
        """
        first, second = output.unbind(1)
        similar, group = target[:, 0] == 1, target[:, 1]
        if not self.training:
            cosine = (first * second).sum(-1)
            return torch.where(similar, 1 - cosine, cosine.relu())
        own = torch.arange(len(output), device=output.device)
        # other sentences that are similar to the first one are not wrong
        right = similar & (group[:, None] == group) & (own[:, None] != own)
        scores = self.config.scale * first @ second.T  # [B, B]
        losses = F.cross_entropy(scores.masked_fill(right, -torch.inf), own, reduction="none")
        return torch.where(similar, losses, 0.0)

    def answers(self, output: NDArray[np.float32]) -> list[NumberPrediction]:
        """Return the cosine of each pair."""
        return similarity_answers(output)

    def target(self, label: str) -> NDArray[np.int64]:
        """Return the target of a label such as "similar 17"."""
        kind, _, group = label.partition(" ")
        if kind not in KINDS or not group.isdecimal():
            raise ValueError(
                f"{label!r} is not a kind of pair and the number of its first sentence, such as "
                "'similar 17' or 'different 17'; use the task snli_similarity"
            )
        return np.array([KINDS.index(kind), int(group)])

    def check_targets(self, targets: NDArray[Any]) -> None:
        """Raise ValueError unless the targets are kinds and groups."""
        if targets.ndim != 2 or targets.shape[1] != 2 or targets.dtype.kind != "i":
            raise ValueError(
                f"targets must be kinds and groups, int64 [n, 2], got {targets.dtype} "
                f"{list(targets.shape)}; use data that was prepared for the head 'similarity'"
            )

    def check_selection(self, targets: NDArray[Any], metric: str) -> None:
        """Raise ValueError if the development split has no triplet to select a model by."""
        whole = SimilarityEvaluation(0.0, np.zeros(len(targets)), targets)
        if metric == self.measure and not whole.counts[1]:
            raise ValueError(
                f"the {len(targets):,} pairs of the development split contain no triplet, a first "
                "sentence with both a similar and a different one; pass other data with --dev, or "
                "select the best model by the loss (training.best_by=loss)"
            )

    @classmethod
    def completed(cls, config: Any, labels: tuple[str, ...], targets: NDArray[Any]) -> Any:
        """Return the settings; raise ValueError if there is nothing to learn."""
        if targets.ndim != 2 or not (targets[:, 0] == 1).any():
            raise ValueError(
                "the training data has no similar pair, so that there is nothing to learn; use "
                "pairs with the label entailment as well"
            )
        return config

    def evaluation(self, part: Part) -> SimilarityEvaluation:
        """Return the accuracy on triplets."""
        found = np.full(part.size, np.nan)
        targets = np.full((part.size, 2), -1, dtype=np.int64)
        if len(part.rows):
            found[part.rows], targets[part.rows] = cosines(part.output), part.target
        return SimilarityEvaluation(part.loss, found, targets)
