"""Encoders that follow the gold trees of the data, all nodes of one height at a time."""

from abc import abstractmethod

import torch
from torch import Tensor

from gumbeltree.encoded import MissingInputError
from gumbeltree.fixed_orders import NO_GOLD
from gumbeltree.layout import Layout, Sentences
from gumbeltree.nn.encoders.encoder import Encoder
from gumbeltree.ops.levels import compose_levels, levels_of
from gumbeltree.ops.merge.dropout import rate_of
from gumbeltree.parts import CELLS, LEAVES
from gumbeltree.peers import LevelTreeConfig
from gumbeltree.registry import own
from gumbeltree.states import Draw, Encoding, Keep, NodeState


class GoldTreeEncoder(Encoder):
    """Base class of encoders that follow gold trees; the vector of a sentence is h of its root."""

    trees = "given"
    needs = frozenset({"order"})

    @property
    def shape_of_trees(self) -> str:
        """Gold."""
        return "gold"

    @abstractmethod
    def leaves(self, words: Tensor, layout: Layout) -> NodeState:
        """Return the states `[N, D]` of word vectors `[N, E]`."""

    @abstractmethod
    def compose(self, left: NodeState, right: NodeState) -> NodeState:
        """Return the parents of n pairs of nodes, from states `[n, D]`."""

    def compose_all(self, leaves: NodeState, order: Tensor, layout: Layout) -> NodeState:
        """Return the states of all nodes `[2N-B, D]` from those of the words `[N, D]`."""
        levels = levels_of(order, layout)
        return compose_levels(self.compose, levels, leaves, list(self.parameters()))

    def check_needs(self, sentences: Sentences) -> None:
        """Raise an error if the sentences have no gold trees."""
        if sentences.order is None:
            raise MissingInputError(NO_GOLD)

    def encode(self, sentences: Sentences, draw: Draw, keep: Keep) -> Encoding:
        """Return vectors and the given trees."""
        packed, order = sentences.layout, sentences.order
        assert order is not None
        layout = packed.full()
        leaves = self.leaves(sentences.words[: packed.rows], packed)
        # autocast may narrow products; states keep the precision of the weights
        dtype = next(self.parameters()).dtype
        leaves = NodeState(*(packed.spread(x.to(dtype)) for x in leaves))
        nodes = self.compose_all(leaves, order, layout)
        vector = nodes.h[layout.root_rows()[layout.rank]]
        step = torch.arange(layout.T - 1, device=order.device)
        order = torch.where(step < layout.own_lengths()[:, None] - 1, order, -1)
        if not keep.nodes:
            return Encoding(vector, order)
        states = NodeState(*map(layout.unpack_nodes, nodes))
        return Encoding(vector, order, nodes=states, mask=layout.node_mask())


class LevelTreeEncoder(GoldTreeEncoder):
    """Gold trees with the leaf transformations and cells of learned trees.

    The result is that of `fixed_tree` with ``trees = "gold"``, up to rounding, with one call of the
    cell per level instead of one per merge.

    Args:
        config: see `LevelTreeConfig`.
    """

    Config = LevelTreeConfig
    capturable = True

    def __init__(self, config: LevelTreeConfig) -> None:
        super().__init__(config)
        self.leaf = LEAVES[config.leaf.kind](config.embedding_dim, config.hidden_dim, config.leaf)
        self.cell = CELLS[config.cell.kind](config.hidden_dim, config.cell)
        if rate := rate_of(self.cell):
            raise ValueError(
                f"the encoder {config.kind!r} has no dropout inside the cell, but `cell.dropout` "
                f"is {rate:g}; set it to 0, or use encoder.kind=fixed_tree with trees=gold"
            )

    def why_not_captured(self, sample: bool) -> str | None:
        """Return why `encode` cannot be captured as a CUDA graph, or None if it can."""
        for part in (self, self.leaf, self.cell):
            if not own(part, "capturable"):
                return f"{type(part).__name__} does not declare itself capturable"
        return None

    def leaves(self, words: Tensor, layout: Layout) -> NodeState:
        """Return the states `[N, D]` of word vectors `[N, E]`."""
        h, c = self.leaf(words, layout).chunk(2, dim=-1)
        return NodeState(h, h if getattr(self.cell, "single_state", False) else c)

    def compose(self, left: NodeState, right: NodeState) -> NodeState:
        """Return the parents of n pairs of nodes, from states `[n, D]`."""
        parent: NodeState = self.cell(left, right)
        return parent
