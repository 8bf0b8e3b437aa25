"""Base class of encoders that merge words into a tree: leaves, cell, merge, pooling."""

import dataclasses
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gumbeltree.config import TreeSettings
from gumbeltree.encoded import check_beams
from gumbeltree.layout import Layout, Sentences
from gumbeltree.nn.encoders.encoder import Encoder
from gumbeltree.noise import new_keys
from gumbeltree.ops.merge import IMPLEMENTATIONS, Choice, choose, report
from gumbeltree.ops.merge.beams import search, why_not
from gumbeltree.ops.merge.dropout import rate_of
from gumbeltree.ops.merge.problem import TreeProblem
from gumbeltree.parts import CELLS, LEAVES
from gumbeltree.registry import own
from gumbeltree.states import BestTrees, Draw, Encoding, Keep


class TreeEncoder(Encoder):
    """Encoder with a leaf transformation, a cell and a merge.

    Args:
        config: settings of the encoder and its parts.
    """

    estimator: Any = None
    """Gradient estimator of the choice of merges; None if there is no choice."""
    query: Any
    """Query vector that scores candidates, `[D]`; not defined if there is a scorer."""
    scorer: Any
    """Scores candidates by their children; None if the query does."""

    def __init__(self, config: TreeSettings) -> None:
        super().__init__(config)
        if config.attention and config.pooling != "root":
            raise ValueError(
                f"`attention` is true and `pooling` is {config.pooling!r}; pool in one way only"
            )
        if config.add_words and config.embedding_dim != config.hidden_dim:
            raise ValueError(
                "`add_words` adds word vectors to vectors of trees, but `embedding_dim` is "
                f"{config.embedding_dim} and `hidden_dim` is {config.hidden_dim}; make them equal"
            )
        self.pools = config.attention or config.pooling != "root"
        D = config.hidden_dim
        self.leaf = LEAVES[config.leaf.kind](config.embedding_dim, D, config.leaf)
        self.cell = CELLS[config.cell.kind](D, config.cell)
        self.scorer = None

    @property
    def scoring_query(self) -> Tensor:
        """Query vector, `[D]`; zero if there is a scorer."""
        if self.scorer is not None:
            return next(self.parameters()).new_zeros(self.config.hidden_dim)
        query: Tensor = self.query
        return query

    def explain(self, sample: bool | None = None) -> Choice:
        """Return the selected implementation of the merge and the reason for it.

        Args:
            sample: whether merges are sampled; by default, as in the current mode.
        """
        sample = self.training if sample is None else sample
        sample = sample and self.estimator is not None
        return choose(self.config.impl, self.cell, self.estimator, sample, self.scorer)

    def why_not_captured(self, sample: bool) -> str | None:
        """Return why `encode` cannot be captured as a CUDA graph, or None if it can."""
        for part in (self, self.leaf):
            if not own(part, "capturable"):
                return f"{type(part).__name__} does not declare itself capturable"
        choice = self.explain(sample)
        return None if choice.name == "fused" else f"it uses impl={choice.name!r}, not 'fused'"

    def dropout_keys(self, layout: Layout) -> Tensor | None:
        """Draw keys for the dropout inside the cell, int64 `[B, 2]`, in training."""
        drops = self.cell.training and rate_of(self.cell)
        return new_keys(layout.B, layout.lengths.device) if drops else None

    def why_no_beams(self) -> str | None:
        """Return why beam search cannot find its most probable trees, or None if it can."""
        return super().why_no_beams() if self.estimator is None else why_not(self.cell)

    def best_trees(self, leaves: Tensor, layout: Layout, scale: float, k: int) -> BestTrees:
        """Return the k most probable trees that beam search finds.

        Args:
            leaves: states of the words `[cap, 2D]`, [h; c].
            layout: their layout.
            scale: factor applied to every score.
            k: number of trees.
        """
        check_beams(k)
        reason = self.why_no_beams()
        if reason is not None:
            raise ValueError(f"the encoder {self.config.kind!r} has no beams: {reason}")
        query = scale * self.scoring_query
        found = search(
            layout.padded(leaves), layout.own_lengths(), self.cell, query, k, scorer=self.scorer
        )
        return BestTrees(found.order, found.log_prob)

    def with_words(self, vector: Tensor, sentences: Sentences) -> Tensor:
        """Add the mean direction of the words to vectors `[B, D]`, if `add_words` is set."""
        if not self.config.add_words:
            return vector
        return plus_words(vector, sentences.layout.padded(sentences.words))

    def merge(
        self,
        sentences: Sentences,
        draw: Draw,
        keep: Keep,
        scale: float = 1.0,
        temperature: float | Tensor = 1.0,
    ) -> Encoding:
        """Merge the words of each sentence, following `sentences.order` if it is set.

        Args:
            sentences: word vectors.
            draw: how to choose merges; sampling requires an estimator.
            keep: what to return in addition to vectors and trees.
            scale: factor applied to every score.
            temperature: temperature of the softmax in the backward pass.
        """
        layout = sentences.layout
        choice = self.explain(draw.sampled)
        report(choice)
        impl = IMPLEMENTATIONS[choice.name]
        query = self.scoring_query
        operands = impl.prepare(self.cell, query, scale, layout)
        # autocast may narrow products; states keep the precision of the weights
        leaves = self.leaf(sentences.words, layout, choice.name).to(query.dtype)
        if getattr(self.cell, "single_state", False):
            h = leaves.chunk(2, dim=-1)[0]
            leaves = torch.cat([h, h], dim=-1)
        weighed = draw.sampled and not getattr(self.estimator, "local", True)
        result = impl.build_tree(
            TreeProblem(
                leaves,
                layout,
                self.cell,
                query,
                scale,
                self.estimator,
                temperature,
                draw.sampled,
                draw.noise,
                sentences.order,
                Keep(keep.nodes or self.pools, keep.scores or weighed),
                operands,
                self.dropout_keys(layout),
                self.scorer,
            )
        )
        vector, weights = result.vector, None
        mask = None if result.nodes is None else layout.node_mask()
        if self.config.attention:
            assert mask is not None
            vector, weights = attend(result.nodes.h, mask)
        elif self.pools:
            assert mask is not None
            vector = maximum(result.nodes.h, mask, self.config.pooling == "mean_max")
        vector = self.with_words(vector, sentences)
        beams = self.best_trees(leaves, layout, scale, keep.beams) if keep.beams else None
        found = Encoding(vector, result.order, beams=beams)
        if weighed:
            log_prob, entropy = of_choices(result.scores, result.order)
            if getattr(self.estimator.config, "mean_entropy", False):
                entropy = entropy / (layout.own_lengths() - 1).clamp(min=1)
            found = dataclasses.replace(found, log_prob=log_prob, entropy=entropy)
        if keep.nodes:
            found = dataclasses.replace(found, nodes=result.nodes, mask=mask, attention=weights)
        return dataclasses.replace(found, scores=result.scores) if keep.scores else found


