"""Shift-reduce one step at a time, with given or own actions, differentiated by autograd."""

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from gumbeltree.layout import Layout
from gumbeltree.noise import NoiseLayers
from gumbeltree.ops.stack.problem import StackProblem, StackResult, activated
from gumbeltree.ops.stack.tables import NO_NEXT, NO_SECOND, NO_TOP, step_counts

Scorer = Callable[[Tensor, Tensor | None], Tensor]
"""Return the scores of SHIFT and REDUCE, `[n, 2]`, given h of top node, second node and next word,
`[n, 3D]`, and [h; c] of the tracker, `[n, 2d]`."""
Chooser = Callable[["Machine", int, int], Tensor]
"""Return whether to REDUCE, bool `[n]`, given the machine, the step and n."""

LEAST = -100.0
"""Score of merges that a stack cannot make any more; finite, since they exist in other encoders."""


class Machine:
    """The stacks of a batch of sentences, sorted by length.

    Args:
        problem: sentences and weights.

    Attributes:
        states: states of the nodes `[2N - B + 4, 2D]`.
        stack: row numbers on the stacks, int64 `[B, T]`.
        size: number of nodes on each stack, int64 `[B]`.
        merged: number of merges so far, int64 `[B]`.
        nodes_before: number of nodes made before each merge, int64 `[T]`.
        tracked: [h; c] of the tracker `[B, 2d]`; None without a tracker.
        order: merges so far, int64 `[B, T]`, otherwise -1; the last column is not a merge.
    """

    def __init__(self, problem: StackProblem) -> None:
        self.problem, layout = problem, problem.layout
        self.states = problem.first_states()
        zeros = layout.lengths.new_zeros
        self.stack, self.size = zeros((layout.B, layout.steps)), zeros(layout.B)
        self.merged = zeros(layout.B)
        self.nodes_before = layout.start[1:] - layout.B
        self.order = layout.lengths.new_full((layout.B, max(layout.T, layout.steps)), -1)
        self.tracked: Tensor | None = None
        if problem.tracker:
            d = problem.tracker.weight_hh.shape[1]
            self.tracked = self.states.new_zeros((layout.B, 2 * d))

    def can_shift(self, n: int) -> Tensor:
        """Return whether a word is left, bool `[n]`."""
        return self.size[:n] + self.merged[:n] < self.problem.layout.lengths[:n]

    def can_reduce(self, n: int) -> Tensor:
        """Return whether there are two nodes on the stack, bool `[n]`."""
        return self.size[:n] > 1

    def rows(self, n: int) -> Tensor:
        """Return the rows of top node, second node and next word, int64 `[3, n]`."""
        layout, size = self.problem.layout, self.size[:n]
        rank = torch.arange(n, device=size.device)
        top, second = (
            torch.where(
                size > below,
                self.stack[rank, (size - 1 - below).clamp(min=0)],
                layout.nodes + missing,
            )
            for below, missing in ((0, NO_TOP), (1, NO_SECOND))
        )
        read = (size + self.merged[:n]).clamp(max=layout.steps - 1)
        word = torch.where(self.can_shift(n), layout.start[read] + rank, layout.nodes + NO_NEXT)
        return torch.stack([top, second, word])

    def view(self, n: int) -> Tensor:
        """Return h of top node, second node and next word, `[n, 3D]`."""
        h = self.states.chunk(2, dim=1)[0]
        return torch.cat([h[row] for row in self.rows(n)], dim=1)

    def track(self, n: int) -> None:
        """Let the tracker read the current view of the first n sentences."""
        tracker = self.problem.tracker
        if tracker is None or self.tracked is None:
            return
        e, m = self.tracked[:n].chunk(2, dim=1)
        gates = F.linear(self.view(n), tracker.weight_ih, tracker.bias)
        i, f, g, o = activated(gates + F.linear(e, tracker.weight_hh)).chunk(4, dim=1)
        m = f * m + i * g
        self.tracked = torch.cat([o * m.tanh(), m], dim=1)

    def advance(self, wanted: Tensor) -> None:
        """Make one step of the first n sentences.

        Args:
            wanted: whether to REDUCE where both actions are possible, bool `[n]`.
        """
        n, layout = len(wanted), self.problem.layout
        can_shift = self.can_shift(n)
        reduces = self.can_reduce(n) & (wanted | ~can_shift)
        rank = chosen(reduces, layout)
        merge = self.merged[rank]
        if layout.spare:
            # the last column takes what is not written
            merge = torch.where(reduces, merge, self.order.shape[1] - 1)
        self.order[rank, merge] = self.size[rank] - 2
        # finished sentences stay in a graph, and do nothing
        self.shift(~reduces & can_shift)
        self.reduce(reduces)

    def shift(self, where: Tensor) -> None:
        """Push the next word of some of the first n sentences, bool `[n]`."""
        word = self.rows(len(where))[2]
        if self.problem.layout.spare:
            place = torch.arange(self.stack.shape[1], device=word.device) == self.size[:, None]
            self.stack = torch.where(place & where[:, None], word[:, None], self.stack)
            self.size = self.size + where
            return
        rank = where.nonzero()[:, 0]
        self.stack[rank, self.size[rank]] = word[rank]
        self.size[rank] += 1

    def reduce(self, where: Tensor) -> None:
        """Merge the two topmost nodes of some of the first n sentences, bool `[n]`."""
        problem, rank = self.problem, chosen(where, self.problem.layout)
        if len(rank) == 0:
            return
        size = self.size[rank]
        if problem.layout.spare:
            # sentences that SHIFT make a parent as well, in a row that is not read
            size = size.clamp(min=2)
        right, left = self.stack[rank, size - 1], self.stack[rank, size - 2]
        h, c = self.states.chunk(2, dim=1)
        gates = F.linear(torch.cat([h[left], h[right]], dim=1), problem.weight, problem.bias)
        if problem.tracker and self.tracked is not None:
            e = self.tracked.chunk(2, dim=1)[0]
            gates = gates + F.linear(e[rank], problem.tracker.to_cell)
        made = problem.layout.N + self.nodes_before[self.merged[rank]] + rank
        kept: Tensor = made
        done: Tensor | int = 1
        if problem.layout.spare:
            made = torch.where(where, made, len(self.states) - 1)
            kept, done = torch.where(where, made, left), where.long()
        parent = torch.cat(compose(gates, c[left], c[right]), dim=1)
        # autograd needs the former states
        write = Tensor.index_copy if torch.is_grad_enabled() else Tensor.index_copy_
        self.states = write(self.states, 0, made, parent)
        self.stack[rank, size - 2] = kept
        self.size[rank] -= done
        self.merged[rank] += done

    def copy(self) -> "Machine":
        """Return a copy that shares the states, which SHIFT does not change."""
        other = copy.copy(self)
        other.stack, other.size = self.stack.clone(), self.size.clone()
        return other


