"""Propagate score gradients to the nodes in the backward pass of `exact`.

For a candidate with children l and r and state p, let d = r - l and e = p - l, and let vL and vR be
the gradients of l and r per unit of its score's gradient. At every layer, the score gradient ds of
each candidate depends on the dot products of d and e with the gradients of the layer's nodes, and
adds ds vL and ds vR to the gradients of its children. There are two ways to compute this (see
ops/merge/README.md), and a third one if ds is given:

- `Direct` updates every node at every layer: O(T^2) vector operations per sentence.
- `Ledger` updates the five nodes around each merge and tracks all other dot products as scalars:
  O(T) vector operations, but more of them per merge.
- `Deferred` needs no dot products, because ds does not depend on them.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from gumbeltree.ops.merge.exact.tape import Tape

# candidates or pairs processed at once, which bounds the memory of temporaries
CHUNK = 2048


class Shared(NamedTuple):
    """State shared by both methods; of the C candidates, the first is a dummy of zeros."""

    tape: Tape
    N: int
    """Number of words; merge i creates node N + i."""
    G: Tensor
    """Gradient of each node `[2N - B + 1, 2D]`; the last one is a dummy."""
    sigma: Tensor
    """Score gradient of each candidate, summed over the layers undone so far, `[C]`."""
    v: Tensor
    """vL and vR of each candidate `[C, 2, 2D]`."""
    de: Tensor
    """d and e of each candidate `[C, 2, 2D]`; not read by `Deferred`."""


class Direct:
    """Keep the gradient of every node complete."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared

    def complete(self, lo: int, hi: int) -> None:
        """Do nothing: the gradients of the nodes are complete."""

    def weight_gradient(self, lo: int, hi: int, rows: Tensor, g_children: Tensor) -> Tensor:
        """Return dL/dy of a layer, `[n, K]`; see `Ledger.weight_gradient`."""
        tape, N, G, de = self.shared.tape, self.shared.N, self.shared.G, self.shared.de
        k = tape.position[lo:hi, None]
        place = torch.arange(rows.shape[1], device=rows.device)
        new = torch.arange(N + lo, N + hi, device=rows.device)[:, None]
        node = torch.where(place < k, tape.left[rows], tape.right[rows])
        node = torch.where(place == k, new, node)
        exists = rows > 0
        numbers = G.new_zeros((*rows.shape, 2))
        numbers[exists] = _dots(de[rows[exists]], G[node[exists]])
        return sum_later(numbers)

    def send(self, rows: Tensor, ds: Tensor) -> None:
        """Propagate the score gradients of a layer `[n, K]` to the children."""
        tape, G, v = self.shared.tape, self.shared.G, self.shared.v
        exists = rows > 0
        c = rows[exists]
        shares = ds[exists][:, None, None] * v[c]
        G.index_add_(0, tape.left[c], shares[:, 0])
        G.index_add_(0, tape.right[c], shares[:, 1])

    def finish(self, first_layer: Tensor) -> None:
        """Do nothing: the gradients of the words are complete."""


