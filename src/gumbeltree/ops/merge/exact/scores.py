"""How score gradients reach the nodes in the backward pass of `exact`; see ops/merge/README.md.

For a candidate with children l and r and own state p: d = r - l, e = p - l, and vL, vR are what
one unit of its score's gradient sends to l and r. At every layer each candidate gets a score
gradient ds, which needs the dot products of the layer's node gradients with d and e, and sends
ds vL and ds vR to its children. There are two ways to do it:

- `Direct` multiplies and adds to every node at every layer: T^2 vectors a sentence;
- `Ledger` touches the five nodes around a merge and carries all other dot products as numbers:
  linear vector work, but more of it for each merge.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from gumbeltree.ops.merge.exact.tape import Tape

# pairs of candidates handled at once, in temporaries of several vectors each
CHUNK = 2048


class Shared(NamedTuple):
    """What both ways share; C candidates, the first a dummy with zero vectors."""

    tape: Tape
    N: int
    """Words; the node made by merge i is N + i."""
    G: Tensor
    """Gradient of each node `[2N - B + 1, 2D]`, the last one a dummy."""
    sigma: Tensor
    """Sum over the layers undone so far of each candidate's score gradient `[C]`."""
    v: Tensor
    """vL and vR of each candidate `[C, 2, 2D]`."""
    de: Tensor
    """d and e of each candidate `[C, 2, 2D]`."""


class Direct:
    """Keep every node's gradient complete."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared

    def complete(self, lo: int, hi: int) -> None:
        """Complete the gradients of the nodes made by merges lo..hi: nothing to do."""

    def weight_gradient(self, lo: int, hi: int, rows: Tensor, g_children: Tensor) -> Tensor:
        """Return dL/dy of a layer `[n, K]`; see `Ledger.weight_gradient`."""
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
        """Add the shares of a layer's score gradients `[n, K]` to the nodes below it."""
        tape, G, v = self.shared.tape, self.shared.G, self.shared.v
        exists = rows > 0
        c = rows[exists]
        shares = ds[exists][:, None, None] * v[c]
        G.index_add_(0, tape.left[c], shares[:, 0])
        G.index_add_(0, tape.right[c], shares[:, 1])

    def finish(self, first_layer: Tensor) -> None:
        """Complete the gradients of the words: nothing to do."""


