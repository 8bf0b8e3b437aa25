"""Backward pass of `fused`: undo the merges from the roots down, three small kernels a step.

The algorithm is that of `exact_backward.py` with every node's gradient kept complete; the large
products stand before and behind the loop.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from gumbeltree.ops import fused_kernels as kernels
from gumbeltree.ops.fused_forward import BD, BM, Layout, Trees, root_nodes

# tiles and warps, measured on one H200
UNDO = (64, 32, 64, 4, 3)
DOTS = (4, 256)
SEND_BD = 32


class Gradients(NamedTuple):
    """Gradients of the inputs of `forward`."""

    leaves: Tensor
    weight: Tensor
    bias: Tensor
    query: Tensor


def backward(
    trees: Trees,
    weight: Tensor,
    query: Tensor,
    layout: Layout,
    droot: Tensor | None,
    *,
    dnodes: Tensor | None = None,
    dscores: Tensor | None = None,
    sample: bool,
    temperature: float = 1.0,
    precision: str = "ieee",
) -> Gradients:
    """Return the gradients of leaves, weight, bias and scaled query.

    Args:
        trees: of the forward pass, recorded.
        weight: `[5D, 2D]`.
        query: the scaled query `[D]`.
        layout: as in the forward pass.
        droot: gradient of the roots' h by rank `[B, D]`.
        dnodes: gradient of all nodes `[2 cap, 2D]`, each read at the layer where it is born.
        dscores: gradient of the scores `[B, T-1, T-1]`, zero where there is no candidate.
        sample: whether the forward pass sampled.
        temperature: as in the forward pass.
        precision: of the products: ieee, tf32 or bf16.
    """
    B, T, cap, D = layout.B, layout.T, layout.cap, query.shape[0]
    states, kind, device = trees.states, trees.states.dtype, trees.states.device
    scored = sample or dscores is not None

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=kind, device=device)

    G = zeros(2 * cap, 2 * D)
    if droot is not None:
        G[root_nodes(layout), :D] = droot.to(kind)
    dgates, merge_dgates = zeros(3 * cap, 5 * D), zeros(cap, 5 * D)
    sigma = zeros(3 * cap)
    tiles, words = -(-D // BD), layout.start[T:]
    v_h = v_c = numbers = dgates
    if scored and T > 1:
        v_c = torch.empty((3 * cap, 2 * D), dtype=kind, device=device)
        kernels.score_backward_kernel[(-(-3 * cap // BM), tiles)](
            query, states, trees.gates, trees.left, trees.right, trees.node_state, layout.start,
            words, dgates, v_c, cap, D=D, BM=BM, BD=BD,
        )  # fmt: skip
        v_h = dgates @ weight.to(kind)  # [3 cap, 2D]
        numbers = torch.empty((B, T, 2), dtype=kind, device=device)
    has_dnodes, has_dscores = dnodes is not None, dscores is not None
    extra = G if dnodes is None else dnodes
    outside = sigma if dscores is None else dscores
    BJ = max(16, 1 << T.bit_length())  # T nodes, and one lane more
    weight_t = weight.t().contiguous()

    def send(t: int) -> None:
        kernels.send_kernel[(B, -(-D // SEND_BD))](
            t, G, extra, states, trees.gates, merge_dgates, v_h, v_c, numbers, trees.y, trees.rows,
            trees.left, trees.right, trees.node_state, trees.chosen, trees.position, sigma, outside,
            layout.sentence, layout.lengths, layout.start, temperature, B, T, cap, D=D, BJ=BJ,
            BD=SEND_BD, SAMPLE=sample, HAS_DSCORES=has_dscores, HAS_DNODES=has_dnodes,
        )  # fmt: skip

    if T > 1:
        send(T - 1)
    for t in reversed(range(T - 1)):
        kernels.undo_kernel[(-(-B // UNDO[0]), -(-2 * D // UNDO[1]))](
            t, weight_t, G, merge_dgates, trees.left, trees.right, trees.chosen, layout.start,
            D=D, BM=UNDO[0], BN=UNDO[1], BK=UNDO[2], PRECISION=precision, num_warps=UNDO[3],
            num_stages=UNDO[4],
        )  # fmt: skip
        if sample:
            kernels.dots_kernel[(B, -(-(T - 1 - t) // DOTS[0]))](
                t, G, extra, states, trees.left, trees.right, trees.node_state, trees.position,
                trees.rows, numbers, layout.lengths, layout.start, B, T, cap, D=D, BJ=DOTS[0],
                BK=DOTS[1], HAS_DNODES=has_dnodes,
            )  # fmt: skip
        if scored or t > 0:
            send(t)
    if scored:
        dgates *= sigma[:, None]
    # merges that are none have no gradient, and candidate 0 is none
    dgates.index_add_(0, trees.chosen.long(), merge_dgates)
    row = torch.arange(cap, device=device)
    is_word = (row < words)[:, None]
    dleaves = G[:cap] if dnodes is None else G[:cap] + dnodes[:cap]
    h = states[:, :D]
    children = [
        h[trees.node_state[side.clamp(min=0).long()].long()] for side in (trees.left, trees.right)
    ]
    return Gradients(
        torch.where(is_word, dleaves, 0.0),
        dgates.t() @ torch.cat(children, dim=1),
        dgates.sum(0),
        sigma @ h[cap:],
    )