def plus_words(vector: Tensor, words: Tensor) -> Tensor:
    """Return the sum of vectors and the means of their words, both scaled to length 1.

    The cosine of such sums depends on both equally.

    Args:
        vector: vectors of trees `[B, D]`.
        words: word vectors, zero past the end of a sentence, `[B, T, D]`.
    """
    return F.normalize(vector, dim=-1) + F.normalize(words.sum(1).to(vector.dtype), dim=-1)


def attend(h: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Pool the nodes of each tree by attention: weights softmax(h_n . mean(h)).

    Args:
        h: nodes `[B, 2T-1, D]`, zero where there is no node.
        mask: which nodes exist, bool `[B, 2T-1]`.

    Returns:
        Vectors `[B, D]` and weights `[B, 2T-1]`.
    """
    wide = h.to(torch.promote_types(h.dtype, torch.float32))
    mean = wide.sum(1) / mask.sum(1)[:, None]
    scores = (wide * mean[:, None]).sum(-1)
    weights = torch.softmax(scores.masked_fill(~mask, -torch.inf), dim=1)
    return (weights[..., None] * wide).sum(1).to(h.dtype), weights


def maximum(h: Tensor, mask: Tensor, plus_mean: bool = False) -> Tensor:
    """Return the maximum over the nodes of each tree or the words of each sentence, `[B, D]`.

    Args:
        h: nodes `[B, 2T-1, D]` or words `[B, T, D]`; with `plus_mean`, zero where there is none.
        mask: which of them exist, bool `[B, 2T-1]` or `[B, T]`.
        plus_mean: add their mean.
    """
    highest = h.masked_fill(~mask[..., None], -torch.inf).amax(1)
    if not plus_mean:
        return highest
    wide = h.to(torch.promote_types(h.dtype, torch.float32))
    return (wide.sum(1) / mask.sum(1)[:, None] + highest).to(h.dtype)


def of_choices(scores: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-probability and the entropy of the merges of each tree, each `[B]`.

    Args:
        scores: scores of each layer, `[B, T-1, T-1]`, -inf where there is no candidate.
        order: merges, int64 `[B, T-1]`, -1 past the end of a sentence.
    """
    exists = scores > -torch.inf
    made = exists.any(-1)  # [B, T-1]
    # layers past the end have no candidate: give their softmax finite values
    logs = torch.where(made[..., None], scores, 0.0).log_softmax(-1)
    logs = torch.where(exists, logs, 0.0)
    chosen = logs.gather(-1, order.clamp(min=0)[..., None])[..., 0]
    entropy = -(logs.exp() * logs * exists).sum((-1, -2))
    return torch.where(made, chosen, 0.0).sum(-1), entropy
