"""Word vectors from characters by convolutions."""

import torch
from torch import Tensor, nn

from gumbeltree.ops.lookup import lookup
from gumbeltree.text.spelling import CHARACTERS

WIDTHS = (1, 3, 5)
"""Characters that the convolutions see at a time."""
CHARACTER_DIM = 15
"""Width of the character embedding."""


class CharacterCNN(nn.Module):
    """Maximum over the characters of a word of convolutions, without bias and with ReLU.

    Convolutions are centred at each character; they see zeros outside of the word.

    Args:
        dim: width of the vectors, a third for each convolution.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CHARACTERS, CHARACTER_DIM)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(CHARACTER_DIM, dim // len(WIDTHS), width, padding=width // 2, bias=False)
            for width in WIDTHS
        )

    def forward(self, characters: Tensor) -> Tensor:
        """Return vectors `[N, dim]` for characters `[N, K]`, 0 past the end of a word."""
        inside = (characters > 0)[:, None]  # [N, 1, K]
        vectors = lookup(self.embedding.weight, characters.long()).transpose(1, 2) * inside
        # the ReLU makes 0 the least value, and the value of words without characters
        found = [(layer(vectors) * inside).relu().amax(-1) for layer in self.convolutions]
        return torch.cat(found, dim=-1)
