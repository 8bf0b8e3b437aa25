"""The beam search with Triton kernels, which replace dozens of small operations per step."""

import torch
from torch import Tensor

from gumbeltree.ops.merge.beams import kernels
from gumbeltree.ops.merge.beams.forward import LEFT, NEVER, OFFSET, RIGHT, BeamStates, Choices


def _power(n: int) -> int:
    """Return the smallest power of two of at least n, and at least 2."""
    return max(2, 1 << (n - 1).bit_length())


def _block(k: int, T: int) -> tuple[int, int, int]:
    """Return the block sizes for beams and positions, and the number of warps."""
    # few sizes of blocks: each is compiled separately
    KB, BT = _power(k), max(32, _power(T))
    return KB, BT, 4 if KB * BT <= 1024 else 8


def forward(
    states: BeamStates, lengths: Tensor, k: int, noise: Tensor | None, distinct: bool
) -> tuple[Tensor, Tensor, Choices]:
    """Return the row of each root `[B, k]`, log-probabilities `[B, k]` and the choices.

    Takes the arguments of the same function in `forward.py`, but no noise.
    """
    B, T, device = states.B, states.T, lengths.device

    def integers(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int32, device=device)

    steps = T - 1
    candidates = integers(steps if states.record else 2, B, k, T)
    nodes, merged = integers(2, B, k, T), integers(B, k)
    parents, positions = integers(steps, B, k), integers(steps, B, k)
    log_prob = states.rows.new_zeros((2, B, k))
    log_prob[0, :, 1:] = NEVER
    code = torch.zeros((2, B, k), dtype=torch.int64, device=device)
    words = states.numbers(0, T)
    nodes[0] = words[:, None]
    if T > 1:
        candidates[0, :, :, :-1] = states.add(words[:, :-1], words[:, 1:])[:, None]
    assert noise is None
    KB, BT, warps = _block(k, T)
    for t in range(steps):
        kernels.choose_kernel[(B,)](
            t, len(candidates), states.score, lengths, candidates, nodes, log_prob, code, parents,
            positions, merged, states.left, states.right, states.hash, states.change, B, T,
            (T + states.size) * B, k=k, KB=KB,
            BT=BT, DISTINCT=distinct, NEVER=NEVER, LEFT=LEFT, RIGHT=RIGHT, OFFSET=OFFSET,
            num_warps=warps,
        )  # fmt: skip
        states.merge(merged)
        if t + 1 < steps:
            states.evaluate_next(2 * k)
    last = steps % 2
    root = nodes[last, :, :, 0].long()
    return root, log_prob[last], Choices(candidates, parents, positions)


def orders(choices: Choices, root: Tensor, lengths: Tensor) -> Tensor:
    """Return the merges of each surviving beam `[B, k, T-1]`."""
    (B, k), T = root.shape, len(choices.parents) + 1
    order = root.new_empty((B, k, T - 1))
    if T > 1:
        kernels.order_kernel[(B,)](
            order, choices.parents, choices.positions, lengths, B, T, k=k, KB=_power(k), num_warps=1
        )
    return order


def score_gradients(
    states: BeamStates, choices: Choices, lengths: Tensor, dlog_prob: Tensor
) -> Tensor:
    """Return the gradients of all scores, given those of the log-probabilities `[B, k]`."""
    B, T, k = states.B, states.T, dlog_prob.shape[1]
    sigma = torch.zeros_like(states.score)
    KB, BT, warps = _block(k, T)
    if T > 1:
        kernels.score_gradient_kernel[(B,)](
            dlog_prob.contiguous(), states.score, sigma, lengths, choices.candidates,
            choices.parents, choices.positions, B, T, k=k, KB=KB, BT=BT, NEVER=NEVER,
            num_warps=warps,
        )  # fmt: skip
    return sigma


def add_to_children(
    states: BeamStates,
    G: Tensor,
    left: Tensor,
    right: Tensor,
    dh: Tensor,
    dc: tuple[Tensor, Tensor] | None,
    times: int,
) -> None:
    """Add gradients to the children of candidates, one after the other; see `backward`."""
    B, D, BD = states.B, states.D, min(128, _power(states.D))
    dc_l, dc_r = (dh, dh) if dc is None else (x.contiguous() for x in dc)
    kernels.add_to_children_kernel[(B, -(-D // BD))](
        G, left, right, dh, dc_l, dc_r, B, len(left) // B, D=D, BD=BD, SINGLE=states.single,
        ONLY_H=dc is None, num_warps=max(1, BD // 32),
    )  # fmt: skip
