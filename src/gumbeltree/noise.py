"""Gumbel noise, drawn at random or computed from keys.

Two 32-bit keys per sentence determine all of its noise. The kernels of `ops.merge.fused` compute
the same values on the fly without storing them.
"""

import torch
from torch import Tensor

_MASK = 0xFFFF_FFFF
CHUNK = 1 << 22
"""Number of values that `keyed_noise` computes at once."""
BLOCK = 1 << 16
"""Number of values that `NoiseLayers` keeps in memory."""


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
    """Return the two 32-bit keys of each sentence in an epoch, int64 `[B, 2]`.

    Args:
        seed: seed of the training run.
        epoch: number of the epoch; every epoch has its own noise.
        sentence: sentence numbers, int64 `[B]`.
    """
    first = mixed(mixed(sentence & _MASK, seed), 2 * epoch)
    second = mixed(mixed((sentence >> 32) ^ first, seed >> 32), 2 * epoch + 1)
    return torch.stack([first, second], dim=1)


class NoiseLayers:
    """Read the noise of sentences layer by layer, from a table or from keys.

    With keys, a few layers are computed together: one at a time is slow for small layers, and all
    at once would need as much memory as a table.

    Args:
        noise: noise `[B, T-1, T-1]`, or keys, int64 `[B, 2]`.
        sentences: order in which to read the sentences, int64 `[B]`; None for the given order.
        width: number of positions in the first layer, T - 1.
        layers: number of layers, if not at most `width`.
    """

    def __init__(
        self, noise: Tensor, sentences: Tensor | None, width: int, layers: int = 0
    ) -> None:
        self.noise, self.sentences, self.width = noise, sentences, width
        if is_keys(noise):
            self.keys = noise if sentences is None else noise[sentences]
            self.size = max(1, min(layers or width, BLOCK // max(1, len(noise) * width)))
            self.made = -1, noise
            """First layer in memory, and the noise from that layer on."""

    def __call__(self, t: int, n: int, K: int) -> Tensor:
        """Return the noise of layer t for the first n sentences and K positions, `[n, K]`."""
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
    """Return whether `noise` holds keys."""
    return noise.dtype == torch.int64


def new_keys(
    count: int, device: torch.device | str | None = None, generator: torch.Generator | None = None
) -> Tensor:
    """Draw keys for `count` sentences, int64 `[count, 2]`."""
    return torch.randint(1 << 32, (count, 2), device=device, generator=generator)


def keyed_noise(keys: Tensor, width: int) -> Tensor:
    """Compute the Gumbel noise of sentences from their keys.

    Args:
        keys: two keys per sentence, int64 `[B, 2]`.
        width: T, the number of words of the longest sentence.

    Returns:
        float32 `[B, T-1, T-1]` on the device of `keys`: sentence, layer, position.
    """
    # in chunks of sentences: the int64 intermediates need several times the memory
    noise = torch.empty((len(keys), width - 1, width - 1), device=keys.device)
    some = max(1, CHUNK // max(1, (width - 1) ** 2))
    for few, out in zip(keys.split(some), noise.split(some), strict=True):
        out.copy_(_layers(few, 0, width - 1, width - 1))
    return noise


def _layers(keys: Tensor, first: int, count: int, width: int) -> Tensor:
    """Return the noise of `count` layers from `first` on, float32 `[B, count, width]`."""
    # layers start 2^16 counters apart, so the noise does not depend on the width
    layer = torch.arange(first, first + count, device=keys.device)
    counter = (layer[:, None] << 16) + torch.arange(width, device=keys.device)
    a, b = keys[:, :1, None], keys[:, 1:, None]
    return _gumbel((mixed(mixed(counter ^ a, 0) ^ b, 1) >> 9).float())


def _gumbel(parts: Tensor) -> Tensor:
    """Turn indices of 2^23 equal parts of [0, 1] into Gumbel noise (Eqs. S9, S10), in place."""
    # the midpoint of each part: exact in float32, never 0 or 1
    return parts.add_(0.5).mul_(2.0**-23).log_().neg_().log_().neg_()


def dropped_units(codes: Tensor, width: int, rate: float) -> Tensor:
    """Choose hidden units to drop, given codes of 64 bits.

    Args:
        codes: one code per row, int64 `[...]`.
        width: number of hidden units.
        rate: share of the units to drop, below 1.

    Returns:
        bool `[..., width]`.
    """
    code = mixed(mixed(codes & _MASK, 9) ^ (codes >> 32 & _MASK), 10)
    unit = torch.arange(width, device=codes.device)
    return mixed(unit ^ code[..., None], 11) < int(rate * 2**32)


def mixed(bits: Tensor, key: int | Tensor) -> Tensor:
    """Hash 32-bit integers, stored as int64, with a key or with one key each.

    The constants are those of "lowbias32", found by C. Wellons in a search for 32-bit hashes with
    low bias.
    """
    bits = (bits + (key * 0x9E37_79B9 & _MASK)) & _MASK
    bits = ((bits ^ (bits >> 16)) * 0x7FEB_352D) & _MASK
    bits = ((bits ^ (bits >> 15)) * 0x846C_A68B) & _MASK
    return bits ^ (bits >> 16)


def mixed_number(bits: int, key: int) -> int:
    """Hash one Python integer as `mixed` does, which is slow for single values."""
    bits = (bits + key * 0x9E37_79B9) & _MASK
    bits = ((bits ^ (bits >> 16)) * 0x7FEB_352D) & _MASK
    bits = ((bits ^ (bits >> 15)) * 0x846C_A68B) & _MASK
    return bits ^ (bits >> 16)
