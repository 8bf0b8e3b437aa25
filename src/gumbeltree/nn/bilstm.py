"""Bidirectional LSTMs of torch over packed words, also inside a CUDA graph."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gumbeltree.layout import Layout
from gumbeltree.ops.lstm import lstm


def bilstm(module: nn.LSTM, words: Tensor, layout: Layout) -> Tensor:
    """Return the outputs `[rows, 2D]` of a bidirectional LSTM with one layer.

    Args:
        module: the LSTM.
        words: its inputs `[rows, E]`.
        layout: layout of the words. Inside a graph, where the host does not know their number,
            `ops.lstm` computes each direction.
    """
    if layout.known:
        packed: Tensor = module(layout.packed(words))[0].data
        return packed
    halves = []
    for end in ("", "_reverse"):
        names = (f"{name}_l0{end}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
        weight_ih, weight_hh, bias_ih, bias_hh = (getattr(module, name) for name in names)
        inputs = F.linear(words, weight_ih, bias_ih + bias_hh)
        states = lstm(inputs, weight_hh, layout, reverse=bool(end))
        halves.append(states.chunk(2, dim=-1)[0])
    return torch.cat(halves, dim=-1)
