"""The neural tree indexer NTI-SLSTM-LSTM (Munkhdalai and Yu 2017)."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from gumbeltree.device.triton_support import why_not
from gumbeltree.layout import Arrangement, Layout, Sentences
from gumbeltree.nn.encoders.encoder import Encoder
from gumbeltree.ops.lstm import lstm
from gumbeltree.ops.stack import fused
from gumbeltree.ops.stack.problem import StackProblem
from gumbeltree.peers import NTIConfig
from gumbeltree.registry import own
from gumbeltree.states import Draw, Encoding, Keep, NodeState


class NTIEncoder(Encoder):
    """A full binary tree over the states of an LSTM.

    The words of a sentence are padded on the left to a power of two, with one random vector, which
    is not trained. An LSTM reads padding and words, and its states are the leaves of a full tree.
    With a = W_l h_l + b_l and b = W_r h_r + b_r, each split into u, i, f and o, a parent has
    c = sigmoid(i_a + i_b) tanh(u_a + u_b) + sigmoid(f_a) c_l + sigmoid(f_b) c_r and
    h = sigmoid(o_a + o_b) tanh(c): each forget gate depends on its own child only.

    Encodings have no trees, because those of this encoder contain nodes that are not words. All
    parameters are drawn from U(-0.1, 0.1); so is the padding, whose scale is our choice.

    Args:
        config: see `NTIConfig`.
    """

    Config = NTIConfig
    capturable = True
    padding: Tensor

    def __init__(self, config: NTIConfig) -> None:
        super().__init__(config)
        E, D = config.embedding_dim, config.hidden_dim
        # of the LSTM, which has one bias
        self.leaf = nn.Linear(E, 4 * D)
        self.recurrent = nn.Parameter(torch.empty(4 * D, D))
        # W_l and W_r
        self.cell = nn.ModuleList(nn.Linear(D, 4 * D) for _ in range(2))
        self.register_buffer("padding", torch.empty(E))
        for x in [*self.parameters(), self.padding]:
            nn.init.uniform_(x, -0.1, 0.1)

    def encode(self, sentences: Sentences, draw: Draw, keep: Keep) -> Encoding:
        """Return the root of each sentence `[B, D]`, without trees."""
        layout = sentences.layout
        if not layout.known:
            return Encoding(self._roots_of_bound(sentences)[layout.rank])
        rows, padded, leaves, sizes = _padded(layout, self.config.least_leaves)
        table = torch.cat([sentences.words[: layout.N], self.padding[None].to(sentences.words)])
        words = self._drop(table.index_select(0, rows))
        states = lstm(self.leaf(words), self.recurrent, padded)
        nodes = NodeState(*states.index_select(0, leaves).chunk(2, dim=-1))
        roots = []
        while len(nodes.h):
            # trees of a single node are complete; larger ones come first
            done = int((sizes == 1).sum())
            rest = len(nodes.h) - done
            roots.append(nodes.h[rest:])
            left, right = (NodeState(*(x[side:rest:2] for x in nodes)) for side in (0, 1))
            nodes, sizes = self.compose(left, right), sizes[sizes > 1] // 2
        return Encoding(torch.cat(roots[::-1])[layout.rank])

    def _roots_of_bound(self, sentences: Sentences) -> Tensor:
        """Return the roots of the sorted sentences `[B, D]` inside a graph.

        All sentences have the leaves of the longest possible one, their own first. The root of a
        sentence is the first node at the height of its own tree.
        """
        layout = sentences.layout
        (B, T), lengths = (layout.B, layout.T), layout.lengths
        least = (self.config.least_leaves - 1).bit_length()
        height = max(least, (T - 1).bit_length())
        leaf, rank = (torch.arange(n, device=lengths.device) for n in (2**height, B))
        heights = (lengths[:, None] > 2 ** leaf[:height]).sum(1).clamp(min=least)
        word = leaf[:, None] - 2**heights + lengths  # [leaves, B]
        rows = layout.start[word.clamp(0, T - 1)] + rank
        inside = (word >= 0) & (word < lengths)
        found = sentences.words.index_select(0, torch.where(inside, rows, 0).flatten())
        words = torch.where(inside.view(-1, 1), found, self.padding.to(found))
        full = layout.full(2**height)
        states = lstm(self.leaf(self._drop(words)), self.recurrent, full)
        # the first node at the height of each root
        first = 2 ** (height + 1) - 2 ** (height + 1 - heights)
        nodes = self._nodes_of_bound(states, full)
        return nodes.index_select(0, first * B + rank)[:, : self.config.hidden_dim]

    def _nodes_of_bound(self, states: Tensor, layout: Layout) -> Tensor:
        """Return the states of all nodes of full trees; see `fused.compose_full`.

        A level then has 6 operations, forward and backward, in kernels that do not follow autocast.

        Args:
            states: states of the leaves `[N, 2D]`.
            layout: their layout.
        """
        # a subclass may compose in another way
        if not own(self, "gates") or why_not(self.recurrent) is not None:
            levels = [states]
            while len(levels[-1]) > layout.B:
                pairs = levels[-1].unflatten(0, (-1, 2, layout.B))  # [n, 2, B, 2D]
                sides = (NodeState(*x.chunk(2, dim=-1)) for x in pairs.unbind(1))
                levels.append(torch.cat(self.compose(*sides), dim=-1).flatten(0, 1))
            return torch.cat(levels)
        D, kept = self.config.hidden_dim, None
        problem = StackProblem(states, layout, *self.gates(), None, states.new_zeros((3, D)))
        if self.training and self.config.dropout:
            kept = self._drop(states.new_ones((layout.nodes - layout.N, 2 * D)))
        return fused.compose_full(problem, kept)

    def compose(self, left: NodeState, right: NodeState) -> NodeState:
        """Return the parents of pairs of nodes, from states `[..., D]`."""
        u_a, i_a, f_a, o_a = self.cell[0](self._drop(left.h)).chunk(4, dim=-1)
        u_b, i_b, f_b, o_b = self.cell[1](self._drop(right.h)).chunk(4, dim=-1)
        c = (i_a + i_b).sigmoid() * (u_a + u_b).tanh()
        c = c + f_a.sigmoid() * left.c + f_b.sigmoid() * right.c
        return NodeState((o_a + o_b).sigmoid() * c.tanh(), c)

    def gates(self) -> tuple[Tensor, Tensor]:
        """Return weight `[5D, 2D]` and bias `[5D]` of the gates i, f_l, f_r, g, o of `ops.stack`.

        They map h of both children, as `compose` does.
        """
        left: Any
        right: Any
        left, right = self.cell
        weight = torch.cat([_five(left.weight, 0), _five(right.weight, 1)], dim=1)
        return weight, _five(left.bias, 0) + _five(right.bias, 1)

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.config.dropout, self.training)


def _five(x: Tensor, side: int) -> Tensor:
    """Return gates i, f_l, f_r, g, o `[5D, ...]` from u, i, f, o of one child `[4D, ...]`."""
    u, i, f, o = x.chunk(4)
    other = torch.zeros_like(f)
    return torch.cat([i, *((other, f) if side else (f, other)), u, o])


def _padded(layout: Layout, least: int) -> tuple[Tensor, Layout, Tensor, NDArray[np.int64]]:
    """Pad sentences to powers of two.

    Args:
        layout: layout of the words.
        least: minimum number of leaves.

    Returns:
        The row of `layout` for each row of the padded sentences, N for padding, int64 `[rows]`;
        their layout; their rows sentence by sentence, int64 `[rows]`; the size of each sorted
        sentence, `[B]`.
    """
    lengths = layout.lengths.cpu().numpy()
    sizes = np.array([max(least, 1 << (int(n) - 1).bit_length()) for n in lengths])
    arrangement = Arrangement.of(sizes, int(sizes[0]))
    sentence, place = np.arange(layout.B)[:, None], np.arange(sizes[0])
    word = place - (sizes - lengths)[:, None]  # [B, leaves]
    row = np.array(layout.starts)[word.clip(0, layout.steps)] + sentence
    row = np.where(word < 0, layout.N, row)
    rows = arrangement.rows(row.ravel(), sentence[:, 0] * sizes[0])
    leaves = (arrangement.start[:-1] + sentence)[place < sizes[:, None]]
    device = layout.lengths.device
    packed, by_sentence = (torch.from_numpy(x).to(device) for x in (rows, leaves))
    return packed, Layout.of(arrangement, device), by_sentence, sizes
