"""Beam search over the trees of one sentence, as in `ops.merge.beams`.

Legend: T words, k beams, b <= k trees so far, K candidates of a layer, D state width. A state is a
word or a candidate. Every step composes at most two new candidates per tree.
"""

from collections.abc import Generator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gumbeltree.generators import finish
from gumbeltree.light.arrays import Array

STEP_MERGES = 16
"""Number of merges per step of `searching`: about a hundredth of a second with 20 beams."""
LEFT, RIGHT, OFFSET = (
    np.uint64(x) for x in (0x2545_F491_4F6C_DD1D, 0x5851_F42D_4C95_7F2D, 0x1405_7B7E_F767_814F)
)
"""Odd numbers that hash a pair of states: LEFT l + RIGHT r + OFFSET, modulo 2^64."""


class Found(NamedTuple):
    """The trees of one sentence, best first."""

    root: Array
    """h of each root `[b, D]`."""
    log_prob: Array
    """Log-probability of the merges `[b]`."""
    order: NDArray[np.int64]
    """Position of each merge `[b, T-1]`."""


class States:
    """States, scores and hashes of the words and candidates of one sentence.

    Args:
        h: hidden states of the words `[T, D]`.
        c: cell states of the words `[T, D]`.
        cell: a NumPy cell.
        query: scaled query vector `[D]`.
        k: number of beams.
    """

    def __init__(self, h: Array, c: Array, cell: Any, query: Array, k: int) -> None:
        T, D = h.shape
        size = 2 * T - 1 + 2 * k * max(0, T - 2)
        self.cell, self.query, self.count = cell, query, T
        self.h, self.c = np.empty((size, D), h.dtype), np.empty((size, D), h.dtype)
        self.h[:T], self.c[:T] = h, c
        self.score = np.empty(size, h.dtype)
        # of each state, and how a merge changes the sum over the nodes of a tree
        self.hash, self.change = np.empty(size, np.uint64), np.empty(size, np.uint64)
        self.hash[:T] = np.random.default_rng(0).integers(2**64, size=T, dtype=np.uint64)

    def compose(self, left: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.int64]:
        """Compose and score n pairs of states, each `[n]`; return the new states `[n]`."""
        cell, n = self.cell, len(left)
        new = slice(self.count, self.count + n)
        self.count += n
        as_left, as_right = np.split(cell.weight, 2, axis=1)
        gates = (self.h[left] @ as_left + self.h[right] @ as_right).reshape(n, *cell.bias.shape)
        gates += cell.bias
        cell.activate(
            gates.transpose(1, 0, 2), self.c[left], self.c[right], self.h[new], self.c[new]
        )
        self.score[new] = self.h[new] @ self.query
        self.hash[new] = self.hash[left] * LEFT + self.hash[right] * RIGHT + OFFSET
        self.change[new] = self.hash[new] - self.hash[left] - self.hash[right]
        return np.arange(new.start, new.stop)


def search(h: Array, c: Array, cell: Any, query: Array, k: int, distinct: bool = True) -> Found:
    """Return the best trees that k beams find; see `States` and `ops.merge.beams.search`."""
    return finish(searching(h, c, cell, query, k, distinct))


def searching(
    h: Array, c: Array, cell: Any, query: Array, k: int, distinct: bool = True
) -> Generator[None, None, Found]:
    """Search in short steps; see `search`."""
    T = len(h)
    if T == 1:
        return Found(h, np.zeros(1, h.dtype), np.empty((1, 0), np.int64))
    states = States(h, c, cell, query, k)
    nodes = np.arange(T)[None]  # [b, K+1]
    candidates = states.compose(nodes[0, :-1], nodes[0, 1:])[None]  # [b, K]
    log_prob, code = np.zeros(1, h.dtype), np.zeros(1, np.uint64)
    history = []
    for K in range(T - 1, 0, -1):
        logs = log_softmax(states.score[candidates])
        proposed = np.argsort(-logs, axis=1, kind="stable")[:, :k]
        total = (log_prob[:, None] + np.take_along_axis(logs, proposed, 1)).reshape(-1)
        merged = np.take_along_axis(candidates, proposed, 1)
        codes = (code[:, None] + states.change[merged]).reshape(-1)
        best = np.argsort(-total, kind="stable")
        if distinct:
            best = best[np.sort(np.unique(codes[best], return_index=True)[1])]
        best = best[:k]
        parent, log_prob, code = best // proposed.shape[1], total[best], codes[best]
        at, new = proposed.reshape(-1)[best], merged.reshape(-1)[best]
        history.append((parent, at))
        # the right child leaves; the candidates next to the new node are replaced
        place = np.arange(K)
        nodes = nodes[parent[:, None], place + (place > at[:, None])]
        nodes[np.arange(len(best)), at] = new
        if K == 1:
            break
        place = place[:-1]
        candidates = candidates[parent[:, None], place + (place >= at[:, None])]
        a, b = np.flatnonzero(at > 0), np.flatnonzero(at < K - 1)
        left = np.concatenate([nodes[a, at[a] - 1], new[b]])
        right = np.concatenate([new[a], nodes[b, at[b] + 1]])
        rows, places = np.concatenate([a, b]), np.concatenate([at[a] - 1, at[b]])
        candidates[rows, places] = states.compose(left, right)
        if K % STEP_MERGES == 0:
            yield
    order = np.empty((len(nodes), T - 1), np.int64)
    beam = np.arange(len(nodes))
    for t in range(T - 2, -1, -1):
        parent, at = history[t]
        order[:, t], beam = at[beam], parent[beam]
    return Found(states.h[nodes[:, 0]], log_prob, order)


def log_softmax(scores: Array) -> Array:
    """Return the log-softmax of each row `[b, K]`."""
    shifted = scores - scores.max(1, keepdims=True)
    logs: Array = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return logs