def chosen(where: Tensor, layout: Layout) -> Tensor:
    """Return the ranks of some sentences, bool `[n]`; of all if finding them would wait."""
    if layout.spare:
        return torch.arange(len(where), device=where.device)
    return where.nonzero()[:, 0]


def compose(gates: Tensor, c_left: Tensor, c_right: Tensor) -> tuple[Tensor, Tensor]:
    """Return h and c of a Tree-LSTM (Eqs. 1-3) from its gates i, f_l, f_r, g, o, `[n, 5D]`."""
    i, f_l, f_r, g, o = gates.chunk(5, dim=1)
    c = f_l.sigmoid() * c_left + f_r.sigmoid() * c_right + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


class StackRun(NamedTuple):
    """A finished run."""

    result: StackResult
    """States and tracker; see `StackResult`."""
    order: Tensor
    """Merges, int64 `[B, T-1]`, -1 past the end of a sentence; in the caller's order."""


def run(problem: StackProblem, choose: Chooser, make: type[Machine] = Machine) -> StackRun:
    """Run all steps.

    Args:
        problem: sentences and weights.
        choose: chooses between SHIFT and REDUCE where both are possible.
        make: class of the machine.
    """
    machine, layout = make(problem), problem.layout
    tracked = []
    for step, n in enumerate(step_counts(layout)):
        machine.track(n)
        if machine.tracked is not None:
            tracked.append(machine.tracked)
        machine.advance(choose(machine, step, n))
    found = StackResult(machine.states, torch.cat(tracked) if tracked else None)
    return StackRun(found, machine.order[layout.rank, :-1])


