"""Base class of heads, which turn sentence encodings into predictions and evaluate them."""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from gumbeltree.answers import Answer, ResultTable
from gumbeltree.config import LABELS_FROM_DATA
from gumbeltree.encoded import VECTORS, Keep
from gumbeltree.registry import suggest
from gumbeltree.settings import PartConfig
from gumbeltree.states import Encoding


class Part(NamedTuple):
    """Outputs of a head for some or all examples of a split.

    Attributes:
        output: output for each example, float64 `[n, ...]`.
        target: target of each example, `[n, ...]`.
        loss: mean loss, NaN without examples.
        rows: indices of the examples in the split, int64 `[n]`.
        size: number of examples in the split.
        longest: words in the longest sentence of each example, int64 `[n]`.
    """

    output: NDArray[np.float64]
    target: NDArray[Any]
    loss: float
    rows: NDArray[np.int64]
    size: int
    longest: NDArray[np.int64]


class Evaluation(Protocol):
    """Evaluation of a model on a split; parts of one split can be added."""

    @property
    def loss(self) -> float:
        """Mean loss, NaN without examples."""

    @property
    def count(self) -> int:
        """Number of examples evaluated."""

    @property
    def value(self) -> float:
        """The head's metric, which selects the best model; higher is better."""

    def __add__(self, other: Self) -> Self:
        """Combine two parts of one split, for example from two processes."""

    def as_dict(self) -> dict[str, Any]:
        """Return all metrics in a JSON-serialisable form."""

    def summary(self) -> str:
        """Return the main metrics in one line."""

    def tables(self) -> list[ResultTable]:
        """Return detailed results as tables."""

    def answers(self) -> list[str]:
        """Return the prediction for each example as text, "" for examples not evaluated."""


def combined_loss(one: Evaluation, other: Evaluation, *evaluated: NDArray[np.bool_]) -> float:
    """Return the mean loss of two parts of one split; raise ValueError if they are not.

    Args:
        one: one part.
        other: the other part.
        evaluated: for each part, which examples of the split it contains, bool `[n]`.
    """
    mine, others = evaluated
    if mine.shape != others.shape:
        raise ValueError(
            f"cannot add evaluations of different splits ({len(mine)} and {len(others)} examples)"
        )
    if len(twice := np.flatnonzero(mine & others)):
        raise ValueError(
            f"cannot add evaluations that share example {twice[0]}; pass different `rows` to "
            "`evaluate`"
        )
    # a part without examples has no loss
    losses = [part.loss * part.count for part in (one, other) if part.count]
    count = one.count + other.count
    return sum(losses) / count if count else math.nan


class Metric(NamedTuple):
    """A metric that can select the best model."""

    name: str
    lower: bool
    """Whether lower values are better."""
    shown: Callable[[float], str]
    """Formats a value as text."""

    def improves(self, value: float, best: float) -> bool:
        """Return whether `value` is better than `best`; any value is better than NaN."""
        return best != best or (value < best if self.lower else value > best)


