"""Input and output types of all implementations of the merge."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gumbeltree.layout import Layout
from gumbeltree.states import VECTORS, Keep, NodeState


@dataclass(frozen=True)
class TreeProblem:
    """A batch of sentences to be merged into trees."""

    leaves: Tensor
    """States of the words, h and c concatenated, `[cap, 2D]`; rows past the words are ignored."""
    layout: Layout
    """Layout of the words."""
    cell: nn.Module
    """Composition function, from `gumbeltree.nn.cells`."""
    query: Tensor
    """Query vector q, `[D]`."""
    scale: float
    """Factor applied to every score: 1 or 1 / sqrt(D)."""
    estimator: Any
    """Gradient estimator of the choice, from `gumbeltree.nn.estimators`."""
    temperature: float | Tensor
    """Temperature of the softmax in the backward pass; it never affects which tree is chosen. A
    tensor on the device avoids a synchronization."""
    sample: bool
    """Whether to add noise to the scores and differentiate the choice. Otherwise the choice is the
    argmax and the scores get no gradient from it."""
    noise: Tensor | None = None
    """Noise for sampling, `[B, T-1, T-1]`, or keys, int64 `[B, 2]`; see `NoiseLayers`. Entries
    outside a sentence are ignored."""
    order: Tensor | None = None
    """Merge orders to follow, int64 `[B, T-1]`; entries past the end of a sentence are ignored."""
    keep: Keep = VECTORS
    """Which optional outputs to return."""
    operands: Any = None
    """Result of the implementation's `prepare`, if it has been called."""
    dropout: Tensor | None = None
    """Keys of the dropout inside the cell, int64 `[B, 2]`; None for no dropout."""
    scorer: nn.Module | None = None
    """Scores candidates by h of their children, from `gumbeltree.nn.scorers`; None for the query,
    which is zero otherwise."""

    @property
    def noise_scale(self) -> float:
        """Factor of the noise."""
        scale: float = getattr(self.estimator, "noise_scale", 1.0)
        return scale

    @property
    def score_dtype(self) -> torch.dtype:
        """Data type of scores, softmax and their gradients: float32 or wider."""
        return torch.promote_types(self.leaves.dtype, torch.float32)


class MergeGradients(NamedTuple):
    """Gradients of the differentiable inputs of the merge."""

    leaves: Tensor
    weight: Tensor
    bias: Tensor
    query: Tensor
    others: tuple[Tensor, ...] = ()
    """Gradients of the cell's other parameters, then of the scorer's."""


class TreeResult(NamedTuple):
    """Trees and states of a batch, with sentences in the caller's order."""

    vector: Tensor
    """h of each root, `[B, D]`."""
    order: Tensor
    """Position of each merge, int64 `[B, T-1]`, -1 past the end of a sentence."""
    nodes: NodeState | None
    """Node states `[B, 2T-1, D]`, zero where there is no node; None unless requested."""
    scores: Tensor | None
    """Scores `[B, T-1, T-1]`, -inf where there is no candidate; None unless requested."""
