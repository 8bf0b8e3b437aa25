"""What an encoder is: the part of a model that turns word vectors into sentence vectors."""

from torch import nn

from gumbeltree.config import EncoderConfig


class Encoder(nn.Module):
    """Base of all encoders; `forward(embedded, lengths, ...)` returns an `Encoding`.

    Args:
        config: sizes and parts.
    """

    trees: str = "none"
    """Trees it builds: none; fixed, the same for all words; or sampled, chosen by score."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config

    @property
    def vector_dim(self) -> int:
        """Width of the sentence vectors."""
        return self.config.hidden_dim

    @property
    def builds_trees(self) -> bool:
        """Whether encodings have an `order`."""
        return self.trees != "none"
