"""Baseline encoders without a tree: a bag of words and an LSTM."""

from torch import nn

from gumbeltree.config import BagConfig, LSTMConfig, LSTMLeafConfig
from gumbeltree.layout import Sentences
from gumbeltree.nn.encoders.encoder import Encoder
from gumbeltree.nn.leaves.lstm import LSTMLeaf
from gumbeltree.ops.lstm import why_not_kernels
from gumbeltree.states import Draw, Encoding, Keep


class BagEncoder(Encoder):
    """Average W x + b over the words, regardless of their order.

    Args:
        config: see `BagConfig`.
    """

    Config = BagConfig
    capturable = True

    def __init__(self, config: BagConfig) -> None:
        super().__init__(config)
        self.word = nn.Linear(config.embedding_dim, config.hidden_dim)
        nn.init.kaiming_normal_(self.word.weight)
        nn.init.zeros_(self.word.bias)

    def encode(self, sentences: Sentences, draw: Draw, keep: Keep) -> Encoding:
        """Return the mean of each sentence `[B, D]`."""
        words, layout = sentences.words, sentences.layout
        if layout.known:
            ranks = layout.row_places()[1]
            total = words.new_zeros((layout.B, words.shape[1])).index_add(0, ranks, words)
        else:
            total = layout.padded(words).sum(1)[layout.sentence]
        mean = self.word(total / layout.lengths[:, None])
        return Encoding(mean[layout.rank])


class LSTMEncoder(Encoder):
    """Encode a sentence as the last state of the leaf LSTM (Eq. 13), without merges.

    Args:
        config: see `LSTMConfig`.
    """

    Config = LSTMConfig
    capturable = True

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__(config)
        sizes = config.embedding_dim, config.hidden_dim
        self.leaf = LSTMLeaf(*sizes, LSTMLeafConfig(config.init, biases=config.biases))

    def encode(self, sentences: Sentences, draw: Draw, keep: Keep) -> Encoding:
        """Return the last state of each sentence `[B, D]`."""
        layout = sentences.layout
        states = self.leaf(sentences.words, layout, self.config.impl)
        return Encoding(states[layout.last_rows(), : self.config.hidden_dim])

    def why_not_captured(self, sample: bool) -> str | None:
        """Return why `encode` cannot be captured, or None; the LSTM must use Triton kernels."""
        return super().why_not_captured(sample) or why_not_kernels(
            self.leaf.weight_hh, self.config.impl
        )
