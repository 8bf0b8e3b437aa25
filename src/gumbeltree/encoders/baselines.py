"""Encoders that build no tree, to compare with: a bag of words and an LSTM."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from gumbeltree.config import EncoderConfig
from gumbeltree.encoders.encoder import Encoder
from gumbeltree.encoders.inputs import check_finite, check_words
from gumbeltree.leaves import LEAVES
from gumbeltree.packing import Packing
from gumbeltree.states import Encoding


class _Baseline(Encoder, ABC):
    """Checks and packing, which both share."""

    def forward(self, embedded: Tensor, lengths: Tensor, **unused: object) -> Encoding:
        """Return vectors `[B, D]`, and no tree.

        Args:
            embedded: word vectors `[B, T, E]`; what stands beyond `lengths` is never read.
            lengths: words per sentence, int64 `[B]`, each in 1..T.
            unused: arguments of encoders that choose a tree, such as `noise`.
        """
        check_words(embedded, lengths, next(self.parameters()), self.config.embedding_dim)
        packing = Packing(lengths.long(), embedded.shape[1])
        words = packing.pack(embedded)
        check_finite(words, packing)
        return Encoding(self.pool(words, packing)[packing.rank], None)

    @abstractmethod
    def pool(self, words: Tensor, packing: Packing) -> Tensor:
        """Return a vector for each sorted sentence `[B, D]` of packed words `[N, E]`."""


class BagEncoder(_Baseline):
    """The mean over words of W x + b: any order of the words gives the same vector.

    Args:
        config: `embedding_dim` and `hidden_dim` are used.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.word = nn.Linear(config.embedding_dim, config.hidden_dim)
        nn.init.kaiming_normal_(self.word.weight)
        nn.init.zeros_(self.word.bias)

    def pool(self, words: Tensor, packing: Packing) -> Tensor:
        """Return the mean of each sorted sentence `[B, D]`."""
        ranks = torch.cat([packing.rank.new_tensor(range(n)) for n in packing.active])
        total = words.new_zeros((packing.B, words.shape[1])).index_add(0, ranks, words)
        mean: Tensor = self.word(total / packing.lengths[:, None])
        return mean


class LSTMEncoder(_Baseline):
    """The last state of the leaf LSTM of Eq. 13, without any merge.

    Args:
        config: `embedding_dim`, `hidden_dim` and `leaf_init` are used.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.leaf = LEAVES["lstm"](config.embedding_dim, config.hidden_dim, config.leaf_init)

    def pool(self, words: Tensor, packing: Packing) -> Tensor:
        """Return the last state of each sorted sentence `[B, D]`."""
        rank = torch.arange(packing.B, device=words.device)
        last: Tensor = self.leaf(words, packing).h[packing.row_starts()[packing.lengths - 1] + rank]
        return last
