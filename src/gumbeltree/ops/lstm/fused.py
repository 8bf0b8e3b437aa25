"""An LSTM over rows of words: one Triton kernel a step forward, two backward.

Sizes that shape a launch (`steps`, `rows`) are numbers of the host; how many sentences are still
running is read on the device. So nothing waits for the device, and a caller may capture the loop
in a CUDA graph and replay it for other lengths within the same bounds.
"""

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gumbeltree.device.overlap import Overlap
from gumbeltree.device.triton_support import (
    Tile,
    chain_options,
    dot_precision,
    operand,
    product,
    tile_for,
)
from gumbeltree.ops.first_derivative import OnlyFirst

PRECISIONS = ("ieee", "tf32", "bf16")

# Measured on one H200. A step is bound by how fast each multiprocessor gets its part of W_hh and of
# the states from the L2 cache. Tensor cores of that generation work on 64 rows at a time.
FORWARD = {"tf32": Tile(64, 16, 64, 4, 3), "ieee": Tile(16, 16, 16, 4, 3)}
BACKWARD = {
    "tf32": Tile(64, 64, 64, 4, 4),
    "wide": Tile(128, 64, 64, 8, 3),
    "ieee": Tile(32, 32, 32, 4, 3),
}
PARTS = 5
"""Parts of the sum over the gates, backward."""
CLEARED = 8
"""Rows of a program that clears."""
CELL = (8, 64, 2)
"""Sentences, units and warps of a program of the elementwise part."""


