"""Random numbers for training, as functions of the seed and of where they are used.

The Gumbel noise depends only on seed, epoch, example, sentence, layer and position. It does not
depend on batching, on the number of processes or on resuming, and checkpoints need no generator
state.
"""

import torch
from torch import Tensor

from gumbeltree.noise import mixed_number, sentence_keys


def example_keys(seed: int, epoch: int, rows: Tensor, columns: int) -> Tensor:
    """Return the noise keys of examples in an epoch.

    Args:
        seed: seed of the training run.
        epoch: each epoch has different noise.
        rows: indices of the examples, int64 `[B]`.
        columns: sentences per example, 1 or 2.

    Returns:
        int64 `[columns * B, 2]`: the first sentences of all examples, then the second ones.
    """
    column = torch.arange(columns, device=rows.device)[:, None]
    return sentence_keys(seed, epoch, (rows * columns + column).flatten())


def step_seed(seed: int, step: int, rank: int) -> int:
    """Return the seed of all other randomness, such as dropout, for a step in one process."""
    high = mixed_number(mixed_number(step, seed), rank)
    low = mixed_number(mixed_number(step ^ high, seed + 1), rank)
    return high << 31 | low >> 1
