"""Bidirectional LSTMs of torch over packed words, also inside a CUDA graph."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gumbeltree.layout import Layout
from gumbeltree.ops.lstm import bilstm as lstms


def bilstm(module: nn.LSTM, words: Tensor, layout: Layout) -> Tensor:
    """Return the outputs `[rows, 2D]` of a bidirectional LSTM with one layer.

    Args:
        module: the LSTM.
        words: its inputs `[rows, E]`.
        layout: layout of the words. Inside a graph, where the host does not know their number,
            `ops.lstm` computes both directions.
    """
    if layout.known:
        packed: Tensor = module(layout.packed(words))[0].data
        return packed
    there, back = (_direction(module, words, end) for end in ("", "_reverse"))
    return torch.cat([x.chunk(2, dim=-1)[0] for x in lstms(there, back, layout)], dim=-1)


def _direction(module: nn.LSTM, words: Tensor, end: str) -> tuple[Tensor, Tensor]:
    """Return the inputs and the recurrent weight of a direction."""
    names = (f"{name}_l0{end}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    weight_ih, weight_hh, bias_ih, bias_hh = (getattr(module, name) for name in names)
    return F.linear(words, weight_ih, bias_ih + bias_hh), weight_hh
