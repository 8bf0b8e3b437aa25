"""What every implementation of the merge takes and returns."""

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
    """States of the words, h and c side by side, `[cap, 2D]`; rows beyond the words are never
    used."""
    layout: Layout
    """Where each word stands."""
    cell: nn.Module
    """Composition, from `gumbeltree.nn.cells`."""
    query: Tensor
    """The query vector q, `[D]`."""
    scale: float
    """Factor of every score: 1, or 1 / sqrt(D)."""
    estimator: Any
    """How the choice is differentiated, from `gumbeltree.nn.estimators`."""
    temperature: float | Tensor
    """Of the softmax in the backward pass; it never changes which tree is chosen. A number on the
    device, if the host must not know it."""
    sample: bool
    """Whether scores get noise and gradients; otherwise argmax, and no gradient to the scores."""
    noise: Tensor | None = None
    """Needed when sampling: `[B, T-1, T-1]`, of which entries outside a sentence are never read, or
    keys, int64 `[B, 2]`; see `NoiseLayers`."""
    order: Tensor | None = None
    """Forced merges, int64 `[B, T-1]`; entries past a sentence's end are never read."""
    keep: Keep = VECTORS
    """What to return beside vectors and trees."""
    operands: Any = None
    """What `prepare` of the implementation gave, if it was called before."""

    @property
    def score_dtype(self) -> torch.dtype:
        """Scores, softmax and their gradients keep at least float32."""
        return torch.promote_types(self.leaves.dtype, torch.float32)


class MergeGradients(NamedTuple):
    """Gradients of what a merge is differentiated by."""

    leaves: Tensor
    weight: Tensor
    bias: Tensor
    query: Tensor


class TreeResult(NamedTuple):
    """Trees and states of a batch, in the caller's order of sentences."""

    vector: Tensor
    """h of each root, `[B, D]`."""
    order: Tensor
    """int64 `[B, T-1]`, -1 past a sentence's end."""
    nodes: NodeState | None
    """`[B, 2T-1, D]`, zero where there is no node; None unless kept."""
    scores: Tensor | None
    """`[B, T-1, T-1]`, -inf where there is no candidate; None unless kept."""
