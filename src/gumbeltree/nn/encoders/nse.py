"""The Neural Semantic Encoder, which reads and rewrites a memory of all words."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gumbeltree.config import LSTMLeafConfig
from gumbeltree.layout import Sentences
from gumbeltree.nn.encoders.encoder import Encoder
from gumbeltree.nn.leaves.lstm import LSTMLeaf
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
        words, packed, D = sentences.words, sentences.layout, self.config.hidden_dim
        layout = packed.full()
        # added to the scores
        outside = words.new_zeros(()).where(layout.valid(layout.T), -torch.inf)[..., None]
        memory = packed.padded(words)[layout.sentence]  # [B, T, D], longest first
        read = packed.spread(self.reader(self.dropout(words), packed)[:, :D])
        fed = read
        if self.compose is not None:
            # the half of the product that does not depend on the memory
            fed = F.linear(read, self.compose.weight[:, :D], self.compose.bias)
        h = c = words.new_zeros((layout.B, D))
        no_bias = torch.zeros_like(self.writer.bias)
        states = []
        steps = [x.split(list(layout.active)) for x in (read, fed)]
        for n, o, part in zip(layout.active, *steps, strict=True):
            if n < len(memory):
                # inside a graph, all sentences have the same length
                memory, outside, h, c = memory[:n], outside[:n], h[:n], c[:n]
            # even under autocast, the memory keeps its precision
            scores = torch.baddbmm(outside, memory, o[..., None]).squeeze(-1)  # [n, T]
            z = scores.softmax(-1, dtype=memory.dtype)
            m = (z[:, None] @ memory).squeeze(1)  # [n, D]
            if self.compose is None:
                composed = torch.cat([o, m], dim=-1)
            else:
                composed = part + F.linear(m, self.compose.weight[:, D:])
            h, c = _step(self.writer, no_bias, self.dropout(composed), h, c)
            # (1 - z) M + z h
            memory = memory.lerp(h[:, None], z[..., None])
            states.append(h)
        return Encoding(torch.cat(states)[layout.last_rows()])


def _step(
    lstm: LSTMLeaf, no_bias: Tensor, x: Tensor, h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor]:
    """Return h and c after one more input `[n, E]`, each `[n, D]`."""
    if not torch.is_autocast_enabled(x.device.type):
        # on a GPU, one kernel for all gates, which needs two biases
        return torch.lstm_cell(x, (h, c), lstm.weight_ih, lstm.weight_hh, lstm.bias, no_bias)
    # torch's cell would narrow the states as well as the products
    gates = F.linear(x, lstm.weight_ih, lstm.bias) + F.linear(h, lstm.weight_hh)
    i, f, g, o = gates.to(c.dtype).chunk(4, dim=-1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c
