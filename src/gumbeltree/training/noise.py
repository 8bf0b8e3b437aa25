"""Random numbers of training, as functions of the seed and the place where they are used.

The Gumbel noise of an example depends on seed, epoch, example, sentence, layer and position alone.
It is therefore the same however examples are batched, over any number of processes, and in a
resumed run, and checkpoints need no generator state.
"""

import torch
from torch import Tensor

from gumbeltree.noise import mixed_number, sentence_keys


def example_keys(seed: int, epoch: int, rows: Tensor, columns: int) -> Tensor:
    """Return the keys of the noise of some examples in an epoch.

    Args:
        seed: of the training run.
        epoch: each epoch has different noise.
        rows: numbers of the examples, int64 `[B]`.
        columns: sentences per example, 1 or 2.

    Returns:
        int64 `[columns * B, 2]`: the first sentences of all examples, then the second ones.
    """
    column = torch.arange(columns, device=rows.device)[:, None]
    return sentence_keys(seed, epoch, (rows * columns + column).flatten())


def step_seed(seed: int, step: int, rank: int) -> int:
    """Return the seed of all other randomness of a step in one process, such as dropout."""
    high = mixed_number(mixed_number(step, seed), rank)
    low = mixed_number(mixed_number(step ^ high, seed + 1), rank)
    return high << 31 | low >> 1
