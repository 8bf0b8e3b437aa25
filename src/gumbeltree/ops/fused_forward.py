"""Forward pass of `fused`: one kernel that chooses and one that composes a step.

Everything is stored by rows of a fixed capacity, and nothing is read back from the device, so the
whole pass can be captured in a CUDA graph and replayed on other sentences:

- word t of the sentence of rank b is row start[t] + b, as in `Packing`;
- the merge that it makes at step t has the row of its word t + 1, r = start[t+1] + b;
- nodes: word r is r, the node made by merge r is cap + r;
- candidates: the pair of words that ends with word r is r, the two born by merge r are cap + 2r
  (left of the new node) and cap + 2r + 1; 0 is none, as word 0 ends no pair;
- states: of word r in row r, of candidate c in row cap + c; `node_state` has the row of each node.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gumbeltree.ops import fused_kernels as kernels
from gumbeltree.packing import Packing

BM, BD, BK = 64, 16, 32
"""Sentences, units and inner dimension of a tile."""
WARPS, STAGES = 8, 3
ROUNDING = 16
"""Scores within so many units of rounding of the best count as equal; see ops/argmax.py."""


@dataclass(frozen=True)
class Layout:
    """Where words stand; all tensors on the device, all sizes fixed.

    Attributes:
        B: sentences; T: most words of one; cap: rows for words.
        start: row of the first word at each position, and the number of words, int32 `[T + 1]`.
        lengths: words of each sentence, longest first, int32 `[B]`.
        sentence: the caller's place of each sentence, int64 `[B]`.
        previous: row of the word before each word, int32 `[cap]`; anything for first words.
    """

    B: int
    T: int
    cap: int
    start: Tensor
    lengths: Tensor
    sentence: Tensor
    previous: Tensor

    @classmethod
    def of(cls, packing: Packing) -> "Layout":
        """Return the layout of a packing, without spare rows."""
        device = packing.lengths.device
        start = torch.tensor(packing.start, dtype=torch.int32, device=device)
        return cls.from_start(packing.N, start, packing.lengths, packing.sentence)

    @classmethod
    def from_start(cls, cap: int, start: Tensor, lengths: Tensor, sentence: Tensor) -> "Layout":
        """Return a layout with the words before each word looked up on the device."""
        row = torch.arange(cap, dtype=torch.int32, device=start.device)
        position = torch.searchsorted(start, row, right=True) - 1  # [cap]
        position = position.clamp(max=len(start) - 2)
        before = row - start[position] + start[(position - 1).clamp(min=0)]
        B, T = len(lengths), len(start) - 1
        return cls(B, T, cap, start, lengths.int(), sentence, before.int())


class Trees(NamedTuple):
    """Result of the forward pass, and what the backward pass needs."""

    order: Tensor
    """int64 `[B, T-1]` in the caller's order, -1 past a sentence's end."""
    scores: Tensor
    """`[B, T-1, T-1]` in the caller's order, -inf without a candidate; empty unless kept."""
    states: Tensor
    """`[4 cap, 2D]`."""
    gates: Tensor
    """Activated gates of the candidates `[3 cap, 5D]`; empty unless recorded."""
    left: Tensor
    """Left child of each candidate, a node, int32 `[3 cap]`; -1 where there is no candidate."""
    right: Tensor
    """Its right child."""
    node_state: Tensor
    """Row of `states` of each node, int32 `[2 cap]`."""
    chosen: Tensor
    """Candidate of each merge, int32 `[cap]`."""
    position: Tensor
    """Its position, int32 `[cap]`."""
    rows: Tensor
    """Candidate at each position, by step and rank, int32 `[T-1, B, T-1]`; empty unless kept."""
    y: Tensor
    """Softmax weights of Eq. 8, laid out as `rows`."""


