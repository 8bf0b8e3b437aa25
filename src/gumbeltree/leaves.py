"""Leaf transformations: packed word vectors [N, E] -> packed leaf states, each [N, D].

Each leaf has two ways: `forward` with a packing, by operations of torch, and `rows` with a layout,
by kernels on a CUDA device, which returns h and c side by side. The encoder takes the second where
it merges with `fused`, and if a leaf has none, the first.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gumbeltree.initial_weights import orthogonal_
from gumbeltree.ops.layout import Layout
from gumbeltree.ops.triton_support import precision_of
from gumbeltree.packing import Packing
from gumbeltree.registry import Registry
from gumbeltree.states import NodeState

LEAVES = Registry(
    "leaf",
    {
        "affine": "gumbeltree.leaves:AffineLeaf",
        "lstm": "gumbeltree.leaves:LSTMLeaf",
        "bilstm": "gumbeltree.leaves:BidirectionalLSTMLeaf",
    },
)


class AffineLeaf(nn.Module):
    """r_i = W x_i + b (Eq. 10): each word by itself. W is He normal, b zero under either `init`."""

    def __init__(self, embedding_dim: int, hidden_dim: int, init: str = "orthogonal") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2 * hidden_dim, embedding_dim))
        self.bias = nn.Parameter(torch.empty(2 * hidden_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew."""
        nn.init.kaiming_normal_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, words: Tensor, packing: Packing) -> NodeState:
        """Return the leaf states of packed `words`."""
        return NodeState(*F.linear(words, self.weight, self.bias).chunk(2, dim=-1))

    def rows(self, words: Tensor, layout: Layout) -> Tensor:
        """Return the leaf states of `words`, `[cap, 2D]`."""
        return F.linear(words, self.weight, self.bias)


class LSTMLeaf(nn.Module):
    """r_i = LSTM(x_i, r_{i-1}) (Eq. 13): each word with what stands before it.

    Gates in the order i, f, g, o and two bias vectors, as `torch.nn.LSTMCell`, whose parameters
    these are by name and shape.

    Args:
        embedding_dim: width E of the words.
        hidden_dim: width D of the states.
        init: "orthogonal" (the authors' code: W_ih He normal, W_hh orthogonal, biases zero but for
            the forget part of b_ih, which is one) or "he" (printed: both He normal, biases zero).
        reverse: read from the last word to the first.
    """

    def __init__(
        self, embedding_dim: int, hidden_dim: int, init: str = "orthogonal", reverse: bool = False
    ) -> None:
        super().__init__()
        self.init = init
        self.reverse = reverse
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden_dim, embedding_dim))
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden_dim, hidden_dim))
        self.bias_ih = nn.Parameter(torch.empty(4 * hidden_dim))
        self.bias_hh = nn.Parameter(torch.empty(4 * hidden_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew."""
        nn.init.kaiming_normal_(self.weight_ih)
        nn.init.zeros_(self.bias_ih)
        nn.init.zeros_(self.bias_hh)
        if self.init == "he":
            nn.init.kaiming_normal_(self.weight_hh)
            return
        orthogonal_(self.weight_hh)
        D = self.weight_hh.shape[1]
        nn.init.ones_(self.bias_ih[D : 2 * D])

    def forward(self, words: Tensor, packing: Packing) -> NodeState:
        """Return the leaf states of packed `words`; finished sentences cost nothing."""
        D, inputs = self.weight_hh.shape[1], self._inputs(words)
        # the cell state keeps at least the precision of its weights, also under autocast
        h = c = self.weight_hh.new_zeros((packing.B, D))
        hs: list[Tensor] = []
        cs: list[Tensor] = []
        steps = list(zip(packing.active, inputs.split(packing.active), strict=True))
        for n, gates in reversed(steps) if self.reverse else steps:
            i, f, g, o = (gates + F.linear(h[:n], self.weight_hh)).chunk(4, dim=-1)
            new_c = f.sigmoid() * c[:n] + i.sigmoid() * g.tanh()
            new_h = o.sigmoid() * new_c.tanh()
            hs.append(new_h)
            cs.append(new_c)
            h, c = new_h, new_c
            if self.reverse:
                # more sentences join at the next step, from a zero state
                h, c = F.pad(h, (0, 0, 0, packing.B - n)), F.pad(c, (0, 0, 0, packing.B - n))
        if self.reverse:
            hs, cs = hs[::-1], cs[::-1]
        return NodeState(torch.cat(hs), torch.cat(cs))

    def rows(self, words: Tensor, layout: Layout) -> Tensor:
        """Return the leaf states of `words`, `[cap, 2D]`, zero beyond the words."""
        from gumbeltree.ops.fused_lstm import lstm

        weight = self.weight_hh
        precision = precision_of(weight.device.type)
        inputs = self._inputs(words).to(weight.dtype)
        return lstm(inputs, weight, layout.start, layout.T, layout.B, self.reverse, precision)

    def _inputs(self, words: Tensor) -> Tensor:
        """Return the words' part of the gates before activation, `[N, 4D]`."""
        return F.linear(words, self.weight_ih, self.bias_ih + self.bias_hh)


class BidirectionalLSTMLeaf(nn.Module):
    """Two LSTMs of width D/2, one in each direction, their states side by side."""

    def __init__(self, embedding_dim: int, hidden_dim: int, init: str = "orthogonal") -> None:
        super().__init__()
        if hidden_dim % 2:
            raise ValueError(
                f"leaf 'bilstm' splits `hidden_dim` between two directions, so it must be even, "
                f"got {hidden_dim}; use {hidden_dim + 1}"
            )
        self.forwards = LSTMLeaf(embedding_dim, hidden_dim // 2, init)
        self.backwards = LSTMLeaf(embedding_dim, hidden_dim // 2, init, reverse=True)

    def forward(self, words: Tensor, packing: Packing) -> NodeState:
        """Return the leaf states of packed `words`."""
        both = zip(self.forwards(words, packing), self.backwards(words, packing), strict=True)
        return NodeState(*(torch.cat(pair, dim=-1) for pair in both))

    def rows(self, words: Tensor, layout: Layout) -> Tensor:
        """Return the leaf states of `words`, `[cap, 2D]`, zero beyond the words."""
        there = self.forwards.rows(words, layout).chunk(2, dim=-1)
        back = self.backwards.rows(words, layout).chunk(2, dim=-1)
        return torch.cat([there[0], back[0], there[1], back[1]], dim=-1)
