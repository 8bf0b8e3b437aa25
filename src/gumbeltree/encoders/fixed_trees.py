"""Trees that do not depend on the words, to compare with learned ones."""

from functools import cache

import numpy as np
import torch
from torch import Tensor

from gumbeltree.estimators.keyed_noise import NoiseLayers, is_keys
from gumbeltree.graphs import outside_graphs
from gumbeltree.tree import Tree


def fixed_order(kind: str, lengths: Tensor, T: int, noise: Tensor | None = None) -> Tensor:
    """Return merges for sentences of given lengths.

    Args:
        kind: left, right, balanced or random.
        lengths: words of each sentence, int64 `[B]`.
        T: most words.
        noise: random trees are drawn with it, a table or keys, see `NoiseLayers`. Without, each
            length has one random tree, always the same.

    Returns:
        int64 `[B, T-1]`, -1 past a sentence's end.
    """
    step = torch.arange(T - 1, device=lengths.device)
    last = lengths[:, None] - 2 - step  # the last position at each step
    if kind == "left":
        order = torch.zeros_like(last)
    elif kind == "right":
        order = last
    elif kind == "random" and noise is not None:
        # the highest of equal chances is a uniform choice
        if is_keys(noise):
            drawn, order = NoiseLayers(noise, None, T - 1), torch.zeros_like(last)
            for t in range(T - 1):
                layer = drawn(t, len(last), T - 1)
                order[:, t] = torch.where(step <= last[:, t, None], layer, -torch.inf).argmax(-1)
        else:
            order = torch.where(step <= last[:, :, None], noise, -torch.inf).argmax(-1)
    else:
        # one table for many widths
        table = _table(kind, 1 << (T - 1).bit_length(), lengths.device)
        order = table[lengths][:, : T - 1]
    return torch.where(last >= 0, order, -1)


# never dropped: captured graphs read it
@cache
def _table(kind: str, T: int, device: torch.device) -> Tensor:
    """Return the merges for each length up to T, int64 `[T + 1, T - 1]`."""
    outside_graphs(device)
    table = torch.full((T + 1, T - 1), -1)
    for length in range(2, T + 1):
        if kind == "balanced":
            order = list(Tree.balanced(map(str, range(length))).order)
        else:
            chance = np.random.Generator(np.random.PCG64([length]))
            order = [int(chance.integers(left)) for left in range(length - 1, 0, -1)]
        table[length, : length - 1] = torch.tensor(order)
    return table.to(device)
