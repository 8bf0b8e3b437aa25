"""A head for parsers: the tree itself is the prediction."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from gumbeltree.answers import TreePrediction
from gumbeltree.encoded import Keep
from gumbeltree.nn.heads.head import Head, Part
from gumbeltree.nn.heads.merge_evaluation import MergeEvaluation
from gumbeltree.nn.spans import span_table, spans_of
from gumbeltree.peers import MergesConfig
from gumbeltree.states import Encoding


class MergesHead(Head):
    """Compare the merges of an encoder with a gold tree; the head has no weights.

    The encoder learns by its own loss "merges", which the head only shows. A target is the gold
    order, padded with -1.

    Args:
        config: see `MergesConfig`.
        vector_dim: width of the sentence vectors.
    """

    Config = MergesConfig
    keep = Keep(scores=True)
    measure = "f1"
    metrics = ("corpus_f1",)
    target_type = np.int64

    def __init__(self, config: MergesConfig, vector_dim: int) -> None:
        super().__init__()
        self.config = config

    def forward(self, *encodings: Encoding) -> Tensor:
        """Return the merges, padded with -1, and the encoder's loss, `[B, words]`."""
        (encoding,) = encodings
        order = encoding.order
        if order is None or order.shape[1] > self.config.words - 1:
            found = "none" if order is None else f"trees of {order.shape[1] + 1:,} words"
            raise ValueError(
                f"the head 'merges' needs trees of at most {self.config.words:,} words, got "
                f"{found}; use encoder.kind=supervised_tree, and set head.words to max_words"
            )
        if self.training and not encoding.losses:
            raise ValueError(
                "the head 'merges' has nothing to learn, and the encoder does not learn trees "
                "from the data; use encoder.kind=supervised_tree"
            )
        zeros = encoding.vector.new_zeros(len(order))
        loss = encoding.losses.get("merges", zeros).detach()
        padded = F.pad(order, (0, self.config.words - 1 - order.shape[1]), value=-1)
        return torch.cat([padded.to(loss.dtype), loss[:, None]], dim=1)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the encoder's loss in training, and the share of wrong brackets otherwise."""
        if self.training:
            return output[:, -1]
        right, spans = compared(output[:, :-1].long(), target)
        return (1 - right / spans.clamp(min=1)).masked_fill(spans == 0, 0.0)

    def answers(self, output: NDArray[np.float32]) -> list[TreePrediction]:
        """Return the merges of each sentence."""
        return [TreePrediction(tuple(int(x) for x in row[:-1] if x >= 0)) for row in output]

    def target(self, label: str) -> NDArray[np.int64]:
        """Return the padded merges of a label such as "0 2 0"."""
        merges = label.split()
        if not all(x.isdecimal() for x in merges) or len(merges) >= self.config.words:
            raise ValueError(
                f"{label[:80]!r} is not a list of at most {self.config.words - 1:,} merges such as "
                "'0 2 0'; use the task parses, and set head.words to max_words"
            )
        padded = np.full(self.config.words - 1, -1)
        padded[: len(merges)] = [int(x) for x in merges]
        return padded

    def check_targets(self, targets: NDArray[Any]) -> None:
        """Raise ValueError unless the targets are merges."""
        if targets.ndim != 2 or targets.shape[1] != self.config.words - 1:
            raise ValueError(
                f"targets must be merges [n, {self.config.words - 1}], got {list(targets.shape)}; "
                "use data that was prepared for the head 'merges' with the same `words`"
            )

    def evaluation(self, part: Part) -> MergeEvaluation:
        """Return the F1 of the brackets."""
        right = np.zeros(part.size, dtype=np.int64)
        spans = np.full(part.size, -1, dtype=np.int64)
        for some in np.array_split(np.arange(len(part.rows)), len(part.rows) // 256 + 1):
            orders = torch.from_numpy(part.output[some, :-1]).long()
            found = compared(orders, torch.from_numpy(part.target[some]))
            right[part.rows[some]], spans[part.rows[some]] = (x.numpy() for x in found)
        return MergeEvaluation(part.loss, right, spans)


def compared(order: Tensor, gold: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many spans of each tree are in the gold tree, and how many it has, each `[B]`.

    Whole sentences, which all trees contain, do not count.

    Args:
        order: merges, int64 `[B, T-1]`, -1 past the end of a sentence.
        gold: merges of the gold trees, of the same shape.
    """
    # both trees of a sentence have equally many merges
    width = int((order >= 0).any(0).sum())
    order, gold = order[:, :width], gold[:, :width]
    start, end = spans_of(order)
    row = torch.arange(len(order), device=order.device)[:, None]
    shared = span_table(gold)[row, start, end].sum(1)
    spans = (order >= 0).sum(1)
    return (shared - 1).clamp(min=0), (spans - 1).clamp(min=0)
