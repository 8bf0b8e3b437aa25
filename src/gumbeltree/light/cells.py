"""Composition cells: the gates of two adjacent nodes -> the state of their parent."""

from typing import Any

import numpy as np

from gumbeltree.config import TreeLSTMConfig
from gumbeltree.light.arrays import Array, Shapes, Weights, for_tanh


class LightTreeLSTM:
    """The binary Tree-LSTM cell (Eqs. 1-3).

    The gates of a candidate are a sum of two rows: one of its left child and one of its right
    child, each computed once per node. Their order is f_l, f_r, i, o, g.

    Args:
        hidden_dim: width D of the states.
        config: settings of the cell.
        weights: `weight` and `bias`.

    Attributes:
        weight: maps h of a node to its gates as a left and as a right child, `[D, 2 * 5D]`.
        bias: bias of the gates of a left child `[5, D]`.
    """

    parts = 5
    """Number of gates, each of width D."""

    def __init__(self, hidden_dim: int, config: TreeLSTMConfig, weights: Weights) -> None:
        D = hidden_dim
        bias = weights["bias"].copy()
        bias[D : 3 * D] += config.forget_offset
        order = (1, 2, 0, 4, 3)
        left, right = np.split(for_tanh(weights["weight"], order), 2, axis=1)  # each [5D, D]
        self.weight: Array = np.ascontiguousarray(np.concatenate([left, right]).T)
        self.bias: Array = for_tanh(bias, order).reshape(5, D)

    @staticmethod
    def shapes(hidden_dim: int, config: Any) -> Shapes:
        """Return the names and shapes of the weights."""
        return {"weight": (5 * hidden_dim, 2 * hidden_dim), "bias": (5 * hidden_dim,)}

    def activate(self, gates: Array, left: Array, right: Array, h: Array, c: Array) -> None:
        """Compute the states of n candidates.

        Args:
            gates: summed gates `[5, n, D]`; overwritten.
            left: c of the left children `[n, D]`.
            right: c of the right children `[n, D]`.
            h: filled with the hidden states `[n, D]`.
            c: filled with the cell states `[n, D]`.
        """
        np.tanh(gates, out=gates)
        gates[:4] += 1  # twice the sigmoid
        f_l, f_r, i, o, g = gates
        f_r *= right
        i *= g
        np.multiply(f_l, left, out=c)
        c += f_r
        c += i
        c *= 0.5
        np.tanh(c, out=g)
        np.multiply(o, g, out=h)
        h *= 0.5
