"""Gumbel noise as a function of keys: two numbers a sentence decide all of its noise.

The kernels of `ops.fused` compute the same, number by number, without storing any.
"""

import torch
from torch import Tensor

_MASK = 0xFFFF_FFFF
CHUNK = 1 << 22
"""Numbers made at once."""


def sentence_keys(seed: int, epoch: int, sentence: Tensor) -> Tensor:
    """Return the keys of sentences in an epoch, two of 32 bits each, int64 `[B, 2]`.

    Args:
        seed: of the training run.
        epoch: each has noise of its own.
        sentence: numbers of the sentences, int64 `[B]`.
    """
    first = mixed(mixed(sentence & _MASK, seed), 2 * epoch)
    second = mixed(mixed((sentence >> 32) ^ first, seed >> 32), 2 * epoch + 1)
    return torch.stack([first, second], dim=1)


def keyed_noise(keys: Tensor, width: int) -> Tensor:
    """Return Gumbel noise of sentences.

    Args:
        keys: two for each sentence, int64 `[B, 2]`.
        width: T, the longest sentence's words.

    Returns:
        float32 `[B, T-1, T-1]` on the device of `keys`: sentence, layer, position.
    """
    device = keys.device
    noise = torch.empty((len(keys), width - 1, width - 1), device=device)
    place = torch.arange(width - 1, device=device)
    # layers lie 2^16 apart, so that the noise of a position does not depend on the width
    counter = (place[:, None] << 16) + place  # [T-1, T-1]
    # a few sentences at a time: integers of long sentences would take eight times the memory
    some = max(1, CHUNK // max(1, counter.numel()))
    for key, out in zip(keys.split(some), noise.split(some), strict=True):
        a, b = key[:, :1, None], key[:, 1:, None]
        bits = mixed(mixed(counter ^ a, 0) ^ b, 1)
        # the middle of one of 2^23 equal parts of 0..1, exact in float32, never an end
        out.copy_(bits >> 9).add_(0.5).mul_(2.0**-23)
    # Eqs. S9, S10
    return noise.log_().neg_().log_().neg_()


def mixed(bits: Tensor, key: int) -> Tensor:
    """Scramble 32 bits held in int64, after a key is added.

    Two rounds of multiplication and shift; the constants are those of C. Wellons' search for
    32-bit hashes with little bias, "lowbias32".
    """
    bits = (bits + (key * 0x9E37_79B9 & _MASK)) & _MASK
    bits = ((bits ^ (bits >> 16)) * 0x7FEB_352D) & _MASK
    bits = ((bits ^ (bits >> 15)) * 0x846C_A68B) & _MASK
    return bits ^ (bits >> 16)


def mixed_number(bits: int, key: int) -> int:
    """Return the same for one number: tensors of one number are slow."""
    bits = (bits + key * 0x9E37_79B9) & _MASK
    bits = ((bits ^ (bits >> 16)) * 0x7FEB_352D) & _MASK
    bits = ((bits ^ (bits >> 15)) * 0x846C_A68B) & _MASK
    return bits ^ (bits >> 16)
