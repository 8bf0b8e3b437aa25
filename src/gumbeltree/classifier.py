"""Heads: sentence vectors -> class scores."""

import itertools

import torch
from torch import Tensor, nn

from gumbeltree.config import HeadConfig


class Head(nn.Module):
    """An MLP over one sentence vector (Eqs. 17-18) or over two (Eqs. 14-16).

    Batch normalisation stands before dropout, on the MLP's input and output, not between its
    hidden layers.

    Args:
        config: see `HeadConfig`.
        hidden_dim: width D of the sentence vectors.
    """

    def __init__(self, config: HeadConfig, hidden_dim: int) -> None:
        super().__init__()
        self.config = config
        features = hidden_dim * (4 if config.kind == "pair" else 1)
        widths = [features, *[config.hidden_dim] * config.hidden_layers]
        normalize = nn.BatchNorm1d if config.batch_norm else lambda width: nn.Identity()
        self.batch_norm_in = normalize(features)
        self.hidden = nn.ModuleList(nn.Linear(*pair) for pair in itertools.pairwise(widths))
        self.batch_norm_out = normalize(config.hidden_dim)
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(config.hidden_dim, len(config.labels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew, as in the supplement."""
        for layer in self.hidden:
            assert isinstance(layer, nn.Linear)
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
        nn.init.uniform_(self.output.weight, -self.config.output_range, self.config.output_range)
        nn.init.zeros_(self.output.bias)

    def forward(self, first: Tensor, second: Tensor | None = None) -> Tensor:
        """Return class scores before the softmax `[B, C]`, from vectors `[B, D]`."""
        if (second is not None) != (self.config.kind == "pair"):
            wanted = "two sentence vectors" if self.config.kind == "pair" else "one sentence vector"
            raise ValueError(f"a head of kind {self.config.kind!r} takes {wanted} a row")
        return self.classify(first if second is None else pair_features(first, second))

    def classify(self, features: Tensor) -> Tensor:
        """Return class scores `[B, C]` of the MLP's inputs, `[B, D]` or `[B, 4D]`."""
        x = self.dropout(self.batch_norm_in(features))
        for layer in self.hidden:
            x = layer(x).relu()
        scores: Tensor = self.output(self.dropout(self.batch_norm_out(x)))
        return scores


def pair_features(first: Tensor, second: Tensor) -> Tensor:
    """Return [u; v; |u-v|; u*v] (Eq. 16), `[B, 4D]`."""
    return torch.cat([first, second, (first - second).abs(), first * second], dim=-1)
