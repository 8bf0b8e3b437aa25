"""Find the most probable trees of each sentence by beam search.

A beam is a row of nodes, like a layer of the merge. At every step, each beam proposes its most
probable merges, and the most probable beams survive. A merge changes only the two candidates next
to the new node, so k beams over T words take T - 1 + 2k(T - 2) compositions.

Legend: B sentences, T words in the longest, k beams, K candidates of a layer.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gumbeltree.noise import mixed
from gumbeltree.states import NodeState


class Beams(NamedTuple):
    """The trees found, best first."""

    order: Tensor
    """Position of each merge, int64 `[B, k, T-1]`, -1 past the end of a sentence."""
    log_prob: Tensor
    """Log-probability of all merges `[B, k]`; -inf if there are fewer than k trees."""


class Frontiers(NamedTuple):
    """The state of the search before a step."""

    nodes: Tensor
    """Nodes of each beam, as indices of states `[B, k, K+1]`."""
    candidates: Tensor
    """Candidate between each pair of neighbours, as indices of states `[B, k, K]`."""
    code: Tensor
    """Hash of the nodes `[B, k]`: equal for beams with the same nodes."""
    order: Tensor
    """Merges so far `[B, k, T-1]`."""
    log_prob: Tensor
    """Their log-probability `[B, k]`."""

    def select(self, parent: Tensor) -> "Frontiers":
        """Return the beams `parent` `[B, k]`."""

        def pick(x: Tensor) -> Tensor:
            index = parent.view(*parent.shape, *[1] * (x.dim() - 2)).expand(-1, -1, *x.shape[2:])
            return x.gather(1, index)

        return Frontiers(*map(pick, self))


class _States:
    """States, scores and hashes of words and candidates, in order of creation."""

    def __init__(self, leaves: NodeState, cell: Any, query: Tensor, size: int) -> None:
        B, T, D = leaves.h.shape
        self.cell, self.query, self.count = cell, query, T
        self.h, self.c = (x.new_zeros((B, size, D)) for x in leaves)
        self.h[:, :T], self.c[:, :T] = leaves
        self.score = query.new_full((B, size), -torch.inf)
        self.code = torch.zeros((B, size), dtype=torch.int64, device=query.device)
        self.code[:, :T] = mixed(torch.arange(T, device=query.device), 7)

    def compose(self, left: Tensor, right: Tensor) -> Tensor:
        """Compose and score neighbours, indices `[B, n]`; return the indices of the candidates."""
        n = left.shape[1]
        made = slice(self.count, self.count + n)
        self.count += n

        def states(index: Tensor) -> NodeState:
            wide = index[..., None].expand(-1, -1, self.h.shape[-1])
            return NodeState(self.h.gather(1, wide), self.c.gather(1, wide))

        new = self.cell(states(left), states(right))
        self.h[:, made], self.c[:, made] = new
        self.score[:, made] = new.h.to(self.query.dtype) @ self.query
        first = mixed(self.code.gather(1, left), 11)
        self.code[:, made] = mixed(first ^ self.code.gather(1, right), 13)
        return torch.arange(made.start, made.stop, device=left.device).expand_as(left)


@torch.no_grad()
def search(
    leaves: NodeState,
    lengths: Tensor,
    cell: Any,
    query: Tensor,
    k: int,
    noise: Tensor | None = None,
    distinct: bool = True,
) -> Beams:
    """Return the best trees that k beams find.

    Args:
        leaves: states of the words, each `[B, T, D]`.
        lengths: words per sentence `[B]`.
        cell: composition cell.
        query: scaled query vector `[D]`.
        k: number of beams.
        noise: Gumbel noise `[B, k, T-1, T-1]` (sentence, beam, layer, position). It is added when a
            beam proposes its merges (stochastic top-k).
        distinct: drop beams with the same nodes as a better one.
    """
    B, T = leaves.h.shape[:2]
    query = query.to(torch.promote_types(query.dtype, torch.float32))
    device = query.device
    states = _States(leaves, cell, query, T + (T - 1) + 2 * k * max(0, T - 2))
    places = torch.arange(T, device=device).expand(B, -1)
    first = states.compose(places[:, :-1], places[:, 1:])
    inside = places < lengths[:, None]
    code = torch.where(inside, states.code[:, :T], 0).sum(1, keepdim=True).expand(-1, k)
    log_prob = query.new_full((B, k), -torch.inf)
    log_prob[:, 0] = 0
    beams = Frontiers(
        places[:, None].expand(-1, k, -1),
        first[:, None].expand(-1, k, -1),
        code,
        torch.full((B, k, T - 1), -1, device=device),
        log_prob,
    )
    for t in range(T - 1):
        active = (t < lengths - 1)[:, None]  # [B, 1]
        proposed, position = _proposals(beams, states, lengths - 1 - t, noise, t)
        chosen = _survivors(beams, states, proposed, position, k, distinct)
        stay = torch.arange(k, device=device).expand(B, -1)
        parent = torch.where(active, chosen.parent, stay)
        before = beams.select(parent)
        at = torch.where(active, chosen.position, 0)
        beams = _advance(before, states, at, lengths - 1 - t)
        order = before.order.clone()
        order[:, :, t] = torch.where(active, at, -1)
        # a finished sentence keeps its beams
        beams = beams._replace(
            order=order,
            code=torch.where(active, chosen.code, before.code),
            log_prob=torch.where(active, chosen.log_prob, before.log_prob),
        )
    return Beams(beams.order, beams.log_prob)


class _Chosen(NamedTuple):
    parent: Tensor
    position: Tensor
    code: Tensor
    log_prob: Tensor


def _proposals(
    beams: Frontiers, states: _States, count: Tensor, noise: Tensor | None, t: int
) -> tuple[Tensor, Tensor]:
    """Return log-probability and position of the best merges of each beam, each `[B, k, m]`."""
    B, k, K = beams.candidates.shape
    score = states.score.gather(1, beams.candidates.reshape(B, -1)).view(B, k, K)
    exists = torch.arange(K, device=score.device) < count[:, None, None]
    # zeros keep the softmax of finished sentences finite
    score = torch.where(exists, score, torch.where(count > 0, -torch.inf, 0.0)[:, None, None])
    logs = score.log_softmax(-1)
    keys = logs if noise is None else logs + noise[:, :, t, :K]
    position = keys.masked_fill(~exists, -torch.inf).topk(min(k, K), dim=-1).indices
    return logs.gather(-1, position), position


def _survivors(
    beams: Frontiers,
    states: _States,
    logs: Tensor,
    position: Tensor,
    k: int,
    distinct: bool,
) -> _Chosen:
    """Return the best k of all proposals."""
    B, _, m = position.shape
    total = (beams.log_prob[..., None] + logs).flatten(1)  # [B, k * m]

    def code_at(indices: Tensor) -> Tensor:
        return states.code.gather(1, indices.flatten(1)).view(B, k, m)

    old = code_at(beams.nodes.gather(-1, position)) + code_at(beams.nodes.gather(-1, position + 1))
    new = code_at(beams.candidates.gather(-1, position))
    code = (beams.code[..., None] - old + new).flatten(1)
    total, rank = total.sort(dim=1, descending=True, stable=True)
    code = code.gather(1, rank)
    if distinct:
        same = code[:, :, None] == code[:, None, :]
        earlier = torch.ones_like(same[0]).tril(-1)
        total = total.masked_fill((same & earlier).any(-1), -torch.inf)
        total, again = total.sort(dim=1, descending=True, stable=True)
        rank, code = rank.gather(1, again), code.gather(1, again)
    missing = max(0, k - total.shape[1])
    if missing:
        total = torch.nn.functional.pad(total, (0, missing), value=-torch.inf)
        rank, code = (torch.nn.functional.pad(x, (0, missing)) for x in (rank, code))
    total, rank, code = total[:, :k], rank[:, :k], code[:, :k]
    return _Chosen(rank // m, position.flatten(1).gather(1, rank), code, total)


def _advance(beams: Frontiers, states: _States, at: Tensor, count: Tensor) -> Frontiers:
    """Merge each beam at position `at` `[B, k]` and compose the two new candidates."""
    B, k, K = beams.candidates.shape
    at = at[..., None]
    merged = beams.candidates.gather(-1, at)  # [B, k, 1]
    place = torch.arange(K, device=at.device).expand(B, k, -1)
    nodes = beams.nodes.gather(-1, place + (place > at)).scatter(-1, at, merged)
    if K == 1:
        return beams._replace(nodes=nodes, candidates=beams.candidates[..., :0])
    place = place[..., :-1]
    candidates = beams.candidates.gather(-1, place + (place >= at))
    # beyond the ends, compose anything: the result is not used
    before = nodes.gather(-1, (at - 1).clamp(min=0))
    after = nodes.gather(-1, (at + 1).clamp(max=K - 1))
    left = torch.cat([before, merged], dim=-1).flatten(1)  # [B, 2k]
    right = torch.cat([merged, after], dim=-1).flatten(1)
    made = states.compose(left, right).view(B, k, 2)
    # at the left end, only the right candidate is new, and at the right end only the left one
    first, last = (at - 1).clamp(min=0), at.clamp(max=K - 2)
    candidates = candidates.scatter(
        -1, first, torch.where(at > 0, made[..., :1], candidates.gather(-1, first))
    )
    right_end = at >= count[:, None, None] - 1
    candidates = candidates.scatter(
        -1, last, torch.where(right_end, candidates.gather(-1, last), made[..., 1:])
    )
    return beams._replace(nodes=nodes, candidates=candidates)
