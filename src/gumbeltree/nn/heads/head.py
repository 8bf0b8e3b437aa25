"""What a head is: the part of a model that knows what is asked, and how good an answer is."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from gumbeltree.settings import PartConfig
from gumbeltree.states import VECTORS, Encoding, Keep


class Answer(Protocol):
    """What a model says about one example."""

    def cells(self) -> list[str]:
        """Return what a line of `gumbeltree predict` shows, before the text."""

    def as_dict(self) -> dict[str, Any]:
        """Return the answer for JSON."""


class ResultTable(NamedTuple):
    """A table of results, its cells as text."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]


class Part(NamedTuple):
    """What a head said about examples of a split, all or some of them.

    Attributes:
        output: of each example, float64 `[n, ...]`.
        target: of each example, `[n]`.
        loss: their mean loss, NaN without examples.
        rows: which examples of the split these are, int64 `[n]`.
        size: examples of the split.
        longest: words of each example's longest sentence, int64 `[n]`.
    """

    output: NDArray[np.float64]
    target: NDArray[Any]
    loss: float
    rows: NDArray[np.int64]
    size: int
    longest: NDArray[np.int64]


class Evaluation(Protocol):
    """How good a model is on the examples of a split; parts of one split add up."""

    @property
    def loss(self) -> float:
        """Mean loss, NaN without examples."""

    @property
    def count(self) -> int:
        """Examples evaluated."""

    @property
    def value(self) -> float:
        """The head's measure, by which models are compared; the highest is best."""

    def __add__(self, other: Self) -> Self:
        """Combine two parts of one split, such as those of two processes."""

    def as_dict(self) -> dict[str, Any]:
        """Return all figures for JSON."""

    def summary(self) -> str:
        """Return the figures that matter most in one line."""

    def tables(self) -> list[ResultTable]:
        """Return the figures that take more room."""

    def answers(self) -> list[str]:
        """Return the answer to each example of the split as text, "" where it was left out."""


class Head(nn.Module, ABC):
    """Turns the encodings of an example's sentences into an output, and knows what it means.

    A head is made from its settings and the width of the sentence vectors.
    """

    Config: ClassVar[type[Any]] = PartConfig
    """Its settings."""
    sentences: ClassVar[int] = 1
    """Sentences of an example, and so encodings that `forward` takes."""
    keep: ClassVar[Keep] = VECTORS
    """What it reads of an encoding beside the vectors."""
    capturable: ClassVar[bool] = False
    """Whether nothing is read back from the device in its forward pass and loss, so that these can
    be captured as a CUDA graph. A subclass says so again for itself."""
    measure: ClassVar[str]
    """Name of the figure by which the best model is chosen."""
    target_type: ClassVar[type[np.generic]]
    """Number type of the targets, such as numpy's int64 or float64."""
    labels: tuple[str, ...] = ()
    """Names of the classes; empty where an answer is no class."""

    @abstractmethod
    def forward(self, *encodings: Encoding) -> Tensor:
        """Return the output `[B, ...]` for B examples, each encoding of B sentences."""

    @abstractmethod
    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the loss of each example `[B]`; `target` is `[B]`."""

    @abstractmethod
    def answers(self, output: Tensor) -> Sequence[Answer]:
        """Return what each row of a finite output means."""

    @abstractmethod
    def target(self, label: str) -> float:
        """Return the target that a label of the data stands for; raise if it stands for none."""

    @abstractmethod
    def check_targets(self, targets: NDArray[Any]) -> None:
        """Raise if targets cannot be this head's."""

    @abstractmethod
    def evaluation(self, part: Part) -> Evaluation:
        """Return how good outputs are."""

    def check_columns(self, columns: int) -> None:
        """Raise unless examples have as many sentences as this head reads."""
        if columns != self.sentences:
            raise ValueError(
                f"{type(self).__name__} reads {self.sentences} sentence(s) an example, got "
                f"{columns}; pass data that fit the model"
            )

    def count_parameters(self) -> dict[str, int]:
        """Return how many parameters each part has."""
        return {
            name: sum(parameter.numel() for parameter in part.parameters())
            for name, part in self.named_children()
        }

    @staticmethod
    def shown(value: float) -> str:
        """Return the measure as text."""
        return f"{100 * value:.2f}%"
