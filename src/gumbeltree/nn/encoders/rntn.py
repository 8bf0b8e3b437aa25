"""The recursive neural tensor network (Socher et al. 2013)."""

import math

import torch
from torch import Tensor, nn

from gumbeltree.layout import Layout, Sentences
from gumbeltree.nn.encoders.level_tree import GoldTreeEncoder
from gumbeltree.peers import RNTNConfig
from gumbeltree.states import Draw, Encoding, Keep, NodeState


class RNTNEncoder(GoldTreeEncoder):
    """Recursive neural tensor network: p_k = tanh(x' V_k x + W_k x + b_k), x = [h_l; h_r].

    A leaf is tanh of its word vector, so that words and states have the same width. Nodes have a
    single state: c repeats h. Initial weights follow the released code (Stanford CoreNLP): uniform,
    with an identity added to both halves of W.

    Args:
        config: see `RNTNConfig`.
    """

    Config = RNTNConfig
    capturable = True

    def __init__(self, config: RNTNConfig) -> None:
        super().__init__(config)
        D = config.hidden_dim
        if config.embedding_dim != D:
            raise ValueError(
                f"the encoder {config.kind!r} uses word vectors as leaves, but `embedding_dim` is "
                f"{config.embedding_dim} and `hidden_dim` is {D}; make them equal"
            )
        self.tensor = nn.Parameter(torch.empty(D, 2 * D, 2 * D))
        self.cell = nn.Linear(2 * D, D)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the weights."""
        D = self.config.hidden_dim
        limit = 1 / (2 * math.sqrt(D))
        nn.init.uniform_(self.tensor, -1 / (4 * D), 1 / (4 * D))
        nn.init.uniform_(self.cell.weight, -limit, limit)
        with torch.no_grad():
            self.cell.weight += torch.eye(D).repeat(1, 2)
        nn.init.zeros_(self.cell.bias)

    def leaves(self, words: Tensor, layout: Layout) -> NodeState:
        """Return tanh of word vectors, `[N, D]`; c is empty."""
        h = words.tanh()
        return NodeState(h, h[:, :0])

    def compose(self, left: NodeState, right: NodeState) -> NodeState:
        """Return the parents of n pairs of nodes, from h `[n, D]`; c is empty."""
        pair = torch.cat([left.h, right.h], dim=-1)  # [n, 2D]
        product = torch.einsum("nk,dkl,nl->nd", pair, self.tensor, pair)
        h = (product + self.cell(pair)).tanh()
        return NodeState(h, h[:, :0])

    def encode(self, sentences: Sentences, draw: Draw, keep: Keep) -> Encoding:
        """Return vectors and the given trees."""
        found = super().encode(sentences, draw, keep)
        if found.nodes is None:
            return found
        h = found.nodes.h
        return Encoding(found.vector, found.order, nodes=NodeState(h, h), mask=found.mask)
