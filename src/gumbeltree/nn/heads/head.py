"""Base class of heads, which turn sentence encodings into predictions and evaluate them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from gumbeltree.answers import Answer, ResultTable
from gumbeltree.encoded import VECTORS, Keep
from gumbeltree.settings import PartConfig
from gumbeltree.states import Encoding


class Part(NamedTuple):
    """Outputs of a head for some or all examples of a split.

    Attributes:
        output: output for each example, float64 `[n, ...]`.
        target: target of each example, `[n]`.
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
    measure: ClassVar[str]
    """Name of the metric that selects the best model."""
    target_type: ClassVar[type[np.generic]]
    """NumPy type of the targets, such as int64 or float64."""
    labels: tuple[str, ...] = ()
    """Names of the classes; empty if the head does not predict classes."""

    @abstractmethod
    def forward(self, *encodings: Encoding) -> Tensor:
        """Return the output `[B, ...]` for B examples from encodings of B sentences each."""

    @abstractmethod
    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the loss of each example `[B]`; `target` is `[B]`."""

    @abstractmethod
    def answers(self, output: NDArray[np.float32]) -> Sequence[Answer]:
        """Return the prediction for each row of a finite output `[B, ...]`, on the host."""

    @abstractmethod
    def target(self, label: str) -> float:
        """Convert a label in the data to a target; raise ValueError if that is impossible."""

    @abstractmethod
    def check_targets(self, targets: NDArray[Any]) -> None:
        """Raise ValueError if the targets do not fit this head."""

    @abstractmethod
    def evaluation(self, part: Part) -> Evaluation:
        """Evaluate outputs against targets."""

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
