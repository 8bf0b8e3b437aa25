"""Backward pass of `exact`: undo the merges from the roots down; see ops/merge/README.md.

One product a step, for the merged candidates. What all candidates' scores send to gates and
children, per unit of score gradient, is one large product before the loop; the weights' gradient
is one large product behind it.
"""

from typing import Any

import torch
from torch import Tensor

from gumbeltree.ops.merge.exact.forward import Products, SortedNoise
from gumbeltree.ops.merge.exact.scores import CHUNK, Direct, Ledger, Shared
from gumbeltree.ops.merge.exact.tape import Tape
from gumbeltree.ops.merge.problem import MergeGradients, TreeProblem

# mean number of candidates a layer above which `Ledger` is faster than `Direct`: sentences of 14
# words. Measured on a CPU, the two are equally fast at 10 words (300D, 128 sentences) and at 15
# (100D, 64 sentences).
LEDGER_FROM = 7.0


def backward(
    tape: Tape,
    weight: Tensor,
    query: Tensor,
    problem: TreeProblem,
    noise: SortedNoise | None,
    product: Products,
    droot: Tensor | None,
    dnodes: Tensor | None,
    dscores: Tensor | None,
) -> MergeGradients:
    """Undo the merges from the roots down.

    Args:
        tape: kept by the forward pass.
        weight: `[5D, 2D]`.
        query: `[D]`.
        problem: as in the forward pass.
        noise: likewise; what it last worked out is still there.
        product: how matrices are multiplied.
        droot: gradient of the roots' h `[B, D]`.
        dnodes: gradient of all nodes `[2N - B, 2D]`, each read at the layer where it is born.
        dscores: gradient of the scores `[B, T-1, T-1]`.
    """
    p = problem.layout
    cell: Any = problem.cell
    states, gates = tape.states, tape.gates
    N, S, C, D = p.N, p.N - p.B, gates.shape[0], query.shape[0]
    scaled_query = query.to(states.dtype) * problem.scale
    state_l, state_r = tape.node_state[tape.left], tape.node_state[tape.right]
    children = torch.stack([tape.left, tape.right], dim=1)  # [C, 2]
    # of a choice that passes no gradient itself, only what its scores get from outside counts
    local = problem.sample and getattr(problem.estimator, "local", True)
    scored = local or dscores is not None

    def to_children(c: Tensor, dh: Tensor, dc: Tensor | None) -> tuple[Tensor, Tensor]:
        """Send gradients through candidates c: to their gates and children `[n, 2, 2D]`."""
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

    # gradient of each node, the last one a dummy
    G = states.new_zeros((p.nodes + 1, 2 * D))
    if droot is not None:
        G[p.root_rows(), :D] = droot.to(G.dtype)
    sigma = states.new_zeros(C)
    if scored:
        # what a unit of each candidate's score sends to its gates and, as vL and vR, its children
        score_dgates = torch.zeros_like(gates)
        v = states.new_zeros((C, 2, 2 * D))
        for c in torch.arange(1, C, device=states.device).split(CHUNK):
            score_dgates[c], v[c] = to_children(c, scaled_query.expand(len(c), D), None)
        de = torch.stack([states[state_r], states[N:]], dim=1).sub_(states[state_l][:, None])
        way = (Ledger if use_ledger(problem) else Direct)(Shared(tape, N, G, sigma, v, de))

    merge_dgates = gates.new_empty((S, gates.shape[1]))
    end = tape.rows.shape[0]
    for t in reversed(range(p.steps - 1)):
        n, K = p.active[t + 1], p.steps - 1 - t
        lo, hi = p.merged[t], p.merged[t] + n
        merged = tape.chosen[lo:hi]
        # the node made by this merge; what reads it from outside reads it here
        g = G[N + lo : N + hi]
        if dnodes is not None:
            g += dnodes[N + lo : N + hi]
        if scored:
            way.complete(lo, hi)
        merge_dgates[lo:hi], g_children = to_children(merged, g[:, :D], g[:, D:])
        G[children[merged]] = g_children
        if not scored:
            continue
        rows = tape.rows[end - n * K : end].view(n, K).long()
        ds = torch.zeros_like(rows, dtype=sigma.dtype)
        if dscores is not None:
            ds += torch.where(rows > 0, dscores[:n, t, :K], 0.0)
        if local:
            assert noise is not None
            dy = way.weight_gradient(lo, hi, rows, g_children)
            logits = tape.logits[end - n * K : end].view(n, K)
            drawn = noise(t, rows, logits.dtype)
            ds += problem.estimator.logit_gradient(
                dy, logits, drawn, tape.position[lo:hi], problem.temperature
            )
        # candidates are distinct but for the dummy, which stays at zero
        sigma[rows] += ds
        way.send(rows, ds)
        end -= n * K

    c, dgates = tape.chosen, merge_dgates
    if scored:
        if S > 0:
            way.finish(first_layer=rows)
        c, dgates = torch.arange(C, device=sigma.device), score_dgates.mul_(sigma[:, None])
        dgates[tape.chosen] += merge_dgates
    dleaves = G[:N] if dnodes is None else G[:N] + dnodes[:N]
    h = states[:, :D]
    h_children = torch.cat([h.index_select(0, state_l[c]), h.index_select(0, state_r[c])], dim=1)
    dweight = product(dgates.t(), h_children)
    dquery = problem.scale * (sigma @ h[N:])
    return MergeGradients(dleaves, dweight, dgates.sum(0), dquery)


def use_ledger(problem: TreeProblem) -> bool:
    """Return whether `Ledger` is the faster way: for long sentences, by measured length."""
    p = problem.layout
    positions = sum(i * n for i, n in enumerate(p.active))
    return positions > LEDGER_FROM * (p.N - p.B)
