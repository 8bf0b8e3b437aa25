"""Merge orders that depend only on the length of a sentence."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from gumbeltree.encoded import MissingInputError
from gumbeltree.tree import Tree

NO_GOLD = (
    "the model follows gold trees, but there are none with these texts; evaluate it on the files "
    "of a task that has them, such as listops, logic or sst5, with `gumbeltree evaluate`"
)


def fixed_orders(kind: str, lengths: NDArray[np.int64], T: int) -> NDArray[np.int64]:
    """Return merges, `[B, T-1]`, -1 past the end of a sentence.

    Args:
        kind: left, right, balanced or random (one fixed random tree per length). The kind gold
            raises an error: these trees do not depend on the length.
        lengths: words per sentence `[B]`.
        T: upper bound of the lengths.
    """
    orders = np.full((len(lengths), T - 1), -1)
    for row, length in zip(orders, lengths.tolist(), strict=True):
        row[: length - 1] = _order(kind, length)
    return orders


def order_table(kind: str, T: int) -> NDArray[np.int64]:
    """Return the merges for each length up to T, `[T + 1, T - 1]`, -1 past the end."""
    return fixed_orders(kind, np.arange(T + 1).clip(min=1), T)


@cache
def _order(kind: str, length: int) -> tuple[int, ...]:
    if kind == "gold":
        raise MissingInputError(NO_GOLD)
    if kind == "left":
        return (0,) * (length - 1)
    if kind == "right":
        return tuple(range(length - 2, -1, -1))
    if kind == "balanced":
        return tuple(Tree.balanced(map(str, range(length))).order)
    chance = np.random.Generator(np.random.PCG64([length]))
    return tuple(int(chance.integers(left)) for left in range(length - 1, 0, -1))
