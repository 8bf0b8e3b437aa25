"""Forward pass of `exact`: two new candidates a step, no vector moved; see ops/merge/README.md.

Merging at k leaves every other node as it was, so a step composes at most two new candidates, and
the chosen candidate's state is the new node's state, where it stands. Legend: B sentences sorted
by length, N words, C candidates, D state width, K candidates of a layer; a state row is [h; c].
Candidate 0 is a dummy with score -inf and zero state, so absent neighbours need no special case.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from gumbeltree.noise import NoiseLayers
from gumbeltree.ops.merge.argmax import first_best
from gumbeltree.ops.merge.exact.tape import Recorder, Tape
from gumbeltree.ops.merge.problem import TreeProblem


class Outcome(NamedTuple):
    """Results with sentences sorted by length, as `Layout` sorts them."""

    root: Tensor
    """h of the roots `[B, D]`."""
    order: Tensor
    """int64 `[B, T-1]`, -1 past a sentence's end."""
    nodes: Tensor | None
    """Node states `[2N - B, 2D]`."""
    scores: Tensor | None
    """`[B, T-1, T-1]`."""
    tape: Tape | None


@dataclass(frozen=True)
class Products:
    """Matrix products in the precision of the weights or of autocast, results in that of states."""

    dtype: torch.dtype

    def __call__(self, x: Tensor, w: Tensor, out: Tensor | None = None) -> Tensor:
        """Return x @ w, written into `out` where given."""
        if x.dtype == self.dtype and w.dtype == self.dtype:
            return torch.mm(x, w) if out is None else torch.mm(x, w, out=out)
        product = (x.to(self.dtype) @ w.to(self.dtype)).to(x.dtype)
        return product if out is None else out.copy_(product)


class Candidates:
    """The store of states: words, then candidates in the order of their birth; none ever moves.

    A node is a word or a merged candidate. Its products with the weights, one for the gates it
    enters as a left child and one as a right child, are made once, when it is born.
    """

    def __init__(
        self,
        leaves: Tensor,
        weight: Tensor,
        bias: Tensor,
        query: Tensor,
        problem: TreeProblem,
        product: Products,
        record: bool,
    ) -> None:
        p = self.p = problem.layout
        self.D, width = query.shape[0], bias.shape[0]
        self.bias, self.product, self.record = bias, product, record
        self.activate = cast("Any", problem.cell).activate
        self.query = query * problem.scale
        left, right = weight.split(self.D, dim=1)  # each [width, D]
        self.weight_l, self.weight_r = left.t().contiguous(), right.t().contiguous()
        # the dummy, one for each pair of neighbouring words, at most two for each later merge
        capacity = 1 + (p.N - p.B) + 2 * sum(p.active[2:])
        self.states = leaves.new_empty((p.N + capacity, 2 * self.D))
        self.states[: p.N] = leaves
        self.states[p.N] = 0
        self.gates = leaves.new_empty((capacity if record else 0, width))
        self.score = leaves.new_empty(capacity)
        self.score[0] = -torch.inf
        self.left = torch.full((capacity,), p.nodes, device=leaves.device)
        self.right = self.left.clone()
        self.node_state = torch.arange(p.nodes + 1, device=leaves.device)
        self.node_state[p.nodes] = p.N
        self.gates_l = leaves.new_empty((p.nodes, width))
        self.gates_r = leaves.new_empty((p.nodes, width))
        self.count = 1

    def c_of(self, nodes: Tensor) -> Tensor:
        """Return c of nodes, `[n, D]`."""
        return self.states[:, self.D :].index_select(0, self.node_state[nodes])

    def project(self, rows: slice) -> None:
        """Make the products of new nodes; the bias goes with the left ones."""
        h = self.states[:, : self.D].index_select(0, self.node_state[rows])
        self.product(h, self.weight_l, out=self.gates_l[rows]).add_(self.bias)
        self.product(h, self.weight_r, out=self.gates_r[rows])

    def compose(self, left: Tensor, right: Tensor) -> Tensor:
        """Compose neighbouring nodes (Eqs. 1-3), score them (Eq. 12), return the candidates."""
        lo, hi = self.count, self.count + len(left)
        self.count = hi
        self.left[lo:hi], self.right[lo:hi] = left, right
        shape = (hi - lo, self.gates_l.shape[1])
        gates = self.gates[lo:hi] if self.record else self.gates_l.new_empty(shape)
        torch.index_select(self.gates_l, 0, left, out=gates)
        gates += self.gates_r.index_select(0, right)
        h, c = self.activate(gates, self.c_of(left), self.c_of(right))
        rows = self.states[self.p.N + lo : self.p.N + hi]
        rows[:, : self.D], rows[:, self.D :] = h, c
        torch.mv(h, self.query, out=self.score[lo:hi])
        return torch.arange(lo, hi, device=left.device)


