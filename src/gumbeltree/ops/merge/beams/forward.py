"""Forward pass of the beam search; see `ops.merge.beams`.

A row holds one state: h if the cell has a single state, else [h; c]. Row i B + b is the i-th state
of sentence b: first its words, then its candidates in order of creation.

The query scores a candidate by its state, so that all candidates are composed. A scorer reads the
children instead, and only candidates that a beam merges are composed, k per step.
"""

from collections.abc import Generator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gumbeltree.generators import finish
from gumbeltree.ops.merge.dropout import LEFT, OFFSET, RIGHT, options, parent_codes, word_codes

__all__ = ["LEFT", "NEVER", "OFFSET", "RIGHT", "BeamStates", "Choices", "forward", "orders"]

NEVER = -1e30
"""Log-probability of what cannot be chosen; finite, so that no softmax returns NaN."""
STEP_MERGES = 16
"""Number of merges per step of `forward_steps`: some hundredths of a second with 20 beams."""


class Choices(NamedTuple):
    """The choices of each step."""

    candidates: Sequence[Tensor] | Tensor
    """Row of each candidate before the step `[B, k, K]` or wider; only if recorded."""
    parents: Sequence[Tensor] | Tensor
    """Beam that each surviving beam continues `[B, k]`."""
    positions: Sequence[Tensor] | Tensor
    """Position of its merge `[B, k]`."""


