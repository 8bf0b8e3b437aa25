"""Backward pass of the beam search; see `ops.merge.beams`.

Where beams share nodes, their gradients are added one beam after the other, so that sums do not
depend on the order of atomic additions.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from gumbeltree.ops.merge.beams.forward import NEVER, BeamStates, Choices
from gumbeltree.ops.merge.children import scorer_gradients, to_scored_children


class Recorded(NamedTuple):
    """What the backward pass needs of a search."""

    states: BeamStates
    choices: Choices
    root: Tensor
    """Row of each root `[B, k]`."""
    lengths: Tensor
    """Words per sentence `[B]`."""
    cell: Any
    fused: Any
    """The module of the kernels, or None."""


def backward(search: Recorded, dvector: Tensor, dlog_prob: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients of leaves, weight, bias, query and the cell's other parameters.

    Args:
        search: what the search recorded.
        dvector: gradient of the roots `[B, k, D]`.
        dlog_prob: gradient of the log-probabilities `[B, k]`.
    """
    states, choices, root, lengths, cell, fused = search
    B, T, D, k = states.B, states.T, states.D, root.shape[1]
    words, width = T * B, len(states.bias)
    score_gradients = _score_gradients if fused is None else fused.score_gradients
    add_to_children = _add_to_children if fused is None else fused.add_to_children
    sigma = score_gradients(states, choices, lengths, dlog_prob.to(states.dtype))[words:]
    # gradient of each state, first without those of its parents
    G = torch.zeros_like(states.rows)
    for j in range(k):
        G[:, :D].index_add_(0, root[:, j], dvector[:, j].to(states.dtype))
    # candidates per sentence of each step, the first T - 1 of which have different children
    added = [(0, T - 1), *((T - 1 + 2 * k * t, 2 * k) for t in range(T - 2))] if T > 1 else []
    others: tuple[Tensor, ...] = ()
    made, once = added, None
    if states.scorer is None:
        G[words:, :D] += sigma[:, None] * states.query
        dquery = sigma @ states.rows[words:, :D]
    else:
        others, dquery = _scored(states, G, sigma, added, search), torch.zeros_like(states.query)
        made, once = [(k * t, k) for t in range(T - 1)], _first_times(states)
    rows = states.composed
    left, right = states.left[rows], states.right[rows]
    drecord = torch.empty_like(states.gates)
    for first, n in reversed(made):
        block = slice(first * B, (first + n) * B)
        new: Any = slice(words + block.start, words + block.stop)
        dstate = G[new]
        if once is not None:
            new = states.merged[block]
            dstate = G[new] * once[block, None]
        dh, dc = states.parts(dstate)
        c, c_l, c_r = (states.parts(states.rows[x])[1] for x in (new, left[block], right[block]))
        found, *dc_children = cell.activate_backward(
            dh, None if states.single else dc, states.gates[block], c, c_l, c_r, **states.kept
        )
        drecord[block] = found
        dh_children = found[:, :width] @ states.weight
        times = k if once is not None or first else 1
        add_to_children(
            states, G, left[block], right[block], dh_children, tuple(dc_children), times
        )
    dleaves = G[:words].view(T, B, -1).transpose(0, 1)
    dleaves = F.pad(dleaves, (0, 2 * D - dleaves.shape[-1]))
    sums = drecord[:, :width]
    dweight = torch.cat([sums.t() @ states.rows[x][:, :D] for x in (left, right)], dim=1)
    if hasattr(cell, "other_gradients"):
        others = (*cell.other_gradients(drecord, states.gates, **states.kept), *others)
    return dleaves, dweight, sums.sum(0), dquery, *others


def _scored(
    states: BeamStates, G: Tensor, sigma: Tensor, added: list[tuple[int, int]], search: Recorded
) -> tuple[Tensor, ...]:
    """Add the gradients of scores `[n]` to the children; return those of the scorer's parameters.

    Args:
        states: states of words and nodes.
        G: gradient of each state.
        sigma: gradients of the scores of all candidates.
        added: first candidate and number of candidates of each step.
        search: names the kernels.
    """
    assert states.scorer is not None
    B, D, k, words = states.B, states.D, search.root.shape[1], states.T * states.B
    scored = slice(words, words + len(sigma))
    h_l, h_r = (x[:, :D] for x in states.children(scored))
    shares = (sigma[:, None, None] * to_scored_children(states.scorer, h_l, h_r)).flatten(1)
    left, right = states.left[scored], states.right[scored]
    if search.fused is not None:
        search.fused.add_to_children(states, G, left, right, shares, None, 1)
    else:
        for first, n in added:
            block = slice(first * B, (first + n) * B)
            times = k if first else 1
            _add_to_children(states, G, left[block], right[block], shares[block], None, times)
    return scorer_gradients(states.scorer, h_l, h_r, sigma)


def _first_times(states: BeamStates) -> Tensor:
    """Return 1 for the first composition of each candidate, 0 for those of other beams `[n]`."""
    number = torch.arange(len(states.merged), device=states.line.device)
    first = states.left.new_full((len(states.rows),), len(number))
    first.scatter_reduce_(0, states.merged, number, "amin")
    return (first[states.merged] == number).to(states.dtype)


def _score_gradients(
    states: BeamStates, choices: Choices, lengths: Tensor, dlog_prob: Tensor
) -> Tensor:
    """Return the gradients of all scores, given those of the log-probabilities `[B, k]`.

    A layer that the surviving beams b share has da = sum of g_b (choice of b - probability).
    """
    sigma, g = torch.zeros_like(states.score), dlog_prob
    for t in reversed(range(states.T - 1)):
        candidates, parent, at = (part[t] for part in choices)
        K = candidates.shape[-1]
        count = (lengths - 1 - t)[:, None, None]
        absent = torch.arange(K, device=sigma.device) >= count
        probability = states.score[candidates].masked_fill(absent, NEVER).softmax(-1)
        before = torch.zeros_like(g).scatter_add_(1, parent, g)
        da = -before[..., None] * probability  # [B, k, K]
        da.flatten(1).scatter_add_(1, parent * K + at, g)
        da *= count > 0
        for j in range(da.shape[1]):
            sigma.index_add_(0, candidates[:, j].flatten(), da[:, j].flatten())
        g = before
    return sigma


def _add_to_children(
    states: BeamStates,
    G: Tensor,
    left: Tensor,
    right: Tensor,
    dh: Tensor,
    dc: tuple[Tensor, Tensor] | None,
    times: int,
) -> None:
    """Add the gradients that n candidates per sentence send to their children.

    Args:
        states: states of words and candidates.
        G: gradient of each state.
        left: rows of the left children `[n B]`.
        right: those of the right children.
        dh: gradients of h of both children `[n B, 2D]`.
        dc: gradients of c of both children, each `[n B, D]`; of their only state if there is no c;
            None if there is none.
        times: number of parts, one after the other, so that no part has a row twice.
    """
    for side, (child, share) in enumerate(zip((left, right), dh.chunk(2, dim=1), strict=True)):
        if dc is not None:
            from_c = dc[side]
            share = share + from_c if states.single else torch.cat([share, from_c], dim=1)
        to = G[:, : share.shape[1]]
        parts = share.unflatten(0, (-1, times, states.B)).unbind(1)
        for rows, part in zip(child.view(-1, times, states.B).unbind(1), parts, strict=True):
            to.index_add_(0, rows.flatten(), part.flatten(0, 1))
