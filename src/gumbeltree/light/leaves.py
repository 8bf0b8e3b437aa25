"""Leaf transformations: word vectors -> h and c of the leaves."""

from typing import Any

import numpy as np

from gumbeltree.config import LSTMConfig, LSTMLeafConfig
from gumbeltree.light.arrays import (
    Array,
    Packed,
    Shapes,
    Weights,
    for_tanh,
    named,
    normalized,
    within,
)


class LightAffineLeaf:
    """Compute r_i = W x_i + b (Eq. 10).

    Args:
        embedding_dim: width E of the word vectors.
        hidden_dim: width D of the states.
        config: settings of the leaf.
        weights: `weight` and `bias`.
    """

    def __init__(self, embedding_dim: int, hidden_dim: int, config: Any, weights: Weights) -> None:
        self.weight, self.bias = np.ascontiguousarray(weights["weight"].T), weights["bias"]

    @staticmethod
    def shapes(embedding_dim: int, hidden_dim: int, config: Any) -> Shapes:
        """Return the names and shapes of the weights."""
        return {"weight": (2 * hidden_dim, embedding_dim), "bias": (2 * hidden_dim,)}

    def __call__(self, words: Array, batch: Packed) -> tuple[Array, Array]:
        """Return h and c of the words `[N, E]`, each `[N, D]`."""
        states = words @ self.weight
        states += self.bias
        h, c = np.split(states, 2, axis=1)
        return np.ascontiguousarray(h), np.ascontiguousarray(c)


class LightNormLeaf:
    """Compute r_i = LayerNorm(W x_i + b); c repeats h.

    Args:
        embedding_dim: width E of the word vectors.
        hidden_dim: width D of the states.
        config: settings of the leaf.
        weights: `linear.weight`, `linear.bias`, `norm.weight` and `norm.bias`.
    """

    def __init__(self, embedding_dim: int, hidden_dim: int, config: Any, weights: Weights) -> None:
        self.weight = np.ascontiguousarray(weights["linear.weight"].T)
        self.bias, self.gain = weights["linear.bias"], weights["norm.weight"]
        self.shift = weights["norm.bias"]

    @staticmethod
    def shapes(embedding_dim: int, hidden_dim: int, config: Any) -> Shapes:
        """Return the names and shapes of the weights."""
        D = hidden_dim
        linear: Shapes = {"linear.weight": (D, embedding_dim), "linear.bias": (D,)}
        return linear | {"norm.weight": (D,), "norm.bias": (D,)}

    def __call__(self, words: Array, batch: Packed) -> tuple[Array, Array]:
        """Return h and c of the words `[N, E]`, each `[N, D]`."""
        h = normalized(words @ self.weight + self.bias, self.gain, self.shift)
        return h, h


class LightLSTMLeaf:
    """Compute r_i = LSTM(x_i, r_{i-1}) (Eq. 13).

    Args:
        embedding_dim: width E of the word vectors.
        hidden_dim: width D of the states.
        config: settings of the leaf.
        weights: those of `torch.nn.LSTMCell`.
        reverse: whether to read from the last word to the first.
    """

    def __init__(
        self,
        embedding_dim: int,
        hidden_dim: int,
        config: LSTMLeafConfig | LSTMConfig,
        weights: Weights,
        reverse: bool = False,
    ) -> None:
        # the order i, f, g, o becomes i, f, o, g
        order = (0, 1, 3, 2)
        self.weight_ih = np.ascontiguousarray(for_tanh(weights["weight_ih"], order).T)
        self.weight_hh = np.ascontiguousarray(for_tanh(weights["weight_hh"], order).T)
        self.bias = for_tanh(weights["bias_ih"] + weights.get("bias_hh", 0), order)
        self.reverse = reverse

    @staticmethod
    def shapes(embedding_dim: int, hidden_dim: int, config: Any) -> Shapes:
        """Return the names and shapes of the weights."""
        gates = 4 * hidden_dim
        second: Shapes = {"bias_hh": (gates,)} if config.biases == 2 else {}
        return {
            "weight_ih": (gates, embedding_dim),
            "weight_hh": (gates, hidden_dim),
            "bias_ih": (gates,),
            **second,
        }

    def __call__(self, words: Array, batch: Packed) -> tuple[Array, Array]:
        """Return h and c of the words `[N, E]`, each `[N, D]`."""
        inputs = words @ self.weight_ih
        inputs += self.bias
        (N, _), D, dtype = inputs.shape, len(self.weight_hh), inputs.dtype
        inputs = inputs.reshape(N, 4, D)
        h, c = np.empty((N, D), dtype), np.empty((N, D), dtype)
        recurrent = np.empty((batch.active[0], 4 * D), dtype)
        space = np.empty(4 * batch.active[0] * D, dtype)
        steps = range(batch.steps)
        before, known = 0, 0  # first row of the previous step, and its number of rows
        for t in reversed(steps) if self.reverse else steps:
            lo, n = batch.start[t], batch.active[t]
            hi, m = lo + n, min(n, known)
            new_h, new_c = h[lo:hi], c[lo:hi]
            # one contiguous block per gate
            gates = space[: 4 * n * D].reshape(4, n, D)
            gates[:] = inputs[lo:hi].transpose(1, 0, 2)
            if m:
                np.dot(h[before : before + m], self.weight_hh, out=recurrent[:m])
                gates[:, :m] += recurrent[:m].reshape(m, 4, D).transpose(1, 0, 2)
            np.tanh(gates, out=gates)
            gates[:3] += 1  # twice the sigmoid
            i, f, o, g = gates
            np.multiply(i, g, out=new_c)
            if m:
                forget = f[:m]
                forget *= c[before : before + m]
                new_c[:m] += forget
            new_c *= 0.5
            np.tanh(new_c, out=g)
            np.multiply(o, g, out=new_h)
            new_h *= 0.5
            before, known = lo, n
        return h, c


class LightBidirectionalLeaf:
    """Two LSTMs of width D/2, one per direction, with concatenated states.

    Args:
        embedding_dim: width E of the word vectors.
        hidden_dim: width D of the states.
        config: settings of the leaf.
        weights: those of both LSTMs.
    """

    def __init__(
        self, embedding_dim: int, hidden_dim: int, config: LSTMLeafConfig, weights: Weights
    ) -> None:
        sizes = embedding_dim, hidden_dim // 2, config
        self.forwards = LightLSTMLeaf(*sizes, within(weights, "forwards"))
        self.backwards = LightLSTMLeaf(*sizes, within(weights, "backwards"), reverse=True)

    @staticmethod
    def shapes(embedding_dim: int, hidden_dim: int, config: Any) -> Shapes:
        """Return the names and shapes of the weights."""
        one = LightLSTMLeaf.shapes(embedding_dim, hidden_dim // 2, config)
        return {**named(one, "forwards"), **named(one, "backwards")}

    def __call__(self, words: Array, batch: Packed) -> tuple[Array, Array]:
        """Return h and c of the words `[N, E]`, each `[N, D]`."""
        there, back = self.forwards(words, batch), self.backwards(words, batch)
        h, c = (np.concatenate(pair, axis=1) for pair in zip(there, back, strict=True))
        return h, c
