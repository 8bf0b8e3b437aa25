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
    G[words:, :D] = sigma[:, None] * states.query
    for j in range(k):
        G[:, :D].index_add_(0, root[:, j], dvector[:, j].to(states.dtype))
    drecord = torch.empty_like(states.gates)
    last = states.size
    for n in [*[2 * k] * (T - 2), T - 1] if T > 1 else []:
        first = last - n
        block = slice(first * B, last * B)
        new = slice(words + block.start, words + block.stop)
        dh, dc = states.parts(G[new])
        l_state, r_state = states.children(new)
        (_, c_l), (_, c_r) = states.parts(l_state), states.parts(r_state)
        c = states.parts(states.rows[new])[1]
        found, dc_l, dc_r = cell.activate_backward(
            dh, None if states.single else dc, states.gates[block], c, c_l, c_r, **states.kept
        )
        drecord[block] = found
        dh_children = found[:, :width] @ states.weight
        if states.scorer is not None:
            shares = to_scored_children(states.scorer, l_state[:, :D], r_state[:, :D])
            dh_children += sigma[block, None] * shares.flatten(1)
        add_to_children(states, G, first, n, k, dh_children, dc_l, dc_r)
        last = first
    dleaves = G[:words].view(T, B, -1).transpose(0, 1)
    dleaves = F.pad(dleaves, (0, 2 * D - dleaves.shape[-1]))
    h_l, h_r = (x[:, :D] for x in states.children(slice(words, None)))
    sums = drecord[:, :width]
    dweight = torch.cat([sums.t() @ h_l, sums.t() @ h_r], dim=1)
    others: tuple[Tensor, ...] = ()
    if hasattr(cell, "other_gradients"):
        others = cell.other_gradients(drecord, states.gates, **states.kept)
    if states.scorer is not None:
        others = (*others, *scorer_gradients(states.scorer, h_l, h_r, sigma))
    return dleaves, dweight, sums.sum(0), sigma @ states.rows[words:, :D], *others


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
    first: int,
    n: int,
    k: int,
    dh: Tensor,
    dc_l: Tensor,
    dc_r: Tensor,
) -> None:
    """Add the gradients that n candidates per sentence send to their children.

    Args:
        states: states of words and candidates.
        G: gradient of each state.
        first: the first of these candidates.
        n: their number.
        k: number of beams.
        dh: gradients of h of both children `[n B, 2D]`.
        dc_l: gradient of c of the left child `[n B, D]`, of its only state if there is no c.
        dc_r: that of the right child.
    """
    B = states.B
    new = slice((states.T + first) * B, (states.T + first + n) * B)
    # no row twice at a time: words of the first layer, and one beam after the other
    times = 1 if first == 0 else k
    for child, dh_child, dc in zip(
        (states.left[new], states.right[new]), dh.chunk(2, dim=1), (dc_l, dc_r), strict=True
    ):
        share = dh_child + dc if states.single else torch.cat([dh_child, dc], dim=1)
        parts = share.view(-1, times, B, share.shape[1]).unbind(1)
        for rows, part in zip(child.view(-1, times, B).unbind(1), parts, strict=True):
            G.index_add_(0, rows.flatten(), part.flatten(0, 1))
