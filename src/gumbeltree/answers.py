"""Predictions and tables of results, computed from NumPy arrays without torch."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class Answer(Protocol):
    """Prediction for one example."""

    def cells(self) -> list[str]:
        """Return the columns that `gumbeltree predict` prints before the text."""

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable form."""


class Prediction(NamedTuple):
    """Predicted class of a sentence or pair."""

    label: str
    """The most probable label."""
    probabilities: dict[str, float]
    """Probability of each label, in the order of the model's labels."""
    logits: tuple[float, ...]
    """Logits, in the same order."""

    def cells(self) -> list[str]:
        """Return the label and its probability."""
        return [self.label, f"{self.probabilities[self.label]:.4f}"]

    def as_dict(self) -> dict[str, Any]:
        """Return label and probabilities."""
        return {"label": self.label, "probabilities": self.probabilities}


class ResultTable(NamedTuple):
    """Table of results with cells as text."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def class_answers(logits: NDArray[np.floating], labels: tuple[str, ...]) -> list[Prediction]:
    """Return the most probable class of each row of logits `[B, C]`, with all probabilities."""
    answers = []
    for p, scores in zip(softmax(logits).tolist(), logits.tolist(), strict=True):
        label = labels[max(range(len(p)), key=p.__getitem__)]
        answers.append(Prediction(label, dict(zip(labels, p, strict=True)), tuple(scores)))
    return answers


def softmax(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the softmax over the last axis."""
    shifted = logits - logits.max(-1, keepdims=True)
    weights = np.exp(shifted, dtype=np.float64)
    shares: NDArray[np.float64] = weights / weights.sum(-1, keepdims=True)
    return shares
