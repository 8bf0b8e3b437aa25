"""The constituency Tree-LSTM (Tai et al. 2015), and its version with recurrent dropout."""

import math
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gumbeltree.device.triton_support import why_not
from gumbeltree.layout import Layout
from gumbeltree.nn.encoders.level_tree import GoldTreeEncoder
from gumbeltree.ops.stack import fused
from gumbeltree.ops.stack.problem import StackProblem
from gumbeltree.peers import ConstituencyConfig, DropoutConstituencyConfig
from gumbeltree.registry import own
from gumbeltree.states import NodeState


class _FusedEncoder(GoldTreeEncoder):
    """Base class of encoders whose merges are kernels inside a CUDA graph.

    A merge of all sentences then has 6 operations, forward and backward, instead of 62. Their
    products do not follow autocast.
    """

    leaf: nn.Linear

    @abstractmethod
    def gates(self) -> tuple[Tensor, Tensor]:
        """Return weight `[5D, 2D]` and bias `[5D]` of what `compose` computes.

        They map h of the children to the gates i, f_l, f_r, g, o of `ops.stack`.
        """

    def compose_all(self, leaves: NodeState, order: Tensor, layout: Layout) -> NodeState:
        """Return the states of all nodes `[2N-B, D]` from those of the words `[N, D]`."""
        # a subclass may compose in another way
        if not (layout.spare and own(self, "gates")) or why_not(self.leaf.weight) is not None:
            return super().compose_all(leaves, order, layout)
        D, merges = self.config.hidden_dim, layout.nodes - layout.N
        no_missing = leaves.h.new_zeros((3, D))
        problem = StackProblem(torch.cat(leaves, dim=1), layout, *self.gates(), None, no_missing)
        rate = getattr(self.config, "dropout", 0.0) if self.training else 0.0
        kept = F.dropout(leaves.h.new_ones((merges, D)), rate) if rate else None
        h, c = fused.compose(problem, order, kept).chunk(2, dim=1)
        return NodeState(h, c)


def _arranged(x: Tensor, *places: int) -> Tensor:
    """Return five gates `[5D, ...]` in another order."""
    parts = x.chunk(5)
    return torch.cat([parts[place] for place in places])


class ConstituencyEncoder(_FusedEncoder):
    """The binary constituency Tree-LSTM of Tai et al. (2015), as in their released code.

    A word x has the state c = W x + b and h = sigmoid(W' x + b') tanh(c). A parent has gates i,
    f_l, f_r, o and u, each U_l h_l + b_l + U_r h_r + b_r, and the state
    c = sigmoid(i) tanh(u) + sigmoid(f_l) c_l + sigmoid(f_r) c_r, h = sigmoid(o) tanh(c).

    Initial weights are those of `torch.nn.Linear`.

    Args:
        config: see `ConstituencyConfig`.
    """

    Config = ConstituencyConfig
    capturable = True

    def __init__(self, config: ConstituencyConfig) -> None:
        super().__init__(config)
        D = config.hidden_dim
        self.leaf = nn.Linear(config.embedding_dim, 2 * D)
        # U_l and U_r, with a bias each
        self.cell = nn.ModuleList(nn.Linear(D, 5 * D) for _ in range(2))

    def leaves(self, words: Tensor, layout: Layout) -> NodeState:
        """Return the states `[N, D]` of word vectors `[N, E]`."""
        c, o = self.leaf(words).chunk(2, dim=-1)
        return NodeState(o.sigmoid() * c.tanh(), c)

    def compose(self, left: NodeState, right: NodeState) -> NodeState:
        """Return the parents of n pairs of nodes, from states `[n, D]`."""
        gates = self.cell[0](left.h) + self.cell[1](right.h)  # [n, 5D]
        i, f_l, f_r, o, u = gates.chunk(5, dim=-1)
        c = i.sigmoid() * u.tanh() + f_l.sigmoid() * left.c + f_r.sigmoid() * right.c
        return NodeState(o.sigmoid() * c.tanh(), c)

    def gates(self) -> tuple[Tensor, Tensor]:
        """Return weight `[5D, 2D]` and bias `[5D]`; see `_FusedEncoder.gates`."""
        left: Any
        right: Any
        left, right = self.cell
        weight, bias = torch.cat([left.weight, right.weight], dim=1), left.bias + right.bias
        return _arranged(weight, 0, 1, 2, 4, 3), _arranged(bias, 0, 1, 2, 4, 3)


class DropoutConstituencyEncoder(_FusedEncoder):
    """The constituency Tree-LSTM with recurrent dropout of Looks et al. (2017).

    Words and parents share one affine map of [x; h_l; h_r], with zeros for a word's children and
    for a parent's x, into i, j, f_l, f_r and o. The state is
    c = sigmoid(f_l + 1) c_l + sigmoid(f_r + 1) c_r + sigmoid(i) drop(tanh(j)),
    h = sigmoid(o) tanh(c); only the candidate tanh(j) is dropped (Semeniuta et al. 2016).

    Initial weights are Glorot uniform and the bias is zero, which is our choice.

    Args:
        config: see `DropoutConstituencyConfig`.
    """

    Config = DropoutConstituencyConfig
    capturable = True

    def __init__(self, config: DropoutConstituencyConfig) -> None:
        super().__init__(config)
        E, D = config.embedding_dim, config.hidden_dim
        self.leaf = nn.Linear(E, 5 * D, bias=False)
        self.cell = nn.Linear(2 * D, 5 * D)
        # of the whole map
        limit = math.sqrt(6 / (E + 2 * D + 5 * D))
        nn.init.uniform_(self.leaf.weight, -limit, limit)
        nn.init.uniform_(self.cell.weight, -limit, limit)
        nn.init.zeros_(self.cell.bias)

    def leaves(self, words: Tensor, layout: Layout) -> NodeState:
        """Return the states `[N, D]` of word vectors `[N, E]`."""
        i, j, _, _, o = (self.leaf(words) + self.cell.bias).chunk(5, dim=-1)
        c = i.sigmoid() * self._drop(j.tanh())
        return NodeState(o.sigmoid() * c.tanh(), c)

    def compose(self, left: NodeState, right: NodeState) -> NodeState:
        """Return the parents of n pairs of nodes, from states `[n, D]`."""
        gates = self.cell(torch.cat([left.h, right.h], dim=-1))  # [n, 5D]
        i, j, f_l, f_r, o = gates.chunk(5, dim=-1)
        kept = (f_l + 1).sigmoid() * left.c + (f_r + 1).sigmoid() * right.c
        c = kept + i.sigmoid() * self._drop(j.tanh())
        return NodeState(o.sigmoid() * c.tanh(), c)

    def gates(self) -> tuple[Tensor, Tensor]:
        """Return weight `[5D, 2D]` and bias `[5D]`; see `_FusedEncoder.gates`."""
        D, bias = self.config.hidden_dim, _arranged(self.cell.bias, 0, 2, 3, 1, 4)
        offset = F.pad(bias.new_ones(2 * D), (D, 2 * D))
        return _arranged(self.cell.weight, 0, 2, 3, 1, 4), bias + offset

    def _drop(self, candidate: Tensor) -> Tensor:
        return F.dropout(candidate, self.config.dropout, self.training)
