"""Stacked bidirectional LSTMs with attention by the input gates of the top layer."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gumbeltree.config import BidirectionalLSTMLeafConfig
from gumbeltree.layout import Layout, Sentences
from gumbeltree.nn.character_cnn import WIDTHS, CharacterCNN
from gumbeltree.nn.encoders.encoder import Encoder
from gumbeltree.nn.encoders.tree_encoder import maximum
from gumbeltree.nn.initial_weights import orthogonal_
from gumbeltree.nn.leaves.lstm import BidirectionalLSTMLeaf, LSTMLeaf
from gumbeltree.peers import GatedAttentionConfig
from gumbeltree.states import Draw, Encoding, Keep


class GatedAttentionEncoder(Encoder):
    """Encode a sentence as [mean; maximum; gated mean] of its top layer (Chen et al. 2017).

    The layers above the first read [y; x], the output of the layer below and the words. With H_t
    the output of the top layer and i_t its input gates, both directions concatenated, the gated
    mean is

        sum_t |i_t| H_t / sum_t |i_t|

    Unlike the authors, it does not add words for the beginning and the end of a sentence.

    Args:
        config: see `GatedAttentionConfig`.
    """

    Config = GatedAttentionConfig
    capturable = True

    def __init__(self, config: GatedAttentionConfig) -> None:
        super().__init__(config)
        if config.character_dim % len(WIDTHS):
            raise ValueError(
                f"`character_dim` must be a multiple of {len(WIDTHS)}, an equal share for each "
                f"convolution, got {config.character_dim}"
            )
        self.characters = CharacterCNN(config.character_dim) if config.character_dim else None
        self.spelling = "characters" if config.character_dim else ""
        self.dropout = nn.Dropout(config.dropout)
        words = config.embedding_dim + config.character_dim
        D, lstm = config.hidden_dim, BidirectionalLSTMLeafConfig(init="uniform", biases=1)
        widths = [words, *[D + words] * (config.layers - 1)]
        self.layers: Any = nn.ModuleList(BidirectionalLSTMLeaf(width, D, lstm) for width in widths)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the LSTMs: square matrices orthogonal, others N(0, 0.01^2), biases zero."""
        for lstm in [x.forwards for x in self.layers] + [x.backwards for x in self.layers]:
            nn.init.zeros_(lstm.bias_ih)
            for weight in (lstm.weight_ih, lstm.weight_hh):
                for gate in weight.detach().chunk(4):
                    if gate.shape[0] == gate.shape[1]:
                        orthogonal_(gate)
                    else:
                        nn.init.normal_(gate, std=0.01)

    @property
    def vector_dim(self) -> int:
        """Width of the sentence vectors, three times that of a layer."""
        return 3 * int(self.config.hidden_dim)

    def encode(self, sentences: Sentences, draw: Draw, keep: Keep) -> Encoding:
        """Return the vectors `[B, 3D]`."""
        words, layout = sentences.words, copy.copy(sentences.layout)
        # the gates use the weights of the LSTM once more; see `Overlap`
        layout.overlap = None
        if self.characters is not None:
            if "characters" not in sentences.extras:
                raise ValueError(
                    "the encoder 'gated_attention' reads the characters of every word; call it "
                    "through a model, pass `Sentences` with characters as extras, or set "
                    "character_dim = 0"
                )
            spelled = self.characters(sentences.extras["characters"])
            words = torch.cat([words, spelled], dim=-1)
        x = below = self.dropout(words)
        for layer in self.layers:
            read = below
            h = layer(read, layout).chunk(2, dim=-1)[0]
            below = torch.cat([h, x], dim=-1)
        output, mask = layout.padded(h), layout.word_mask()  # [B, T, D], [B, T]
        there, back = output.chunk(2, dim=-1)
        # the states that each direction has read before a word
        gates = [
            input_gate(layer.forwards, read, F.pad(there, (0, 0, 1, -1)), layout),
            input_gate(layer.backwards, read, F.pad(back, (0, 0, -1, 1)), layout),
        ]
        norm = torch.where(mask, torch.cat(gates, dim=-1).norm(dim=-1), 0.0)[..., None]
        mean = output.sum(1) / mask.sum(1)[:, None]
        gated = (norm * output).sum(1) / norm.sum(1)
        return Encoding(torch.cat([mean, maximum(output, mask), gated], dim=-1))


def input_gate(lstm: LSTMLeaf, words: Tensor, before: Tensor, layout: Layout) -> Tensor:
    """Recompute the input gates `[B, T, D]` of an LSTM in one product.

    Args:
        lstm: the LSTM.
        words: its inputs `[N, E]`.
        before: its states before each word `[B, T, D]`.
        layout: layout of the words.
    """
    D = before.shape[-1]
    inputs = F.linear(words, lstm.weight_ih[:D], lstm.bias[:D])
    return (layout.padded(inputs) + F.linear(before, lstm.weight_hh[:D])).sigmoid()
