"""Dropout inside a cell: one draw per candidate, whichever implementation composes it how often.

A node has a code of 64 bits, a hash of its subtree and of the keys of its sentence. The code of a
candidate determines the units to drop.
"""

from typing import Any, TypeVar

import torch
from torch import Tensor

from gumbeltree.noise import mixed

LEFT, RIGHT, OFFSET = 0x2545_F491_4F6C_DD1D, 0x5851_F42D_4C95_7F2D, 0x1405_7B7E_F767_814F
"""Odd numbers that hash a pair of nodes: LEFT l + RIGHT r + OFFSET, modulo 2^64."""

Codes = TypeVar("Codes", bound=Any)


def rate_of(cell: Any) -> float:
    """Return the share of units that a cell drops in training; 0 if it has no dropout."""
    rate: float = getattr(cell, "drop_rate", 0.0)
    return rate


def word_codes(T: int, keys: Tensor) -> Tensor:
    """Return the codes of T words, int64 `[B, T]`, given the keys of sentences `[B, 2]`."""
    place = torch.arange(T, device=keys.device)
    return mixed(place ^ keys[:, :1], 7) + (mixed(place ^ keys[:, 1:], 8) << 32)


def parent_codes(left: Codes, right: Codes) -> Codes:
    """Return the codes of the parents of nodes: tensors or arrays of int64."""
    codes: Codes = left * LEFT + right * RIGHT + OFFSET
    return codes


def options(cell: Any, keys: Tensor | None) -> dict[str, float]:
    """Return arguments for the hooks of a cell: with dropout, the factor of the other units."""
    return {} if keys is None else {"scale": 1 / (1 - cell.drop_rate)}