def forward(
    leaves: Tensor,
    weight: Tensor,
    bias: Tensor,
    query: Tensor,
    layout: Layout,
    *,
    noise: Tensor | None = None,
    forced: Tensor | None = None,
    temperature: float = 1.0,
    record: bool = False,
    keep_scores: bool = False,
    precision: str = "ieee",
) -> Trees:
    """Run all merges of a batch.

    Args:
        leaves: states of the words `[cap, 2D]`; rows beyond the words are never used.
        weight: `[5D, 2D]`.
        bias: `[5D]`, with the offset of the forget gates.
        query: the scaled query `[D]`.
        layout: where words stand.
        noise: `[B, T-1, T-1]` in the caller's order, for sampling.
        forced: merges to make, int64 `[B, T-1]`.
        temperature: of Eq. 8.
        record: keep what the backward pass needs.
        keep_scores: return all scores.
        precision: of the products: ieee, tf32 or bf16.
    """
    B, T, cap = layout.B, layout.T, layout.cap
    D = query.shape[0]
    tiles = -(-D // BD)
    kind, device = leaves.dtype, leaves.device
    sample = noise is not None

    def empty(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=kind, device=device)

    def integers(*shape: int, fill: int = 0) -> Tensor:
        return torch.full(shape, fill, dtype=torch.int32, device=device)

    # zero where there is no word or candidate: sums over all rows need no selection
    states = torch.zeros((4 * cap, 2 * D), dtype=kind, device=device)
    row = torch.arange(cap, dtype=torch.int32, device=device)
    leaves = torch.where((row < layout.start[T])[:, None], leaves, 0.0)
    states[:cap] = leaves
    gates = empty(3 * cap if record else 0, 5 * D)
    partial, score = empty(3 * cap, tiles), empty(3 * cap)
    # products of each node with the weights, as left child (with the bias) and as right child
    gates_lr = empty(2 * cap, 10 * D)
    both = torch.cat(weight.split(D, dim=1))  # [10D, D]
    torch.mm(leaves[:, :D], both.t(), out=gates_lr[:cap])
    gates_lr[:cap, : 5 * D] += bias
    none = integers(2 * cap, fill=-1)
    left, right = torch.cat([layout.previous, none]), torch.cat([row, none])
    node_state = torch.cat([row, row])
    chosen, position = integers(cap), integers(cap)
    rank = torch.arange(B, dtype=torch.int32, device=device)[:, None]
    node, cand = integers(2, B, T), integers(2, B, T)
    node[0] = layout.start[:-1] + rank
    cand[0, :, :-1] = layout.start[1:-1] + rank
    order = torch.full((B, T - 1), -1, device=device)
    rows = integers(T - 1 if record else 0, B, T - 1)
    y = torch.zeros(rows.shape if sample else (0,), dtype=kind, device=device)
    shape = (B, T - 1, T - 1) if keep_scores else (0,)
    scores = torch.full(shape, -torch.inf, dtype=kind, device=device)
    if T == 1:
        return Trees(
            order, scores, states, gates, left, right, node_state, chosen, position, rows, y
        )

    kernels.first_layer_kernel[(-(-cap // BM), tiles)](
        gates_lr, bias, query, states, gates, partial, left, layout.start, layout.previous,
        layout.start[T:], cap, D, BM=BM, BD=BD, TILES=tiles, RECORD=record,
    )  # fmt: skip
    score[:cap] = partial[:cap].sum(1)
    size = query.norm()
    slack = ROUNDING * torch.finfo(kind).eps
    BT = max(16, 1 << (T - 1).bit_length())
    for t in range(T - 1):
        kernels.select_kernel[(B,)](
            t, cand, node, score, partial, score if noise is None else noise,
            order if forced is None else forced, order, rows, y, scores, chosen, position,
            node_state, left, right, layout.lengths, layout.start, layout.sentence, size,
            temperature, B, T, cap, SLACK=slack, BT=BT,
            TILES=tiles, BTILES=1 << (tiles - 1).bit_length(), SAMPLE=sample,
            FORCED=forced is not None, RECORD=record, KEEP_SCORES=keep_scores, num_warps=1,
        )  # fmt: skip
        if t + 3 <= T:
            kernels.compose_kernel[(-(-B // BM), tiles)](
                t, weight, bias, query, states, gates_lr, gates, partial, node_state, left, right,
                layout.start, cap, D, BM=BM, BD=BD, BK=BK, TILES=tiles, RECORD=record,
                PRECISION=precision, num_warps=WARPS, num_stages=STAGES,
            )  # fmt: skip
    return Trees(order, scores, states, gates, left, right, node_state, chosen, position, rows, y)


def root_nodes(layout: Layout) -> Tensor:
    """Return the root node of each sentence by rank, int64 `[B]`."""
    rank = torch.arange(layout.B, device=layout.start.device)
    lengths = layout.lengths.long()
    made = layout.cap + layout.start[(lengths - 1).clamp(min=0)] + rank
    return torch.where(lengths > 1, made, rank)
