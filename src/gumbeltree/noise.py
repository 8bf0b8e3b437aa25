"""Gumbel noise, drawn or as a function of keys: two numbers a sentence decide all of its noise.

The kernels of `ops.merge.fused` compute the same from keys, number by number, without storing any.
"""

import torch
from torch import Tensor

_MASK = 0xFFFF_FFFF
CHUNK = 1 << 22
"""Numbers of a table made at once."""
BLOCK = 1 << 16
"""Numbers that `NoiseLayers` holds."""


def gumbel_noise(
    shape: tuple[int, ...],
    *,
    device: torch.device | str | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw Gumbel noise in float32, g = -log(-log(u + e) + e) with e = 1e-20 (Eqs. S9, S10)."""
    u = torch.rand(shape, device=device, generator=generator, dtype=torch.float32)
    return u.add_(1e-20).log_().neg_().add_(1e-20).log_().neg_()


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


class NoiseLayers:
    """Reads the noise of sentences layer by layer, from a table or from its keys.

    Of keys, a few layers are worked out together: one at a time would be slow where they are small,
    and all of them would take as much memory as a table.

    Args:
        noise: of all sentences, `[B, T-1, T-1]`, or keys that it is a function of, int64 `[B, 2]`.
        sentences: the order in which sentences are read, int64 `[B]`; None: as they are.
        width: positions of the widest layer, T - 1.
    """

    def __init__(self, noise: Tensor, sentences: Tensor | None, width: int) -> None:
        self.noise, self.sentences, self.width = noise, sentences, width
        if is_keys(noise):
            self.keys = noise if sentences is None else noise[sentences]
            # there are no more layers than positions
            self.size = max(1, min(width, BLOCK // max(1, len(noise) * width)))
            self.made = -1, noise
            """The first layer that is worked out, and the noise from it on."""

    def __call__(self, t: int, n: int, K: int) -> Tensor:
        """Return the noise of layer t, of the first n sentences and K positions, `[n, K]`."""
        if not is_keys(self.noise):
            if self.sentences is None:
                return self.noise[:n, t, :K]
            return self.noise[self.sentences[:n], t, :K]
        first, block = self.made
        if not 0 <= t - first < self.size or first < 0:
            first = t - t % self.size
            block = _layers(self.keys, first, self.size, self.width)
            self.made = first, block
        return block[:n, t - first, :K]


def is_keys(noise: Tensor) -> bool:
    """Return whether noise is given by its keys."""
    return noise.dtype == torch.int64


def new_keys(
    count: int, device: torch.device | str | None = None, generator: torch.Generator | None = None
) -> Tensor:
    """Draw the keys of `count` sentences, int64 `[count, 2]`."""
    return torch.randint(1 << 32, (count, 2), device=device, generator=generator)


def keyed_noise(keys: Tensor, width: int) -> Tensor:
    """Return Gumbel noise of sentences.

    Args:
        keys: two for each sentence, int64 `[B, 2]`.
        width: T, the longest sentence's words.

    Returns:
        float32 `[B, T-1, T-1]` on the device of `keys`: sentence, layer, position.
    """
    # a few sentences at a time: integers of long sentences would take eight times the memory
    noise = torch.empty((len(keys), width - 1, width - 1), device=keys.device)
    some = max(1, CHUNK // max(1, (width - 1) ** 2))
    for few, out in zip(keys.split(some), noise.split(some), strict=True):
        out.copy_(_layers(few, 0, width - 1, width - 1))
    return noise


def _layers(keys: Tensor, first: int, count: int, width: int) -> Tensor:
    """Return the noise of some layers, float32 `[B, count, width]`."""
    # layers lie 2^16 apart, so that the noise of a position does not depend on the width
    layer = torch.arange(first, first + count, device=keys.device)
    counter = (layer[:, None] << 16) + torch.arange(width, device=keys.device)
    a, b = keys[:, :1, None], keys[:, 1:, None]
    return _gumbel((mixed(mixed(counter ^ a, 0) ^ b, 1) >> 9).float())


def _gumbel(parts: Tensor) -> Tensor:
    """Turn numbers of 2^23 equal parts of 0..1 into Gumbel noise (Eqs. S9, S10), in place."""
    # the middle of the part, exact in float32, never an end
    return parts.add_(0.5).mul_(2.0**-23).log_().neg_().log_().neg_()


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
