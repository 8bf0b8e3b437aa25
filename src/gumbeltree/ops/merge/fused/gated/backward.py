"""Backward pass of the gated recursive cell: three small kernels per step.

As in ../backward.py, but the gradient of a merge passes through two products (`inner_kernel`,
`undo_kernel`), and part of it reaches the children without them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gumbeltree.device.triton_support import (
    Tile,
    batched_product,
    chain_options,
    dot_precision,
    operand,
    product,
    tile_for,
)
from gumbeltree.layout import Layout
from gumbeltree.ops.merge.fused import backward_kernels as shared
from gumbeltree.ops.merge.fused.backward import PARTS, SPLITS, Scores
from gumbeltree.ops.merge.fused.estimators import ST_GUMBEL, Kernel
from gumbeltree.ops.merge.fused.forward import Trees
from gumbeltree.ops.merge.fused.gated import backward_kernels as kernels
from gumbeltree.ops.merge.fused.gated.forward import PAIRS, GatedOperands, rows_per_program
from gumbeltree.ops.merge.problem import MergeGradients

INNER = {"tf32": Tile(64, 32, 64, 4, 4), "ieee": Tile(32, 32, 32, 4, 3)}
"""Tiles of the product of the gate gradients with W2."""
UNDO = {"tf32": Tile(64, 32, 64, 4, 3), "ieee": Tile(32, 32, 32, 4, 3)}
"""Tiles of the product of the gradients of the inner states with W1."""
BLOCK = 1024
"""Largest number of columns per program of `inner_rows_kernel`."""


class GatedShares(NamedTuple):
    """Gradients per unit of each candidate's score gradient, independent of the layer.

    Attributes:
        dgates: Those of its gates, `[4 cap, 4D]`; the last cap rows are zero, for the merges.
        dinner: Those of its inner states, `[4 cap, W]`, likewise.
        v: Those of both children, `[3 cap, 2D]`.
        weight_t: W1 transposed, `[2D, W]`, contiguous.
        weight_out_t: W2 transposed, `[W, 4D]`, contiguous.
    """

    dgates: Tensor
    dinner: Tensor
    v: Tensor
    weight_t: Tensor
    weight_out_t: Tensor


def score_shares(
    trees: Trees, weights: Sequence[Tensor], operands: GatedOperands, layout: Layout, precision: str
) -> GatedShares:
    """Differentiate every score through the cell of its candidate: two kernels, two products."""
    weight, _, weight_out, *_ = weights
    T, cap, at, states = layout.T, layout.cap, layout.tables, trees.states
    W, D, REC = weight.shape[0], states.shape[1], trees.gates.shape[1]
    dgates, dinner = states.new_empty((4 * cap, 4 * D)), states.new_empty((4 * cap, W))
    dgates[3 * cap :].zero_()
    dinner[3 * cap :].zero_()
    v = states.new_empty((3 * cap, 2 * D))
    BM, BD, warps = rows_per_program(D)
    kernels.score_backward_kernel[(-(-3 * cap // BM),)](
        operands.query, operands.gain, states, trees.gates, trees.left, trees.right,
        trees.node_state, at.start, dgates, v, T, cap, D=D, W=W, REC=REC, BM=BM, BD=BD,
        num_warps=warps,
    )  # fmt: skip
    # TF32 is fastest if both operands are contiguous along the reduction
    weight_t, weight_out_t = weight.t().contiguous(), weight_out.t().contiguous()
    through_gates = dinner[: 3 * cap]
    product(dgates[: 3 * cap], weight_out_t.t(), precision, out=through_gates)
    BM, BN, warps = PAIRS
    kernels.slope_kernel[(-(-3 * cap // BM), -(-W // BN))](
        through_gates, trees.gates, trees.left, trees.right, at.start, T, cap, W=W, REC=REC, BM=BM,
        BN=BN, SCALE=operands.scale, num_warps=warps,
    )  # fmt: skip
    product(through_gates, weight_t.t(), precision, out=v, bias=v)
    return GatedShares(dgates, dinner, v, weight_t, weight_out_t)


def backward(
    trees: Trees,
    weights: Sequence[Tensor],
    operands: GatedOperands,
    layout: Layout,
    droot: Tensor | None,
    *,
    dnodes: Tensor | None = None,
    dscores: Tensor | None = None,
    sample: bool,
    temperature: Tensor | None = None,
    precision: str = "ieee",
    scale: float = 1.0,
    shares: GatedShares | None = None,
    estimator: Kernel = ST_GUMBEL,
    noise: Tensor | None = None,
) -> MergeGradients:
    """Return the gradients of leaves, query and weights.

    Args:
        trees: Recorded result of the forward pass.
        weights: W1 `[W, 2D]` and b1 `[W]`, then the `others` of the cell.
        operands: As in the forward pass.
        layout: As in the forward pass.
        droot: Gradient of the sorted roots `[B, D]`.
        dnodes: Gradient of all nodes `[2 cap, D]`, each read at the layer where it is created;
            zero where there is no node.
        dscores: Gradient of the scores `[B, T-1, T-1]`, zero where there is no candidate.
        sample: Whether the forward pass sampled.
        temperature: As in the forward pass; required if it sampled.
        precision: Precision of the products: ieee, tf32 or bf16.
        scale: Scale of the query.
        shares: Result of `score_shares`, if it has already been started.
        estimator: Kernel of the estimator.
        noise: As in the forward pass; required if it sampled.
    """
    weight, _, weight_out, *_ = weights
    states, at = trees.states, layout.tables
    B, T, cap = layout.B, layout.T, layout.cap
    W, D, REC = weight.shape[0], states.shape[1], trees.gates.shape[1]
    scores = Scores(trees, layout, dscores, sample, temperature, 1, estimator, noise)
    scored, sigma = scores.given, scores.sigma
    # not zeroed: `roots_kernel` writes the roots, and undoing a merge writes its children
    G, direct = states.new_empty((2 * cap, D)), states.new_empty((cap, 2 * D))
    parents = torch.zeros_like(direct)
    v = rest = sigma
    if scored:
        shares = shares or score_shares(trees, weights, operands, layout, precision)
        dgates, dinner, v, weight_t, weight_out_t = shares
    else:
        dgates, dinner = states.new_zeros((cap, 4 * D)), states.new_zeros((cap, W))
        weight_t, weight_out_t = weight.t(), weight_out.t()
    weight_t, weight_out_t = operand(weight_t, precision), operand(weight_out_t, precision)
    merge_dgates, merge_dinner = dgates[-cap:], dinner[-cap:]
    extra = G if dnodes is None else dnodes
    parts = PARTS if scored else 1
    if scored:
        rest = states.new_empty((parts - 1, cap, 2 * D))
    dots, chain = dot_precision(precision), chain_options(G, precision)
    BJ, BD, warps = rows_per_program(D)

    def send(t: int) -> None:
        # the longest sentence has T - t nodes at this layer
        kernels.send_kernel[(B, -(-(T - t) // BJ) if scored else 1)](
            t, G, rest, direct, extra, operands.gain, states, trees.gates, merge_dgates, parents, v,
            scores.numbers[(t + 1) % 2], scores.ds, trees.rows, trees.left, trees.right,
            trees.node_state, trees.chosen, trees.position, sigma, at.lengths, at.start, B, T, cap,
            D=D, W=W, REC=REC, BJ=BJ, BD=BD, PARTS=parts, SCORED=scored, SAMPLE=sample,
            HAS_DNODES=dnodes is not None, num_warps=warps, **chain,
        )  # fmt: skip

    inner, undo = tile_for(INNER, precision, G), tile_for(UNDO, precision, G)
    rows, columns = -(-B // undo.BM), -(-2 * D // undo.BN)
    planes = scores.planes(rows * columns)
    # launch nothing between this kernel and the loop, which is chained to it
    shared.roots_kernel[(max(B, cap),)](
        G, G if droot is None else droot.to(G.dtype).contiguous(), at.roots, at.start, B, T,
        D=D, STATE=D, BD=BD, HAS_DROOT=droot is not None, num_warps=2,
    )  # fmt: skip
    if T > 1:
        send(T - 1)
    for t in reversed(range(T - 1)):
        kernels.inner_kernel[(-(-B // inner.BM), -(-W // inner.BN))](
            t, weight_out_t, merge_dgates, merge_dinner, trees.gates, trees.chosen, at.start, W=W,
            REC=REC, COLUMNS=4 * D, BM=inner.BM, BN=inner.BN, BK=inner.BK, SCALE=operands.scale,
            PRECISION=dots, num_warps=inner.warps, num_stages=inner.stages, **chain,
        )  # fmt: skip
        shared.undo_kernel[(rows, columns, parts + planes)](
            t, weight_t, G, rest, direct, merge_dinner, trees.left, trees.right, trees.chosen,
            at.start, *scores.arguments(t), B, T, cap, D=D, STATE=D, GATES=W, BM=undo.BM,
            BN=undo.BN, BK=undo.BK, PARTS=parts, PRECISION=dots, HAS_DIRECT=True,
            **scores.options(t), num_warps=undo.warps, num_stages=undo.stages, **chain,
        )  # fmt: skip
        if scored or t > 0:
            send(t)
    dleaves = G[:cap] if dnodes is None else G[:cap] + dnodes[:cap]

    def weight_gradients() -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, ...]]:
        # all gradients of a product's output times all its inputs, with a constant one for the bias
        count = len(dgates)
        merges = count - cap
        width, width_out = (-(-(n + 1) // 4) * 4 for n in (2 * D, W))
        children, hidden = states.new_empty((count, width)), states.new_empty((count, width_out))
        shared.children_kernel[(count,)](
            states, trees.left, trees.right, trees.node_state, trees.chosen, sigma, at.start,
            children, T, cap, merges, D=D, STATE=D, WIDTH=width,
            BW=1 << (width - 1).bit_length(), num_warps=2,
        )  # fmt: skip
        BN = min(BLOCK, 1 << (width_out - 1).bit_length())
        kernels.inner_rows_kernel[(count, -(-width_out // BN))](
            trees.gates, trees.left, trees.right, trees.chosen, sigma, at.start, hidden, T, cap,
            merges, W=W, REC=REC, WIDTH=width_out, BN=BN, SCALE=operands.scale, num_warps=4,
        )  # fmt: skip
        # in parallel with the backward pass of the leaves, no split is needed
        split = SPLITS if layout.overlap is None and count % SPLITS == 0 else 1

        def sums(gradients: Tensor, inputs: Tensor, n: int) -> tuple[Tensor, Tensor]:
            both = batched_product(
                gradients.view(split, -1, gradients.shape[1]).transpose(1, 2),
                inputs.view(split, -1, inputs.shape[1]),
                precision,
            ).sum(0)
            return both[:, :n].contiguous(), both[:, n].contiguous()

        dweight, dbias = sums(dinner, children, 2 * D)
        dweight_out, dbias_out = sums(dgates, hidden, W)
        dshift, dgain = parents.sum(0).split(D)
        dquery = torch.zeros_like(operands.query)
        if scored:
            # a candidate's state is its normalised state times the gain, plus the shift
            normal, total = sigma @ trees.gates[:, W + 4 * D : W + 5 * D], sigma.sum()
            dgain, dshift = dgain + operands.query * normal, dshift + operands.query * total
            dquery = scale * (normal * operands.gain + total * operands.shift)
        others = (dweight_out, dbias_out, dgain.contiguous(), dshift.contiguous())
        return dweight, dbias, dquery, others

    if layout.overlap is None:
        return MergeGradients(dleaves, *weight_gradients())
    # only the optimizer needs these, so other work can overlap with them
    return MergeGradients(dleaves, *layout.overlap.start(weight_gradients))
