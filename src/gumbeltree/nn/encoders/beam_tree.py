"""Encoder that averages the most probable trees (Ray Chowdhury and Caragea 2023)."""

import dataclasses

import torch
from torch import Tensor

from gumbeltree.config import BeamTreeConfig
from gumbeltree.layout import Sentences
from gumbeltree.nn.encoders.gumbel_tree import GumbelTreeEncoder
from gumbeltree.noise import is_keys, keyed_noise, mixed
from gumbeltree.ops.merge.beams import search, why_not
from gumbeltree.registry import own
from gumbeltree.states import Alternatives, BestTrees, Draw, Encoding, Keep


class BeamTreeEncoder(GumbelTreeEncoder):
    """Find k trees per sentence by beam search and mix their vectors by their probabilities.

    Scores receive gradients through the probabilities only: a merge that all trees share gets none.
    Both passes are linear in the number of words.

    Args:
        config: settings; see `BeamTreeConfig`.
    """

    Config = BeamTreeConfig
    trees = "sampled"
    capturable = True
    beam_steps = GumbelTreeEncoder.beam_steps

    def __init__(self, config: BeamTreeConfig) -> None:
        super().__init__(config)
        reason = why_not(self.cell)
        if self.pools:
            way, fix = "attention", "attention=false"
            if not config.attention:
                way, fix = f"pooling={config.pooling!r}", "pooling=root"
            reason = f"beams mix the vectors of roots, but {way} replaces them; set {fix}"
        if reason is not None:
            raise ValueError(reason)

    def why_not_captured(self, sample: bool) -> str | None:
        """Return why `encode` cannot be captured as a CUDA graph, or None if it can."""
        for part in (self, self.leaf, self.cell):
            if not own(part, "capturable"):
                return f"{type(part).__name__} does not declare itself capturable"
        return None

    def encode(self, sentences: Sentences, draw: Draw, keep: Keep) -> Encoding:
        """Return mixed vectors and the most probable trees; given orders are followed alone.

        Args:
            sentences: word vectors.
            draw: with keys, beams are drawn at random if `stochastic` is set; noise draws a single
                tree.
            keep: what to return in addition to vectors and trees; it describes the best tree.
        """
        if sentences.order is not None:
            return super().encode(sentences, Draw(), keep)
        if draw.noise is not None and not is_keys(draw.noise):
            return super().encode(sentences, draw, keep)
        layout, k = sentences.layout, self.config.beams
        query = self.scoring_query
        leaves = self.leaf(sentences.words, layout).to(query.dtype)
        found = search(
            layout.padded(leaves),
            layout.own_lengths(),
            self.cell,
            self.scale * query,
            k,
            self._noise(draw.noise, layout.T) if self.config.stochastic else None,
            self.config.distinct,
            self.config.impl,
            self.dropout_keys(layout),
            self.scorer,
        )
        weights = found.log_prob.softmax(-1)  # [B, k]
        vector = (weights[..., None].to(found.vector.dtype) * found.vector).sum(1)
        vector = self.with_words(vector, sentences)
        best, beams = found.order[:, 0], BestTrees(found.order, found.log_prob)
        if keep.beams and not (keep.beams == k and self.config.distinct):
            # other trees than those in the vector
            beams = self.best_trees(leaves, layout, self.scale, keep.beams)
        every = None
        if self.training and self.config.mixture == "answers":
            every = Alternatives(found.vector, found.log_prob)
        if not (keep.nodes or keep.scores):
            return Encoding(vector, best, beams=beams, alternatives=every)
        follow = sentences.with_order(best.clamp(min=0))
        alone = super().encode(follow, Draw(), keep._replace(beams=0))
        return dataclasses.replace(
            alone, vector=vector, order=best, beams=beams, alternatives=every
        )

    def _noise(self, noise: Tensor | None, T: int) -> Tensor | None:
        """Return noise for each beam `[B, k, T-1, T-1]`, given keys."""
        if noise is None:
            return None
        k = self.config.beams
        beam = torch.arange(k, device=noise.device)
        keys = mixed(noise[:, None] ^ beam[:, None], 17)  # [B, k, 2]
        drawn: Tensor = keyed_noise(keys.flatten(0, 1), T).unflatten(0, (-1, k))
        return drawn
