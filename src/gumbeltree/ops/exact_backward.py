"""Backward pass of `exact` with linear vector work; derived in ops/README.md.

Undoing the merge at k touches five nodes. Every other node's gradient moves only along two fixed
vectors, what its two candidates' scores send to it, with the running sums sigma as coefficients:

    G[n] = Gm[n] + sigma[a] vR_a + sigma[b] vL_b        a, b: candidates left and right of n

so the dot products that the softmax gradient needs are carried as numbers, in a ledger. For a
candidate with children l and r and parent state p: d = r - l, e = p - l; vL and vR are what one
unit of its score's gradient sends to l and r.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from gumbeltree.ops.exact_forward import Products, Tape
from gumbeltree.ops.problem import TreeProblem

# candidates handled at once where a temporary of several vectors each would be large
CHUNK = 2048


class Gradients(NamedTuple):
    """Gradients of the inputs of `forward`."""

    leaves: Tensor
    weight: Tensor
    bias: Tensor
    query: Tensor


def backward(
    tape: Tape,
    weight: Tensor,
    query: Tensor,
    problem: TreeProblem,
    product: Products,
    droot: Tensor | None,
    dnodes: Tensor | None,
    dscores: Tensor | None,
) -> Gradients:
    """Undo the merges from the roots down.

    Args:
        tape: kept by the forward pass.
        weight: `[5D, 2D]`.
        query: `[D]`.
        problem: as in the forward pass.
        product: how matrices are multiplied.
        droot: gradient of the roots' h `[B, D]`.
        dnodes: gradient of all nodes `[2N - B, 2D]`, each read at the layer where it is born.
        dscores: gradient of the scores `[B, T-1, T-1]`.
    """
    p = problem.packing
    cell: Any = problem.cell
    states, gates = tape.states, tape.gates
    N, S, C, D = p.N, p.N - p.B, gates.shape[0], query.shape[0]
    scaled_query = query.to(states.dtype) * problem.scale
    state_l, state_r = tape.node_state[tape.left], tape.node_state[tape.right]
    children = torch.stack([tape.left, tape.right], dim=1)  # [C, 2]
    sampled = problem.sample
    scored = sampled or dscores is not None

    def to_children(c: Tensor, dh: Tensor, dc: Tensor | None) -> tuple[Tensor, Tensor]:
        """Send gradients through candidates c: to their gates [n, 5D] and children [n, 2, 2D]."""
        c_states = states[:, D:]
        dgates, dc_l, dc_r = cell.activate_backward(
            dh,
            dc,
            gates.index_select(0, c),
            c_states.index_select(0, N + c),
            c_states.index_select(0, state_l[c]),
            c_states.index_select(0, state_r[c]),
        )
        both = states.new_empty((len(c), 2, 2 * D))
        both[:, :, :D] = product(dgates, weight).view(-1, 2, D)
        both[:, 0, D:], both[:, 1, D:] = dc_l, dc_r
        return dgates, both

    sigma = states.new_zeros(C)
    if scored:
        # what a unit of each candidate's score sends to its gates and, as vL and vR, its children
        score_dgates = states.new_zeros((C, 5 * D))
        v = states.new_zeros((C, 2, 2 * D))
        for c in torch.arange(1, C, device=states.device).split(CHUNK):
            score_dgates[c], v[c] = to_children(c, scaled_query.expand(len(c), D), None)
    if sampled:
        ledger = Ledger(tape, v, state_l, state_r)

    # gradient of each node less its candidates' part; the last row is a dummy
    Gm = states.new_zeros((p.nodes + 1, 2 * D))
    if droot is not None:
        Gm[p.root_rows(), :D] = droot.to(Gm.dtype)
    merge_dgates = states.new_empty((S, 5 * D))
    end = tape.rows.shape[0]
    for t in reversed(range(p.steps - 1)):
        n, K = p.active[t + 1], p.steps - 1 - t
        lo, hi = p.merged[t], p.merged[t] + n
        merged = tape.chosen[lo:hi]
        # the node made by this merge; what reads it from outside reads it here
        g = Gm[N + lo : N + hi]
        if dnodes is not None:
            g = g + dnodes[N + lo : N + hi]
        if scored:
            a, b = tape.born[lo:hi].unbind(1)
            v_a, v_b = v[a], v[b]  # [n, 2, 2D]
            sigma_a, sigma_b = sigma[a][:, None], sigma[b][:, None]
            g = g + sigma_a * v_a[:, 1] + sigma_b * v_b[:, 0]
            # its two neighbours, on the side where it stood; nobody is twice among them
            before, after = tape.left[a], tape.right[b]
            g_before = Gm[before] + sigma_a * v_a[:, 0]
            g_after = Gm[after] + sigma_b * v_b[:, 1]
            Gm[before], Gm[after] = g_before, g_after
        merge_dgates[lo:hi], g_children = to_children(merged, g[:, :D], g[:, D:])
        Gm[children[merged]] = g_children
        if not scored:
            continue
        rows = tape.rows[end - n * K : end].view(n, K).long()
        ds = torch.zeros_like(rows, dtype=sigma.dtype)
        if dscores is not None:
            ds += torch.where(rows > 0, dscores[:n, t, :K], 0.0)
        if sampled:
            k = tape.position[lo:hi]
            y = tape.y[end - n * K : end].view(n, K)
            around = torch.stack([g_before, g_children[:, 0], g_children[:, 1], g_after], dim=1)
            ledger.undo(lo, hi, a, sigma_a, sigma_b, around)
            dy = ledger.weight_gradient(rows, k, merged, g, sigma)
            ds += problem.estimator.score_gradient(dy, y, k, problem.temperature)
        # candidates are distinct but for the dummy, which stays at zero
        sigma[rows] += ds
        end -= n * K

    dleaves = Gm[:N] if dnodes is None else Gm[:N] + dnodes[:N]
    c, dgates = tape.chosen, merge_dgates
    if scored:
        # layer 0: candidates 1 .. S, whose right children are the words from row B on
        share = sigma[1 : S + 1, None, None] * v[1 : S + 1]
        dleaves.index_add_(0, tape.left[1 : S + 1], share[:, 0])
        dleaves[p.B :] += share[:, 1]
        c, dgates = torch.arange(C, device=sigma.device), score_dgates.mul_(sigma[:, None])
        dgates[tape.chosen] += merge_dgates
    h = states[:, :D]
    h_children = torch.cat([h.index_select(0, state_l[c]), h.index_select(0, state_r[c])], dim=1)
    dweight = product(dgates.t(), h_children)
    dquery = problem.scale * (sigma @ h[N:])
    return Gradients(dleaves, dweight, dgates.sum(0), dquery)


class Ledger:
    """Dot products of gradients with d and e, kept as numbers while merges are undone.

    One row a candidate; each entry is a pair of numbers, with d and with e.
    """

    LEFT = slice(0, 2)  # Gm[left child] . (d, e)
    RIGHT = slice(2, 4)  # Gm[right child] . (d, e)
    OWN_L = slice(4, 6)  # vL . (d, e)
    OWN_R = slice(6, 8)  # vR . (d, e)
    FROM_PREVIOUS = slice(8, 10)  # vR of the candidate before it . (d, e)
    TO_PREVIOUS = slice(10, 12)  # vL . (d, e) of the candidate before it

    def __init__(self, tape: Tape, v: Tensor, state_l: Tensor, state_r: Tensor) -> None:
        C = v.shape[0]
        states = tape.states
        own = states[-C:]
        # d and e of each candidate, [C, 2, 2D]
        self.de = torch.stack([states[state_r], own], dim=1).sub_(states[state_l][:, None])
        self.table = v.new_zeros((C, 12))
        self.table[:, 4:8] = torch.bmm(v, self.de.mT).view(C, 4)
        # numbers of neighbours (c, d) that a merge tears apart, [S, 4, 4]
        self.near = tape.near
        self.pairs = v.new_empty((*self.near[:, 1:].shape, 4))
        for lo in range(0, len(self.near), CHUNK // 4):
            near, pairs = self.near[lo : lo + CHUNK // 4], self.pairs[lo : lo + CHUNK // 4]
            c, d = near[:, :-1].flatten(), near[:, 1:].flatten()
            pairs[..., :2] = torch.bmm(self.de[d], v[c, 1, :, None]).view(-1, 4, 2)
            pairs[..., 2:] = torch.bmm(self.de[c], v[d, 0, :, None]).view(-1, 4, 2)

    def undo(
        self, lo: int, hi: int, a: Tensor, sigma_a: Tensor, sigma_b: Tensor, around: Tensor
    ) -> None:
        """Bring the numbers near each merge to the layer below it.

        Args:
            lo: first merge of the step.
            hi: behind its last.
            a: candidates left of the new nodes, `[n]`.
            sigma_a: their final sums `[n, 1]`.
            sigma_b: those of the candidates right of them.
            around: Gm of the nodes at k-1 .. k+2 of the layer below, `[n, 4, 2D]`.
        """
        table, near = self.table, self.near[lo:hi]
        outer_l, outer_r = near[:, 0], near[:, 4]
        # the outer candidates' nodes next to a and b move along one vector: scalars suffice
        table[outer_l, self.RIGHT] += sigma_a * table[a, self.TO_PREVIOUS]
        table[outer_r, self.LEFT] += sigma_b * table[outer_r, self.FROM_PREVIOUS]
        # the three candidates that return, with their left and right children's new gradients
        inner = near[:, 1:4]
        de = self.de[inner].flatten(1, 2)  # [n, 6, 2D]
        dots = torch.bmm(de, around.mT).unflatten(1, (3, 2))  # [n, 3, 2, 4]
        left, right = dots[..., :3].diagonal(dim1=1, dim2=3), dots[..., 1:].diagonal(dim1=1, dim2=3)
        table[inner, :4] = torch.cat([left, right], dim=1).mT
        # and the four pairs of neighbours that meet again
        table[near[:, 1:], 8:] = self.pairs[lo:hi]

    def weight_gradient(
        self, rows: Tensor, k: Tensor, merged: Tensor, g: Tensor, sigma: Tensor
    ) -> Tensor:
        """Return dL/dy `[n, K]` of a layer: y_i's is Y_i + sum over j > i of X_j."""
        K = rows.shape[1]
        number = self.table[rows]  # [n, K, 12]
        s = sigma[rows][..., None]  # [n, K, 1]
        # a node left of the merge is its candidate's left child, one right of it the right child
        left = number[..., self.LEFT] + s * number[..., self.OWN_L]
        left[:, 1:] += s[:, :-1] * number[:, 1:, self.FROM_PREVIOUS]
        right = number[..., self.RIGHT] + s * number[..., self.OWN_R]
        right[:, :-1] += (s * number[..., self.TO_PREVIOUS])[:, 1:]
        column = k[:, None]
        place = torch.arange(K, device=k.device)
        x, y = torch.where((place < column)[..., None], left, right).unbind(-1)
        at_k = torch.bmm(self.de[merged], g[:, :, None])[..., 0]  # [n, 2]
        x, y = x.scatter(1, column, at_k[:, :1]), y.scatter(1, column, at_k[:, 1:])
        later = F.pad(x[:, 1:], (0, 1)).flip(1).cumsum(1).flip(1)
        return y + later