class Ledger:
    """Keep gradients less their candidates' part, and dot products as numbers.

    With a, b the candidates left and right of a node, its gradient is at any moment
    G + sigma[a] vR_a + sigma[b] vL_b. The table has one row a candidate; each entry is a pair of
    numbers, with d and with e.
    """

    LEFT = slice(0, 2)  # G[left child] . (d, e)
    RIGHT = slice(2, 4)  # G[right child] . (d, e)
    OWN_LEFT = slice(4, 6)  # vL . (d, e)
    OWN_RIGHT = slice(6, 8)  # vR . (d, e)
    FROM_PREVIOUS = slice(8, 10)  # vR of the candidate before it . (d, e)
    TO_PREVIOUS = slice(10, 12)  # vL . (d, e) of the candidate before it

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        tape, v, de = shared.tape, shared.v, shared.de
        self.table = v.new_zeros((len(v), 12))
        self.table[:, 4:8] = torch.bmm(v, de.mT).view(-1, 4)
        # numbers of the neighbours (c, d) around each merge, [S, 4, 4]; zero where one is absent
        self.pairs = v.new_zeros((*tape.near[:, 1:].shape, 4))
        before, after = tape.near[:, :-1], tape.near[:, 1:]
        both = (before > 0) & (after > 0)
        numbers = [
            torch.cat([_dots(de[d], v[c, 1]), _dots(de[c], v[d, 0])], dim=1)
            for c, d in zip(before[both].split(CHUNK), after[both].split(CHUNK), strict=True)
        ]
        self.pairs[both] = torch.cat(numbers)

    def complete(self, lo: int, hi: int) -> None:
        """Complete the gradients of the nodes made by merges lo..hi, and their neighbours' side.

        The neighbours' gradients are kept for `weight_gradient` of the same merges.
        """
        tape, N, G = self.shared.tape, self.shared.N, self.shared.G
        sigma, v = self.shared.sigma, self.shared.v
        a, b = tape.born[lo:hi].unbind(1)
        v_a, v_b = v[a], v[b]  # [n, 2, 2D]
        sigma_a, sigma_b = sigma[a][:, None], sigma[b][:, None]
        G[N + lo : N + hi] += sigma_a * v_a[:, 1] + sigma_b * v_b[:, 0]
        before, after = tape.left[a], tape.right[b]
        # nobody stands twice among them but the dummy, whose share is zero
        self.before = G[before] + sigma_a * v_a[:, 0]
        self.after = G[after] + sigma_b * v_b[:, 1]
        G[before], G[after] = self.before, self.after
        # the outer candidates' nodes beside a and b moved along one vector: numbers suffice
        table, near = self.table, tape.near[lo:hi]
        table[near[:, 0], self.RIGHT] += sigma_a * table[a, self.TO_PREVIOUS]
        table[near[:, 4], self.LEFT] += sigma_b * table[near[:, 4], self.FROM_PREVIOUS]

    def weight_gradient(self, lo: int, hi: int, rows: Tensor, g_children: Tensor) -> Tensor:
        """Return dL/dy of a layer `[n, K]`, having taken up the candidates that return.

        Args:
            lo: first merge of the layer.
            hi: behind its last.
            rows: candidate at each position `[n, K]`, 0 where there is none.
            g_children: gradients of the merged nodes `[n, 2, 2D]`.
        """
        tape, N, G = self.shared.tape, self.shared.N, self.shared.G
        sigma, de = self.shared.sigma, self.shared.de
        table, near, k = self.table, tape.near[lo:hi], tape.position[lo:hi, None]
        # candidates k-1, k, k+1 return; nodes k-1 .. k+2 are their children
        inner = near[:, 1:4]
        inner_de = de[inner]  # [n, 3, 2, 2D]
        nodes = torch.stack([self.before, *g_children.unbind(1), self.after], dim=1)
        dots = torch.bmm(inner_de.flatten(1, 2), nodes.mT).unflatten(1, (3, 2))  # [n, 3, 2, 4]
        of_left = dots[..., :3].diagonal(dim1=1, dim2=3)
        of_right = dots[..., 1:].diagonal(dim1=1, dim2=3)
        table[inner, :4] = torch.cat([of_left, of_right], dim=1).mT
        table[near[:, 1:], 8:] = self.pairs[lo:hi]
        # a node left of the merge is its candidate's left child, one right of it the right child
        entry, s = table[rows], sigma[rows][..., None]  # [n, K, 12], [n, K, 1]
        left = entry[..., self.LEFT] + s * entry[..., self.OWN_LEFT]
        left[:, 1:] += s[:, :-1] * entry[:, 1:, self.FROM_PREVIOUS]
        right = entry[..., self.RIGHT] + s * entry[..., self.OWN_RIGHT]
        right[:, :-1] += (s * entry[..., self.TO_PREVIOUS])[:, 1:]
        place = torch.arange(rows.shape[1], device=rows.device)
        numbers = torch.where((place < k)[..., None], left, right)
        new = _dots(inner_de[:, 1], G[N + lo : N + hi])
        return sum_later(numbers.scatter(1, k[..., None].expand(-1, -1, 2), new[:, None]))

    def send(self, rows: Tensor, ds: Tensor) -> None:
        """Add a layer's score gradients to the nodes: sigma holds them until they end."""

    def finish(self, first_layer: Tensor) -> None:
        """Complete the gradients of the words, given the candidates of layer 0 `[n, K]`."""
        Direct(self.shared).send(first_layer, self.shared.sigma[first_layer])


def _dots(pairs: Tensor, vectors: Tensor) -> Tensor:
    """Return dot products `[n, 2]` of pairs of vectors `[n, 2, 2D]` with vectors `[n, 2D]`."""
    return torch.bmm(pairs, vectors[:, :, None])[..., 0]


def sum_later(numbers: Tensor) -> Tensor:
    """Return dL/dy_i = Y_i + sum over j > i of X_j, from (X, Y) `[n, K, 2]`."""
    x, y = numbers.unbind(-1)
    return y + F.pad(x[:, 1:], (0, 1)).flip(1).cumsum(1).flip(1)