def along(order: Tensor, problem: StackProblem) -> Chooser:
    """Follow merges, int64 `[B, T-1]`, from left to right."""
    own = F.pad(order[problem.layout.sentence], (0, 1), value=-1)

    def choose(machine: Machine, step: int, n: int) -> Tensor:
        target = own[:n].gather(1, machine.merged[:n, None])[:, 0]
        return target == machine.size[:n] - 2

    return choose


def greedy(policy: Scorer) -> Chooser:
    """Take the action with the higher score."""

    def choose(machine: Machine, step: int, n: int) -> Tensor:
        scores = policy(machine.view(n), machine.tracked)
        return scores[:, 1] > scores[:, 0]

    return choose


def sampled(policy: Scorer, keys: Tensor, problem: StackProblem) -> Chooser:
    """Draw each action from the softmax of the scores, with keys, int64 `[B, 2]`."""
    steps = 2 * problem.layout.steps - 1
    noise = NoiseLayers(keys, problem.layout.sentence, 2, steps)

    def choose(machine: Machine, step: int, n: int) -> Tensor:
        scores = policy(machine.view(n), machine.tracked) + noise(step, n, 2)
        return scores[:, 1] > scores[:, 0]

    return choose


def drawn(policy: Scorer, noise: Tensor, problem: StackProblem) -> Chooser:
    """Choose the merges with the highest sum of log-probability and noise `[B, T-1, T-1]`.

    As in other encoders, Gumbel noise draws from the distribution, and -inf forbids a merge.
    """
    own = noise[problem.layout.sentence]

    def choose(machine: Machine, step: int, n: int) -> Tensor:
        scores = merge_scores(machine, policy, n)
        K = scores.shape[1]
        layer = machine.merged[:n].clamp(max=max(0, K - 1))
        if K == 0:
            return layer > 0
        total = scores + own[torch.arange(n, device=own.device), layer, :K]
        return total.argmax(1) == machine.size[:n] - 2

    return choose


def recording(choose: Chooser, policy: Scorer, scores: Tensor, layout: Layout) -> Chooser:
    """Choose as `choose` does, and write the log-probabilities of all merges to `scores`.

    Args:
        choose: chooses the actions.
        policy: scores the actions.
        scores: filled, `[B, T-1, T-1]`, in the order of the sorted sentences.
        layout: layout of the words.
    """
    lengths, recorded = layout.lengths, torch.full_like(layout.lengths, -1)
    place = torch.arange(scores.shape[1], device=scores.device)

    def also(machine: Machine, step: int, n: int) -> Tensor:
        layer = machine.merged[:n]
        left = lengths[:n] - 1 - layer
        # the first step of a layer sees all of its candidates
        new = (left > 0) & (recorded[:n] < layer)
        rank = new.nonzero()[:, 0]
        if len(rank):
            found = merge_scores(machine, policy, n)[rank].clamp(min=LEAST)
            inside = place < left[rank, None]
            scores[rank, layer[rank]] = torch.where(inside, found, -torch.inf)
            recorded[rank] = layer[rank]
        return choose(machine, step, n)

    return also


def merge_scores(machine: Machine, policy: Scorer, n: int) -> Tensor:
    """Return the log-probability that each merge is the next one, `[n, T-1]`.

    Merging position p next means to SHIFT until the stack has p + 2 nodes and then to REDUCE. The
    result is -inf for positions that the stack has passed and those that do not exist.
    """
    ahead, T = machine.copy(), machine.problem.layout.steps
    scores = machine.states.new_full((n, T), -torch.inf)
    so_far = machine.states.new_zeros(n)
    rank = torch.arange(n, device=scores.device)
    while True:
        can_shift, can_reduce = ahead.can_shift(n), ahead.can_reduce(n)
        tracked = None if ahead.tracked is None else ahead.tracked[:n]
        logs = policy(ahead.view(n), tracked).log_softmax(1).to(scores.dtype)
        both = can_shift & can_reduce
        log_shift, log_reduce = (torch.where(both, x, 0.0) for x in logs.unbind(1))
        here = can_reduce & (so_far > -torch.inf)
        place = (ahead.size[:n] - 2).clamp(min=0)
        scores[rank, place] = torch.where(here, so_far + log_reduce, scores[rank, place])
        if not can_shift.any():
            return scores[:, : T - 1]
        so_far = torch.where(can_shift, so_far + log_shift, -torch.inf)
        ahead.shift(can_shift)
        ahead.track(n)
