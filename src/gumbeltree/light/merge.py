"""The merge: at most two new candidates per step, as in `ops.merge.exact`; see its README.md.

Legend: n sentences, T words in the longest, N words in all, D state width, K candidates of a layer,
m new candidates. A node is a word or a merged candidate. Its gates, as a left and as a right child,
are computed once. `merge_many` works on a batch, `merge_one` is faster for a single sentence, and
`merge_mixed` is for estimators that mix all candidates.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gumbeltree.encoded import Keep
from gumbeltree.light.arrays import Array, Packed


class Outputs:
    """Vectors, trees and details of B sentences of up to T words, filled by the merges.

    Args:
        B: number of sentences.
        T: length of the longest.
        D: width of the states.
        dtype: type of the numbers.
        keep: what to fill in addition to vectors and trees.
        nodes: whether to keep h of all nodes in any case.

    Attributes:
        vector: `[B, D]`.
        order: int64 `[B, T-1]`, -1 past the end of a sentence.
        nodes: `[B, 2T-1, D]`, zero without a node, or None.
        scores: `[B, T-1, T-1]`, -inf without a candidate, or None.
    """

    def __init__(self, B: int, T: int, D: int, dtype: Any, keep: Keep, nodes: bool = False) -> None:
        self.T = T
        self.vector: Array = np.empty((B, D), dtype)
        self.order: NDArray[np.int64] = np.full((B, T - 1), -1)
        self.nodes = np.zeros((B, 2 * T - 1, D), dtype) if keep.nodes or nodes else None
        self.scores = np.full((B, T - 1, T - 1), -np.inf, dtype) if keep.scores else None

    def start(self, h: Array, batch: Packed) -> None:
        """Fill in what the words `[N, D]` determine: their nodes, and sentences of one word."""
        ones = np.flatnonzero(batch.lengths == 1)
        self.vector[batch.sentences[ones]] = h[ones]
        if self.nodes is not None:
            position, rank = (np.arange(batch.steps)[:, None] < batch.lengths).nonzero()
            self.nodes[batch.sentences[rank], position] = h


class Merger:
    """Builds trees with one cell and one query vector.

    Args:
        cell: a NumPy cell.
        query: query vector, already scaled, `[D]`.
    """

    def __init__(self, cell: Any, query: Array) -> None:
        self.cell, self.query = cell, query
        # see `ops.merge.argmax`
        self.epsilons = 16 * float(np.finfo(query.dtype).eps)
        self.size = math.hypot(*query.tolist())

    def first_best(self, scores: Array) -> NDArray[np.int64]:
        """Return the leftmost position whose score is the maximum up to rounding, `[n]`.

        Args:
            scores: `[n, K]`, -inf where there is no candidate.
        """
        best = scores.max(1, keepdims=True)
        slack = self.epsilons * np.maximum(np.abs(best), self.size)
        found: NDArray[np.int64] = (scores >= best - slack).argmax(1)
        return found

    def project(self, h: Array, gates: Array) -> None:
        """Compute the gates of nodes, `[n, 2, parts, D]`, from h `[n, D]`."""
        np.dot(h, self.cell.weight, out=gates.reshape(len(h), -1))
        gates[:, 0] += self.cell.bias

    def merge_many(
        self,
        h: Array,
        c: Array,
        batch: Packed,
        out: Outputs,
        noise: Array | None = None,
        order: NDArray[np.int64] | None = None,
    ) -> None:
        """Merge the words of each sentence of a batch.

        A node stays at the position of its first word, and the candidate that joins it with the
        next node has the same position. A merge at p removes position next[p].

        Args:
            h: hidden states of the words `[N, D]`.
            c: cell states of the words `[N, D]`.
            batch: layout of the words.
            out: filled at the rows of the batch.
            noise: added to the scores, `[B, T-1, T-1]`.
            order: merges to follow, `[B, T-1]`.
        """
        (N, D), dtype, parts = h.shape, h.dtype, self.cell.parts
        n, T, active, start = len(batch.lengths), batch.steps, batch.active, batch.start
        rows, nodes = batch.sentences, 2 * N - n
        gates = np.empty((nodes, 2, parts, D), dtype)
        node_c = np.empty((nodes, D), dtype)
        self.project(h, gates[:N])
        node_c[:N] = c
        # candidates in order of creation: one per pair of words, at most two per later merge
        candidates = N - n + 2 * sum(active[2:])
        cand_h, cand_c = np.empty((candidates, D), dtype), np.empty((candidates, D), dtype)
        space = np.empty(2 * n * parts * D, dtype)
        count = 0

        def compose(left: Array, right: Array, c_left: Array, c_right: Array) -> slice:
            """Compose candidates from gates, each `[m, parts, D]`, and c, each `[m, D]`."""
            nonlocal count
            made = slice(count, count + len(left))
            count = made.stop
            # one contiguous block per gate
            summed = space[: left.size].reshape(parts, len(left), D)
            np.add(left.transpose(1, 0, 2), right.transpose(1, 0, 2), out=summed)
            self.cell.activate(summed, c_left, c_right, cand_h[made], cand_c[made])
            return made

        for t in range(T - 1):
            left = slice(start[t], start[t] + active[t + 1])
            right = slice(start[t + 1], start[t + 2])
            compose(gates[left, 0], gates[right, 1], node_c[left], node_c[right])

        # by flat position [n * T]; the last entry stands for a missing neighbour
        position = np.arange(T)
        base = np.arange(n) * T
        none = n * T
        inside = position[:, None] < batch.lengths - 1  # [T, n]
        places = (base + position[:, None])[inside]  # of the first candidates
        score = np.full(n * T + 1, -np.inf, dtype)
        # -inf marks positions without a candidate, so scores that overflow must stay above it
        lowest = np.finfo(dtype).min
        score[places] = np.fmax(cand_h[:count] @ self.query, lowest)
        table = score[:-1].reshape(n, T)
        candidate = np.zeros(n * T + 1, np.int64)
        candidate[places] = np.arange(count)
        node = np.zeros(n * T + 1, np.int64)
        node[: n * T].reshape(n, T).T[position[:, None] < batch.lengths] = np.arange(N)
        after, before = np.arange(1, n * T + 2), np.arange(-1, n * T)
        after[base + batch.lengths - 1] = none
        before[base] = none

        halves = gates.reshape(2 * nodes, parts, D)
        made_nodes = N
        for t in range(T - 1):
            n = active[t + 1]
            layer = table[:n]
            exists = layer > -np.inf
            number = exists.cumsum(1) - 1  # index among the candidates of the layer
            if out.scores is not None:
                row, place = exists.nonzero()
                out.scores[rows[row], t, number[row, place]] = layer[row, place]
            if order is not None:
                p = (number == order[rows[:n], t, None]).argmax(1)
            elif noise is not None:
                drawn = noise[rows[:n, None], t, number]
                p = self.first_best(np.where(exists, layer + drawn, -np.inf))
            else:
                p = self.first_best(layer)
            at = base[:n] + p
            out.order[rows[:n], t] = number.reshape(-1)[at]
            merged = candidate[at]
            new_h = cand_h.take(merged, 0)
            if out.nodes is not None:
                out.nodes[rows[:n], out.T + t] = new_h
            done, n = n, active[t + 2]
            if n < done:
                out.vector[rows[n:done]] = new_h[n:]
            if n == 0:
                break
            at, merged = at[:n], merged[:n]
            new = np.arange(made_nodes, made_nodes + n)
            self.project(new_h[:n], gates[made_nodes : made_nodes + n])
            cand_c.take(merged, 0, out=node_c[made_nodes : made_nodes + n], mode="clip")
            made_nodes += n
            # the right child leaves
            gone = after[at]
            right, left = after[gone], before[at]
            score[gone] = score[at] = -np.inf
            after[at], before[right], node[at] = right, at, new
            # the new candidates, left (a) and right (b) of the new node
            a, b = (left != none).nonzero()[0], (right != none).nonzero()[0]
            places = np.concatenate([left[a], at[b]])
            of_left = node[places]
            of_right = np.concatenate([new[a], node[right[b]]])
            made = compose(
                halves.take(2 * of_left, 0),
                halves.take(2 * of_right + 1, 0),
                node_c.take(of_left, 0),
                node_c.take(of_right, 0),
            )
            score[places] = np.fmax(cand_h[made] @ self.query, lowest)
            candidate[places] = np.arange(made.start, made.stop)

    def merge_one(
        self,
        h: Array,
        c: Array,
        row: int,
        out: Outputs,
        noise: Array | None = None,
        order: NDArray[np.int64] | None = None,
    ) -> None:
        """Merge the words of one sentence.

        Args:
            h: hidden states of the words `[T, D]`.
            c: cell states of the words `[T, D]`.
            row: row of `out` to fill.
            out: see `merge_many`.
            noise: see `merge_many`.
            order: see `merge_many`.
        """
        T, D = h.shape
        if T == 1:
            return
        dtype, query, parts = h.dtype, self.query, self.cell.parts
        activate, weight, bias = self.cell.activate, self.cell.weight, self.cell.bias
        gates = np.empty((2 * T - 1, 2, parts, D), dtype)
        self.project(h, gates[:T])
        as_left, as_right, flat = gates[:, 0], gates[:, 1], gates.reshape(2 * T - 1, -1)
        node_c = np.empty((2 * T - 1, D), dtype)
        node_c[:T] = c
        cand_h, cand_c = np.empty((3 * T, D), dtype), np.empty((3 * T, D), dtype)
        count = T - 1
        # one contiguous block per gate
        summed = np.empty((parts, count, D), dtype)
        np.add(as_left[:count].transpose(1, 0, 2), as_right[1:T].transpose(1, 0, 2), out=summed)
        activate(summed, c[:-1], c[1:], cand_h[:count], cand_c[:count])
        scores = cand_h[:count] @ query  # of the candidates at each position
        nodes, candidates = list(range(T)), list(range(T - 1))
        # gates and c of the children of one or two new candidates
        space = [np.empty((parts, m, D), dtype) for m in (1, 2)]
        space_c = [np.empty((2, m, D), dtype) for m in (1, 2)]
        for t in range(T - 1):
            K = T - 1 - t
            layer = scores[:K]
            if out.scores is not None:
                out.scores[row, t, :K] = layer
            if order is not None:
                k = int(order[row, t])
            else:
                if noise is not None:
                    layer = layer + noise[row, t, :K]
                best = float(layer.max())
                slack = self.epsilons * max(abs(best), self.size)
                k = int((layer >= best - slack).argmax())
            out.order[row, t] = k
            merged, new = candidates[k], T + t
            new_h = cand_h[merged]
            if out.nodes is not None:
                out.nodes[row, out.T + t] = new_h
            if K == 1:
                out.vector[row] = new_h
                break
            np.dot(new_h, weight, out=flat[new])
            as_left[new] += bias
            node_c[new] = new_c = cand_c[merged]
            nodes[k : k + 2] = [new]
            del candidates[k]
            # position k of the layer disappears; the candidates next to the new node are replaced
            scores[k : K - 1] = scores[k + 1 : K]
            left, right = k > 0, k < K - 1
            m, first = left + right, k - left
            summed, children = space[m - 1], space_c[m - 1]
            if left:
                other = nodes[k - 1]
                np.add(as_left[other], as_right[new], out=summed[:, 0])
                children[0, 0], children[1, 0] = node_c[other], new_c
            if right:
                other = nodes[k + 1]
                np.add(as_left[new], as_right[other], out=summed[:, -1])
                children[0, -1], children[1, -1] = new_c, node_c[other]
            candidates[first : k + right] = range(count, count + m)
            made = slice(count, count + m)
            count += m
            activate(summed, *children, cand_h[made], cand_c[made])
            np.dot(cand_h[made], query, out=scores[first : first + m])

    def merge_mixed(
        self, h: Array, c: Array, row: int, out: Outputs, noise: Array, weigh: Any
    ) -> None:
        """Merge one sentence while mixing all candidates, which changes every node at every layer.

        Args:
            h: hidden states of the words `[T, D]`.
            c: cell states of the words `[T, D]`.
            row: row of `out` to fill.
            out: see `merge_many`.
            noise: see `merge_many`.
            weigh: returns the mixing weights of the noisy scores of one layer, each `[K]`.
        """
        D = h.shape[1]
        gates = np.empty((len(h), 2, self.cell.parts, D), h.dtype)
        for t, K in enumerate(range(len(h) - 1, 0, -1)):
            self.project(h, gates[: K + 1])
            new_h, new_c = np.empty((K, D), h.dtype), np.empty((K, D), h.dtype)
            summed = (gates[:K, 0] + gates[1 : K + 1, 1]).transpose(1, 0, 2)
            self.cell.activate(summed, c[:-1], c[1:], new_h, new_c)
            scores = new_h @ self.query
            if out.scores is not None:
                out.scores[row, t, :K] = scores
            noisy = scores + noise[row, t, :K]
            k = int(self.first_best(noisy[None])[0])
            y = weigh(noisy)[:, None]
            total = y.cumsum(0)
            h, c = (
                (1 - total) * old[:-1] + (total - y) * old[1:] + y * new
                for old, new in ((h, new_h), (c, new_c))
            )
            out.order[row, t] = k
            if out.nodes is not None:
                out.nodes[row, out.T + t] = h[k]
        out.vector[row] = h[0]
