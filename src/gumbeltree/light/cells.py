"""Composition cells: the gates of two adjacent nodes -> the state of their parent."""

import math
from typing import Any

import numpy as np

from gumbeltree.config import GatedConfig, TreeLSTMConfig
from gumbeltree.light.arrays import Array, Shapes, Weights, for_tanh, normalized


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
    single_state = False
    """Whether c repeats h."""

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


class LightGated:
    """The gated recursive cell; see `nn.cells.gated.GatedCell`.

    Args:
        hidden_dim: width D of the states.
        config: settings of the cell.
        weights: `weight`, `bias`, `weight_out`, `bias_out`, `gain` and `shift`.

    Attributes:
        weight: maps h of a node to its part of the hidden layer as a left and as a right child,
            `[D, 2 * parts * D]`.
        bias: bias of the hidden layer `[parts, D]`.
    """

    single_state = True

    def __init__(self, hidden_dim: int, config: GatedConfig, weights: Weights) -> None:
        self.parts = config.expansion
        left, right = np.split(weights["weight"], 2, axis=1)  # each [parts * D, D]
        self.weight: Array = np.ascontiguousarray(np.concatenate([left, right]).T)
        self.bias: Array = weights["bias"].reshape(self.parts, hidden_dim)
        self.weight_out: Array = np.ascontiguousarray(weights["weight_out"].T)
        self.bias_out, self.gain, self.shift = (
            weights[name] for name in ("bias_out", "gain", "shift")
        )

    @staticmethod
    def shapes(hidden_dim: int, config: Any) -> Shapes:
        """Return the names and shapes of the weights."""
        D, width = hidden_dim, config.expansion * hidden_dim
        return {
            **{"weight": (width, 2 * D), "bias": (width,)},
            **{"weight_out": (4 * D, width), "bias_out": (4 * D,), "gain": (D,), "shift": (D,)},
        }

    def activate(self, gates: Array, left: Array, right: Array, h: Array, c: Array) -> None:
        """Compute the states of n candidates.

        Args:
            gates: hidden layer before its activation `[parts, n, D]`.
            left: states of the left children `[n, D]`.
            right: states of the right children `[n, D]`.
            h: filled with the states `[n, D]`.
            c: filled with the same states.
        """
        hidden = gelu(gates.transpose(1, 0, 2).reshape(len(left), -1))
        out = hidden @ self.weight_out + self.bias_out
        z, f, o, v = np.split(out, 4, axis=1)
        mixed = sigmoid(z) * left + sigmoid(f) * right + sigmoid(o) * v
        h[:] = normalized(mixed, self.gain, self.shift)
        c[:] = h


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)) without overflow."""
    y: Array = 0.5 * (1 + np.tanh(0.5 * x))
    return y


STEPS, LIMIT = 64, 8
"""Table of the normal distribution function: entries per unit, and where it ends."""
_POINTS = np.arange(-LIMIT * STEPS, LIMIT * STEPS + 2) / STEPS
_BELOW = np.array([0.5 * math.erfc(-x * math.sqrt(0.5)) for x in _POINTS.tolist()])
_DENSITY = np.exp(-0.5 * _POINTS * _POINTS) / (STEPS * math.sqrt(2 * math.pi))


def gelu(x: Array) -> Array:
    """Return x times the normal distribution function.

    NumPy has no error function, so the values come from cubic interpolation in a table, with an
    error below 1e-9.
    """
    place = (np.clip(x, -LIMIT, LIMIT).astype(np.float64) + LIMIT) * STEPS
    entry = place.astype(np.int64)
    t = place - entry
    low, slope = _BELOW[entry], _DENSITY[entry]
    rise, after = _BELOW[entry + 1] - low, _DENSITY[entry + 1]
    below = low + t * (slope + t * (3 * rise - 2 * slope - after + t * (slope + after - 2 * rise)))
    y: Array = (x * below).astype(x.dtype)
    return y
