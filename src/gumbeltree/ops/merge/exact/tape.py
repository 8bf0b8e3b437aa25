"""What the backward pass of `exact` needs of the forward pass, and its recorder."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from gumbeltree.ops.merge.problem import TreeProblem


class Tape(NamedTuple):
    """What the backward pass needs of the forward pass; S = N - B merges in all."""

    states: Tensor
    """r of the words, then of the candidates, `[N + C, 2D]`."""
    gates: Tensor
    """Activated gates of the candidates `[C, 5D]`."""
    left: Tensor
    """Node that is each candidate's left child, int64 `[C]`."""
    right: Tensor
    """Node that is its right child, int64 `[C]`."""
    node_state: Tensor
    """Row of `states` that holds each node, int64 `[2N - B + 1]`; the last node is a dummy."""
    chosen: Tensor
    """Candidate merged, step by step, int64 `[S]`."""
    position: Tensor
    """Its position k, int64 `[S]`."""
    born: Tensor
    """Candidates born by each merge, left and right of the new node, int64 `[S, 2]`."""
    near: Tensor
    """Candidates at k-2 .. k+2 before each merge at k, int64 `[S, 5]`."""
    rows: Tensor
    """Candidate at each position of each layer, int32, layers one after the other."""
    logits: Tensor
    """Their scores without noise, -inf where there is none, laid out as `rows`; empty unless merges
    are sampled."""


class Recorder:
    """Fills the tape, step by step; the calls of a step are `merge`, then `birth`."""

    def __init__(self, problem: TreeProblem, leaves: Tensor) -> None:
        p = problem.layout
        positions = sum(n * (p.steps - t) for t, n in enumerate(p.active[1:], 1))
        S = p.N - p.B
        self.sample = problem.sample
        self.rows = torch.empty(positions, dtype=torch.int32, device=leaves.device)
        self.logits = leaves.new_empty(positions if problem.sample else 0)
        self.chosen = torch.empty(S, dtype=torch.int64, device=leaves.device)
        self.position = torch.empty_like(self.chosen)
        self.born = self.chosen.new_zeros((S, 2))
        self.near = self.chosen.new_zeros((S, 5))
        self.around = torch.arange(5, device=leaves.device)
        self.first = self.merges = self.layers = 0

    def merge(self, candidate: Tensor, k: Tensor, merged: Tensor, logits: Tensor) -> None:
        """Record the merges of one step.

        Args:
            candidate: at each position `[n, K]`, 0 where there is none.
            k: position merged `[n]`.
            merged: candidate merged `[n]`.
            logits: scores without noise `[n, K]`.
        """
        self.first, self.merges = self.merges, self.merges + len(k)
        step = slice(self.first, self.merges)
        layer = slice(self.layers, self.layers + candidate.numel())
        self.layers = layer.stop
        self.chosen[step], self.position[step] = merged, k
        self.near[step] = F.pad(candidate, (2, 2)).gather(1, k[:, None] + self.around)
        self.rows[layer].view_as(candidate).copy_(candidate)
        if self.sample:
            self.logits[layer].view_as(logits).copy_(logits)

    def birth(self, a: Tensor, b: Tensor, born: Tensor) -> None:
        """Record the candidates born left of the new nodes of sentences a, right of those of b."""
        self.born[self.first + a, 0] = born[: len(a)]
        self.born[self.first + b, 1] = born[len(a) :]

    def tape(
        self, states: Tensor, gates: Tensor, left: Tensor, right: Tensor, node_state: Tensor
    ) -> Tape:
        """Return the tape, given what the store of candidates holds."""
        return Tape(
            states,
            gates,
            left,
            right,
            node_state,
            self.chosen,
            self.position,
            self.born,
            self.near,
            self.rows,
            self.logits,
        )
