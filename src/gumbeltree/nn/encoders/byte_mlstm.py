"""A multiplicative LSTM over bytes (Radford et al. 2017), without outside text."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gumbeltree.layout import Layout, Sentences
from gumbeltree.nn.encoders.encoder import Encoder
from gumbeltree.ops.lookup import lookup
from gumbeltree.ops.mlstm import mlstm
from gumbeltree.peers import ByteMLSTMConfig
from gumbeltree.states import Draw, Encoding, Keep


class ByteMLSTMEncoder(Encoder):
    """Encode a sentence as the last cell state of a language model over its bytes.

    Each step computes, with x the vector of the current byte,

        m = (W_mx x) * (W_mh h)
        i, f, o, u = W_x x + W_h m + b
        c = sigmoid(f) * c + sigmoid(i) * tanh(u),    h = sigmoid(o) * tanh(c)

    and predicts the next byte from h. Each row of the four matrices has a learned length (weight
    normalisation). In training, `losses` has the mean cross-entropy of the bytes of each sentence,
    "bytes", which trains the language model along with the head. By default, the language model
    learns from it alone, and the head is a probe of its states.

    The published model has 4,096 units and read 38 GB of product reviews before it saw the task.
    This one reads only the texts of the task, so the published accuracy is out of its reach. It
    reads tokenised text: the bytes of the words with a space after each, framed by a newline and a
    space. See `byte_table` for words that are long or out of vocabulary.

    Args:
        config: see `ByteMLSTMConfig`.
    """

    Config = ByteMLSTMConfig
    reads_vectors = False
    spelling = "bytes"
    joins_words = True
    capturable = True

    def __init__(self, config: ByteMLSTMConfig) -> None:
        super().__init__(config)
        K, D = config.byte_dim, config.hidden_dim
        self.symbols = nn.Embedding(256, K)
        self.input_factor, self.state_factor = _Normed(K, D), _Normed(D, D)
        self.inputs, self.states = _Normed(K, 4 * D), _Normed(D, 4 * D)
        self.bias = nn.Parameter(torch.zeros(4 * D))
        self.next_byte = nn.Linear(D, 256)

    def encode(self, sentences: Sentences, draw: Draw, keep: Keep) -> Encoding:
        """Return the last cell states `[B, D]`."""
        if "bytes" not in sentences.extras:
            raise ValueError(
                "the encoder 'byte_mlstm' reads the bytes of every word; call it through a model, "
                "or pass `Sentences` with bytes as extras"
            )
        text = _joined(sentences.extras["bytes"], sentences.layout)
        symbols, layout = text.words, text.layout
        # there are only 256 different inputs, whose gradients autocast would sum in its own type
        vectors, dtype = self.symbols.weight, self.bias.dtype
        factors = lookup(F.linear(vectors, self.input_factor()).to(dtype), symbols)
        inputs = lookup(F.linear(vectors, self.inputs(), self.bias).to(dtype), symbols)
        h, c = mlstm(factors, inputs, self.state_factor(), self.states(), layout)
        vector = c[layout.last_rows()]
        losses = {"bytes": self._loss(text, h)} if self.training else {}
        return Encoding(vector.detach() if self.config.probe else vector, losses=losses)

    def _loss(self, text: Sentences, hidden: Tensor) -> Tensor:
        """Return the mean cross-entropy of all bytes but the first `[B]`.

        Args:
            text: bytes `[N]`.
            hidden: states after each byte `[N, D]`.
        """
        layout = text.layout
        logits = self.next_byte(hidden[layout.rows_before()])
        found = F.cross_entropy(logits, text.words[layout.B :], reduction="none")
        total = layout.unpack(F.pad(found, (layout.B, 0))).sum(1)
        return total / (layout.own_lengths() - 1)


class _Normed(nn.Module):
    """A matrix whose rows have a direction and a length of their own (Salimans and Kingma 2016)."""

    def __init__(self, columns: int, rows: int) -> None:
        super().__init__()
        self.direction = nn.Parameter(torch.empty(rows, columns))
        self.length = nn.Parameter(torch.ones(rows))
        nn.init.normal_(self.direction)

    def forward(self) -> Tensor:
        """Return the matrix `[rows, columns]`."""
        return self.length[:, None] * F.normalize(self.direction, dim=1)


def _joined(words: Tensor, layout: Layout) -> Sentences:
    """Join the bytes of the words `[cap, K]` of each sentence, after a newline and a space."""
    text = F.pad(layout.unpack(words[: layout.rows].long()).flatten(1), (2, 0), value=ord(" "))
    text[:, 0] = ord("\n")
    inside = text > 0
    width = text.shape[1]
    if layout.most_symbols:
        width = min(width, layout.most_symbols + 2)
    # move the zeros to the end
    places = torch.where(inside, inside.cumsum(1) - 1, width)
    text = text.new_zeros(len(text), width + 1).scatter(1, places, text)[:, :width]
    arrange = Sentences.padded if layout.known else Sentences.full
    return arrange(text, inside.sum(1))
