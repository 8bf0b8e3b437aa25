"""Backward pass of `exact`: undo the merges from the roots down; see ops/merge/README.md.

Each step needs one product, for the merged candidates. One large product before the loop computes
the gradients of gates and children per unit of each score's gradient. One after the loop computes
the gradient of the weight.
"""

from typing import Any

import torch
from torch import Tensor

from gumbeltree.ops.merge.children import scorer_gradients, to_scored_children
from gumbeltree.ops.merge.dropout import options
from gumbeltree.ops.merge.exact.forward import Products, SortedNoise
from gumbeltree.ops.merge.exact.scores import CHUNK, Deferred, Direct, Ledger, Shared
from gumbeltree.ops.merge.exact.tape import Tape
from gumbeltree.ops.merge.problem import MergeGradients, TreeProblem

# Mean number of candidates per layer from which `Ledger` replaces `Direct`: sentences of 14 words.
# On a CPU, both are equally fast at 10 words (300D, 128 sentences) and at 15 words (100D, 64
# sentences).
LEDGER_FROM = 7.0
# Mean number of candidates per layer of the whole batch below which `Direct` is faster even for
# long sentences, because it takes fewer operations. On a CPU at 128D, both are equally fast for one
# sentence of 128 words, for 4 of 32 words and for 16 of 16 words.
LEDGER_ROWS = 64.0


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
        tape: Record of the forward pass.
        weight: `[5D, 2D]`.
        query: `[D]`.
        problem: As in the forward pass.
        noise: As in the forward pass; it still caches the layers computed last.
        product: Matrix product in the precision of the forward pass.
        droot: Gradient of h of the roots `[B, D]`.
        dnodes: Gradient of all nodes `[2N - B, 2D]`, each read at the layer where it is created.
        dscores: Gradient of the scores `[B, T-1, T-1]`.
    """
    p = problem.layout
    cell: Any = problem.cell
    kept = options(cell, problem.dropout)
    states, gates = tape.states, tape.gates
    N, S, C, D = p.N, p.N - p.B, gates.shape[0], query.shape[0]
    # the cell may record more than the sums of products
    width = weight.shape[0]
    scaled_query = query.to(states.dtype) * problem.scale
    state_l, state_r = tape.node_state[tape.left], tape.node_state[tape.right]
    children = torch.stack([tape.left, tape.right], dim=1)  # [C, 2]
    # without a local estimator, the scores get a gradient only through `dscores`
    local = problem.sample and getattr(problem.estimator, "local", True)
    scored = local or dscores is not None

    def to_children(c: Tensor, dh: Tensor, dc: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the gradients of the gates of candidates c and of their children `[n, 2, 2D]`."""
        c_states = states[:, D:]
        dgates, dc_l, dc_r = cell.activate_backward(
            dh,
            dc,
            gates.index_select(0, c),
            c_states.index_select(0, N + c),
            c_states.index_select(0, state_l[c]),
            c_states.index_select(0, state_r[c]),
            **kept,
        )
        both = states.new_empty((len(c), 2, 2 * D))
        both[:, :, :D] = product(dgates[:, :width], weight).view(-1, 2, D)
        both[:, 0, D:], both[:, 1, D:] = dc_l, dc_r
        return dgates, both

    # gradient of each node; the last one is a dummy
    G = states.new_zeros((p.nodes + 1, 2 * D))
    if droot is not None:
        G[p.root_rows(), :D] = droot.to(G.dtype)
    sigma = states.new_zeros(C)
    if scored:
        # gradients of the gates and, as vL and vR, of the children per unit of score gradient
        score_dgates = torch.zeros_like(gates)
        v = states.new_zeros((C, 2, 2 * D))
        for c in torch.arange(1, C, device=states.device).split(CHUNK):
            if problem.scorer is None:
                score_dgates[c], v[c] = to_children(c, scaled_query.expand(len(c), D), None)
            else:
                pairs = states[state_l[c], :D], states[state_r[c], :D]
                v[c, :, :D] = to_scored_children(problem.scorer, *pairs)
        method: Any
        if local:
            de = torch.stack([states[state_r], states[N:]], dim=1).sub_(states[state_l][:, None])
            method = (Ledger if use_ledger(problem) else Direct)(Shared(tape, N, G, sigma, v, de))
        else:
            method = Deferred(Shared(tape, N, G, sigma, v, v))

    merge_dgates = gates.new_empty((S, gates.shape[1]))
    end = tape.rows.shape[0]
    for t in reversed(range(p.steps - 1)):
        n, K = p.active[t + 1], p.steps - 1 - t
        lo, hi = p.merged[t], p.merged[t] + n
        merged = tape.chosen[lo:hi]
        # gradient of the new nodes of this layer, including that from outside the merge
        g = G[N + lo : N + hi]
        if dnodes is not None:
            g += dnodes[N + lo : N + hi]
        if scored:
            method.complete(lo, hi)
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
            dy = method.weight_gradient(lo, hi, rows, g_children)
            logits = tape.logits[end - n * K : end].view(n, K)
            drawn = noise(t, rows, logits.dtype)
            ds += problem.estimator.logit_gradient(
                dy, logits, drawn, tape.position[lo:hi], problem.temperature
            )
        # candidates are distinct except for the dummy, which stays at zero
        sigma[rows] += ds
        method.send(rows, ds)
        end -= n * K

    c, dgates = tape.chosen, merge_dgates
    if scored:
        if S > 0:
            method.finish(first_layer=rows)
        c, dgates = torch.arange(C, device=sigma.device), score_dgates.mul_(sigma[:, None])
        dgates[tape.chosen] += merge_dgates
    dleaves = G[:N] if dnodes is None else G[:N] + dnodes[:N]
    h = states[:, :D]
    h_children = torch.cat([h.index_select(0, state_l[c]), h.index_select(0, state_r[c])], dim=1)
    sums = dgates[:, :width]
    dweight = product(sums.t(), h_children)
    dquery = problem.scale * (sigma @ h[N:])
    others: tuple[Tensor, ...] = ()
    if hasattr(cell, "other_gradients"):
        others = cell.other_gradients(dgates, gates.index_select(0, c), **kept)
    if problem.scorer is not None:
        # the dummy has no score
        pairs = h.index_select(0, state_l[1:]), h.index_select(0, state_r[1:])
        others = (*others, *scorer_gradients(problem.scorer, *pairs, sigma[1:]))
    return MergeGradients(dleaves, dweight, sums.sum(0), dquery, others)


def use_ledger(problem: TreeProblem) -> bool:
    """Return whether `Ledger` is faster than `Direct`, as it is for many long sentences."""
    p = problem.layout
    positions = sum(i * n for i, n in enumerate(p.active))
    return positions > max(LEDGER_FROM * (p.N - p.B), LEDGER_ROWS * (p.steps - 1))
