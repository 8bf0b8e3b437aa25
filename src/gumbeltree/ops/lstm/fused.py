"""LSTMs over packed words: one Triton kernel per step forward, two backward.

The two directions of a bidirectional one run at the same time, on two streams.

Launch sizes (`steps`, `rows`) are known on the host; the number of active sentences is read on the
device. There is no synchronization, and the loop can be captured in a CUDA graph and replayed for
other lengths within the same bounds.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gumbeltree.device.overlap import Overlap, at_once
from gumbeltree.device.triton_support import (
    Tile,
    chain_options,
    dot_precision,
    operand,
    product,
    tile_for,
)
from gumbeltree.ops.first_derivative import FirstDerivativeOnly

# Measured on an H200. A step is bound by the bandwidth of the L2 cache, through which each
# multiprocessor reads its part of W_hh and the states. Tensor cores process 64 rows at a time.
FORWARD = {"tf32": Tile(64, 16, 64, 4, 3), "ieee": Tile(16, 16, 16, 4, 3)}
BACKWARD = {
    "tf32": Tile(64, 64, 64, 4, 4),
    "wide": Tile(128, 64, 64, 8, 3),
    "ieee": Tile(32, 32, 32, 4, 3),
}
PARTS = 5
"""Parts into which the backward sum over the gates is split."""
CLEARED = 8
"""Rows per program of `clear_kernel`."""
CELL = (8, 64, 2)
"""Sentences, units and warps per program of the elementwise backward kernel."""


class Plan(NamedTuple):
    """Launch parameters shared by all steps of a pass."""

    steps: int
    """Number of positions."""
    rows: int
    """Upper bound on the number of sentences."""
    back: int
    """Offset of the previous word: -1, or 1 if sentences are read from last word to first."""
    precision: str
    """Precision of the products."""
    overlap: Overlap | None = None
    """A second stream for the gradient of the weight."""

    def positions(self) -> range:
        """Return the positions in reading order."""
        return range(self.steps) if self.back < 0 else range(self.steps - 1, -1, -1)

    def grid(self, D: int, BM: int, BD: int) -> tuple[int, int]:
        """Return the number of tiles along the sentences and the units."""
        return -(-self.rows // BM), -(-D // BD)

    def options(self, tile: Tile) -> dict[str, Any]:
        """Return the compile-time arguments of the kernels."""
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

    The gates are in the order i, f, g, o. N may exceed the number of words: rows from start[steps]
    on are never read, and their states and gradients are zero.

    Args:
        inputs: W_ih x + b_ih + b_hh of the words `[N, 4D]`, float32 (float64 in the interpreter).
        weight_hh: Recurrent weight `[4D, D]`, of the same dtype.
        start: First row of each position, then the total number of words, int32 `[steps + 1]` on
            the device. Positions past the longest sentence are empty.
        steps: Upper bound T on the length of a sentence.
        rows: Upper bound B on the number of sentences.
        reverse: Read each sentence from its last word to its first.
        precision: Precision of the products: "ieee", "tf32" or "bf16". The gradient of the weight
            is computed by PyTorch, whose settings decide between IEEE and TF32.
        overlap: Second stream for the gradient of the weight; see `Layout`.

    Returns:
        h and c of each word, concatenated, `[N, 2D]`, differentiable once with respect to
        `inputs` and `weight_hh`.
    """
    return directions(
        [(inputs, weight_hh)], start, [Plan(steps, rows, 1 if reverse else -1, precision, overlap)]
    )[0]


def directions(
    given: list[tuple[Tensor, Tensor]], start: Tensor, plans: list[Plan]
) -> tuple[Tensor, ...]:
    """Run one or two LSTMs over the same words; return the states of each; see `lstm`."""
    tensors = [x for pair in given for x in pair]
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        states: tuple[Tensor, ...] = LSTM.apply(start, plans, *tensors)
        return states
    return tuple(x for x, _ in _forward(start, plans, tensors, save=False))


def _forward(
    start: Tensor, plans: list[Plan], given: Sequence[Tensor], save: bool
) -> list[tuple[Tensor, Tensor]]:
    """Return states and gates of each direction."""
    pairs = zip(given[::2], given[1::2], plans, strict=True)
    works = [partial(forward, x, weight, start, plan, save=save) for x, weight, plan in pairs]
    return at_once(start.device, works)


class LSTM(torch.autograd.Function):
    """Autograd function of `forward` and `backward` below, for one direction or two."""

    @staticmethod
    def forward(ctx: Any, start: Tensor, plans: list[Plan], *given: Tensor) -> tuple[Tensor, ...]:
        """Return the states of each direction, given its inputs and its weight."""
        found = _forward(start, plans, given, save=True)
        ctx.save_for_backward(start, *given[1::2], *(x for pair in found for x in pair))
        ctx.plans = plans
        return tuple(states for states, _ in found)

    @staticmethod
    def backward(ctx: Any, *dstates: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the inputs and the weight of each direction."""
        start, *saved = ctx.saved_tensors
        count = len(ctx.plans)
        weights, states, gates = saved[:count], saved[count::2], saved[count + 1 :: 2]
        needed = ctx.needs_input_grad[3::2]
        works = [
            partial(backward, weight, start, *each)
            for weight, *each in zip(
                weights, states, gates, dstates, ctx.plans, needed, strict=True
            )
        ]
        with torch.no_grad(), torch.autocast(start.device.type, enabled=False):
            found = [x for pair in at_once(start.device, works) for x in pair]
        if torch.is_grad_enabled():
            gradients = [x for x in found if x is not None]
            rest = [*weights, *states, *dstates]
            guarded = iter(FirstDerivativeOnly.apply("fused", len(gradients), *gradients, *rest))
            found = [None if x is None else next(guarded) for x in found]
        return None, None, *found


def forward(
    inputs: Tensor, weight: Tensor, start: Tensor, plan: Plan, save: bool
) -> tuple[Tensor, Tensor]:
    """Return h and c `[N, 2D]` and, if `save`, the activated gates `[N, 4D]`."""
    from gumbeltree.ops.lstm import kernels

    N, D = inputs.shape[0], weight.shape[1]
    inputs, factor = inputs.contiguous(), operand(weight, plan.precision)
    states = inputs.new_empty((N, 2 * D))
    gates = torch.empty_like(inputs) if save else inputs.new_empty(0)
    tile = tile_for(FORWARD, plan.precision, inputs, D, columns=4)
    options = {"BD": tile.BN, **plan.options(tile), **chain_options(inputs, plan.precision)}
    grid = plan.grid(D, tile.BM, tile.BN)
    # Triton launches on the current device, not on that of the tensors
    with torch.cuda.device_of(inputs):
        # a Triton kernel, so that the first step can be chained to it
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
    from gumbeltree.ops.lstm import kernels

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
        # the weight gradient below also reads the rows past the words
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
    # one product over all words instead of one per step
    work = partial(product, dgates.t(), before, plan.precision)
    # only the optimizer needs the result, so other work can overlap with it
    return dgates, work() if plan.overlap is None else plan.overlap.start(work)


def clear(x: Tensor, start: Tensor) -> None:
    """Zero the rows of `x` past the words."""
    from gumbeltree.ops.lstm import kernels

    N, width = x.shape
    if N:
        kernels.clear_kernel[(-(-N // CLEARED),)](
            x, start, len(start) - 1, N, WIDTH=width, BW=1 << (width - 1).bit_length(), BM=CLEARED
        )
