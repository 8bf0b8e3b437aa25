"""LSTM leaf transformations (Eq. 13)."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gumbeltree.config import BidirectionalLSTMLeafConfig, LSTMLeafConfig
from gumbeltree.layout import Layout
from gumbeltree.nn.initial_weights import orthogonal_
from gumbeltree.ops.lstm import bilstm, lstm, why_not_kernels


class LSTMLeaf(nn.Module):
    """Compute r_i = LSTM(x_i, r_{i-1}).

    Parameters have the names, shapes and gate order (i, f, g, o) of `torch.nn.LSTMCell`; with one
    bias vector, there is no `bias_hh`.

    Args:
        embedding_dim: width E of the word vectors.
        hidden_dim: width D of the states.
        config: initialisation. "orthogonal" follows the authors' code: W_ih He normal, W_hh
            orthogonal, biases zero except for ones in the forget part of b_ih. "he" follows the
            paper: both matrices He normal, biases zero. "uniform" is that of `torch.nn.LSTM`:
            everything between -1/sqrt(D) and 1/sqrt(D). "xavier" follows Bowman et al. (2016): both
            matrices normal with variance 4 / (rows + columns), biases as for "orthogonal".
        reverse: whether to read from the last word to the first.
    """

    Config = LSTMLeafConfig
    capturable = True
    bias_hh: nn.Parameter | None

    def __init__(
        self,
        embedding_dim: int,
        hidden_dim: int,
        config: LSTMLeafConfig | None = None,
        reverse: bool = False,
    ) -> None:
        super().__init__()
        config = config or LSTMLeafConfig()
        self.init = config.init
        self.reverse = reverse
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden_dim, embedding_dim))
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden_dim, hidden_dim))
        self.bias_ih = nn.Parameter(torch.empty(4 * hidden_dim))
        second = nn.Parameter(torch.empty(4 * hidden_dim)) if config.biases == 2 else None
        self.register_parameter("bias_hh", second)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the weights."""
        D = self.weight_hh.shape[1]
        if self.init == "uniform":
            for p in self.parameters():
                nn.init.uniform_(p, -1 / math.sqrt(D), 1 / math.sqrt(D))
            return
        nn.init.kaiming_normal_(self.weight_ih)
        nn.init.zeros_(self.bias_ih)
        if self.bias_hh is not None:
            nn.init.zeros_(self.bias_hh)
        if self.init == "he":
            nn.init.kaiming_normal_(self.weight_hh)
            return
        if self.init == "xavier":
            for weight in (self.weight_ih, self.weight_hh):
                nn.init.xavier_normal_(weight, math.sqrt(2))
        else:
            orthogonal_(self.weight_hh)
        nn.init.ones_(self.bias_ih[D : 2 * D])

    @property
    def bias(self) -> Tensor:
        """Sum of the bias vectors `[4D]`."""
        return self.bias_ih if self.bias_hh is None else self.bias_ih + self.bias_hh

    def forward(self, words: Tensor, layout: Layout, impl: str = "auto") -> Tensor:
        """Return the leaf states of `words`, `[rows, 2D]`."""
        # no local variable: under autocast, a wider copy replaces the inputs, which are then freed
        return lstm(
            F.linear(words, self.weight_ih, self.bias), self.weight_hh, layout, self.reverse, impl
        )


class BidirectionalLSTMLeaf(nn.Module):
    """Two LSTMs of width D/2, one per direction, with concatenated states."""

    Config = BidirectionalLSTMLeafConfig
    capturable = True

    def __init__(
        self,
        embedding_dim: int,
        hidden_dim: int,
        config: BidirectionalLSTMLeafConfig | None = None,
    ) -> None:
        super().__init__()
        if hidden_dim % 2:
            raise ValueError(
                f"a bidirectional LSTM needs an even `hidden_dim`, half for each direction, got "
                f"{hidden_dim}; use {hidden_dim + 1}"
            )
        self.forwards = LSTMLeaf(embedding_dim, hidden_dim // 2, config)
        self.backwards = LSTMLeaf(embedding_dim, hidden_dim // 2, config, reverse=True)

    def forward(self, words: Tensor, layout: Layout, impl: str = "auto") -> Tensor:
        """Return the leaf states of `words`, `[rows, 2D]`."""
        both = self.forwards, self.backwards
        if why_not_kernels(self.forwards.weight_hh, impl) is None:
            first, last = ((F.linear(words, x.weight_ih, x.bias), x.weight_hh) for x in both)
            states = bilstm(first, last, layout, impl)
        else:
            # one after the other, which needs less memory
            states = tuple(x(words, layout, impl) for x in both)
        there, back = (x.chunk(2, dim=-1) for x in states)
        return torch.cat([there[0], back[0], there[1], back[1]], dim=-1)
