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
        width: number of gates, 5D.
        weight: maps h of a node to its gates as a left and as a right child, `[D, 2 * 5D]`.
        bias: bias of the gates of a left child `[5D]`.
    """

    def __init__(self, hidden_dim: int, config: TreeLSTMConfig, weights: Weights) -> None:
        D = hidden_dim
        bias = weights["bias"].copy()
        bias[D : 3 * D] += config.forget_offset
        order = (1, 2, 0, 4, 3)
        left, right = np.split(for_tanh(weights["weight"], order), 2, axis=1)  # each [5D, D]
        self.width = 5 * D
        self.weight: Array = np.ascontiguousarray(np.concatenate([left, right]).T)
        self.bias: Array = for_tanh(bias, order)

    @staticmethod
    def shapes(hidden_dim: int, config: Any) -> Shapes:
        """Return the names and shapes of the weights."""
        return {"weight": (5 * hidden_dim, 2 * hidden_dim), "bias": (5 * hidden_dim,)}

    def activate(self, gates: Array, children: Array, h: Array, c: Array) -> None:
        """Compute the states of n candidates.

        Args:
            gates: summed gates `[n, 5D]`; overwritten.
            children: c of both children, side by side, `[n, 2D]`.
            h: filled with the hidden states `[n, D]`.
            c: filled with the cell states `[n, D]`.
        """
        D = h.shape[1]
        np.tanh(gates, out=gates)
        sigmoids, g = gates[:, : 4 * D], gates[:, 4 * D :]
        sigmoids += 1  # twice the sigmoid
        forget, i, o = gates[:, : 2 * D], gates[:, 2 * D : 3 * D], gates[:, 3 * D : 4 * D]
        forget *= children
        i *= g
        np.add(forget[:, :D], forget[:, D:], out=c)
        c += i
        c *= 0.5
        np.tanh(c, out=g)
        np.multiply(o, g, out=h)
        h *= 0.5
