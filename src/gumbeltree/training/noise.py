"""Noise that belongs to the example, not to the batch.

The noise of a training step is a function of seed, epoch, example, sentence, layer and position. So
it is the same however examples are batched, over how many processes, and after a resumed run; no
generator's state has to be kept.
"""

import torch
from torch import Tensor

_MASK = 0xFFFF_FFFF


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
    place = torch.arange(width - 1, device=device)
    # layers lie 2^16 apart, so that the noise of a position does not depend on the width
    counter = (place[:, None] << 16) + place  # [T-1, T-1]
    bits = _mixed(_mixed(counter ^ first[:, None, None], 0) ^ second[:, None, None], 1)
    # the middle of one of 2^23 equal parts of 0..1, exact in float32, never an end; Eqs. S9, S10
    u = ((bits >> 9).float() + 0.5) * 2.0**-23
    return u.log_().neg_().log_().neg_()


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
