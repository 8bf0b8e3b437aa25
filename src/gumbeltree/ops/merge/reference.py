"""The paper's equations, layer by layer: every candidate is recomposed at every layer.

Deliberately simple and slow. It supports every cell and every estimator, and gradients come from
autograd.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gumbeltree.layout import Layout
from gumbeltree.noise import NoiseLayers
from gumbeltree.ops.merge.argmax import first_best
from gumbeltree.ops.merge.dropout import parent_codes, word_codes
from gumbeltree.ops.merge.problem import TreeProblem, TreeResult
from gumbeltree.states import NodeState


def unsupported(cell: nn.Module, estimator: Any, sample: bool, by_name: bool = False) -> str | None:
    """Return None: this implementation supports everything."""
    return None


def prepare(cell: nn.Module, query: Tensor, scale: float, layout: Layout) -> None:
    """Do nothing: the weights need no preparation."""


def build_tree(problem: TreeProblem) -> TreeResult:
    """Merge each sentence into one node."""
    layout = problem.layout
    B, T = layout.B, layout.T
    lengths = layout.own_lengths()  # [B]
    state = NodeState(*map(layout.unpack, problem.leaves.chunk(2, dim=-1)))  # [B, T, D]
    codes = None if problem.dropout is None else word_codes(T, problem.dropout)
    nodes, layers = [state], []
    noisy = None
    if problem.sample:
        assert problem.noise is not None
        noisy = NoiseLayers(problem.noise, None, T - 1)
    order = torch.full((B, T - 1), -1, device=lengths.device)
    for t in range(T - 1):
        K = T - 1 - t
        left = NodeState(state.h[:, :-1], state.c[:, :-1])  # [B, K, D]
        right = NodeState(state.h[:, 1:], state.c[:, 1:])
        # Eqs. 1-3 for every adjacent pair
        if codes is None:
            candidates = problem.cell(left, right)
        else:
            parents = parent_codes(codes[:, :-1], codes[:, 1:])
            candidates = problem.cell(left, right, parents)
        # Eq. 12: validity scores
        scored = candidates.h, left.h, right.h
        h, h_l, h_r = (x.to(problem.score_dtype) for x in scored)
        if problem.scorer is None:
            scores = problem.scale * (h * problem.query.to(problem.score_dtype)).sum(-1)
        else:
            scores = problem.scorer(h_l, h_r)
        active = t < lengths - 1  # [B]
        valid = torch.arange(K, device=lengths.device) < (lengths - 1 - t)[:, None]
        # finite scores in rows without candidates keep the softmax from returning NaN
        fill = torch.where(active, -torch.inf, 0.0)[:, None]
        choice, weights = pick(problem, noisy, t, torch.where(valid, scores, fill), valid)
        mixed = NodeState(*(mix(weights, *x) for x in zip(left, right, candidates, strict=True)))
        # a finished sentence keeps its root at position 0
        keep = active[:, None, None]
        state = NodeState(*(torch.where(keep, m, old) for m, old in zip(mixed, left, strict=True)))
        order[:, t] = torch.where(active, choice, -1)
        if codes is not None:
            place, at = torch.arange(K, device=lengths.device), choice[:, None]
            codes = torch.where(place < at, codes[:, :-1], codes[:, 1:])
            codes = torch.where(place == at, parents, codes)
        if problem.keep.nodes:
            # the new node of this layer
            index = choice[:, None, None].expand(-1, 1, state.h.shape[-1])
            new = (torch.where(keep, x.gather(1, index), 0.0) for x in state)
            nodes.append(NodeState(*new))  # [B, 1, D]
        if problem.keep.scores:
            layer = torch.where(valid, scores, -torch.inf)
            layers.append(F.pad(layer, (0, t), value=-torch.inf))
    all_nodes = all_scores = None
    if problem.keep.nodes:
        all_nodes = NodeState(*(torch.cat(x, dim=1) for x in zip(*nodes, strict=True)))
    if problem.keep.scores:
        # the empty scores of single words depend on the leaves, so that they can be differentiated
        empty = state.h[:, :0, :0].to(problem.score_dtype)
        all_scores = torch.stack(layers, 1) if layers else empty
    return TreeResult(state.h[:, 0], order, all_nodes, all_scores)


def pick(
    problem: TreeProblem, noisy: NoiseLayers | None, t: int, logits: Tensor, valid: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the chosen position `[B]` and the mixing weights `[B, K]` of layer t."""
    noise = torch.zeros_like(logits)
    if noisy is not None:
        # Eqs. 5-8, S8: the choice and the softmax use the same noise
        drawn = noisy(t, *logits.shape).to(logits.dtype)
        noise = torch.where(valid, problem.noise_scale * drawn, 0.0)
    size = problem.scale * problem.query.detach().to(logits.dtype).norm()
    choice = first_best(logits + noise, size)
    if problem.order is not None:
        choice = torch.where(valid[:, 0], problem.order[:, t], 0)
    if problem.sample:
        return choice, problem.estimator.weights(logits, noise, choice, problem.temperature)
    return choice, torch.zeros_like(logits).scatter(-1, choice[:, None], 1.0)


def mix(y: Tensor, left: Tensor, right: Tensor, candidates: Tensor) -> Tensor:
    """Return the nodes of the next layer `[B, K, D]` (Eqs. S1-S7)."""
    y = y.to(candidates.dtype)[..., None]  # [B, K, 1]
    total = y.cumsum(1)
    m_left, m_right, m_parent = 1 - total, total - y, y
    return m_left * left + m_right * right + m_parent * candidates
