"""Random numbers for training, as functions of the seed and of where they are used.

The Gumbel noise depends only on seed, epoch, example, sentence, layer and position. It does not
depend on batching, on the number of processes or on resuming, and checkpoints need no generator
state.
"""

import torch
from torch import Tensor

from gumbeltree.noise import mixed, mixed_number, sentence_keys


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


def sample_keys(keys: Tensor, columns: int, samples: int) -> Tensor:
    """Return different keys for examples that a batch repeats.

    Args:
        keys: keys of a batch, int64 `[columns * samples * B, 2]`: in each column, the first samples
            of all examples, then the second ones, and so on.
        columns: sentences per example.
        samples: how often the batch repeats its examples; 1 changes nothing.
    """
    if samples == 1:
        return keys
    sample = torch.arange(samples, device=keys.device)[:, None, None]
    several = keys.unflatten(0, (columns, samples, -1))  # [columns, samples, B, 2]
    return mixed(several ^ sample, 23).flatten(0, 2)


def step_seed(seed: int, step: int, rank: int) -> int:
    """Return the seed of all other randomness, such as dropout, for a step in one process."""
    high = mixed_number(mixed_number(step, seed), rank)
    low = mixed_number(mixed_number(step ^ high, seed + 1), rank)
    return high << 31 | low >> 1
