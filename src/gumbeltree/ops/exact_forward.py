"""Forward pass of `exact`: two new candidates a step, no vector moved; see ops/README.md.

Merging at k leaves every other node as it was, so a step composes at most two new candidates, and
the chosen candidate's state is the new node's state, where it stands. Legend: B sentences sorted
by length, N words, C candidates, D state width, K candidates of a layer; a state row is [h; c].
Candidate 0 is a dummy with score -inf and zero state, so absent neighbours need no special case.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from gumbeltree.ops.argmax import first_best
from gumbeltree.ops.problem import TreeProblem
from gumbeltree.packing import Packing


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
    y: Tensor
    """Softmax weights of Eq. 8, laid out as `rows`."""


class Outcome(NamedTuple):
    """Results with sentences sorted by length, as `Packing` sorts them."""

    root: Tensor
    """h of the roots `[B, D]`."""
    order: Tensor
    """int64 `[B, T-1]`, -1 past a sentence's end."""
    nodes: Tensor | None
    """Packed node states `[2N - B, 2D]`."""
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


def forward(
    leaves: Tensor,
    weight: Tensor,
    bias: Tensor,
    query: Tensor,
    problem: TreeProblem,
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
        product: how matrices are multiplied.
        record: whether a backward pass will follow.
    """
    p: Packing = problem.packing
    cell: Any = problem.cell
    B, N, D = p.B, p.N, query.shape[0]
    S = N - B
    active = [*p.active, 0]
    device, dtype = leaves.device, leaves.dtype
    capacity = 1 + S + 2 * sum(active[2:])
    weight_l, weight_r = weight.split(D, dim=1)  # each [5D, D]
    weight_l, weight_r = weight_l.t().contiguous(), weight_r.t().contiguous()
    query = query * problem.scale

    states = leaves.new_empty((N + capacity, 2 * D))
    states[:N] = leaves
    states[N] = 0
    gates = leaves.new_empty((capacity if record else 0, 5 * D))
    score = leaves.new_empty(capacity)
    score[0] = -torch.inf
    left = torch.full((capacity,), p.nodes, device=device)
    right = torch.full((capacity,), p.nodes, device=device)
    node_state = torch.arange(p.nodes + 1, device=device)
    node_state[p.nodes] = N
    # one product per node and side, made when the node is born; the bias goes with the left ones
    gates_l = leaves.new_empty((p.nodes, 5 * D))
    gates_r = leaves.new_empty((p.nodes, 5 * D))

    def project(h: Tensor, lo: int) -> None:
        product(h, weight_l, out=gates_l[lo : lo + len(h)]).add_(bias)
        product(h, weight_r, out=gates_r[lo : lo + len(h)])

    def compose(lo: int, hi: int) -> None:
        l, r = left[lo:hi], right[lo:hi]
        g = gates[lo:hi] if record else gates_l.new_empty((hi - lo, 5 * D))
        torch.index_select(gates_l, 0, l, out=g)
        g += gates_r.index_select(0, r)
        c_l = states[:, D:].index_select(0, node_state[l])
        c_r = states[:, D:].index_select(0, node_state[r])
        h, c = cell.activate(g, c_l, c_r)
        states[N + lo : N + hi, :D] = h
        states[N + lo : N + hi, D:] = c
        torch.mv(h, query, out=score[lo:hi])

    # layer 0: the nodes are the words; word j + 1 is the right child of candidate j
    rank = torch.arange(B, device=device)
    node = p.row_starts() + rank[:, None]  # [B, T]
    node = torch.where(p.valid(p.steps), node, p.nodes)
    inside = p.valid(p.steps - 1, shorter=1)  # [B, K]
    candidate = torch.where(inside, node[:, 1:] - B + 1, 0)
    left[1 : S + 1] = node[:, :-1].t()[inside.t()]
    right[1 : S + 1] = torch.arange(B, N, device=device)
    node, candidate = node[: active[1]], candidate[: active[1]]
    project(leaves[:, :D], 0)
    compose(1, S + 1)
    count = S + 1

    order = torch.full((B, p.T - 1), -1, device=device)
    sampled_rows = sum(n * (p.steps - t) for t, n in enumerate(p.active[1:], 1))
    keep_y = record and problem.sample
    tape_y = leaves.new_empty(sampled_rows if keep_y else 0)
    tape_rows = torch.empty(sampled_rows if record else 0, dtype=torch.int32, device=device)
    chosen = torch.empty(S, dtype=torch.int64, device=device)
    position = torch.empty_like(chosen)
    born = torch.zeros((S if record else 0, 2), dtype=torch.int64, device=device)
    near = torch.zeros((S if record else 0, 5), dtype=torch.int64, device=device)
    scores = None
    if problem.keep_scores:
        scores = leaves.new_full((B, p.T - 1, p.T - 1), -torch.inf)
    noise = forced = None
    if problem.sample:
        assert problem.noise is not None
        noise = problem.noise.index_select(0, p.sentence).to(dtype)
    if problem.order is not None:
        forced = problem.order.index_select(0, p.sentence)

    filled = 0
    for t in range(p.steps - 1):
        n, K = active[t + 1], p.steps - 1 - t
        lo, made = p.merged[t], N + p.merged[t]
        s = score[candidate]  # [n, K]
        if scores is not None:
            scores[:n, t, :K] = s
        if noise is not None:
            # S8; selected, not added, where there is no candidate: noise there may be NaN
            s = torch.where(candidate > 0, s + noise[:n, t, :K], s)
        k = first_best(s) if forced is None else forced[:n, t]
        order[:n, t] = k
        position[lo : lo + n] = k
        column = k[:, None]
        merged = candidate.gather(1, column)[:, 0]  # [n]
        chosen[lo : lo + n] = merged
        node_state[made : made + n] = merged + N
        if record:
            tape_rows[filled : filled + n * K].view(n, K).copy_(candidate)
            if keep_y:
                # Eq. 8
                y = tape_y[filled : filled + n * K].view(n, K)
                torch.softmax(s / problem.temperature, dim=1, out=y)
            filled += n * K
            around = F.pad(candidate, (2, 2))
            near[lo : lo + n] = around.gather(1, column + torch.arange(5, device=device))
        n = active[t + 2]
        if n == 0:
            break
        # the sentences that go on: project the new node, move everything right of it one place
        project(states[:, :D].index_select(0, node_state[made : made + n]), made)
        k, column = k[:n], column[:n]
        new = torch.arange(made, made + n, device=device)
        place = torch.arange(K, device=device)
        node = node[:n].gather(1, place + (place > column)).scatter_(1, column, new[:, None])
        place = place[:-1]
        candidate = candidate[:n].gather(1, place + (place >= column))
        a = (k > 0).nonzero()[:, 0]
        b = (k < p.lengths[:n] - 2 - t).nonzero()[:, 0]
        middle, end = count + len(a), count + len(a) + len(b)
        left[count:middle], right[count:middle] = node[a, k[a] - 1], new[a]
        left[middle:end], right[middle:end] = new[b], node[b, k[b] + 1]
        compose(count, end)
        ids = torch.arange(count, end, device=device)
        candidate[a, k[a] - 1] = ids[: len(a)]
        candidate[b, k[b]] = ids[len(a) :]
        if record:
            born[lo + a, 0] = ids[: len(a)]
            born[lo + b, 1] = ids[len(a) :]
        count = end

    nodes = states.index_select(0, node_state[:-1]) if problem.keep_nodes else None
    root = states[:, :D].index_select(0, node_state[p.root_rows()])
    if not record:
        return Outcome(root, order, nodes, scores, None)
    tape = Tape(
        states[: N + count],
        gates[:count],
        left[:count],
        right[:count],
        node_state,
        chosen,
        position,
        born,
        near,
        tape_rows,
        tape_y,
    )
    return Outcome(root, order, nodes, scores, tape)
