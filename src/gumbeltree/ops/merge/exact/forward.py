"""Forward pass of `exact`: at most two new candidates per step; see ops/merge/README.md.

A merge at k leaves all other nodes unchanged, so a step composes at most two new candidates. The
state of the chosen candidate becomes that of the new node, without a copy. Legend: B sentences
sorted by length, N words, C candidates, D state width, K candidates of a layer; a row of states is
[h; c]. Candidate 0 is a dummy with score -inf and zero state, so missing neighbours need no special
case.

States and scores are tensors. Positions, nodes and candidates are NumPy arrays on the host, whose
small operations take a fraction of the time.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gumbeltree.noise import NoiseLayers
from gumbeltree.ops.merge.argmax import first_best
from gumbeltree.ops.merge.dropout import options, parent_codes, word_codes
from gumbeltree.ops.merge.exact.tape import Integers, Recorder, Tape
from gumbeltree.ops.merge.problem import TreeProblem


class Outcome(NamedTuple):
    """Result of the forward pass, sentences sorted by length."""

    root: Tensor
    """h of each root `[B, D]`."""
    order: Tensor
    """Position of each merge, int64 `[B, T-1]`, -1 past the end of a sentence."""
    nodes: Tensor | None
    """Node states `[2N - B, 2D]`."""
    scores: Tensor | None
    """Scores `[B, T-1, T-1]`."""
    tape: Tape | None


@dataclass(frozen=True)
class Products:
    """Matrix products in the precision of the weights or of autocast."""

    dtype: torch.dtype

    def __call__(self, x: Tensor, w: Tensor, out: Tensor | None = None) -> Tensor:
        """Return x @ w in the dtype of `x`, optionally written to `out`."""
        if x.dtype == self.dtype and w.dtype == self.dtype:
            return torch.mm(x, w) if out is None else torch.mm(x, w, out=out)
        product = (x.to(self.dtype) @ w.to(self.dtype)).to(x.dtype)
        return product if out is None else out.copy_(product)


class Candidates:
    """Stores the states of the words, then of the candidates in order of creation.

    A node is a word or a merged candidate. When it is created, it is multiplied once by the
    weights of a left child and once by those of a right child.
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
        cell = cast("Any", problem.cell)
        self.activate = partial(cell.activate, **options(cell, problem.dropout))
        self.query, self.scorer = query * problem.scale, problem.scorer
        left, right = weight.split(self.D, dim=1)  # each [width, D]
        self.weight_l, self.weight_r = left.t().contiguous(), right.t().contiguous()
        # the dummy, one per adjacent pair of words, and at most two per later merge
        capacity = 1 + (p.N - p.B) + 2 * sum(p.active[2:])
        self.states = leaves.new_empty((p.N + capacity, 2 * self.D))
        self.states[: p.N] = leaves
        self.states[p.N] = 0
        self.record_width = getattr(problem.cell, "record_width", width)
        self.gates = leaves.new_empty((capacity if record else 0, self.record_width))
        # gradients of the dummy's record are zero, but must not be multiplied by NaN
        self.gates[:1] = 0
        self.score = leaves.new_empty(capacity)
        self.score[0] = -torch.inf
        self.left = np.full(capacity, p.nodes)
        self.right = self.left.copy()
        self.node_state = np.arange(p.nodes + 1)
        self.node_state[p.nodes] = p.N
        self.device = leaves.device
        self.codes: Integers | None = None
        """Code of each row of `states`, for dropout."""
        if problem.dropout is not None:
            codes = word_codes(p.T, problem.dropout)[p.sentence].t()[p.valid(p.T).t()]
            self.codes, self.drop = np.zeros(p.N + capacity, np.int64), cell.drop
            self.codes[: p.N] = codes.cpu().numpy()
        self.gates_l = leaves.new_empty((p.nodes, width))
        self.gates_r = leaves.new_empty((p.nodes, width))
        self.count = 1

    def tensor(self, integers: NDArray[np.integer]) -> Tensor:
        """Return integers as a tensor on the device of the states."""
        return torch.from_numpy(integers).to(self.device)

    def h_of(self, nodes: Integers) -> Tensor:
        """Return h of the nodes, `[n, D]`."""
        return self.states[:, : self.D].index_select(0, self.tensor(self.node_state[nodes]))

    def c_of(self, nodes: Integers) -> Tensor:
        """Return c of the nodes, `[n, D]`."""
        return self.states[:, self.D :].index_select(0, self.tensor(self.node_state[nodes]))

    def project(self, rows: slice) -> None:
        """Compute the products of new nodes; those of left children include the bias."""
        h = self.states[:, : self.D].index_select(0, self.tensor(self.node_state[rows]))
        self.product(h, self.weight_l, out=self.gates_l[rows]).add_(self.bias)
        self.product(h, self.weight_r, out=self.gates_r[rows])

    def compose(self, left: Integers, right: Integers) -> Integers:
        """Compose (Eqs. 1-3) and score (Eq. 12) adjacent nodes; return the candidates `[n]`."""
        lo, hi = self.count, self.count + len(left)
        self.count = hi
        self.left[lo:hi], self.right[lo:hi] = left, right
        shape = (hi - lo, self.record_width)
        gates = self.gates[lo:hi] if self.record else self.gates_l.new_empty(shape)
        sums, width = gates, self.gates_l.shape[1]
        if width < self.record_width:
            # the cell computes the rest
            sums = gates[:, :width]
            sums.copy_(self.gates_l.index_select(0, self.tensor(left)))
        else:
            torch.index_select(self.gates_l, 0, self.tensor(left), out=sums)
        sums += self.gates_r.index_select(0, self.tensor(right))
        if self.codes is not None:
            codes = (self.codes[self.node_state[nodes]] for nodes in (left, right))
            self.codes[self.p.N + lo : self.p.N + hi] = made = parent_codes(*codes)
            self.drop(sums, self.tensor(made))
        h, c = self.activate(gates, self.c_of(left), self.c_of(right))
        rows = self.states[self.p.N + lo : self.p.N + hi]
        rows[:, : self.D], rows[:, self.D :] = h, c
        if self.scorer is None:
            torch.mv(h, self.query, out=self.score[lo:hi])
        else:
            self.score[lo:hi] = self.scorer(self.h_of(left), self.h_of(right))
        return np.arange(lo, hi)


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
    """Run all merges of a batch.

    Args:
        leaves: States of the words `[N, 2D]`.
        weight: `[5D, 2D]`.
        bias: The cell's `gate_bias()`, `[5D]`.
        query: `[D]`.
        problem: All other inputs.
        noise: Noise of the problem; None unless merges are sampled.
        product: Matrix product in the precision of the problem.
        record: Whether to record a tape for the backward pass.
    """
    p = problem.layout
    N = p.N
    active = [*p.active, 0]
    lengths = p.lengths.cpu().numpy()
    store = Candidates(leaves, weight, bias, query, problem, product, record)
    recorder = Recorder(problem, leaves) if record else None
    order = np.full((p.B, p.T - 1), -1)
    given = None
    if problem.order is not None:
        given = problem.order[p.sentence].cpu().numpy()
    scores = None
    if problem.keep.scores:
        scores = leaves.new_full((p.B, p.T - 1, p.T - 1), -torch.inf)

    # layer 0: node and candidate at each position; dummies past the end of a sentence
    places, lines = np.arange(p.steps), np.arange(p.B)[:, None]
    node = np.where(places < lengths[:, None], np.array(p.starts[:-1]) + lines, p.nodes)
    node = node[: active[1]]  # [n, steps]
    store.project(slice(0, N))
    pairs = (places[:-1, None] < lengths - 1)[:, : active[1]]  # [K, n]
    first = store.compose(node[:, :-1].T[pairs], node[:, 1:].T[pairs])
    candidate = np.zeros_like(node[:, 1:])
    candidate.T[pairs] = first  # [n, K]

    size = store.query.norm()
    for t in range(p.steps - 1):
        n, K = active[t + 1], p.steps - 1 - t
        rows = store.tensor(candidate)
        logits = score = store.score[rows]
        if scores is not None:
            scores[:n, t, :K] = logits
        if noise is not None:
            score = logits + noise(t, rows, logits.dtype)
        k = first_best(score, size).cpu().numpy() if given is None else given[:n, t]
        order[:n, t] = k
        merged = candidate[lines[:n, 0], k]  # [n]
        made = slice(N + p.merged[t], N + p.merged[t] + n)
        store.node_state[made] = N + merged
        if recorder is not None:
            recorder.merge(candidate, k, merged, logits)
        n = active[t + 2]
        if n == 0:
            break
        # in sentences that continue, everything right of the new node moves left by one
        k, new, column = k[:n], np.arange(made.start, made.start + n), k[:n, None]
        store.project(slice(made.start, made.start + n))
        place, line = places[:K], lines[:n]
        node = node[line, place + (place > column)]
        node[line[:, 0], k] = new
        place = place[:-1]
        candidate = candidate[line, place + (place >= column)]
        # the new candidates, where the new node has a left (a) or right (b) neighbour
        a, b = np.flatnonzero(k > 0), np.flatnonzero(k < lengths[:n] - 2 - t)
        created = store.compose(
            np.concatenate([node[a, k[a] - 1], new[b]]), np.concatenate([new[a], node[b, k[b] + 1]])
        )
        candidate[a, k[a] - 1] = created[: len(a)]
        candidate[b, k[b]] = created[len(a) :]
        if recorder is not None:
            recorder.create(a, b, created)

    node_state = store.tensor(store.node_state)
    nodes = tape = None
    if problem.keep.nodes:
        nodes = store.states.index_select(0, node_state[:-1])
    if recorder is not None:
        tape = recorder.tape(
            store.states[: N + store.count],
            store.gates[: store.count],
            store.tensor(store.left[: store.count]),
            store.tensor(store.right[: store.count]),
            node_state,
        )
    root = store.states[node_state[p.root_rows()], : store.D]
    return Outcome(root, store.tensor(order), nodes, scores, tape)


class SortedNoise:
    """Noise of each layer (Eq. S8), sentences sorted by length."""

    def __init__(self, problem: TreeProblem) -> None:
        assert problem.noise is not None
        self.layers = NoiseLayers(problem.noise, problem.layout.sentence, problem.layout.T - 1)
        self.scale = problem.noise_scale

    def __call__(self, t: int, candidate: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the noise of the candidates of layer t, `[n, K]`, 0 for the dummy."""
        noise = self.layers(t, *candidate.shape).to(dtype)
        # not a product with a mask: noise outside a sentence may be NaN
        return torch.where(candidate > 0, self.scale * noise, 0.0)
