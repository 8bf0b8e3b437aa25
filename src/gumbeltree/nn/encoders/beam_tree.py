"""Encoder that averages the most probable trees (Ray Chowdhury and Caragea 2023)."""

import dataclasses

import torch
from torch import Tensor

from gumbeltree.config import BeamTreeConfig
from gumbeltree.layout import Sentences
from gumbeltree.nn.encoders.gumbel_tree import GumbelTreeEncoder
from gumbeltree.nn.encoders.tree_encoder import of_choices
from gumbeltree.noise import is_keys, keyed_noise, mixed
from gumbeltree.ops.merge.beam_search import search
from gumbeltree.states import Draw, Encoding, Keep, NodeState


class BeamTreeEncoder(GumbelTreeEncoder):
    """Find k trees per sentence by beam search and mix their vectors by their probabilities.

    Scores receive gradients through the probabilities only: a merge that all trees share gets none.
    The trees are found first and then encoded as given trees, so both passes are linear in the
    number of words.

    Args:
        config: settings; see `BeamTreeConfig`.
    """

    Config = BeamTreeConfig
    trees = "sampled"
    capturable = False

    def encode(self, sentences: Sentences, draw: Draw, keep: Keep) -> Encoding:
        """Return mixed vectors and the most probable trees; given orders are followed alone.

        Args:
            sentences: word vectors.
            draw: with noise, beams are drawn at random if `stochastic` is set.
            keep: what to return in addition to vectors and trees; it describes the best tree.
        """
        if sentences.order is not None:
            return super().encode(sentences, Draw(), keep)
        layout, k = sentences.layout, self.config.beams
        lengths = layout.own_lengths()
        with torch.no_grad():
            rows = self.leaf(sentences.words, layout).to(self.query.dtype)
            if getattr(self.cell, "single_state", False):
                rows = torch.cat([rows.chunk(2, dim=-1)[0]] * 2, dim=-1)
            leaves = NodeState(*map(layout.unpack, rows.chunk(2, dim=-1)))
            noise = self._noise(draw.noise, layout.T) if self.config.stochastic else None
            found = search(
                leaves,
                lengths,
                self.cell,
                self.scale * self.query,
                k,
                noise,
                self.config.distinct,
            )
        there = found.log_prob > -torch.inf  # [B, k]
        # fewer trees than beams: encode the best one again, without weight
        order = torch.where(there[..., None], found.order, found.order[:, :1])
        words = layout.unpack(sentences.words).repeat_interleave(k, 0)
        many = Sentences.padded(words, lengths.repeat_interleave(k)).with_order(order.flatten(0, 1))
        encoding = super().encode(many, Draw(), Keep(keep.nodes, True))
        assert encoding.scores is not None
        assert encoding.order is not None
        log_prob, _ = of_choices(encoding.scores, encoding.order)
        log_prob = log_prob.view(-1, k).masked_fill(~there, -torch.inf)
        weights = log_prob.softmax(-1)  # [B, k]
        vector = (weights[..., None] * encoding.vector.unflatten(0, (-1, k))).sum(1)
        best = encoding.map(lambda x: x.unflatten(0, (-1, k))[:, 0])
        return dataclasses.replace(
            best, vector=vector.to(best.vector.dtype), scores=best.scores if keep.scores else None
        )

    def _noise(self, noise: Tensor | None, T: int) -> Tensor | None:
        """Return noise for each beam `[B, k, T-1, T-1]`."""
        if noise is None:
            return None
        k = self.config.beams
        if not is_keys(noise):
            return noise[:, None].expand(-1, k, -1, -1)
        beam = torch.arange(k, device=noise.device)
        keys = mixed(noise[:, None] ^ beam[:, None], 17)  # [B, k, 2]
        drawn: Tensor = keyed_noise(keys.flatten(0, 1), T).unflatten(0, (-1, k))
        return drawn
