"""Regression of single sentences and of pairs: a number, or a distribution over bins."""

import dataclasses
import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from gumbeltree.answers import (
    BinsPrediction,
    NumberPrediction,
    bin_answers,
    bin_positions,
    number_answers,
    softmax,
)
from gumbeltree.config import BinsConfig, NumberConfig
from gumbeltree.nn.heads.head import Part
from gumbeltree.nn.heads.mlp import MLPHead, OfPairs, OfSentences
from gumbeltree.nn.heads.number_evaluation import NumberEvaluation

LARGEST = 1e100
"""Largest target; squares of larger numbers could overflow."""


class RegressionHead(MLPHead):
    """Base class of heads that predict a number."""

    predicts = "number"
    measure = "pearson"
    metrics = ("spearman", "mse")
    lower_is_better = frozenset({"loss", "mse"})
    target_type = np.float64

    def values(self, output: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the predicted numbers `[B]` for outputs `[B, outputs]`."""
        raise NotImplementedError

    def target(self, label: str) -> float:
        """Return a label as a number."""
        try:
            value = float(label)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise ValueError(
                f"{label!r} is not a finite number; correct the label, or train a classifier"
            )
        return value

    def check_targets(self, targets: NDArray[Any]) -> None:
        """Raise ValueError unless all targets are finite numbers."""
        if targets.ndim != 1 or targets.dtype.kind != "f" or not np.isfinite(targets).all():
            raise ValueError(
                f"targets must be finite numbers, got {targets.dtype} {list(targets.shape)}; use "
                "data that was prepared for a regression"
            )

    @classmethod
    def check_data(cls, config: Any, labels: tuple[str, ...], targets: NDArray[Any]) -> None:
        """Raise ValueError unless the training targets are numbers that differ."""
        if labels or targets.ndim != 1:
            raise ValueError(
                f"the head {config.kind!r} predicts numbers, but the data was prepared for a head "
                "that predicts labels; prepare it again with this recipe"
            )
        if max(abs(targets.min()), abs(targets.max())) > LARGEST:
            raise ValueError(
                f"targets must lie between -{LARGEST:g} and {LARGEST:g}, got {targets.min():g} to "
                f"{targets.max():g}; check the label column, or scale the numbers"
            )
        if targets.min() == targets.max():
            raise ValueError(
                f"all training targets equal {targets[0]:g}, so that there is nothing to learn; "
                "check the label column"
            )

    def evaluation(self, part: Part) -> NumberEvaluation:
        """Return correlations and mean squared error."""
        found, gold = np.full((2, part.size), np.nan)
        if len(part.rows):
            found[part.rows], gold[part.rows] = self.values(part.output), part.target
        return NumberEvaluation(part.loss, found, gold)

    @staticmethod
    def shown(value: float) -> str:
        """Format a correlation or an error."""
        return f"{value:.4f}"


class NumberHead(RegressionHead):
    """A linear output, trained with the squared error of standardised targets.

    Outputs are standardised as well: the prediction is `mean + deviation * output`. Hence the
    learning rate and the initial weights fit targets of any scale, and low-precision arithmetic
    never sees the mean.

    Args:
        config: see `NumberConfig`.
        vector_dim: width of the sentence vectors.
    """

    Config = NumberConfig

    def __init__(self, config: NumberConfig, vector_dim: int) -> None:
        super().__init__(config, vector_dim, 1)
        self.mean, self.deviation = config.scale

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the squared error of each example in deviations, `[B]`; `target` is `[B]`."""
        standard = (target.double() - self.mean) / self.deviation
        return (output[:, 0] - standard.to(output.dtype)).square()

    def values(self, output: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the predicted numbers `[B]` for standardised outputs `[B, 1]`."""
        return self.mean + self.deviation * output[:, 0]

    def answers(self, output: NDArray[np.float32]) -> list[NumberPrediction]:
        """Return the number of each row."""
        return number_answers(output, self.mean, self.deviation)

    @classmethod
    def completed(cls, config: Any, labels: tuple[str, ...], targets: NDArray[Any]) -> Any:
        """Return settings with the mean and the standard deviation of the training targets."""
        cls.check_data(config, labels, targets)
        mean = float(targets.mean()) if config.mean is None else config.mean
        deviation = float(targets.std()) if config.deviation is None else config.deviation
        return dataclasses.replace(config, mean=mean, deviation=deviation)


class BinsHead(RegressionHead):
    """A distribution over equidistant bins, whose mean is the prediction (Tai et al. 2015).

    The target distribution of a number gives all weight to the two bins next to it, such that its
    mean is the number. The loss is the Kullback-Leibler divergence from it.

    Args:
        config: see `BinsConfig`.
        vector_dim: width of the sentence vectors.
    """

    Config = BinsConfig

    def __init__(self, config: BinsConfig, vector_dim: int) -> None:
        super().__init__(config, vector_dim, config.bins)
        self.low, self.high = config.range

    def distribution(self, target: Tensor) -> Tensor:
        """Return the distribution over the bins, float64 `[B, bins]`, for numbers `[B]`.

        A number outside the bins counts as the nearest bin.
        """
        last = self.config.bins - 1
        place = ((target.double() - self.low) / (self.high - self.low) * last).clamp(0, last)
        bins = torch.arange(last + 1, device=target.device)
        shares: Tensor = (1 - (place[:, None] - bins).abs()).clamp(min=0)
        return shares

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the divergence of each example `[B]`; `target` holds numbers `[B]`."""
        wanted = self.distribution(target).to(output.dtype)
        return F.kl_div(output.log_softmax(-1), wanted, reduction="none").sum(-1)

    @property
    def positions(self) -> NDArray[np.float64]:
        """Position of each bin, `[bins]`."""
        return bin_positions(self.config.bins, self.low, self.high)

    def values(self, output: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the mean of each distribution `[B]` for logits `[B, bins]`."""
        means: NDArray[np.float64] = softmax(output) @ self.positions
        return means

    def answers(self, output: NDArray[np.float32]) -> list[BinsPrediction]:
        """Return mean and distribution of each row."""
        return bin_answers(output, self.positions)

    @classmethod
    def completed(cls, config: Any, labels: tuple[str, ...], targets: NDArray[Any]) -> Any:
        """Return settings with the range of the training targets."""
        cls.check_data(config, labels, targets)
        low = float(targets.min()) if config.low is None else config.low
        high = float(targets.max()) if config.high is None else config.high
        return dataclasses.replace(config, low=low, high=high)


class SingleNumberHead(OfSentences, NumberHead):
    """Regression of single sentences."""

    capturable = True


class PairNumberHead(OfPairs, NumberHead):
    """Regression of sentence pairs."""

    capturable = True


class SingleBinsHead(OfSentences, BinsHead):
    """Regression of single sentences, by a distribution over bins."""

    capturable = True


class PairBinsHead(OfPairs, BinsHead):
    """Regression of sentence pairs, by a distribution over bins."""

    capturable = True
