"""Noise that belongs to the example, not to the batch.

The noise of a training step is a function of seed, epoch, example, sentence, layer and position. So
it is the same however examples are batched, over how many processes, and after a resumed run; no
generator's state has to be kept.
"""

import torch
from torch import Tensor

from gumbeltree.noise import mixed_number, sentence_keys


def example_keys(seed: int, epoch: int, rows: Tensor, columns: int) -> Tensor:
    """Return the keys of the noise of one reading of some examples.

    Args:
        seed: of the training run.
        epoch: each has noise of its own.
        rows: which examples, int64 `[B]`.
        columns: sentences an example has, 1 or 2.

    Returns:
        int64 `[columns * B, 2]`: the first sentences of all examples, then the second ones.
    """
    column = torch.arange(columns, device=rows.device)[:, None]
    return sentence_keys(seed, epoch, (rows * columns + column).flatten())


def step_seed(seed: int, step: int, rank: int) -> int:
    """Return the seed of everything else that is random in one step, such as dropout."""
    high = mixed_number(mixed_number(step, seed), rank)
    low = mixed_number(mixed_number(step ^ high, seed + 1), rank)
    return high << 31 | low >> 1
