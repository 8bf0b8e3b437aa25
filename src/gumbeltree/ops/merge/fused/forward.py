"""Forward pass of `fused`: one kernel and one product per step.

All storage has a fixed capacity of rows and the host never waits for the device, so the whole pass
can be captured in a CUDA graph and replayed for other sentences:

- words: word t of the sentence of rank b is row start[t] + b, as in `Layout`;
- merges: the merge of step t has the row of word t + 1 of its sentence, r = start[t+1] + b;
- nodes: word r is node r, and merge r creates node cap + r;
- candidates: the pair of words that ends with word r is candidate r; merge r creates cap + 2r, left
  of the new node, and cap + 2r + 1, right of it; 0 means none, since no pair ends with word 0;
- states: word r is in row r, candidate c in row cap + c; `node_state` maps nodes to rows.

`Composer` composes the candidates; this one is that of the Tree-LSTM.
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

    def composer(self, leaves: Tensor, layout: Layout, record: bool, precision: str) -> "Composer":
        """Return the composer of a batch; for the arguments, see `forward`."""
        return Composer(self, leaves, layout, record, precision)


def prepared(cell: Any, query: Tensor, scale: float, precision: str) -> Operands:
    """Prepare the current weights of a cell and a query."""
    with torch.no_grad(), torch.autocast(query.device.type, enabled=False):
        both, bias = torch.cat(cell.weight.split(query.shape[0], dim=1)), cell.gate_bias()
        scaled = query if scale == 1 else query * scale
        return Operands(
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
    """States of words and candidates, `[4 cap, 2D]`; `[4 cap, D]` if a node has a single state."""
    gates: Tensor
    """Activated gates of the candidates, `[3 cap, 5D]`; empty unless recorded. Other cells record
    other numbers."""
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
    """Softmax weights (Eq. 8) of `rows`, or their scores; see `Kernel` in estimators.py."""


def step_block(T: int, D: int) -> tuple[int, int, int]:
    """Return the block sizes, powers of two >= T and >= D, and the warps of `step_kernel`."""
    BT, BD = max(16, 1 << (T - 1).bit_length()), 1 << (D - 1).bit_length()
    return BT, BD, max(4, min(8, BD // 64 if T <= SHORT else max(BT, BD) // 128))


class Composer:
    """Composes and scores the candidates of a batch."""

    def __init__(
        self, operands: Operands, leaves: Tensor, layout: Layout, record: bool, precision: str
    ) -> None:
        self.operands, self.layout, self.record = operands, layout, record
        D = self.D = operands.query.shape[0]
        cap = layout.cap
        self.states = leaves.new_empty((4 * cap, 2 * D))
        self.states[:cap].copy_(leaves)
        self.gates = leaves.new_empty((3 * cap if record else 0, 5 * D))
        # products of each node with the weights, as left child (including the bias) and right child
        self.gates_lr = leaves.new_empty((2 * cap, 10 * D))
        product(
            self.states[:cap, :D],
            operands.both.t(),
            precision,
            out=self.gates_lr[:cap],
            bias=operands.bias,
        )
        self.tile = tile_for(PROJECT, precision, leaves, D if layout.dense else 0)
        self.dots = dot_precision(precision)
        self.chain = chain_options(leaves, precision)

    def compose_words(self, search: "Search") -> None:
        """Compose and score every adjacent pair of words."""
        D, cap, at = self.D, self.layout.cap, self.layout.tables
        BM, units, warps = FIRST
        pieces = self.states.new_empty((cap, -(-D // units)))
        kernels.first_layer_kernel[(-(-cap // BM), pieces.shape[1])](
            self.gates_lr, self.operands.query, self.states, self.gates, pieces, at.start,
            at.previous, self.layout.T, cap, D=D, BM=BM, BD=units, TILES=pieces.shape[1],
            RECORD=self.record, num_warps=warps,
        )  # fmt: skip
        torch.sum(pieces, 1, out=search.score[:cap])

    def step(self, t: int, search: "Search") -> None:
        """Compose the candidates next to the nodes of step t - 1; choose the merges of step t."""
        layout, at = self.layout, self.layout.tables
        BT, BD, warps = step_block(layout.T, self.D)
        kernels.step_kernel[(layout.B,)](
            t, *search.arguments, self.gates_lr, self.operands.query, self.states, self.gates,
            at.lengths, at.start, layout.sentence, self.operands.size, search.temperature,
            layout.B, layout.T, layout.cap, D=self.D, BD=BD, BT=BT, BEGIN=t == 0,
            RECORD=self.record, **search.options, num_warps=warps,
            **(self.chain if t > 0 else {"CHAIN": False}),
        )  # fmt: skip

    def project(self, t: int, search: "Search") -> None:
        """Multiply the nodes of step t by the weights."""
        layout, tile = self.layout, self.tile
        kernels.project_kernel[(-(-layout.B // tile.BM), -(-10 * self.D // tile.BN))](
            t, self.operands.narrow, self.operands.bias, self.states, self.gates_lr,
            search.node_state, layout.tables.start, layout.cap, D=self.D, BM=tile.BM, BN=tile.BN,
            BK=tile.BK, PRECISION=self.dots, num_warps=tile.warps, num_stages=tile.stages,
            **self.chain,
        )  # fmt: skip


class Search:
    """Storage of the choice of merges, whatever the cell; for the arguments, see `forward`."""

    def __init__(
        self,
        layout: Layout,
        leaves: Tensor,
        noise: Tensor | None,
        forced: Tensor | None,
        temperature: Tensor | None,
        record: bool,
        keep_scores: bool,
        noise_scale: float,
        softmax: bool,
    ) -> None:
        B, T, cap = layout.B, layout.T, layout.cap
        at, kind, device = layout.tables, leaves.dtype, leaves.device
        sample = noise is not None

        def integers(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.int32, device=device)

        self.score = torch.empty(3 * cap, dtype=kind, device=device)
        self.left, self.right, self.node_state = (integers(n * cap) for n in (3, 3, 2))
        self.chosen, self.position = integers(cap), integers(cap)
        node, cand = integers(2, B, T), integers(2, B, T)
        self.order = torch.empty((B, T - 1), dtype=torch.int64, device=device)
        kernels.begin_kernel[(-(-max(3 * cap, B * T) // BLOCK),)](
            self.left, self.right, self.node_state, node, cand, self.order, at.previous, at.start,
            B, T, cap, BLOCK=BLOCK,
        )  # fmt: skip
        # entries outside a layer are never read
        self.rows = integers(T - 1 if record else 0, B, T - 1)
        self.y = torch.empty(self.rows.shape if sample else (0,), dtype=kind, device=device)
        shape = (B, T - 1, T - 1) if keep_scores else (0,)
        self.scores = torch.full(shape, -torch.inf, dtype=kind, device=device)
        self.temperature = self.score if temperature is None else temperature
        self.arguments = (
            *(cand, node, self.score, self.score if noise is None else noise),
            *(self.order if forced is None else forced, self.order, self.rows, self.y),
            *(self.scores, self.chosen, self.position, self.node_state, self.left, self.right),
        )
        """Arguments of `choose` in forward_kernels.py."""
        self.options = {
            "SLACK": ROUNDING * torch.finfo(kind).eps,
            "SAMPLE": sample,
            "FROM_KEYS": noise is not None and noise.dtype == torch.int64,
            "NOISE_SCALE": noise_scale,
            "SOFTMAX": softmax,
            "FORCED": forced is not None,
            "KEEP_SCORES": keep_scores,
        }

    def trees(self, composer: Any) -> Trees:
        """Return the result."""
        return Trees(
            *(self.order, self.scores, composer.states, composer.gates, self.left, self.right),
            *(self.node_state, self.chosen, self.position, self.rows, self.y),
        )


def forward(
    leaves: Tensor,
    operands: Any,
    layout: Layout,
    *,
    noise: Tensor | None = None,
    forced: Tensor | None = None,
    temperature: Tensor | None = None,
    record: bool = False,
    keep_scores: bool = False,
    precision: str = "ieee",
    noise_scale: float = 1.0,
    softmax: bool = True,
) -> Trees:
    """Run all merges of a batch.

    Args:
        leaves: States of the words `[cap, 2D]`; rows past the words are ignored.
        operands: Weights, from `prepared` of a cell.
        layout: Layout of the words.
        noise: Noise for sampling, in the caller's order: `[B, T-1, T-1]`, or keys, int64 `[B, 2]`
            (`noise.keyed_noise`).
        forced: Merge orders to follow, int64 `[B, T-1]`.
        temperature: Temperature of Eq. 8, a scalar on the device; required to record with noise.
        record: Whether to record what the backward pass needs.
        keep_scores: Whether to return all scores.
        precision: Precision of the products: ieee, tf32 or bf16.
        noise_scale: Factor of the noise.
        softmax: Whether to record softmax weights instead of scores.
    """
    composer = operands.composer(leaves, layout, record, precision)
    search = Search(
        layout, leaves, noise, forced, temperature, record, keep_scores, noise_scale, softmax
    )
    if layout.T > 1:
        composer.compose_words(search)
    for t in range(layout.T - 1):
        composer.step(t, search)
        if t + 3 <= layout.T:
            composer.project(t, search)
    return search.trees(composer)
