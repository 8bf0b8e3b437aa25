"""The MLP over sentence vectors that all built-in heads share (Eqs. 14-18)."""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gumbeltree.nn.heads.head import Head
from gumbeltree.ops.pair_features import pair_features
from gumbeltree.states import Encoding


class MLPHead(Head):
    """MLP over features of the sentence vectors.

    Batch normalisation and then dropout are applied to the input and the last hidden layer. With
    `normalise` "every", they are applied to the other hidden layers as well. Without hidden layers,
    they are applied once.

    Args:
        config: see `MLPSettings`.
        vector_dim: width of the sentence vectors.
        outputs: number of outputs.
    """

    parts: ClassVar[int]
    """Width of the features in multiples of the sentence vector."""

    def __init__(self, config: Any, vector_dim: int, outputs: int) -> None:
        super().__init__()
        self.config = config
        self.build(vector_dim * self.parts, outputs)

    def build(self, features: int, outputs: int) -> None:
        """Create the layers, given the widths of input and output."""
        config = self.config
        width, later = config.hidden_dim, config.hidden_layers - 1
        inputs = [features, *[width + features * config.skip] * later][: config.hidden_layers]
        normalize = nn.BatchNorm1d if config.batch_norm else lambda width: nn.Identity()
        self.batch_norm_in = normalize(features)
        self.hidden = nn.ModuleList(nn.Linear(n, width) for n in inputs)
        places = later if config.normalise == "every" else 0
        self.batch_norm_between = nn.ModuleList(normalize(width) for _ in range(places))
        self.batch_norm_out = normalize(width) if self.hidden else nn.Identity()
        own = config.input_dropout
        self.dropout_in = nn.Dropout(config.dropout if own is None else own)
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(width if self.hidden else features, outputs)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the weights, by default as in the paper's supplement."""
        for layer in self.hidden:
            assert isinstance(layer, nn.Linear)
            if self.config.hidden_init == "xavier":
                nn.init.xavier_normal_(layer.weight, math.sqrt(2))
            else:
                nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
        nn.init.uniform_(self.output.weight, -self.config.output_range, self.config.output_range)
        nn.init.zeros_(self.output.bias)

    def forward(self, *encodings: Encoding) -> Tensor:
        """Return outputs `[B, outputs]`."""
        if len(encodings) != self.sentences:
            raise ValueError(
                f"{type(self).__name__} takes {self.sentences} encoding(s), one per sentence of an "
                f"example, got {len(encodings)}"
            )
        return self.classify(self.features(*(encoding.vector for encoding in encodings)))

    def features(self, *vectors: Tensor) -> Tensor:
        """Return the MLP's input `[B, parts * D]` from vectors `[B, D]`."""
        raise NotImplementedError

    def classify(self, features: Tensor) -> Tensor:
        """Return outputs `[B, outputs]` for inputs of the MLP."""
        x = features = self.dropout_in(self.batch_norm_in(features))
        for i, layer in enumerate(self.hidden):
            if i and self.config.skip:
                x = torch.cat([x, features], dim=-1)
            x = layer(x).relu()
            if i < len(self.batch_norm_between):
                x = self.dropout(self.batch_norm_between[i](x))
        if self.hidden:
            x = self.dropout(self.batch_norm_out(x))
        scores: Tensor = self.output(x)
        return scores


class OfSentences(MLPHead):
    """An MLP over the vectors of single sentences."""

    sentences = 1
    parts = 1

    def features(self, *vectors: Tensor) -> Tensor:
        """Return the sentence vectors."""
        return vectors[0]


class OfPairs(MLPHead):
    """An MLP over features of sentence pairs."""

    sentences = 2
    parts = 4

    def features(self, *vectors: Tensor) -> Tensor:
        """Return [u; v; |u-v|; u*v], or another difference."""
        u, v = vectors
        return pair_features(u, v, self.config.difference)
