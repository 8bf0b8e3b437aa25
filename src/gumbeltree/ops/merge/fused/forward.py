"""Forward pass of `fused`: one kernel and one product per step.

All storage has a fixed capacity of rows and the host never waits for the device, so the whole pass
can be captured in a CUDA graph and replayed for other sentences:

- words: word t of the sentence of rank b is row start[t] + b, as in `Layout`;
- merges: the merge of step t has the row of word t + 1 of its sentence, r = start[t+1] + b;
- nodes: word r is node r, and merge r creates node cap + r;
- candidates: the pair of words that ends with word r is candidate r; merge r creates cap + 2r, left
  of the new node, and cap + 2r + 1, right of it; 0 means none, since no pair ends with word 0;
- states: word r is in row r, candidate c in row cap + c; `node_state` maps nodes to rows.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gumbeltree.device.triton_support import (
    Tile,
    chain_options,
    dot_precision,
    operand,
    product,
    tile_for,
)
from gumbeltree.layout import Layout
from gumbeltree.ops.merge.fused import forward_kernels as kernels

FIRST = (4, 128, 4)
"""Rows, units and warps per program of the first layer."""
# measured on an H200
PROJECT = {
    "tf32": Tile(128, 64, 32, 8, 6),
    "wide": Tile(128, 128, 32, 8, 4),
    "ieee": Tile(32, 64, 32, 4, 3),
}
"""Tiles of the product of a step; "wide" in dense layouts only."""
SHORT = 32
"""Up to this T, `step_kernel` uses more warps, since most sentences are active in most steps."""
BLOCK = 1024
"""Elements per program of `begin_kernel`."""
ROUNDING = 16
"""Scores within this many machine epsilons of the best count as equal; see ops/merge/argmax.py."""


class Operands(NamedTuple):
    """Weights in the form that the kernels and products need."""

    both: Tensor
    """The halves of the weight for left and right children, stacked, `[10D, D]`."""
    narrow: Tensor
    """`both` in the dtype of the products."""
    bias: Tensor
    """The bias including the forget offset, then zeros, `[10D]`."""
    query: Tensor
    """The scaled query `[D]`."""
    size: Tensor
    """Norm of the scaled query."""

    @classmethod
    def of(cls, cell: Any, query: Tensor, scale: float, precision: str) -> "Operands":
        """Prepare the current weights of a cell and a query."""
        with torch.no_grad(), torch.autocast(query.device.type, enabled=False):
            both, bias = torch.cat(cell.weight.split(query.shape[0], dim=1)), cell.gate_bias()
            scaled = query if scale == 1 else query * scale
            return cls(
                both,
                operand(both, precision),
                torch.cat([bias, torch.zeros_like(bias)]),
                scaled,
                scaled.norm(),
            )


class Trees(NamedTuple):
    """Result of the forward pass and record for the backward pass."""

    order: Tensor
    """Position of each merge, int64 `[B, T-1]`, -1 past the end; in the caller's order."""
    scores: Tensor
    """Scores `[B, T-1, T-1]` in the caller's order, -inf without a candidate; empty unless kept."""
    states: Tensor
    """States of words and candidates, `[4 cap, 2D]`."""
    gates: Tensor
    """Activated gates of the candidates, `[3 cap, 5D]`; empty unless recorded."""
    left: Tensor
    """Left child of each candidate, a node, int32 `[3 cap]`; -1 for none."""
    right: Tensor
    """Right child of each candidate, int32 `[3 cap]`."""
    node_state: Tensor
    """Row of each node in `states`, int32 `[2 cap]`."""
    chosen: Tensor
    """Candidate of each merge, int32 `[cap]`."""
    position: Tensor
    """Position of each merge, int32 `[cap]`."""
    rows: Tensor
    """Candidate by step, rank and position, int32 `[T-1, B, T-1]`; empty unless recorded."""
    y: Tensor
    """Softmax weights (Eq. 8) of `rows`."""