def forward(
    leaves: Tensor,
    weight: Tensor,
    bias: Tensor,
    query: Tensor,
    problem: TreeProblem,
    noise: "SortedNoise | None",
    product: Products,
    record: bool,
) -> Outcome:
    """Run all merges of a batch; keep a tape for the backward pass if `record`.

    Args:
        leaves: states of the words `[N, 2D]`.
        weight: `[5D, 2D]`.
        bias: `[5D]`, the cell's `gate_bias()`.
        query: `[D]`.
        problem: everything else.
        noise: of the problem; None unless merges are sampled.
        product: how matrices are multiplied.
        record: whether a backward pass will follow.
    """
    p, device = problem.layout, leaves.device
    N = p.N
    active = [*p.active, 0]
    store = Candidates(leaves, weight, bias, query, problem, product, record)
    recorder = Recorder(problem, leaves) if record else None
    order = torch.full((p.B, p.T - 1), -1, device=device)
    scores = None
    if problem.keep.scores:
        scores = leaves.new_full((p.B, p.T - 1, p.T - 1), -torch.inf)

    # layer 0: which node and which candidate stands at each position; dummies beyond the end
    node = p.start[: p.steps] + torch.arange(p.B, device=device)[:, None]
    node = torch.where(p.valid(p.steps), node, p.nodes)[: active[1]]  # [n, steps]
    store.project(slice(0, N))
    pairs = p.valid(p.steps - 1, shorter=1)[: active[1]].t()  # [K, n]
    first = store.compose(node[:, :-1].t()[pairs], node[:, 1:].t()[pairs])
    candidate = torch.zeros_like(node[:, 1:])
    candidate.t()[pairs] = first  # [n, K]

    size = store.query.norm()
    for t in range(p.steps - 1):
        n, K = active[t + 1], p.steps - 1 - t
        logits = score = store.score[candidate]
        if scores is not None:
            scores[:n, t, :K] = logits
        if noise is not None:
            score = logits + noise(t, candidate, logits.dtype)
        k = first_best(score, size) if problem.order is None else problem.order[p.sentence[:n], t]
        order[:n, t] = k
        merged = candidate.gather(1, k[:, None])[:, 0]  # [n]
        new = torch.arange(N + p.merged[t], N + p.merged[t] + n, device=device)
        store.node_state[new] = N + merged
        if recorder is not None:
            recorder.merge(candidate, k, merged, logits)
        n = active[t + 2]
        if n == 0:
            break
        # the sentences that go on: everything right of the new node moves one place
        k, new, column = k[:n], new[:n], k[:n, None]
        store.project(slice(N + p.merged[t], N + p.merged[t] + n))
        place = torch.arange(K, device=device)
        node = node[:n].gather(1, place + (place > column)).scatter_(1, column, new[:, None])
        place = place[:-1]
        candidate = candidate[:n].gather(1, place + (place >= column))
        # the two new candidates, where the new node has a neighbour on that side
        a = (k > 0).nonzero()[:, 0]
        b = (k < p.lengths[:n] - 2 - t).nonzero()[:, 0]
        born = store.compose(
            torch.cat([node[a, k[a] - 1], new[b]]), torch.cat([new[a], node[b, k[b] + 1]])
        )
        candidate[a, k[a] - 1] = born[: len(a)]
        candidate[b, k[b]] = born[len(a) :]
        if recorder is not None:
            recorder.birth(a, b, born)

    nodes = tape = None
    if problem.keep.nodes:
        nodes = store.states.index_select(0, store.node_state[:-1])
    if recorder is not None:
        tape = recorder.tape(
            store.states[: N + store.count],
            store.gates[: store.count],
            store.left[: store.count],
            store.right[: store.count],
            store.node_state,
        )
    root = store.states[store.node_state[p.root_rows()], : store.D]
    return Outcome(root, order, nodes, scores, tape)


class SortedNoise:
    """The noise of a problem's layers (S8), sentences sorted by length."""

    def __init__(self, problem: TreeProblem) -> None:
        assert problem.noise is not None
        self.layers = NoiseLayers(problem.noise, problem.layout.sentence, problem.layout.T - 1)

    def __call__(self, t: int, candidate: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the noise of the candidates `[n, K]` of layer t, 0 where there is none."""
        noise = self.layers(t, *candidate.shape).to(dtype)
        # selected, not multiplied: noise outside a sentence may be NaN
        return torch.where(candidate > 0, noise, 0.0)