class Plan(NamedTuple):
    """How a pass is launched, the same for each of its steps.

    Attributes:
        steps: positions.
        rows: bound of the sentences.
        back: -1, or 1 if read from the last word to the first.
        precision: of the products.
        overlap: a second stream for the weight's gradient.
    """

    steps: int
    rows: int
    back: int
    precision: str
    overlap: Overlap | None = None

    def positions(self) -> range:
        """Return the positions in reading order."""
        return range(self.steps) if self.back < 0 else range(self.steps - 1, -1, -1)

    def grid(self, D: int, BM: int, BD: int) -> tuple[int, int]:
        """Return the number of tiles of sentences and of units."""
        return -(-self.rows // BM), -(-D // BD)

    def options(self, tile: Tile) -> dict[str, Any]:
        """Return what the kernels take as constants."""
        return {
            "BACK": self.back,
            "PRECISION": dot_precision(self.precision),
            "BM": tile.BM,
            "BK": tile.BK,
            "num_warps": tile.warps,
            "num_stages": tile.stages,
        }


def lstm(
    inputs: Tensor,
    weight_hh: Tensor,
    start: Tensor,
    steps: int,
    rows: int,
    reverse: bool = False,
    precision: str = "ieee",
    overlap: Overlap | None = None,
) -> Tensor:
    """Run an LSTM over packed words from a zero state.

    The gates stand in the order i, f, g, o. N may exceed the number of words: rows from
    start[steps] on are never read, and their states and gradients are zero.

    Args:
        inputs: W_ih x + b_ih + b_hh of the words `[N, 4D]`, float32 (float64 in the interpreter).
        weight_hh: `[4D, D]`, of the same type.
        start: row of the first word at each position, and the number of words at the end, int32
            `[steps + 1]` on the device. Positions past the longest sentence are empty.
        steps: bound T of the longest sentence.
        rows: bound B of the sentences; there must not be more.
        reverse: read from the last word to the first.
        precision: of the matrix products, "ieee", "tf32" or "bf16"; all else is in the type of
            `inputs`. The weight's gradient is one product of torch, whose setting decides
            between IEEE and TF32.
        overlap: see `Layout`; only the optimizer waits for the weight's gradient.

    Returns:
        h and c of each word, side by side, `[N, 2D]`; once differentiable in `inputs` and
        `weight_hh`.
    """
    D = weight_hh.shape[1]
    if precision not in PRECISIONS:
        raise ValueError(f"`precision` must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    if weight_hh.shape[0] != 4 * D or inputs.shape[1:] != (4 * D,):
        raise ValueError(
            f"`inputs` must be [N, 4D] and `weight_hh` [4D, D], got {list(inputs.shape)} and "
            f"{list(weight_hh.shape)}"
        )
    if start.shape != (steps + 1,):
        raise ValueError(f"`start` must be [steps + 1] = [{steps + 1}], got {list(start.shape)}")
    if inputs.dtype != weight_hh.dtype or inputs.dtype not in (torch.float32, torch.float64):
        raise TypeError(
            f"`inputs` and `weight_hh` must both be float32, got {inputs.dtype} and "
            f"{weight_hh.dtype}; under autocast convert `inputs` back"
        )
    plan = Plan(steps, rows, 1 if reverse else -1, precision, overlap)
    if torch.is_grad_enabled() and (inputs.requires_grad or weight_hh.requires_grad):
        states: Tensor = LSTM.apply(inputs, weight_hh, start, plan)
        return states
    return forward(inputs, weight_hh, start, plan, save=False)[0]


class LSTM(torch.autograd.Function):
    """`forward` and `backward` below, for autograd."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, start: Tensor, plan: Plan) -> Tensor:
        """Return the states."""
        states, gates = forward(inputs, weight, start, plan, save=True)
        ctx.save_for_backward(weight, start, states, gates)
        ctx.plan = plan
        return states

    @staticmethod
    def backward(ctx: Any, dstates: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of `inputs` and `weight`."""
        weight, start, states, gates = ctx.saved_tensors
        with torch.no_grad(), torch.autocast(weight.device.type, enabled=False):
            dinputs, dweight = backward(
                weight, start, states, gates, dstates, ctx.plan, ctx.needs_input_grad[1]
            )
        if torch.is_grad_enabled():
            found = [x for x in (dinputs, dweight) if x is not None]
            found = list(OnlyFirst.apply("fused", len(found), *found, weight, states, dstates))
            dinputs, dweight = found[0], found[1] if dweight is not None else None
        return dinputs, dweight, None, None


def forward(
    inputs: Tensor, weight: Tensor, start: Tensor, plan: Plan, save: bool
) -> tuple[Tensor, Tensor]:
    """Return h and c `[N, 2D]` and, if `save`, the gates after activation `[N, 4D]`."""
    from gumbeltree.ops.lstm import kernels as kernels

    N, D = inputs.shape[0], weight.shape[1]
    inputs, factor = inputs.contiguous(), operand(weight, plan.precision)
    states = inputs.new_empty((N, 2 * D))
    gates = torch.empty_like(inputs) if save else inputs.new_empty(0)
    tile = tile_for(FORWARD, plan.precision, inputs, D, columns=4)
    options = {"BD": tile.BN, **plan.options(tile), **chain_options(inputs, plan.precision)}
    grid = plan.grid(D, tile.BM, tile.BN)
    # Triton launches on the current device, whichever the tensors are on
    with torch.cuda.device_of(inputs):
        # before the loop, and a kernel: the chain begins behind it
        clear(states, start)
        for t in plan.positions():
            kernels.lstm_fwd_kernel[grid](
                inputs, factor, start, states, gates, t, plan.steps, D=D, SAVE=save, **options
            )
    return states, gates


def backward(
    weight: Tensor,
    start: Tensor,
    states: Tensor,
    gates: Tensor,
    dstates: Tensor,
    plan: Plan,
    dweight_needed: bool,
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of `inputs` `[N, 4D]` and, if needed, of `weight` `[4D, D]`."""
    from gumbeltree.ops.lstm import kernels as kernels

    N, D = states.shape[0], weight.shape[1]
    factor = operand(weight.t(), plan.precision)
    dstates = dstates.contiguous()
    carried = states.new_empty((N, D))
    dgates = torch.empty_like(gates)
    before = states.new_empty((N, D) if dweight_needed else (0, D))
    parts = states.new_empty((PARTS, plan.rows, D))
    tile = tile_for(BACKWARD, plan.precision, states, D)
    chain = chain_options(states, plan.precision)
    options = {"BN": tile.BN, "PARTS": PARTS, **plan.options(tile), **chain}
    BM, BD, warps = CELL
    with torch.cuda.device_of(gates):
        # rows past the words take part in what follows
        clear(dgates, start)
        clear(before, start)
        for i, t in enumerate(reversed(plan.positions())):
            if i > 0:
                kernels.lstm_bwd_product_kernel[(*plan.grid(D, tile.BM, tile.BN), PARTS)](
                    factor, start, dgates, parts, t, plan.steps, plan.rows, D=D, **options
                )
            kernels.lstm_bwd_kernel[plan.grid(D, BM, BD)](
                start, states, gates, dstates, carried, parts, dgates, before,
                t, plan.steps, plan.rows, D=D, BACK=plan.back, GATHER=dweight_needed, PARTS=PARTS,
                BM=BM, BD=BD, num_warps=warps, **chain,
            )  # fmt: skip
    if not dweight_needed:
        return dgates, None
    # sum over the words of dgates x the state before: one product instead of one a step
    work = partial(product, dgates.t(), before, plan.precision)
    # nothing but the optimizer waits for it
    return dgates, work() if plan.overlap is None else plan.overlap.start(work)


def clear(x: Tensor, start: Tensor) -> None:
    """Set the rows of `x` past the words to zero."""
    from gumbeltree.ops.lstm import kernels as kernels

    N, width = x.shape
    if N:
        kernels.clear_kernel[(-(-N // CLEARED),)](
            x, start, len(start) - 1, N, WIDTH=width, BW=1 << (width - 1).bit_length(), BM=CLEARED
        )
