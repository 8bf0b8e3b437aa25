"""NumPy versions of the encoders that merge words into a tree."""

import dataclasses
import math
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gumbeltree.answers import softmax
from gumbeltree.config import (
    QUERY_SCORES,
    EncoderConfig,
    FixedTreeConfig,
    ParserComposerConfig,
    TreeSettings,
)
from gumbeltree.encoded import VECTORS, BestTrees, Encoded, Keep, check_beams
from gumbeltree.fixed_orders import fixed_orders
from gumbeltree.light.arrays import (
    Array,
    Packed,
    Shapes,
    Weights,
    named,
    packed_blocks,
    unit,
    within,
)
from gumbeltree.light.beams import search, searching
from gumbeltree.light.encoders import LightEncoder
from gumbeltree.light.estimators import HardChoice
from gumbeltree.light.merge import Merger, Outputs
from gumbeltree.parts import CELLS, ESTIMATORS, LEAVES
from gumbeltree.registry import NeedsTorchError


class LightTree(LightEncoder):
    """A leaf transformation, a cell and a merge.

    Args:
        config: settings of the encoder and its parts.
        weights: weights of the leaf and the cell.
        query: scaled query vector `[D]`; zero if candidates are not scored.
    """

    block = 96, 1920
    """Maximum numbers of sentences and words merged at once."""
    few = 2
    """Blocks of up to this many sentences are merged one by one."""
    estimator: Any = HardChoice
    """NumPy version of the estimator."""
    noise_scale: float = 1.0
    """Factor of the noise."""

    def __init__(self, config: TreeSettings, weights: Weights, query: Array) -> None:
        super().__init__(config, weights)
        D = config.hidden_dim
        leaf, cell = config.leaf, config.cell
        self.leaf = LEAVES.light_version(leaf.kind)(
            config.embedding_dim, D, leaf, within(weights, "leaf")
        )
        self.cell = CELLS.light_version(cell.kind)(D, cell, within(weights, "cell"))
        self.merger = Merger(self.cell, query)

    @staticmethod
    def shapes(config: Any) -> Shapes:
        """Return the names and shapes of the weights."""
        D, leaf, cell = config.hidden_dim, config.leaf, config.cell
        leaf_shapes = LEAVES.light_version(leaf.kind).shapes(config.embedding_dim, D, leaf)
        cell_shapes = CELLS.light_version(cell.kind).shapes(D, cell)
        return {**named(leaf_shapes, "leaf"), **named(cell_shapes, "cell")}

    def weigh(self, scores: Array) -> Array:
        """Return the mixing weights of the noisy scores of one layer `[K]`, if trees are mixed."""
        raise NotImplementedError

    def order_of(self, lengths: NDArray[np.int64], noise: Array | None) -> NDArray[np.int64] | None:
        """Return the merges if they do not depend on the words, `[B, T-1]`."""
        return None

    def encode(
        self,
        words: Array,
        lengths: NDArray[np.int64],
        keep: Keep = VECTORS,
        noise: Array | None = None,
    ) -> Encoded:
        """Return vectors and trees; see `LightEncoder.encode`."""
        return self.merged(words, lengths, keep, noise, self.order_of(lengths, noise))

    def merged(
        self,
        words: Array,
        lengths: NDArray[np.int64],
        keep: Keep,
        noise: Array | None,
        order: NDArray[np.int64] | None,
    ) -> Encoded:
        """Return vectors and trees; merges follow `order` if it is not None."""
        B, T, config = len(lengths), int(lengths.max()), self.config
        pools = config.attention or config.pooling != "root"
        out = Outputs(B, T, self.vector_dim, words.dtype, keep, pools)
        if order is not None or noise is None:
            noise = None
        else:
            noise = (self.noise_scale * noise).astype(words.dtype)
        mixing = noise is not None and self.estimator.mixes
        block = (1, T) if mixing else self.block
        for batch, h, c in self.leaves(words, lengths, block):
            out.start(h, batch)
            if len(batch.lengths) > self.few and not mixing:
                self.merger.merge_many(h, c, batch, out, noise, order)
                continue
            for row, own_h, own_c in one_by_one(batch, h, c):
                if mixing:
                    assert noise is not None
                    self.merger.merge_mixed(own_h, own_c, row, out, noise, self.weigh)
                else:
                    self.merger.merge_one(own_h, own_c, row, out, noise, order)
        vector = out.vector
        if pools:
            assert out.nodes is not None
            vector = POOL["attention" if config.attention else config.pooling](out.nodes, lengths)
        vector = self.with_words(vector, words, lengths)
        return Encoded(vector, out.order, out.nodes if keep.nodes else None, out.scores)

    def with_words(self, vector: Array, words: Array, lengths: NDArray[np.int64]) -> Array:
        """Add the mean direction of the words to vectors `[B, D]`, if `add_words` is set."""
        if not self.config.add_words:
            return vector
        starts = np.cumsum(lengths) - lengths
        return unit(vector) + unit(np.add.reduceat(words, starts))

    def leaves(
        self, words: Array, lengths: NDArray[np.int64], block: tuple[int, int]
    ) -> Iterator[tuple[Packed, Array, Array]]:
        """Yield blocks of sentences, with h and c of their words, each `[N, D]`."""
        for batch in packed_blocks(lengths, *block):
            x = words if len(lengths) == 1 else words.take(batch.words, 0)
            h, c = self.leaf(x, batch)
            yield batch, h, h if self.cell.single_state else c


