"""Forward pass of the gated recursive cell: three kernels per step.

The candidates of a step depend on its merge through two products, so a step runs in this order: the
gates of the last candidates are activated and the merge is chosen (`step_kernel`), the new node is
multiplied by W1 (`project_kernel`), and its two candidates by W2 (`gates_kernel`). Rows, nodes and
candidates are numbered as in ../forward.py.
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
from gumbeltree.ops.merge.fused.forward import Search, step_block
from gumbeltree.ops.merge.fused.gated import forward_kernels as kernels
from gumbeltree.ops.merge.fused.gated import record_width

PAIRS = (8, 128, 4)
"""Pairs, columns and warps per program of `pairs_kernel`."""
CODES = 128
"""Sentences per program of `word_codes_kernel`."""
NUMBERS = 1024
"""Numbers per program of kernels that handle whole states."""
PROJECT = {"tf32": Tile(64, 64, 32, 4, 4), "ieee": Tile(32, 64, 32, 4, 3)}
"""Tiles of the product of the nodes with W1."""
GATES = {"tf32": Tile(64, 32, 64, 4, 4), "ieee": Tile(32, 32, 32, 4, 3)}
"""Tiles of the product of the candidates with W2."""


class GatedOperands(NamedTuple):
    """Weights in the form that the kernels and products need."""

    both: Tensor
    """The halves of W1 for left and right children, stacked, `[2W, D]`."""
    narrow: Tensor
    """`both` in the dtype of the products."""
    bias: Tensor
    """b1, then zeros, `[2W]`."""
    narrow_out: Tensor
    """W2 in the dtype of the products, `[4D, W]`."""
    bias_out: Tensor
    """b2 `[4D]`."""
    gain: Tensor
    """Gain of the normalisation `[D]`."""
    shift: Tensor
    """Offset of the normalisation `[D]`."""
    query: Tensor
    """The scaled query `[D]`."""
    size: Tensor
    """Norm of the scaled query."""
    epsilon: float
    """Added to the variance in the normalisation."""
    off: float
    """Inner state of dropped units."""
    rate: float = 0.0
    """Share of the hidden units to drop."""
    keys: Tensor | None = None
    """Keys of the sentences for dropout, int64 `[B, 2]`; None for no dropout."""

    @property
    def scale(self) -> float:
        """Factor of the hidden units that are not dropped."""
        return 1 / (1 - self.rate)

    def composer(
        self, leaves: Tensor, layout: Layout, record: bool, precision: str
    ) -> "GatedComposer":
        """Return the composer of a batch; for the arguments, see `forward` in ../forward.py."""
        return GatedComposer(self, leaves, layout, record, precision)


def prepared(cell: Any, query: Tensor, scale: float, precision: str) -> GatedOperands:
    """Prepare the current weights of a cell and a query."""
    with torch.no_grad(), torch.autocast(query.device.type, enabled=False):
        both = torch.cat(cell.weight.split(query.shape[0], dim=1))
        weight_out, bias_out, gain, shift = (x.detach() for x in cell.others())
        scaled = query.detach() if scale == 1 else query * scale
        return GatedOperands(
            both,
            operand(both, precision),
            torch.cat([cell.bias, torch.zeros_like(cell.bias)]),
            operand(weight_out, precision),
            bias_out,
            gain,
            shift,
            scaled,
            scaled.norm(),
            cell.epsilon,
            cell.off,
        )


def rows_per_program(D: int) -> tuple[int, int, int]:
    """Return the rows of whole states per program, their width (a power of two) and the warps."""
    BD = max(16, 1 << (D - 1).bit_length())
    return max(1, NUMBERS // BD), BD, 4


class GatedComposer:
    """Composes and scores the candidates of a batch; `gates` holds the records."""

    def __init__(
        self, operands: GatedOperands, leaves: Tensor, layout: Layout, record: bool, precision: str
    ) -> None:
        self.operands, self.layout, self.record = operands, layout, record
        self.D, self.W = operands.query.shape[0], operands.narrow_out.shape[1]
        self.precision = precision
        cap, D, W = layout.cap, self.D, self.W
        self.states = leaves.new_empty((4 * cap, D))
        self.states[:cap].copy_(leaves)
        self.gates = leaves.new_empty((3 * cap if record else 0, record_width(W, D)))
        # products of each node with W1, as left child (including the bias) and right child
        self.gates_lr = leaves.new_empty((2 * cap, 2 * W))
        product(
            self.states[:cap],
            operands.both.t(),
            precision,
            out=self.gates_lr[:cap],
            bias=operands.bias,
        )
        # GELU of the inner states and gates of the candidates of one step
        self.inner = leaves.new_empty((2 * layout.B, W))
        self.new_gates = leaves.new_empty((2 * layout.B, 4 * D))
        self.sizes = {"D": D, "W": W, "REC": self.gates.shape[1], "RECORD": record}
        self.codes = self.states
        """Codes of the rows of `states`, for dropout; otherwise any tensor."""
        self.drops = {"LIMIT": 0, "SCALE": operands.scale, "OFF": operands.off}
        if operands.keys is not None:
            self.drops["LIMIT"] = int(operands.rate * 2**32)
            self.codes = torch.empty(4 * cap, dtype=torch.int64, device=leaves.device)
            kernels.word_codes_kernel[(layout.T, -(-layout.B // CODES))](
                operands.keys, layout.sentence, layout.tables.start, self.codes, BLOCK=CODES,
                num_warps=4,
            )  # fmt: skip
        self.tiles = [tile_for(tiles, precision, leaves) for tiles in (PROJECT, GATES)]
        self.dots = dot_precision(precision)
        self.chain = chain_options(leaves, precision)

    def compose_words(self, search: Search) -> None:
        """Compose and score every adjacent pair of words."""
        cap, T, at, x = self.layout.cap, self.layout.T, self.layout.tables, self.operands
        inner = self.states.new_empty((cap, self.W))
        BM, BN, warps = PAIRS
        kernels.pairs_kernel[(-(-cap // BM), -(-self.W // BN))](
            self.gates_lr, inner, self.gates, self.codes, at.start, at.previous, T, cap, W=self.W,
            REC=self.gates.shape[1], BM=BM, BN=BN, RECORD=self.record, **self.drops,
            num_warps=warps,
        )  # fmt: skip
        gates = product(inner, x.narrow_out.t().to(inner.dtype), self.precision, bias=x.bias_out)
        BM, BD, warps = rows_per_program(self.D)
        kernels.first_layer_kernel[(-(-cap // BM),)](
            gates, x.query, x.gain, x.shift, self.states, self.gates, search.score, at.start,
            at.previous, T, cap, EPSILON=x.epsilon, BM=BM, BD=BD, **self.sizes, num_warps=warps,
        )  # fmt: skip

    def step(self, t: int, search: Search) -> None:
        """Compose the candidates next to the nodes of step t - 1; choose the merges of step t."""
        layout, at, x = self.layout, self.layout.tables, self.operands
        BT, _, warps = step_block(layout.T, self.D)
        _, BD, _ = rows_per_program(self.D)
        kernels.step_kernel[(layout.B,)](
            t, *search.arguments, self.new_gates, x.query, x.gain, x.shift, self.states, self.gates,
            at.lengths, at.start, layout.sentence, x.size, search.temperature, layout.B, layout.T,
            layout.cap, EPSILON=x.epsilon, BD=BD, BT=BT, BEGIN=t == 0, **self.sizes,
            **search.options, num_warps=warps, **(self.chain if t > 0 else {"CHAIN": False}),
        )  # fmt: skip

    def project(self, t: int, search: Search) -> None:
        """Multiply the nodes of step t by W1 and their candidates by W2."""
        layout, start, x = self.layout, self.layout.tables.start, self.operands
        tile = self.tiles[0]
        kernels.project_kernel[(-(-layout.B // tile.BM), -(-2 * self.W // tile.BN))](
            t, x.narrow, x.bias, self.states, self.gates_lr, self.inner, self.gates, self.codes,
            search.left, search.right, search.node_state, start, layout.cap, BM=tile.BM, BN=tile.BN,
            BK=tile.BK, PRECISION=self.dots, **self.sizes, **self.drops, num_warps=tile.warps,
            num_stages=tile.stages, **self.chain,
        )  # fmt: skip
        tile = self.tiles[1]
        kernels.gates_kernel[(-(-2 * layout.B // tile.BM), -(-4 * self.D // tile.BN))](
            t, x.narrow_out, x.bias_out, self.inner, self.new_gates, start, W=self.W,
            COLUMNS=4 * self.D, BM=tile.BM, BN=tile.BN, BK=tile.BK, PRECISION=self.dots,
            num_warps=tile.warps, num_stages=tile.stages, **self.chain,
        )  # fmt: skip
