"""Stacked bidirectional LSTMs in which every layer reads the words and all layers below."""

from typing import Any

import torch
from torch import nn

from gumbeltree.layout import Sentences
from gumbeltree.nn.bilstm import bilstm
from gumbeltree.nn.encoders.encoder import Encoder
from gumbeltree.nn.encoders.tree_encoder import maximum
from gumbeltree.peers import StackedBiLSTMConfig
from gumbeltree.states import Draw, Encoding, Keep


class StackedBiLSTMEncoder(Encoder):
    """Encode a sentence as the maximum over its words of the top layer (Nie and Bansal 2017).

    Layer k reads [x; y_1; ...; y_{k-1}], the word vectors and the outputs of all layers below, or
    [x; y_1 + ... + y_{k-1}] with `residual`.

    Args:
        config: see `StackedBiLSTMConfig`.
    """

    Config = StackedBiLSTMConfig
    capturable = True

    def __init__(self, config: StackedBiLSTMConfig) -> None:
        super().__init__(config)
        if config.residual and config.growth > 1:
            raise ValueError(
                "`residual` adds the outputs of all layers, which must have the same width, but "
                f"`growth` is {config.growth}; set growth = 1"
            )
        divisor = 2 * config.growth ** (config.layers - 1)
        if config.hidden_dim % divisor:
            raise ValueError(
                "half of every layer reads in each direction, so `hidden_dim` must be a multiple "
                f"of {divisor} with {config.layers} layers and growth {config.growth}, got "
                f"{config.hidden_dim}; use {-(-config.hidden_dim // divisor) * divisor}"
            )
        widths = [config.hidden_dim // config.growth**k for k in reversed(range(config.layers))]
        self.layers: Any = nn.ModuleList()
        for k, width in enumerate(widths):
            below = width * min(k, 1) if config.residual else sum(widths[:k])
            reads = config.embedding_dim + below
            self.layers.append(nn.LSTM(reads, width // 2, bidirectional=True))

    def encode(self, sentences: Sentences, draw: Draw, keep: Keep) -> Encoding:
        """Return the maximum over the words of each sentence `[B, D]`."""
        layout, outputs = sentences.layout, list[torch.Tensor]()
        words = sentences.words[: layout.rows]
        for layer in self.layers:
            below = outputs
            if self.config.residual and outputs:
                below = [torch.stack(outputs).sum(0)]
            inputs = torch.cat([words, *below], dim=-1)
            outputs.append(bilstm(layer, inputs, layout))
        return Encoding(maximum(layout.padded(outputs[-1]), layout.word_mask()))
