"""The record of a forward pass that the backward pass of `exact` reads."""

from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gumbeltree.ops.merge.problem import TreeProblem

Integers: TypeAlias = NDArray[np.int64]


class Tape(NamedTuple):
    """Record of a forward pass with C candidates and S = N - B merges."""

    states: Tensor
    """States of the words, then of the candidates, `[N + C, 2D]`."""
    gates: Tensor
    """Activated gates of the candidates, `[C, 5D]`."""
    left: Tensor
    """Left child of each candidate, a node, int64 `[C]`."""
    right: Tensor
    """Right child of each candidate, int64 `[C]`."""
    node_state: Tensor
    """Row of each node in `states`, int64 `[2N - B + 1]`; the last node is a dummy."""
    chosen: Tensor
    """Candidate of each merge, int64 `[S]`."""
    position: Tensor
    """Position k of each merge, int64 `[S]`."""
    created: Tensor
    """Candidates that each merge creates left and right of the new node, int64 `[S, 2]`."""
    window: Tensor
    """Candidates at positions k-2 .. k+2 before each merge at k, int64 `[S, 5]`."""
    rows: Tensor
    """Candidate at each position of each layer, int32, layers concatenated."""
    logits: Tensor
    """Scores of `rows` without noise, -inf without a candidate; empty unless merges are sampled."""


class Recorder:
    """Records a tape; call `merge`, then `create`, at each step."""

    def __init__(self, problem: TreeProblem, leaves: Tensor) -> None:
        p = problem.layout
        positions = sum(n * (p.steps - t) for t, n in enumerate(p.active[1:], 1))
        S = p.N - p.B
        self.sample = problem.sample
        self.device = leaves.device
        self.rows = np.empty(positions, np.int32)
        self.logits = leaves.new_empty(positions if problem.sample else 0)
        self.chosen, self.position = np.empty(S, np.int64), np.empty(S, np.int64)
        self.created, self.window = np.zeros((S, 2), np.int64), np.zeros((S, 5), np.int64)
        self.first = self.merges = self.layers = 0

    def merge(self, candidate: Integers, k: Integers, merged: Integers, logits: Tensor) -> None:
        """Record the merges of one step.

        Args:
            candidate: Candidate at each position `[n, K]`, 0 for none.
            k: Position of each merge `[n]`.
            merged: Candidate of each merge `[n]`.
            logits: Scores without noise `[n, K]`.
        """
        self.first, self.merges = self.merges, self.merges + len(k)
        step = slice(self.first, self.merges)
        layer = slice(self.layers, self.layers + candidate.size)
        self.layers = layer.stop
        self.chosen[step], self.position[step] = merged, k
        n, K = candidate.shape
        padded = np.zeros((n, K + 4), np.int64)
        padded[:, 2:-2] = candidate
        self.window[step] = padded[np.arange(n)[:, None], k[:, None] + np.arange(5)]
        self.rows[layer] = candidate.ravel()
        if self.sample:
            self.logits[layer].view_as(logits).copy_(logits)

    def create(self, a: Integers, b: Integers, created: Integers) -> None:
        """Record new candidates: left of the new nodes of sentences a, right of those of b."""
        self.created[self.first + a, 0] = created[: len(a)]
        self.created[self.first + b, 1] = created[len(a) :]

    def tape(
        self, states: Tensor, gates: Tensor, left: Tensor, right: Tensor, node_state: Tensor
    ) -> Tape:
        """Return the tape, completed with tensors of `Candidates`."""

        def tensor(integers: NDArray[np.integer]) -> Tensor:
            return torch.from_numpy(integers).to(self.device)

        return Tape(
            states,
            gates,
            left,
            right,
            node_state,
            tensor(self.chosen),
            tensor(self.position),
            tensor(self.created),
            tensor(self.window),
            tensor(self.rows),
            self.logits,
        )