def step_block(T: int, D: int) -> tuple[int, int, int]:
    """Return the block sizes, powers of two >= T and >= D, and the warps of `step_kernel`."""
    BT, BD = max(16, 1 << (T - 1).bit_length()), 1 << (D - 1).bit_length()
    return BT, BD, max(4, min(8, BD // 64 if T <= SHORT else max(BT, BD) // 128))


def forward(
    leaves: Tensor,
    operands: Operands,
    layout: Layout,
    *,
    noise: Tensor | None = None,
    forced: Tensor | None = None,
    temperature: Tensor | None = None,
    record: bool = False,
    keep_scores: bool = False,
    precision: str = "ieee",
) -> Trees:
    """Run all merges of a batch.

    Args:
        leaves: States of the words `[cap, 2D]`; rows past the words are ignored.
        operands: Weights.
        layout: Layout of the words.
        noise: Noise for sampling, in the caller's order: `[B, T-1, T-1]`, or keys, int64 `[B, 2]`
            (`noise.keyed_noise`).
        forced: Merge orders to follow, int64 `[B, T-1]`.
        temperature: Temperature of Eq. 8, a scalar on the device; required to record with noise.
        record: Whether to record what the backward pass needs.
        keep_scores: Whether to return all scores.
        precision: Precision of the products: ieee, tf32 or bf16.
    """
    B, T, cap = layout.B, layout.T, layout.cap
    at = layout.tables
    both, narrow, bias, query, size = operands
    D = query.shape[0]
    kind, device = leaves.dtype, leaves.device
    sample = noise is not None

    def empty(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=kind, device=device)

    def integers(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int32, device=device)

    states = empty(4 * cap, 2 * D)
    states[:cap].copy_(leaves)
    gates = empty(3 * cap if record else 0, 5 * D)
    score = empty(3 * cap)
    # products of each node with the weights, as left child (including the bias) and right child
    gates_lr = empty(2 * cap, 10 * D)
    product(states[:cap, :D], both.t(), precision, out=gates_lr[:cap], bias=bias)
    left, right, node_state = integers(3 * cap), integers(3 * cap), integers(2 * cap)
    chosen, position = integers(cap), integers(cap)
    node, cand = integers(2, B, T), integers(2, B, T)
    order = torch.empty((B, T - 1), dtype=torch.int64, device=device)
    kernels.begin_kernel[(-(-max(3 * cap, B * T) // BLOCK),)](
        left, right, node_state, node, cand, order, at.previous, at.start, B, T, cap,
        BLOCK=BLOCK,
    )  # fmt: skip
    # entries outside a layer are never read
    rows = integers(T - 1 if record else 0, B, T - 1)
    y = torch.empty(rows.shape if sample else (0,), dtype=kind, device=device)
    shape = (B, T - 1, T - 1) if keep_scores else (0,)
    scores = torch.full(shape, -torch.inf, dtype=kind, device=device)
    if T == 1:
        return Trees(
            order, scores, states, gates, left, right, node_state, chosen, position, rows, y
        )

    BM, units, warps = FIRST
    pieces = empty(cap, -(-D // units))
    kernels.first_layer_kernel[(-(-cap // BM), pieces.shape[1])](
        gates_lr, query, states, gates, pieces, at.start, at.previous, T, cap, D=D, BM=BM,
        BD=units, TILES=pieces.shape[1], RECORD=record, num_warps=warps,
    )  # fmt: skip
    torch.sum(pieces, 1, out=score[:cap])
    slack = ROUNDING * torch.finfo(kind).eps
    BT, BD, warps = step_block(T, D)
    tile = tile_for(PROJECT, precision, leaves, D if layout.dense else 0)
    dots = dot_precision(precision)
    chain = chain_options(leaves, precision)
    for t in range(T - 1):
        kernels.step_kernel[(B,)](
            t, cand, node, score, score if noise is None else noise,
            order if forced is None else forced, order, rows, y, scores, chosen, position,
            node_state, left, right, gates_lr, query, states, gates, at.lengths, at.start,
            layout.sentence, size, size if temperature is None else temperature, B, T, cap,
            SLACK=slack, D=D, BD=BD, BT=BT, BEGIN=t == 0, SAMPLE=sample,
            FROM_KEYS=noise is not None and noise.dtype == torch.int64,
            FORCED=forced is not None, RECORD=record, KEEP_SCORES=keep_scores, num_warps=warps,
            **(chain if t > 0 else {"CHAIN": False}),
        )  # fmt: skip
        if t + 3 <= T:
            kernels.project_kernel[(-(-B // tile.BM), -(-10 * D // tile.BN))](
                t, narrow, bias, states, gates_lr, node_state, at.start, cap, D=D, BM=tile.BM,
                BN=tile.BN, BK=tile.BK, PRECISION=dots, num_warps=tile.warps,
                num_stages=tile.stages, **chain,
            )  # fmt: skip
    return Trees(order, scores, states, gates, left, right, node_state, chosen, position, rows, y)