class Deferred:
    """Keep gradients without the contribution of the scores, and add it at the end of each node."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared

    def complete(self, lo: int, hi: int) -> None:
        """Add the contribution of the candidates that merges lo..hi create, to all their children.

        They exist only in later layers, so their score gradients are complete.
        """
        tape, N, G = self.shared.tape, self.shared.N, self.shared.G
        sigma, v = self.shared.sigma, self.shared.v
        a, b = tape.created[lo:hi].unbind(1)
        of_a, of_b = (sigma[c][:, None, None] * v[c] for c in (a, b))  # [n, 2, 2D]
        G[N + lo : N + hi] += of_a[:, 1] + of_b[:, 0]
        # all distinct except for the dummy, to which zero is added
        G[tape.left[a]] += of_a[:, 0]
        G[tape.right[b]] += of_b[:, 1]

    def send(self, rows: Tensor, ds: Tensor) -> None:
        """Do nothing: sigma accumulates the score gradients until `complete` or `finish`."""

    def finish(self, first_layer: Tensor) -> None:
        """Complete the gradients of the words from the candidates of layer 0, `[n, K]`."""
        Direct(self.shared).send(first_layer, self.shared.sigma[first_layer])


class Ledger(Deferred):
    """Keep gradients without the contribution of the scores, and dot products as scalars.

    With candidates a and b left and right of a node, its gradient at any time is
    G + sigma[a] vR_a + sigma[b] vL_b. The table has one row per candidate; each entry is a pair of
    dot products, with d and with e.
    """

    LEFT = slice(0, 2)  # G[left child] . (d, e)
    RIGHT = slice(2, 4)  # G[right child] . (d, e)
    OWN_LEFT = slice(4, 6)  # vL . (d, e)
    OWN_RIGHT = slice(6, 8)  # vR . (d, e)
    FROM_PREVIOUS = slice(8, 10)  # vR of the preceding candidate . (d, e)
    TO_PREVIOUS = slice(10, 12)  # vL . (d, e) of the preceding candidate

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        tape, v, de = shared.tape, shared.v, shared.de
        self.table = v.new_zeros((len(v), 12))
        self.table[:, 4:8] = torch.bmm(v, de.mT).view(-1, 4)
        # products of adjacent candidates (c, d) around each merge, [S, 4, 4]; 0 if one is missing
        self.pairs = v.new_zeros((*tape.window[:, 1:].shape, 4))
        before, after = tape.window[:, :-1], tape.window[:, 1:]
        both = (before > 0) & (after > 0)
        numbers = [
            torch.cat([_dots(de[d], v[c, 1]), _dots(de[c], v[d, 0])], dim=1)
            for c, d in zip(before[both].split(CHUNK), after[both].split(CHUNK), strict=True)
        ]
        self.pairs[both] = torch.cat(numbers)

    def complete(self, lo: int, hi: int) -> None:
        """Complete the gradients of the nodes that merges lo..hi create, and of their neighbours.

        A neighbour's gradient is completed on the side of the merge only; `weight_gradient` of the
        same merges uses it.
        """
        tape, N, G = self.shared.tape, self.shared.N, self.shared.G
        sigma, v = self.shared.sigma, self.shared.v
        a, b = tape.created[lo:hi].unbind(1)
        v_a, v_b = v[a], v[b]  # [n, 2, 2D]
        sigma_a, sigma_b = sigma[a][:, None], sigma[b][:, None]
        G[N + lo : N + hi] += sigma_a * v_a[:, 1] + sigma_b * v_b[:, 0]
        before, after = tape.left[a], tape.right[b]
        # all distinct except for the dummy, to which zero is added
        self.before = G[before] + sigma_a * v_a[:, 0]
        self.after = G[after] + sigma_b * v_b[:, 1]
        G[before], G[after] = self.before, self.after
        # each neighbour's gradient moved along one vector, so outer candidates need only scalars
        table, window = self.table, tape.window[lo:hi]
        table[window[:, 0], self.RIGHT] += sigma_a * table[a, self.TO_PREVIOUS]
        table[window[:, 4], self.LEFT] += sigma_b * table[window[:, 4], self.FROM_PREVIOUS]

    def weight_gradient(self, lo: int, hi: int, rows: Tensor, g_children: Tensor) -> Tensor:
        """Return dL/dy of a layer, `[n, K]`, after restoring candidates that its merges removed.

        Args:
            lo: First merge of the layer.
            hi: One past its last merge.
            rows: Candidate at each position `[n, K]`, 0 for none.
            g_children: Gradients of the merged nodes `[n, 2, 2D]`.
        """
        tape, N, G = self.shared.tape, self.shared.N, self.shared.G
        sigma, de = self.shared.sigma, self.shared.de
        table, window, k = self.table, tape.window[lo:hi], tape.position[lo:hi, None]
        # candidates k-1, k, k+1 reappear; their children are nodes k-1 .. k+2
        inner = window[:, 1:4]
        inner_de = de[inner]  # [n, 3, 2, 2D]
        nodes = torch.stack([self.before, *g_children.unbind(1), self.after], dim=1)
        dots = torch.bmm(inner_de.flatten(1, 2), nodes.mT).unflatten(1, (3, 2))  # [n, 3, 2, 4]
        of_left = dots[..., :3].diagonal(dim1=1, dim2=3)
        of_right = dots[..., 1:].diagonal(dim1=1, dim2=3)
        table[inner, :4] = torch.cat([of_left, of_right], dim=1).mT
        table[window[:, 1:], 8:] = self.pairs[lo:hi]
        # left of the merge, use the candidate's left child; right of it, the right child
        entry, s = table[rows], sigma[rows][..., None]  # [n, K, 12], [n, K, 1]
        left = entry[..., self.LEFT] + s * entry[..., self.OWN_LEFT]
        left[:, 1:] += s[:, :-1] * entry[:, 1:, self.FROM_PREVIOUS]
        right = entry[..., self.RIGHT] + s * entry[..., self.OWN_RIGHT]
        right[:, :-1] += (s * entry[..., self.TO_PREVIOUS])[:, 1:]
        place = torch.arange(rows.shape[1], device=rows.device)
        numbers = torch.where((place < k)[..., None], left, right)
        new = _dots(inner_de[:, 1], G[N + lo : N + hi])
        return sum_later(numbers.scatter(1, k[..., None].expand(-1, -1, 2), new[:, None]))


def _dots(pairs: Tensor, vectors: Tensor) -> Tensor:
    """Return the dot products `[n, 2]` of pairs `[n, 2, 2D]` with vectors `[n, 2D]`."""
    return torch.bmm(pairs, vectors[:, :, None])[..., 0]


def sum_later(numbers: Tensor) -> Tensor:
    """Return dL/dy_i = Y_i + sum over j > i of X_j, from (X, Y) `[n, K, 2]`."""
    x, y = numbers.unbind(-1)
    return y + F.pad(x[:, 1:], (0, 1)).flip(1).cumsum(1).flip(1)
