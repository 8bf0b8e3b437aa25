"""Inputs and outputs of shift-reduce."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from gumbeltree.layout import Layout


class TrackerWeights(NamedTuple):
    """Weights of the tracker, an LSTM of width d with gates i, f, g, o."""

    weight_ih: Tensor
    """Weight of [top; second; next word], `[4d, 3D]`."""
    weight_hh: Tensor
    """Recurrent weight `[4d, d]`."""
    bias: Tensor
    """Bias `[4d]`."""
    to_cell: Tensor
    """Weight of the tracker's h in the composition, `[5D, d]`."""


class StackProblem(NamedTuple):
    """Sentences to compose by shift-reduce."""

    leaves: Tensor
    """States of the words `[N, 2D]`, [h; c], float32 or wider, as all of the following."""
    layout: Layout
    """Layout of the words."""
    weight: Tensor
    """Weight of the composition `[5D, 2D]`."""
    bias: Tensor
    """Bias of the composition `[5D]`."""
    cell: Any
    """Cell with the element-wise functions `activate` and `activate_backward`."""
    missing: Tensor
    """h of a missing top node, second node and next word, `[3, D]`."""
    tracker: TrackerWeights | None = None
    """Weights of the tracker, if there is one."""

    def first_states(self) -> Tensor:
        """Return the states `[2N - B + 4, 2D]` before the first step.

        The rows are the words, the nodes, which are zero, the missing ones, and a last one for
        merges that do not exist.
        """
        layout, D = self.layout, self.missing.shape[1]
        nodes = self.leaves.new_zeros((layout.nodes - layout.N, 2 * D))
        return torch.cat([self.leaves, nodes, F.pad(self.missing, (0, D, 0, 1))])


class StackResult(NamedTuple):
    """States of all nodes, and of the tracker at all steps."""

    states: Tensor
    """States `[2N - B + 4, 2D]`; see `StackProblem.first_states`."""
    tracked: Tensor | None
    """[h; c] of the tracker at each step `[steps, 2d]`, in the order of `StackTables`; None without
    a tracker."""


def activated(gates: Tensor) -> Tensor:
    """Return the activated gates of the tracker `[n, 4d]`."""
    d = gates.shape[1] // 4
    i_f, g, o = gates.split([2 * d, d, d], dim=1)
    return torch.cat([i_f.sigmoid(), g.tanh(), o.sigmoid()], dim=1)