class BeamStates:
    """States, scores and hashes of words and candidates."""

    def __init__(
        self,
        leaves: Tensor,
        weight: Tensor,
        bias: Tensor,
        query: Tensor,
        cell: Any,
        k: int,
        record: bool,
        dropout: Tensor | None = None,
        scorer: nn.Module | None = None,
    ) -> None:
        self.B, self.T, self.D = *leaves.shape[:2], query.shape[0]
        B, T, D = self.B, self.T, self.D
        self.dtype = dtype = torch.promote_types(leaves.dtype, torch.float32)
        self.weight, self.bias, self.query = weight.to(dtype), bias.to(dtype), query.to(dtype)
        self.kept, self.record = options(cell, dropout), record
        self.activate = partial(cell.activate, **self.kept)
        self.drop = None if dropout is None else cell.drop
        self.scorer = scorer
        self.single = getattr(cell, "single_state", False)
        self.width = getattr(cell, "record_width", len(bias))
        self.size = T - 1 + 2 * k * max(0, T - 2)
        self.count = self.compositions = 0
        # with a scorer, one more row per sentence, for merges of finished sentences
        states = T + self.size + (scorer is not None)
        composed = self.size if scorer is None else k * (T - 1)
        state = D if self.single else 2 * D
        self.rows = leaves.new_empty((states * B, state), dtype=dtype)
        self.rows[: T * B].view(T, B, state).copy_(leaves[..., :state].transpose(0, 1))
        self.gates = self.rows.new_empty(((composed if record else 0) * B, self.width))
        self.score = self.rows.new_empty((T + self.size) * B)
        self.line = torch.arange(B, device=leaves.device)
        self.left, self.right, self.hash, self.change = (
            torch.zeros(states * B, dtype=torch.int64, device=leaves.device) for _ in range(4)
        )
        if scorer is not None:
            # spare rows have children of their own sentence: kernels add to them side by side
            self.left[-B:] = self.right[-B:] = self.line
        self.merged = self.left.new_empty(composed * B if scorer is not None and record else 0)
        keys = self.line.new_zeros((B, 2)) if dropout is None else dropout
        self.hash[: T * B] = word_codes(T, keys).t().flatten()

    @property
    def composed(self) -> Tensor | slice:
        """The rows that were composed, in the order of `gates`."""
        return slice(self.T * self.B, None) if self.scorer is None else self.merged

    @property
    def spare(self) -> Tensor:
        """The row that takes the merges of a sentence after its last one, `[B]`."""
        return (self.T + self.size) * self.B + self.line

    def numbers(self, first: int, n: int) -> Tensor:
        """Return the rows of n states per sentence from `first` on, `[B, n]`."""
        place = torch.arange(first, first + n, device=self.line.device)
        return place * self.B + self.line[:, None]

    def parts(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return h and c of states, each `[n, D]`."""
        return rows[:, : self.D], rows[:, -self.D :]

    def children(self, rows: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Return the states of the children of candidates."""
        left, right = self.left[rows], self.right[rows]
        return self.rows.index_select(0, left), self.rows.index_select(0, right)

    def add(self, left: Tensor, right: Tensor) -> Tensor:
        """Add pairs of neighbours, rows `[B, n]`, and return the rows of the candidates."""
        n, first = left.shape[1], self.T + self.count
        new = slice(first * self.B, (first + n) * self.B)
        self.left[new].view(n, self.B).copy_(left.t())
        self.right[new].view(n, self.B).copy_(right.t())
        hash_l, hash_r = self.hash[self.left[new]], self.hash[self.right[new]]
        self.hash[new] = parent_codes(hash_l, hash_r)
        # change of the hash of a beam, which is the sum over its nodes
        self.change[new] = self.hash[new] - hash_l - hash_r
        self.evaluate_next(n)
        return self.numbers(first, n)

    def evaluate_next(self, n: int) -> None:
        """Score the next n candidates per sentence; compose them first if the query does."""
        first = self.T + self.count
        new = slice(first * self.B, (first + n) * self.B)
        self.count += n
        if self.scorer is None:
            torch.mv(self._compose(new, n), self.query, out=self.score[new])
        else:
            self.score[new] = self.scorer(*(x[:, : self.D] for x in self.children(new)))

    def merge(self, merged: Tensor) -> None:
        """Compose the candidates that beams merge, rows `[B, k]`, if that has not been done."""
        if self.scorer is None:
            return
        # equal rows receive equal states
        rows = merged.t().flatten().long()
        if self.record:
            first = self.compositions * self.B
            self.merged[first : first + len(rows)] = rows
        self._compose(rows, merged.shape[1])

    def _compose(self, new: Tensor | slice, n: int) -> Tensor:
        """Compute the states of n candidates per sentence; return their h."""
        first, last = self.compositions * self.B, (self.compositions + n) * self.B
        self.compositions += n
        (h_l, c_l), (h_r, c_r) = map(self.parts, self.children(new))
        shape = (last - first, self.width)
        gates = self.gates[first:last] if self.record else self.gates.new_empty(shape)
        sums = torch.addmm(self.bias, torch.cat([h_l, h_r], dim=1), self.weight.t())
        gates[:, : len(self.bias)] = sums
        if self.drop is not None:
            self.drop(gates[:, : len(self.bias)], self.hash[new])
        h: Tensor
        h, c = self.activate(gates, c_l, c_r)
        state = h if self.single else torch.cat([h, c], dim=1)
        if isinstance(new, slice):
            self.rows[new] = state
        else:
            self.rows.index_copy_(0, new, state)
        return h


def forward(
    states: BeamStates, lengths: Tensor, k: int, noise: Tensor | None, distinct: bool
) -> tuple[Tensor, Tensor, Choices]:
    """Return the row of each root `[B, k]`, log-probabilities `[B, k]` and the choices."""
    return finish(forward_steps(states, lengths, k, noise, distinct))


def forward_steps(
    states: BeamStates, lengths: Tensor, k: int, noise: Tensor | None, distinct: bool
) -> Generator[None, None, tuple[Tensor, Tensor, Choices]]:
    """Search in short steps; see `forward`."""
    B, T = states.B, states.T
    words = states.numbers(0, T)
    nodes = words[:, None].expand(-1, k, -1)  # [B, k, K+1]
    first = states.add(words[:, :-1], words[:, 1:]) if T > 1 else words[:, :0]
    # the candidates, and one entry without meaning: [B, k, K+1]
    candidates = F.pad(first, (0, 1))[:, None].expand(-1, k, -1)
    beam = torch.arange(k, device=words.device)
    log_prob = torch.where(beam > 0, NEVER, 0.0).to(states.dtype).expand(B, -1)
    code = torch.zeros((B, k), dtype=torch.int64, device=words.device)
    place = torch.arange(T, device=words.device)
    layers: list[Tensor] = []
    parents, positions = [], []
    for t in range(T - 1):
        K = T - 1 - t
        count = (lengths - 1 - t)[:, None]
        active, absent = count > 0, (place[:K] >= count)[:, None]
        logs = states.score[candidates[..., :K]].masked_fill(absent, NEVER).log_softmax(-1)
        found = _survivors(states, logs, candidates, log_prob, code, noise, t, distinct, absent)
        # a finished sentence keeps its beams
        parent = torch.where(active, found.parent, beam)
        log_prob = torch.where(active, found.log_prob, log_prob)
        code = found.code
        at = torch.where(active, found.at, K - 1)
        merged = torch.where(active, found.merged, nodes[..., 0])
        states.merge(torch.where(active, merged, states.spare[:, None]))
        if states.record:
            layers.append(candidates[..., :K])
        parents.append(parent)
        positions.append(at)
        nodes = _shifted(nodes, parent, place[:K], place[:K] > at[..., None])
        nodes = nodes.scatter(-1, at[..., None], merged[..., None])
        if K == 1:
            break
        candidates = _shifted(candidates, parent, place[:K], place[:K] >= at[..., None])
        # beyond the ends, compose anything: the result is put where it is not used
        beside = torch.stack([(at - 1).clamp(min=0), (at + 1).clamp(max=K - 1)], dim=-1)
        before, after = nodes.gather(-1, beside).unbind(-1)
        made = states.add(torch.cat([before, merged], dim=1), torch.cat([merged, after], dim=1))
        before_at = torch.where(at > 0, at - 1, K - 1)
        candidates = candidates.scatter(
            -1, torch.stack([before_at, at], dim=-1), made.view(B, 2, k).mT
        )
        if K % STEP_MERGES == 0:
            yield
    return nodes[..., 0], log_prob, Choices(layers, parents, positions)


class _Survivors(NamedTuple):
    """The best continuations, each `[B, k]`."""

    parent: Tensor
    at: Tensor
    merged: Tensor
    code: Tensor
    log_prob: Tensor


def _survivors(
    states: BeamStates,
    logs: Tensor,
    candidates: Tensor,
    log_prob: Tensor,
    code: Tensor,
    noise: Tensor | None,
    t: int,
    distinct: bool,
    absent: Tensor,
) -> _Survivors:
    """Return the best k of all proposals; logs `[B, k, K]`."""
    _, k, K = logs.shape
    m = min(k, K)
    if noise is None:
        proposed, position = logs.topk(m, dim=-1)
    else:
        keys = (logs + noise[:, :, t, :K]).masked_fill(absent, NEVER)
        position = keys.topk(m, dim=-1).indices
        proposed = logs.gather(-1, position)
    rows = candidates.gather(-1, position).flatten(1)  # [B, k m]
    position = position.flatten(1)
    total = (log_prob[..., None] + proposed).flatten(1)
    changed = code.repeat_interleave(m, dim=1) + states.change[rows]
    if distinct:
        same = changed[:, :, None] == changed[:, None, :]
        mine, other = total[:, :, None], total[:, None, :]
        place = torch.arange(k * m, device=total.device)
        better = (other > mine) | ((other == mine) & (place < place[:, None]))
        total = total.masked_fill((same & better).any(-1), 2 * NEVER)
    best, choice = total.topk(k, dim=1)
    return _Survivors(
        choice.div(m, rounding_mode="floor"),
        position.gather(1, choice),
        rows.gather(1, choice),
        changed.gather(1, choice),
        best,
    )


def _shifted(x: Tensor, parent: Tensor, place: Tensor, after: Tensor) -> Tensor:
    """Select the beams `parent` and drop the position after the merge, `[B, k, K]`."""
    index = parent[..., None] * x.shape[-1] + place + after
    return x.flatten(1).gather(1, index.flatten(1)).view(index.shape)


def orders(choices: Choices, root: Tensor, lengths: Tensor) -> Tensor:
    """Return the merges of each surviving beam `[B, k, T-1]`, from the last step back."""
    beam = torch.arange(root.shape[1], device=root.device).expand_as(root)
    steps = len(choices.parents)
    order = root.new_empty((*root.shape, steps))
    for t in reversed(range(steps)):
        active = (t < lengths - 1)[:, None]
        order[..., t] = torch.where(active, choices.positions[t].gather(1, beam), -1)
        beam = choices.parents[t].gather(1, beam)
    return order
