"""The constituency Tree-LSTM (Tai et al. 2015), and its version with recurrent dropout."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gumbeltree.layout import Layout
from gumbeltree.nn.encoders.level_tree import GoldTreeEncoder
from gumbeltree.peers import ConstituencyConfig, DropoutConstituencyConfig
from gumbeltree.states import NodeState


class ConstituencyEncoder(GoldTreeEncoder):
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


class DropoutConstituencyEncoder(GoldTreeEncoder):
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

    def _drop(self, candidate: Tensor) -> Tensor:
        return F.dropout(candidate, self.config.dropout, self.training)