class Head(nn.Module, ABC):
    """Turn the encodings of an example's sentences into an output, and interpret that output.

    A head is built from its settings and the width of the sentence vectors.
    """

    Config: ClassVar[type[Any]] = PartConfig
    """Class of its settings."""
    sentences: ClassVar[int] = 1
    """Sentences per example, which is the number of encodings `forward` takes."""
    keep: ClassVar[Keep] = VECTORS
    """Optional parts of an encoding that the head reads."""
    capturable: ClassVar[bool] = False
    """Whether forward pass and loss can be captured as a CUDA graph: they read nothing back from
    the device. Every subclass must set it; inherited values do not count."""
    node_targets: ClassVar[bool] = False
    """Whether the head trains on the classes of all nodes of gold trees: in training, `loss` then
    gets `Sentences.node_labels`, int64 `[B, 2T-1]`, as its target."""
    grouped: ClassVar[bool] = False
    """Whether training batches keep examples with the same first sentence together."""
    averages_answers: ClassVar[bool] = False
    """Whether the head reads `Encoding.alternatives`."""
    predicts: ClassVar[str] = ""
    """classes, number or tags, which determines how labels in tables are checked; empty for any
    others."""
    measure: ClassVar[str]
    """Name of the main metric, which selects the best model by default."""
    metrics: ClassVar[tuple[str, ...]] = ()
    """Names of further metrics; evaluations need a method `metric` that returns their values."""
    label_metrics: ClassVar[tuple[str, ...]] = ()
    """Names of further metrics per label; `metric` takes them as "name:label"."""
    lower_is_better: ClassVar[frozenset[str]] = frozenset({"loss"})
    """Metrics whose lower values are better."""
    target_type: ClassVar[type[np.generic]]
    """NumPy type of the targets, such as int64 or float64."""
    labels: tuple[str, ...] = ()
    """Names of the classes; empty if the head does not predict classes."""

    @abstractmethod
    def forward(self, *encodings: Encoding) -> Tensor:
        """Return the output `[B, ...]` for B examples from encodings of B sentences each."""

    @abstractmethod
    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the loss of each example `[B]`; `target` is `[B, ...]`."""

    @abstractmethod
    def answers(self, output: NDArray[np.float32]) -> Sequence[Answer]:
        """Return the prediction for each row of a finite output `[B, ...]`, on the host."""

    @abstractmethod
    def target(self, label: str) -> Any:
        """Convert a label in the data to a target; raise ValueError if that is impossible.

        A target is a number, or an array if it has several.
        """

    @abstractmethod
    def check_targets(self, targets: NDArray[Any]) -> None:
        """Raise ValueError if the targets do not fit this head."""

    def check_selection(self, targets: NDArray[Any], metric: str) -> None:
        """Raise ValueError if a metric of the development targets cannot select the best model."""

    @abstractmethod
    def evaluation(self, part: Part) -> Evaluation:
        """Evaluate outputs against targets."""

    @classmethod
    def completed(cls, config: Any, labels: tuple[str, ...], targets: NDArray[Any]) -> Any:
        """Return settings with what the head takes from the training data, such as its labels.

        Args:
            config: settings of the head.
            labels: labels of the data; empty if they are not classes or tags.
            targets: targets of the training examples, `[n, ...]`.

        Raises:
            ValueError: If settings and data do not match.
        """
        if not hasattr(config, "labels"):
            return config
        if not labels or targets.ndim != 1:
            raise ValueError(
                f"the head {config.kind!r} classifies, but the data was prepared for a head that "
                "does not; prepare it again with this recipe"
            )
        if config.labels != LABELS_FROM_DATA and set(config.labels) != set(labels):
            raise ValueError(
                f"the recipe has the labels {', '.join(config.labels)}, but the data has "
                f"{', '.join(labels)}; use --set head.labels to match the data"
            )
        return dataclasses.replace(config, labels=labels)

    @classmethod
    def metric(cls, name: str = "", labels: Sequence[str] | None = None) -> Metric:
        """Return a metric by name, by default the main one; raise ValueError if it is unknown.

        Args:
            name: such as "loss", "macro_f1" or "recall:LABEL".
            labels: the known labels; None accepts any in "recall:LABEL".
        """
        name = name or cls.measure
        known = [cls.measure, *cls.metrics, "loss"]
        first, colon, label = name.partition(":")
        if first in cls.label_metrics and colon:
            if labels is not None and label not in labels:
                raise ValueError(
                    f"`training.best_by` is {name!r}, but {label!r} is not a label of the data, "
                    f"which has {', '.join(labels)}.{suggest(label, list(labels))}"
                )
        elif name not in known:
            more = [f"{each}:LABEL" for each in cls.label_metrics]
            raise ValueError(
                f"`training.best_by` must be one of {', '.join([*known, *more])}, got {name!r}."
                f"{suggest(name, known)}"
            )
        shown = (lambda value: f"{value:.4f}") if name == "loss" else cls.shown
        return Metric(name, name in cls.lower_is_better, shown)

    @classmethod
    def value(cls, evaluation: Any, name: str) -> float:
        """Return a metric of an evaluation, by name."""
        if name == cls.measure:
            return float(evaluation.value)
        return float(evaluation.loss if name == "loss" else evaluation.metric(name))

    def check_columns(self, columns: int) -> None:
        """Raise ValueError unless examples have as many sentences as this head reads."""
        if columns != self.sentences:
            raise ValueError(
                f"{type(self).__name__} reads {self.sentences} sentence(s) per example, but the "
                f"data has {columns}; use data that fits the model"
            )

    @staticmethod
    def shown(value: float) -> str:
        """Format a value of the metric as text."""
        return f"{100 * value:.2f}%"
