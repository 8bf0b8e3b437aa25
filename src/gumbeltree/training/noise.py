"""Noise that belongs to the example, not to the batch.

The noise of a training step is a function of seed, epoch, example, sentence, layer and position. So
it is the same however examples are batched, over how many processes, and after a resumed run; no
generator's state has to be kept.
"""

import torch
from torch import Tensor

_MASK = 0xFFFF_FFFF
CHUNK = 1 << 22
"""Numbers made at once."""


def example_noise(seed: int, epoch: int, rows: Tensor, columns: int, width: int) -> Tensor:
    """Return Gumbel noise for one reading of some examples.

    Args:
        seed: of the training run.
        epoch: each has noise of its own.
        rows: which examples, int64 `[B]`.
        columns: sentences an example has, 1 or 2.
        width: T, the longest sentence's words.

    Returns:
        float32 `[columns * B, T-1, T-1]` on the device of `rows`: sentence (the first ones of all
        examples, then the second ones), layer, position.
    """
    device = rows.device
    column = torch.arange(columns, device=device)[:, None]
    sentence = (rows * columns + column).flatten()  # [columns * B]
    # two independent keys of 32 bits for each sentence
    first = _mixed(_mixed(sentence & _MASK, seed), 2 * epoch)
    second = _mixed(_mixed((sentence >> 32) ^ first, seed >> 32), 2 * epoch + 1)
    noise = torch.empty((len(sentence), width - 1, width - 1), device=device)
    place = torch.arange(width - 1, device=device)
    # layers lie 2^16 apart, so that the noise of a position does not depend on the width
    counter = (place[:, None] << 16) + place  # [T-1, T-1]
    # a few sentences at a time: integers of long sentences would take eight times the memory
    some = max(1, CHUNK // max(1, counter.numel()))
    for a, b, out in zip(first.split(some), second.split(some), noise.split(some), strict=True):
        bits = _mixed(_mixed(counter ^ a[:, None, None], 0) ^ b[:, None, None], 1)
        # the middle of one of 2^23 equal parts of 0..1, exact in float32, never an end
        out.copy_(bits >> 9).add_(0.5).mul_(2.0**-23)
    # Eqs. S9, S10
    return noise.log_().neg_().log_().neg_()


def step_seed(seed: int, step: int, rank: int) -> int:
    """Return the seed of everything else that is random in one step, such as dropout."""
    key = torch.tensor(step)
    high = _mixed(_mixed(key, seed), rank)
    low = _mixed(_mixed(key ^ high, seed + 1), rank)
    return int(high) << 31 | int(low) >> 1


def _mixed(bits: Tensor, key: int) -> Tensor:
    """Scramble 32 bits held in int64, after a key is added.

    Two rounds of multiplication and shift; the constants are those of C. Wellons' search for
    32-bit hashes with little bias, "lowbias32".
    """
    bits = (bits + (key * 0x9E37_79B9 & _MASK)) & _MASK
    bits = ((bits ^ (bits >> 16)) * 0x7FEB_352D) & _MASK
    bits = ((bits ^ (bits >> 15)) * 0x846C_A68B) & _MASK
    return bits ^ (bits >> 16)
