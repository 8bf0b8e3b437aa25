"""A classifier with maxout layers (Goodfellow et al. 2013), as in McCann et al. (2017)."""

import itertools

from torch import Tensor, nn

from gumbeltree.nn.heads.classes import ClassHead
from gumbeltree.nn.heads.mlp import OfSentences
from gumbeltree.peers import MaxoutConfig


class SingleMaxoutHead(OfSentences, ClassHead):
    """Classifier of single sentences; each unit is the maximum over `pieces` linear maps.

    The output layer is a maxout layer as well. Where batch normalisation belongs is not known from
    the paper; here it precedes each layer.

    Args:
        config: see `MaxoutConfig`.
        vector_dim: width of the sentence vectors.
    """

    Config = MaxoutConfig
    capturable = True

    def build(self, features: int, outputs: int) -> None:
        """Create the layers, given the widths of input and output."""
        config = self.config
        widths = [features, *config.hidden_dims, outputs]
        self.batch_norms = nn.ModuleList(
            nn.BatchNorm1d(width) if config.batch_norm else nn.Identity() for width in widths[:-1]
        )
        self.dropouts = nn.ModuleList(nn.Dropout(share) for share in config.dropouts)
        self.layers = nn.ModuleList(
            nn.Linear(before, width * config.pieces) for before, width in itertools.pairwise(widths)
        )

    def classify(self, features: Tensor) -> Tensor:
        """Return outputs `[B, C]` for sentence vectors `[B, D]`."""
        x = features
        for norm, dropout, layer in zip(self.batch_norms, self.dropouts, self.layers, strict=True):
            x = layer(dropout(norm(x)))  # [B, width * pieces]
            x = x.unflatten(-1, (-1, self.config.pieces)).amax(-1)
        return x
