"""A classifier that is trained on every labelled node of gold trees and predicts the root."""

import dataclasses
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from gumbeltree.encoded import Keep
from gumbeltree.layout import NO_CLASS
from gumbeltree.nn.heads.class_evaluation import ClassEvaluation
from gumbeltree.nn.heads.classes import Classifier
from gumbeltree.nn.heads.head import Part
from gumbeltree.peers import NodesConfig
from gumbeltree.states import Encoding


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class NodeEvaluation(ClassEvaluation):
    """Results for the roots, and for two sides that combine several classes each.

    Attributes:
        sides: examples of either side by gold side (rows) and predicted side (columns), int64
            `[2, 2]`; None if the head has no sides.
    """

    sides: NDArray[np.int64] | None = None

    @property
    def binary_accuracy(self) -> float:
        """Fraction of the examples of either side on the right one, NaN without examples."""
        if self.sides is None or not self.sides.any():
            return float("nan")
        return float(self.sides.trace() / self.sides.sum())

    def __add__(self, other: ClassEvaluation) -> "NodeEvaluation":
        """Combine two parts of one split."""
        both = super().__add__(other)
        theirs = getattr(other, "sides", None)
        sides = None if self.sides is None or theirs is None else self.sides + theirs
        return NodeEvaluation(**vars(both), sides=sides)

    def as_dict(self) -> dict[str, Any]:
        """Return everything except individual predictions, in a JSON-serialisable form."""
        about = super().as_dict()
        if self.sides is not None:
            known = self.sides.any()
            about["binary_accuracy"] = self.binary_accuracy if known else None
            about["binary_examples"] = int(self.sides.sum())
        return about

    def summary(self) -> str:
        """Return the main metrics in one line."""
        text = super().summary()
        if self.sides is None:
            return text
        share, count = 100 * self.binary_accuracy, int(self.sides.sum())
        return f"{text}, binary accuracy {share:.2f} % of {count:,} examples"


class NodesHead(Classifier):
    """Dropout, a linear layer and a softmax at every node; predictions are those of the roots.

    Args:
        config: see `NodesConfig`.
        vector_dim: width of the node states.
    """

    Config = NodesConfig
    keep = Keep(nodes=True)
    node_targets = True
    capturable = True
    metrics: ClassVar[tuple[str, ...]] = (*Classifier.metrics, "binary_accuracy")

    def __init__(self, config: NodesConfig, vector_dim: int) -> None:
        super().__init__()
        self.config, self.labels = config, config.labels
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(vector_dim, len(config.labels) + config.other_class)

    def forward(self, *encodings: Encoding) -> Tensor:
        """Return logits: in training those of all nodes, `[B, 2T-1, outputs]`, else `[B, C]`."""
        (encoding,) = encodings
        if not self.training:
            roots: Tensor = self.output(encoding.vector)[:, : len(self.labels)]
            return roots
        if encoding.nodes is None:
            raise ValueError("the head 'nodes' needs an encoder that returns the states of nodes")
        logits: Tensor = self.output(self.dropout(encoding.nodes.h))
        return logits

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the cross entropy of each example `[B]`.

        Args:
            output: logits of all nodes, whose losses are summed, or of the roots.
            target: classes of the nodes, int64 `[B, 2T-1]`, or of the roots, int64 `[B]`.
        """
        if output.dim() == 2:
            return F.cross_entropy(output, target, reduction="none")
        # nodes without a class have a class of their own, or no loss
        other = len(self.labels) if self.config.other_class else -1
        target = target.masked_fill(target == NO_CLASS, other)
        losses = F.cross_entropy(output.transpose(1, 2), target, ignore_index=-1, reduction="none")
        scale: float = self.config.loss_scale
        return scale * losses.sum(1)

    def check_selection(self, targets: NDArray[Any], metric: str) -> None:
        """Raise ValueError if the metric is the accuracy of two sides, but there are none."""
        if metric == "binary_accuracy" and self.config.negative is None:
            raise ValueError(
                "`training.best_by` is 'binary_accuracy', but the head has no sides; set "
                "`head.negative` and `head.positive` to the classes of each"
            )

    def evaluation(self, part: Part) -> NodeEvaluation:
        """Return accuracy, confusion matrix and accuracy by length, and that of the two sides."""
        found = super().evaluation(part)
        names = self.config.negative, self.config.positive
        if names == (None, None):
            return NodeEvaluation(**vars(found))
        belongs = np.array([[label in (side or ()) for label in self.labels] for side in names])
        sides = np.zeros((2, 2), dtype=np.int64)
        if len(part.rows):
            # probabilities up to a factor
            shares = np.exp(part.output - part.output.max(-1, keepdims=True)) @ belongs.T  # [n, 2]
            gold = belongs[:, part.target]  # [2, n]
            either = gold.any(0)
            np.add.at(sides, (gold[1, either].astype(int), shares[either].argmax(1)), 1)
        return NodeEvaluation(**vars(found), sides=sides)
