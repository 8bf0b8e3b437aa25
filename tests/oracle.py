"""Slow, independent answers: one sentence, plain loops, nothing of the package's operations."""

import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor


def merge_orders(words: int) -> Iterator[tuple[int, ...]]:
    """Yield every merge order of a sentence: (words - 1)! of them."""
    return itertools.product(*(range(k) for k in range(words - 1, 0, -1)))


def tree_lstm(
    weight: Tensor, bias: Tensor, left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Return (h, c) of the parent, Eqs. 1-3, with 1 added to the forget gates."""
    i, f_l, f_r, g, o = (weight @ torch.cat([left[0], right[0]]) + bias).chunk(5)
    c = torch.sigmoid(f_l + 1) * left[1] + torch.sigmoid(f_r + 1) * right[1]
    c = c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def follow(
    leaves: list[tuple[Tensor, Tensor]],
    order: tuple[int, ...],
    weight: Tensor,
    bias: Tensor,
    query: Tensor,
) -> tuple[Tensor, float]:
    """Return the root's h under `order`, and the probability of drawing that order (Eq. 12)."""
    nodes, probability = list(leaves), 1.0
    for k in order:
        candidates = [tree_lstm(weight, bias, *pair) for pair in itertools.pairwise(nodes)]
        scores = [float((query @ h).detach()) for h, _ in candidates]
        total = sum(math.exp(s) for s in scores)
        probability *= math.exp(scores[k]) / total
        nodes[k : k + 2] = [candidates[k]]
    return nodes[0][0], probability
