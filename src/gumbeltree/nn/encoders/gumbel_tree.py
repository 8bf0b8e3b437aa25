"""The paper's encoder, which learns the order of merges."""

import math
from collections.abc import Generator

import torch
from torch import nn

from gumbeltree.config import EncoderConfig
from gumbeltree.layout import Sentences
from gumbeltree.nn.encoders.tree_encoder import TreeEncoder
from gumbeltree.nn.estimators.temperature import check_temperature
from gumbeltree.nn.scorers import SCORERS
from gumbeltree.ops.merge.beams import searching
from gumbeltree.parts import ESTIMATORS
from gumbeltree.states import BestTrees, Draw, Encoding, Keep


class GumbelTreeEncoder(TreeEncoder):
    """Merge the words of each sentence into a learned tree and return its vector.

    Args:
        config: settings; see `EncoderConfig`.

    Example:
        >>> encoder = GumbelTreeEncoder(EncoderConfig(embedding_dim=8, hidden_dim=16)).eval()
        >>> vector, order = encoder(torch.randn(2, 5, 8), torch.tensor([5, 3]))
        >>> vector.shape, order.shape
        (torch.Size([2, 16]), torch.Size([2, 4]))
    """

    Config = EncoderConfig
    trees = "sampled"
    capturable = True

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        D = config.hidden_dim
        if config.score in SCORERS:
            self.scorer = SCORERS[config.score](D)
        else:
            self.query = nn.Parameter(torch.empty(D))
            nn.init.normal_(self.query, std=0.01)
        self.estimator = ESTIMATORS[config.estimator.kind](config.estimator)
        self.scale = 1 / math.sqrt(D) if config.score == "scaled_dot" else 1.0
        self.temperature = config.temperature
        if config.impl != "fused":
            # reject impossible settings early; for kernels, the device is not known yet
            self.explain()

    @property
    def temperature(self) -> float:
        """Temperature of the softmax in the backward pass; assign to anneal it."""
        return self._temperature

    @temperature.setter
    def temperature(self, value: float) -> None:
        self._temperature = check_temperature(value)

    def encode(self, sentences: Sentences, draw: Draw, keep: Keep) -> Encoding:
        """Return vectors and trees; merges follow `sentences.order` if it is set.

        Args:
            sentences: word vectors.
            draw: how to choose merges.
            keep: what to return in addition to vectors and trees.
        """
        given = draw.temperature
        temperature = self.temperature if given is None else given
        return self.merge(sentences, draw, keep, self.scale, temperature)

    def beam_steps(self, sentences: Sentences, k: int) -> Generator[None, None, BestTrees]:
        """Return the k most probable trees that beam search finds in short steps, on a CPU.

        Args:
            sentences: word vectors.
            k: number of trees.
        """
        layout, query = sentences.layout, self.scoring_query
        leaves = layout.padded(self.leaf(sentences.words, layout).to(query.dtype))
        scaled, lengths = self.scale * query, layout.own_lengths()
        return (yield from searching(leaves, lengths, self.cell, scaled, k, self.scorer))
