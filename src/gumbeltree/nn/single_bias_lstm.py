"""An LSTM with one bias vector; `torch.nn.LSTM` has two."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gumbeltree.layout import Layout
from gumbeltree.ops.lstm import lstm


class SingleBiasLSTM(nn.Module):
    """Run an LSTM over the words of each sentence, with gates in the order i, f, g, o.

    Weights are initialised as in `torch.nn.LSTM`, between -1/sqrt(D) and 1/sqrt(D).

    Args:
        input_dim: width E of the inputs.
        hidden_dim: width D of the states.
        reverse: whether to read from the last word to the first.
    """

    def __init__(self, input_dim: int, hidden_dim: int, reverse: bool = False) -> None:
        super().__init__()
        self.reverse = reverse
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden_dim, input_dim))
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden_dim, hidden_dim))
        self.bias = nn.Parameter(torch.empty(4 * hidden_dim))
        for p in self.parameters():
            nn.init.uniform_(p, -1 / math.sqrt(hidden_dim), 1 / math.sqrt(hidden_dim))

    def forward(self, words: Tensor, layout: Layout) -> Tensor:
        """Return h of each word, `[rows, D]`, for inputs `[rows, E]`."""
        gates = F.linear(words, self.weight_ih, self.bias)
        return lstm(gates, self.weight_hh, layout, self.reverse)[:, : self.weight_hh.shape[1]]

    def step(self, word: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """Return h and c after one more word `[n, E]`, each `[n, D]`."""
        gates = F.linear(word, self.weight_ih, self.bias) + F.linear(h, self.weight_hh)
        i, f, g, o = gates.chunk(4, dim=-1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c
