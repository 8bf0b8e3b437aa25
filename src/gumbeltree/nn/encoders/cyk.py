"""The CYK Tree-LSTM, a mixture of all trees of a sentence (Maillard et al. 2017)."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_packed_sequence

from gumbeltree.layout import Layout, Sentences
from gumbeltree.nn.encoders.encoder import Encoder
from gumbeltree.ops.chart import best_trees, chart, roots, too_large
from gumbeltree.peers import CYKConfig
from gumbeltree.states import Draw, Encoding, Keep, NodeState


class CYKEncoder(Encoder):
    """Mix all trees of a sentence, and return the vector of the mixture.

    The state of a span is the mean over its splits, weighted by a softmax of beta cos(w, h), where
    h is the hidden state of the split and beta the inverse temperature, a buffer that training
    increases. `order` is the tree of the heaviest splits. Weights are initialised as those of
    Glorot and Bengio (2010).

    Args:
        config: see `CYKConfig`.
    """

    Config = CYKConfig
    trees = "soft"
    capturable = True
    beta: Tensor

    def __init__(self, config: CYKConfig) -> None:
        super().__init__(config)
        E, D = config.embedding_dim, config.hidden_dim
        self.leaf = nn.Linear(E, 5 * D, bias=False)
        # its bias is that of the leaves as well
        self.cell = nn.Linear(2 * D, 5 * D)
        self.query = nn.Parameter(torch.empty(D))
        self.register_buffer("beta", torch.ones(()))
        nn.init.xavier_uniform_(self.leaf.weight)
        nn.init.xavier_uniform_(self.cell.weight)
        nn.init.zeros_(self.cell.bias)
        nn.init.normal_(self.query, std=0.1)

    def batch_cost(self, lengths: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
        """Return the memory of sentences, which grows with the square of their lengths."""
        costs: NDArray[np.integer[Any]] = np.maximum(lengths, lengths**2 // 16)
        return costs

    def advance(self, step: int, epochs: float) -> None:
        """Update the inverse temperature, every `refresh` steps."""
        if step % self.config.refresh == 0:
            self.beta.fill_(1 + self.config.sharpening * epochs)

    def encode(self, sentences: Sentences, draw: Draw, keep: Keep) -> Encoding:
        """Return vectors and the trees of the heaviest splits.

        Nodes have the states of the mixture. All merges have the score 0, since only whole splits
        have one. In training, trees are returned only with nodes, since nothing else reads them.
        """
        layout = sentences.layout.full()
        words = sentences.layout.spread(sentences.words)
        # autocast may narrow products; states keep the precision of the weights
        gates = F.linear(words, self.leaf.weight, self.cell.bias)
        i, _, _, o, u = gates.to(self.query.dtype).chunk(5, dim=-1)
        c = i.sigmoid() * u.tanh()
        h = o.sigmoid() * c.tanh()
        h, c = (pad_packed_sequence(layout.packed(x))[0] for x in (h, c))  # [T, B, D]
        inputs = h, c, self.cell.weight, self.cell.bias, self.query, self.beta, layout.active
        lengths = layout.own_lengths()
        if torch.is_grad_enabled() and too_large(h) and not keep.nodes:
            vector, split = roots(*inputs, layout.lengths, self.config.impl)
            vector = vector[layout.rank]
        else:
            found = chart(*inputs, self.config.impl)
            vector, split = found.h[lengths - 1, lengths - 1, layout.rank], found.split
        trees = None
        if keep.nodes or not (self.training and torch.is_grad_enabled()):
            trees = best_trees(split, layout)
        nodes, scores, mask = None, None, None
        if trees and keep.nodes:
            mask = layout.node_mask()
            nodes = NodeState(*(_nodes(x, trees.cell, mask, layout) for x in (found.h, found.c)))
        if keep.scores:
            merge = torch.arange(layout.T - 1, device=h.device)
            exists = merge[:, None] + merge < (lengths - 1)[:, None, None]
            scores = torch.where(exists, 0.0, -torch.inf).to(vector.dtype)
        return Encoding(vector, trees and trees.order, nodes, scores, mask=mask)


def _nodes(x: Tensor, place: Tensor, mask: Tensor, layout: Layout) -> Tensor:
    """Return the states of words and merges, zero elsewhere, `[B, 2T-1, D]`.

    Args:
        x: states of all spans `[T, T, B, D]`.
        place: place of each merged span, int64 `[B, T-1]`.
        mask: which nodes exist, bool `[B, 2T-1]`.
        layout: layout of the sentences.
    """
    words = x[0][:, layout.rank].transpose(0, 1)
    nodes = torch.cat([words, x.flatten(0, 2)[place]], dim=1)
    return torch.where(mask[..., None], nodes, 0)