def one_by_one(batch: Packed, h: Array, c: Array) -> Iterator[tuple[int, Array, Array]]:
    """Yield the row of each sentence of a block, with h and c of its words, each `[T, D]`."""
    for rank, row in enumerate(batch.sentences.tolist()):
        length = int(batch.lengths[rank])
        own = np.array(batch.start[:length]) + rank
        yield (row, h, c) if length == len(h) else (row, h[own], c[own])


class LightGumbelTree(LightTree):
    """Merge the words of each sentence into a learned tree.

    Args:
        config: settings of the encoder.
        weights: `query`, and the weights of the leaf and the cell.
    """

    trees = "sampled"

    def __init__(self, config: EncoderConfig, weights: Weights) -> None:
        scale = 1 / math.sqrt(config.hidden_dim) if config.score == "scaled_dot" else 1.0
        query = weights["query"]
        super().__init__(config, weights, query * query.dtype.type(scale))
        self.estimator = ESTIMATORS.light_version(config.estimator.kind)
        self.noise_scale = getattr(config.estimator, "forward_temperature", 1.0)

    def weigh(self, scores: Array) -> Array:
        """Return the mixing weights of the noisy scores of one layer `[K]`."""
        mixed: Array = self.estimator.weights(scores, self.config.temperature)
        return mixed

    @staticmethod
    def shapes(config: Any) -> Shapes:
        """Return the names and shapes of the weights."""
        if config.score not in QUERY_SCORES:
            raise NeedsTorchError(
                f"the score {config.score!r} has no NumPy version; use the runtime torch, which "
                "needs torch to be installed"
            )
        return {"query": (config.hidden_dim,), **LightTree.shapes(config)}

    def why_no_beams(self) -> str | None:
        """Return None, because beam search can find its most probable trees."""
        return None

    def encode(
        self,
        words: Array,
        lengths: NDArray[np.int64],
        keep: Keep = VECTORS,
        noise: Array | None = None,
    ) -> Encoded:
        """Return vectors and trees; see `LightEncoder.encode`."""
        found = super().encode(words, lengths, keep, noise)
        if not keep.beams:
            return found
        return dataclasses.replace(found, beams=self.best_trees(words, lengths, keep.beams)[0])

    def best_trees(
        self, words: Array, lengths: NDArray[np.int64], k: int, distinct: bool = True
    ) -> tuple[BestTrees, Array]:
        """Return the k most probable trees that beam search finds, and their roots `[B, k, D]`."""
        check_beams(k)
        B, T = len(lengths), int(lengths.max())
        order: NDArray[np.int64] = np.full((B, k, T - 1), -1)
        log_prob = np.full((B, k), -np.inf, words.dtype)
        roots = np.zeros((B, k, self.vector_dim), words.dtype)
        for block in self.leaves(words, lengths, self.block):
            for row, h, c in one_by_one(*block):
                found = search(h, c, self.cell, self.merger.query, k, distinct)
                b = len(found.order)
                order[row, :b, : len(h) - 1] = found.order
                log_prob[row, :b], roots[row, :b] = found.log_prob, found.root
        return BestTrees(order, log_prob), roots

    def beam_steps(self, words: Array, k: int) -> Generator[None, None, BestTrees]:
        """Return the most probable trees of one sentence `[T, E]` in short steps."""
        ((_, h, c),) = self.leaves(words, np.array([len(words)]), self.block)
        found = yield from searching(h, c, self.cell, self.merger.query, k)
        return BestTrees(found.order[None], found.log_prob[None])


class LightBeamTree(LightGumbelTree):
    """Find several trees per sentence by beam search and mix their vectors.

    Args:
        config: settings of the encoder.
        weights: `query`, and the weights of the leaf and the cell.
    """

    trees = "sampled"
    beam_steps = LightGumbelTree.beam_steps

    def encode(
        self,
        words: Array,
        lengths: NDArray[np.int64],
        keep: Keep = VECTORS,
        noise: Array | None = None,
    ) -> Encoded:
        """Return mixed vectors and the most probable trees; see `LightEncoder.encode`.

        Noise draws a single tree. Nodes and scores describe the best tree.
        """
        if noise is not None:
            return super().encode(words, lengths, keep, noise)
        k, distinct = self.config.beams, self.config.distinct
        beams, roots = self.best_trees(words, lengths, k, distinct)
        weights = softmax(beams.log_prob).astype(words.dtype)
        vector, best = (weights[..., None] * roots).sum(1), beams.order[:, 0]
        vector = self.with_words(vector, words, lengths)
        if keep.beams and not (keep.beams == k and distinct):
            # other trees than those in the vector
            beams, _ = self.best_trees(words, lengths, keep.beams)
        if not (keep.nodes or keep.scores):
            return Encoded(vector, best, beams=beams)
        alone = self.merged(words, lengths, keep, None, best)
        return dataclasses.replace(alone, vector=vector, beams=beams)


