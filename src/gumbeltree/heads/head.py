"""What a head is: the part of a model that knows what is asked, and how good an answer is."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from torch import Tensor, nn

from gumbeltree.states import Encoding


class Answer(Protocol):
    """What a model says about one example."""

    def cells(self) -> list[str]:
        """Return what a line of `gumbeltree predict` shows, before the text."""

    def as_dict(self) -> dict[str, Any]:
        """Return the answer for JSON."""


class Head(nn.Module, ABC):
    """Turns the encodings of an example's sentences into an output, and knows what it means.

    A head is made from its settings and the width of the sentence vectors.
    """

    sentences: ClassVar[int] = 1
    """Sentences of an example, and so encodings that `forward` takes."""
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
