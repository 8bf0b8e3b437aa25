"""Backward pass of `fused`: undo the merges from the roots down, two small kernels per step.

The algorithm is that of `exact/backward.py` with the `Direct` method. The large products come
before and after the loop.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gumbeltree.device.triton_support import (
    WIDE,
    Tile,
    batched_product,
    chain_options,
    dot_precision,
    operand,
    product,
    tile_for,
)
from gumbeltree.layout import Layout
from gumbeltree.noise import is_keys
from gumbeltree.ops.merge.fused import backward_kernels as kernels
from gumbeltree.ops.merge.fused.estimators import ST_GUMBEL, Kernel
from gumbeltree.ops.merge.fused.forward import Operands, Trees
from gumbeltree.ops.merge.problem import MergeGradients

# measured on an H200
UNDO = {
    "tf32": Tile(64, 32, 64, 4, 3),
    "wide": Tile(64, 64, 64, 4, 3),
    "ieee": Tile(32, 32, 32, 4, 3),
}
PARTS = 3
"""Parts into which the sum over the gates is split, as whole sums would leave most of the GPU idle.
Twice as many for wide states in sparse layouts."""
SHARES = (2, 512, 8)
"""Candidates, units (at most) and warps per program of `score_backward_kernel`."""
UNITS = {"dense": 128, "sparse": 64}
"""Units per program of `send_kernel`, by layout."""
SEND = {"dense": (2, 1), "few": (4, 1), "many": (8, 4)}
"""Nodes and warps per program of `send_kernel`. Small programs are fastest, but in sparse layouts
most of them would have no work but still cost a launch."""
FEW = 8
"""In sparse layouts, layers of at most this many nodes count as `few`."""
SPAN = 2
"""Sentences per program that computes score gradients."""
SPLITS = 4
"""Parts of the sum over candidates in the gradient of the weight, if nothing runs in parallel."""


class Shares(NamedTuple):
    """Gradients per unit of each candidate's score gradient, independent of the layer.

    Attributes:
        dgates: Those of its gates, `[4 cap, 5D]`; the last cap rows are zero, for the merges.
        v_h: Those of h of both children, `[3 cap, 2D]`.
        v_c: Those of c of both children, `[3 cap, 2D]`.
        weight_t: The transposed weight `[2D, 5D]`, contiguous.
    """

    dgates: Tensor
    v_h: Tensor
    v_c: Tensor
    weight_t: Tensor


class Scores:
    """Score gradients of one layer at a time, whatever the cell; for the arguments, see `backward`.

    Attributes:
        sigma: Score gradient of each candidate, summed over the layers undone so far, `[3 cap]`.
        ds: Score gradients of a layer and the same shifted by one position, `[B, 2, T]`.
        numbers: Products of the nodes' gradients (see ../README.md), `[2, B, 2, pieces, T]`: those
            of a layer are read while those of the layer below are written.
    """

    def __init__(
        self,
        trees: Trees,
        layout: Layout,
        dscores: Tensor | None,
        sample: bool,
        temperature: Tensor | None,
        pieces: int,
        estimator: Kernel,
        noise: Tensor | None,
    ) -> None:
        B, T = layout.B, layout.T
        kind, device = trees.states.dtype, trees.states.device
        self.trees, self.layout, self.sample, self.pieces = trees, layout, sample, pieces
        self.given = (sample or dscores is not None) and T > 1
        self.sigma = self.ds = torch.zeros(3 * layout.cap, dtype=kind, device=device)
        self.temperature = self.sigma if temperature is None else temperature
        self.estimator, self.noise = estimator, self.sigma if noise is None else noise
        self.has_dscores = dscores is not None
        self.dscores = self.sigma if dscores is None else dscores
        shape = (2, B, 2, pieces, T) if sample else (2, 0)
        self.numbers = torch.empty(shape, dtype=kind, device=device)
        if self.given:
            self.ds = torch.empty((B, 2, T), dtype=kind, device=device)

    def arguments(self, t: int) -> tuple[Tensor, ...]:
        """Return the arguments of `undo_kernel` that score gradients need."""
        return (
            *(self.numbers[t % 2], self.trees.y, self.trees.position, self.noise, self.dscores),
            *(self.layout.sentence, self.temperature, self.layout.tables.lengths, self.ds),
        )

    def options(self, t: int) -> dict[str, Any]:
        """Return the constants of `undo_kernel` that score gradients need."""
        BT = max(16, 1 << (self.layout.T - t - 1).bit_length())
        return {
            "BT": BT,
            "PIECES": self.pieces,
            "SPAN": SPAN,
            "SAMPLE": self.sample,
            "HAS_DSCORES": self.has_dscores,
            "FROM_KEYS": is_keys(self.noise),
            "ESTIMATOR": self.estimator.name,
            "SETTING": self.estimator.setting,
            "DRAWS": self.estimator.points(BT),
        }

    def planes(self, programs: int) -> int:
        """Return how many planes of `programs` compute the score gradients."""
        return -(-self.layout.B // (SPAN * programs)) if self.given else 0


def score_shares(
    trees: Trees, weights: Sequence[Tensor], operands: Operands, layout: Layout, precision: str
) -> Shares:
    """Differentiate every score through the cell of its candidate: one kernel, one product."""
    weight, query = weights[0], operands.query
    T, cap, D = layout.T, layout.cap, query.shape[0]
    at = layout.tables
    dgates = trees.states.new_empty((4 * cap, 5 * D))
    v_c = trees.states.new_empty((3 * cap, 2 * D))
    BM, units, warps = SHARES
    BD = min(units, 1 << (D - 1).bit_length())
    kernels.score_backward_kernel[(-(-3 * cap // BM), -(-D // BD))](
        query, trees.states, trees.gates, trees.left, trees.right, trees.node_state, at.start,
        dgates, v_c, T, cap, D=D, BM=BM, BD=BD, num_warps=warps,
    )  # fmt: skip
    # TF32 is fastest if both operands are contiguous along the reduction
    weight_t = weight.t().contiguous()
    v_h = product(dgates[: 3 * cap], weight_t.t(), precision)
    return Shares(dgates, v_h, v_c, weight_t)


def backward(
    trees: Trees,
    weights: Sequence[Tensor],
    operands: Operands,
    layout: Layout,
    droot: Tensor | None,
    *,
    dnodes: Tensor | None = None,
    dscores: Tensor | None = None,
    sample: bool,
    temperature: Tensor | None = None,
    precision: str = "ieee",
    scale: float = 1.0,
    shares: Shares | None = None,
    estimator: Kernel = ST_GUMBEL,
    noise: Tensor | None = None,
) -> MergeGradients:
    """Return the gradients of leaves, weight, bias and query.

    Args:
        trees: Recorded result of the forward pass.
        weights: The weight `[5D, 2D]` and the bias.
        operands: As in the forward pass.
        layout: As in the forward pass.
        droot: Gradient of h of the sorted roots `[B, D]`.
        dnodes: Gradient of all nodes `[2 cap, 2D]`, each read at the layer where it is created;
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
    weight, query = weights[0], operands.query
    B, T, cap, D = layout.B, layout.T, layout.cap, query.shape[0]
    at = layout.tables
    states, kind, device = trees.states, trees.states.dtype, trees.states.device
    units = UNITS["dense" if layout.dense else "sparse"]
    pieces = -(-D // units)
    scores = Scores(trees, layout, dscores, sample, temperature, pieces, estimator, noise)
    scored, sigma = scores.given, scores.sigma

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=kind, device=device)

    # not zeroed: `roots_kernel` writes the roots, and undoing a merge writes its children
    G = torch.empty((2 * cap, 2 * D), dtype=kind, device=device)
    v_h = v_c = rest = sigma
    if scored:
        shares = shares or score_shares(trees, weights, operands, layout, precision)
        dgates, v_h, v_c, weight_t = shares
    else:
        dgates, weight_t = zeros(cap, 5 * D), weight.t()
    merge_dgates = dgates[-cap:]
    extra = G if dnodes is None else dnodes
    parts = PARTS if D <= WIDE or layout.dense else 2 * PARTS
    parts = parts if scored else 1
    if scored:
        rest = torch.empty((parts - 1, cap, 2 * D), dtype=kind, device=device)
    weight_t = operand(weight_t, precision)
    chain = chain_options(G, precision)

    def send(t: int) -> None:
        # the longest sentence has T - t nodes at this layer
        BJ, warps = SEND["dense" if layout.dense else "few" if T - t <= FEW else "many"]
        kernels.send_kernel[(B, pieces, -(-(T - t) // BJ) if scored else 1)](
            t, G, rest, extra, states, trees.gates, merge_dgates, v_h, v_c,
            scores.numbers[(t + 1) % 2], scores.ds, trees.rows, trees.left, trees.right,
            trees.node_state, trees.chosen, trees.position, sigma, at.lengths, at.start, B, T, cap,
            D=D, BJ=BJ, BD=units, PIECES=pieces, PARTS=parts, SCORED=scored, SAMPLE=sample,
            HAS_DNODES=dnodes is not None, num_warps=warps, **chain,
        )  # fmt: skip

    tile = tile_for(UNDO, precision, G, D)
    rows, columns = -(-B // tile.BM), -(-2 * D // tile.BN)
    planes = scores.planes(rows * columns)
    # launch nothing between this kernel and the loop, which is chained to it
    kernels.roots_kernel[(max(B, cap),)](
        G, G if droot is None else droot.to(kind).contiguous(), at.roots, at.start, B, T,
        D=D, STATE=2 * D, BD=1 << (D - 1).bit_length(), HAS_DROOT=droot is not None, num_warps=2,
    )  # fmt: skip
    if T > 1:
        send(T - 1)
    for t in reversed(range(T - 1)):
        kernels.undo_kernel[(rows, columns, parts + planes)](
            t, weight_t, G, rest, G, merge_dgates, trees.left, trees.right, trees.chosen, at.start,
            *scores.arguments(t), B, T, cap, D=D, STATE=2 * D, GATES=5 * D, BM=tile.BM,
            BN=tile.BN, BK=tile.BK, PARTS=parts,
            PRECISION=dot_precision(precision), HAS_DIRECT=False, **scores.options(t),
            num_warps=tile.warps, num_stages=tile.stages, **chain,
        )  # fmt: skip
        if scored or t > 0:
            send(t)
    dleaves = G[:cap] if dnodes is None else G[:cap] + dnodes[:cap]

    def weight_gradients() -> tuple[Tensor, Tensor, Tensor]:
        # all gate gradients times all children, with a constant one as the input of the bias
        width = -(-(2 * D + 1) // 4) * 4
        children = torch.empty((len(dgates), width), dtype=kind, device=device)
        kernels.children_kernel[(len(dgates),)](
            states, trees.left, trees.right, trees.node_state, trees.chosen, sigma, at.start,
            children, T, cap, len(dgates) - cap, D=D, STATE=2 * D, WIDTH=width,
            BW=1 << (width - 1).bit_length(), num_warps=2,
        )  # fmt: skip
        # Split the sum: a product of so few rows and columns would leave most of the GPU idle.
        # In parallel with the backward pass of the leaves, no split is needed.
        alone = layout.overlap is None and len(dgates) % SPLITS == 0
        parts = SPLITS if alone else 1
        both = batched_product(
            dgates.view(parts, -1, 5 * D).transpose(1, 2),
            children.view(parts, -1, width),
            precision,
        )
        sums = both.sum(0) if alone else both[0]  # [5D, width]
        dquery = (scale * sigma) @ states[cap:, :D] if scored else torch.zeros_like(query)
        return sums[:, : 2 * D].contiguous(), sums[:, 2 * D].contiguous(), dquery

    if layout.overlap is None:
        return MergeGradients(dleaves, *weight_gradients())
    # only the optimizer needs these, so other work can overlap with them
    return MergeGradients(dleaves, *layout.overlap.start(weight_gradients))