class LightParserComposer(LightTree):
    """Merge the words of each sentence into the tree of a parser with weights of its own.

    Args:
        config: settings of the encoder.
        weights: weights of the leaf and the cell, and those of the parser.
    """

    trees = "sampled"

    def __init__(self, config: ParserComposerConfig, weights: Weights) -> None:
        super().__init__(
            config, weights, np.zeros(config.hidden_dim, weights["parser.query"].dtype)
        )
        self.parser = LightGumbelTree(config.of_parser, within(weights, "parser"))

    def encode(
        self,
        words: Array,
        lengths: NDArray[np.int64],
        keep: Keep = VECTORS,
        noise: Array | None = None,
    ) -> Encoded:
        """Return vectors of the composer and trees of the parser; see `LightEncoder.encode`."""
        parsed = self.parser.encode(words, lengths, keep._replace(nodes=False), noise)
        composed = self.merged(words, lengths, Keep(nodes=keep.nodes), None, parsed.order)
        return dataclasses.replace(composed, scores=parsed.scores, beams=parsed.beams)

    def why_no_beams(self) -> str | None:
        """Return why beam search cannot find its most probable trees, or None if it can."""
        return self.parser.why_no_beams()

    def beam_steps(self, words: Array, k: int) -> Generator[None, None, BestTrees]:
        """Return the most probable trees of the parser in short steps."""
        return self.parser.beam_steps(words, k)

    @staticmethod
    def shapes(config: Any) -> Shapes:
        """Return the names and shapes of the weights."""
        parser = LightGumbelTree.shapes(config.of_parser)
        return {**LightTree.shapes(config), **named(parser, "parser")}


class LightFixedTree(LightTree):
    """Merge the words of each sentence into a tree that does not depend on them.

    Args:
        config: settings of the encoder.
        weights: weights of the leaf and the cell.
    """

    trees = "fixed"

    def __init__(self, config: FixedTreeConfig, weights: Weights) -> None:
        super().__init__(config, weights, np.zeros(config.hidden_dim, weights["cell.bias"].dtype))

    @property
    def shape_of_trees(self) -> str:
        """Kind of trees: left, right, balanced or random."""
        kind: str = self.config.trees
        return kind

    @property
    def draws_trees(self) -> bool:
        """Whether trees depend on noise."""
        return self.shape_of_trees == "random"

    def order_of(self, lengths: NDArray[np.int64], noise: Array | None) -> NDArray[np.int64] | None:
        """Return the merges, `[B, T-1]`; random trees are drawn by noise, if there is any."""
        T = int(lengths.max())
        if noise is None or T == 1 or not self.draws_trees:
            return fixed_orders(self.shape_of_trees, lengths, T)
        position = np.arange(T - 1)
        last = lengths[:, None] - 2 - position
        drawn = np.where(position <= last[:, :, None], noise, -np.inf).argmax(-1)
        return np.where(last >= 0, drawn, -1)


def attend(h: Array, lengths: NDArray[np.int64]) -> Array:
    """Pool the nodes of each tree by attention; see `nn.encoders.tree_encoder.attend`.

    Args:
        h: nodes `[B, 2T-1, D]`, zero where there is no node.
        lengths: words per sentence `[B]`.

    Returns:
        Vectors `[B, D]`.
    """
    mask = node_mask(h, lengths)
    mean = h.sum(1) / (2 * lengths[:, None] - 1).astype(h.dtype)
    scores = np.where(mask, (h @ mean[:, :, None])[..., 0], -np.inf)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    pooled: Array = (weights[:, None] @ h)[:, 0]
    return pooled


def maximum(h: Array, lengths: NDArray[np.int64]) -> Array:
    """Return the maximum over the nodes of each tree; see `attend`."""
    highest: Array = np.where(node_mask(h, lengths)[..., None], h, -np.inf).max(1)
    return highest


def mean_max(h: Array, lengths: NDArray[np.int64]) -> Array:
    """Return the mean plus the maximum over the nodes of each tree; see `attend`."""
    mean = h.sum(1) / (2 * lengths[:, None] - 1).astype(h.dtype)
    pooled: Array = mean + maximum(h, lengths)
    return pooled


POOL = {"attention": attend, "max": maximum, "mean_max": mean_max}
"""Functions that turn the nodes of trees into vectors, by setting."""


def node_mask(h: Array, lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which of the nodes `[B, 2T-1, D]` exist, bool `[B, 2T-1]`."""
    words = np.arange((h.shape[1] + 1) // 2) < lengths[:, None]
    return np.concatenate([words, words[:, 1:]], axis=1)
