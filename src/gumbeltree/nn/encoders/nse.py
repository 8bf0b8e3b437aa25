"""The Neural Semantic Encoder, which reads and rewrites a memory of all words."""

from torch import nn

from gumbeltree.config import LSTMLeafConfig
from gumbeltree.layout import Sentences
from gumbeltree.nn.encoders.encoder import Encoder
from gumbeltree.nn.leaves.lstm import LSTMLeaf
from gumbeltree.ops.memory import rewrite
from gumbeltree.peers import NSEConfig
from gumbeltree.states import Draw, Encoding, Keep


class NSEEncoder(Encoder):
    """Encode a sentence as the last state that is written to its memory (Munkhdalai and Yu 2017).

    The memory M starts as the word vectors, one slot j per word. For every word x:

        o   = reader(x)                  an LSTM
        z_j = softmax_j(o . M_j)
        m   = sum_j z_j M_j
        h   = writer(W [o; m] + b)       an LSTM
        M_j = (1 - z_j) M_j + z_j h

    Without `compose`, the writer reads [o; m] itself.

    Args:
        config: see `NSEConfig`.
    """

    Config = NSEConfig
    capturable = True

    def __init__(self, config: NSEConfig) -> None:
        super().__init__(config)
        D = config.hidden_dim
        if config.embedding_dim != D:
            raise ValueError(
                "the memory of the encoder 'nse' holds word vectors and states, which must have "
                f"the same width, but `embedding_dim` is {config.embedding_dim} and `hidden_dim` "
                f"is {D}; set both to the width of the word vectors"
            )
        lstm = LSTMLeafConfig(init="uniform", biases=1)
        self.reader = LSTMLeaf(D, D, lstm)
        self.compose = nn.Linear(2 * D, 2 * D) if config.compose else None
        self.writer = LSTMLeaf(2 * D, D, lstm)
        self.dropout = nn.Dropout(config.dropout)
        for p in self.parameters():
            nn.init.uniform_(p, -config.init_range, config.init_range)

    def encode(self, sentences: Sentences, draw: Draw, keep: Keep) -> Encoding:
        """Return the last state of each sentence `[B, D]`."""
        words, packed, layout = sentences.words, sentences.layout, sentences.layout.full()
        memory = packed.padded(words)[layout.sentence]  # [B, T, D], longest first
        read = packed.spread(self.reader(self.dropout(words), packed)[:, : words.shape[1]])
        writer = self.writer.weight_ih, self.writer.weight_hh, self.writer.bias
        compose = None if self.compose is None else (self.compose.weight, self.compose.bias)
        drop = self.dropout if self.dropout.training and self.dropout.p > 0 else None
        states = rewrite(memory, read, writer, compose, layout, drop)
        return Encoding(states[layout.last_rows()])
