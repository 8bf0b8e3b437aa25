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


class TreePrediction(NamedTuple):
    """The tree of a sentence as its merges."""

    order: tuple[int, ...]
    """Position of each merge."""

    def cells(self) -> list[str]:
        """Return the merges, for a line of text."""
        return [" ".join(map(str, self.order))]

    def as_dict(self) -> dict[str, Any]:
        """Return the merges, for JSON."""
        return {"order": list(self.order)}


class NumberPrediction(NamedTuple):
    """Predicted number of a sentence or pair."""

    value: float
    """The number, in the units of the training data."""

    def cells(self) -> list[str]:
        """Return the number."""
        return [number(self.value)]

    def as_dict(self) -> dict[str, Any]:
        """Return the number."""
        return {"value": self.value}


class BinsPrediction(NamedTuple):
    """Predicted number of a sentence or pair, with its distribution over bins."""

    value: float
    """Mean of the distribution."""
    bins: tuple[float, ...]
    """Position of each bin."""
    probabilities: tuple[float, ...]
    """Probability of each bin."""

    def cells(self) -> list[str]:
        """Return the number."""
        return [number(self.value)]

    def as_dict(self) -> dict[str, Any]:
        """Return the number, and position and probability of each bin."""
        return {
            "value": self.value,
            "bins": [list(pair) for pair in zip(self.bins, self.probabilities, strict=True)],
        }


class TagsPrediction(NamedTuple):
    """Predicted tags of a sentence or pair, possibly none."""

    labels: tuple[str, ...]
    """Tags of at least the threshold, in the order of the model's tags."""
    probabilities: dict[str, float]
    """Probability of each tag; they are independent of each other."""
    separator: str
    """Separates the tags in text."""

    def cells(self) -> list[str]:
        """Return the tags and their probabilities."""
        shown = [f"{self.probabilities[label]:.4f}" for label in self.labels]
        return [self.separator.join(self.labels), self.separator.join(shown)]

    def as_dict(self) -> dict[str, Any]:
        """Return tags and probabilities."""
        return {"labels": list(self.labels), "probabilities": self.probabilities}


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


def number(value: float) -> str:
    """Format a predicted number with four decimals, or six digits if it is large or small."""
    return f"{value:.4f}" if value == 0 or 0.001 <= abs(value) < 1e6 else f"{value:.6g}"


def number_answers(
    output: NDArray[np.floating], mean: float, deviation: float
) -> list[NumberPrediction]:
    """Return the number of each standardised output, `[B, 1]`."""
    values = mean + deviation * output[:, 0].astype(np.float64)
    return [NumberPrediction(value) for value in values.tolist()]


def cosines(output: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the cosine `[B]` of pairs of unit vectors `[B, 2, D]`, within -1 and 1."""
    found = (output[:, 0].astype(np.float64) * output[:, 1]).sum(-1)
    bounded: NDArray[np.float64] = np.clip(found, -1.0, 1.0)
    return bounded


def similarity_answers(output: NDArray[np.floating]) -> list[NumberPrediction]:
    """Return the cosine of each pair of unit vectors, `[B, 2, D]`."""
    return [NumberPrediction(value) for value in cosines(output).tolist()]


def bin_positions(bins: int, low: float, high: float) -> NDArray[np.float64]:
    """Return the positions of equidistant bins, `[bins]`."""
    return np.linspace(low, high, bins, dtype=np.float64)


def bin_answers(
    output: NDArray[np.floating], positions: NDArray[np.float64]
) -> list[BinsPrediction]:
    """Return mean and distribution of each row of logits, `[B, bins]`."""
    shares = softmax(output)
    places = tuple(positions.tolist())
    return [
        BinsPrediction(value, places, tuple(row))
        for value, row in zip((shares @ positions).tolist(), shares.tolist(), strict=True)
    ]


def sigmoid(output: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return 1 / (1 + exp(-x)), computed without overflow."""
    x = output.astype(np.float64)
    small = np.exp(-np.abs(x))
    shares: NDArray[np.float64] = np.where(x >= 0, 1, small) / (1 + small)
    return shares


def tag_answers(
    output: NDArray[np.floating], tags: Sequence[str], threshold: float, separator: str
) -> list[TagsPrediction]:
    """Return the tags of at least the threshold for each row of logits, `[B, C]`."""
    answers = []
    for row in sigmoid(output).tolist():
        named = dict(zip(tags, row, strict=True))
        kept = tuple(tag for tag, share in named.items() if share >= threshold)
        answers.append(TagsPrediction(kept, named, separator))
    return answers
