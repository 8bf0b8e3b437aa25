"""Stacked bidirectional LSTMs with attention by the input gates of the top layer."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gumbeltree.layout import Layout, Sentences
from gumbeltree.nn.character_cnn import WIDTHS, CharacterCNN
from gumbeltree.nn.encoders.encoder import Encoder
from gumbeltree.nn.encoders.tree_encoder import maximum
from gumbeltree.nn.initial_weights import orthogonal_
from gumbeltree.nn.single_bias_lstm import SingleBiasLSTM
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

    def __init__(self, config: GatedAttentionConfig) -> None:
        super().__init__(config)
        if config.hidden_dim % 2:
            raise ValueError(
                "the encoder 'gated_attention' needs an even `hidden_dim`, half for each "
                f"direction, got {config.hidden_dim}; use {config.hidden_dim + 1}"
            )
        if config.character_dim % len(WIDTHS):
            raise ValueError(
                f"`character_dim` must be a multiple of {len(WIDTHS)}, an equal share for each "
                f"convolution, got {config.character_dim}"
            )
        self.characters = CharacterCNN(config.character_dim) if config.character_dim else None
        self.spelling = "characters" if config.character_dim else ""
        self.dropout = nn.Dropout(config.dropout)
        words = config.embedding_dim + config.character_dim
        inputs = [words, *[config.hidden_dim + words] * (config.layers - 1)]
        self.forwards, self.backwards = (
            nn.ModuleList(SingleBiasLSTM(width, config.hidden_dim // 2, end) for width in inputs)
            for end in (False, True)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the LSTMs: square matrices orthogonal, others N(0, 0.01^2), biases zero."""
        for layer in (*self.forwards, *self.backwards):
            assert isinstance(layer, SingleBiasLSTM)
            nn.init.zeros_(layer.bias)
            for weight in (layer.weight_ih, layer.weight_hh):
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
        words, layout = sentences.words, sentences.layout
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
        for there, back in zip(self.forwards, self.backwards, strict=True):
            read = below
            h = there(read, layout), back(read, layout)
            below = torch.cat([*h, x], dim=-1)
        top = [layout.padded(y) for y in h]
        # the states that each direction has read before a word
        before = F.pad(top[0], (0, 0, 1, -1)), F.pad(top[1], (0, 0, -1, 1))
        gates = [
            input_gate(lstm, read, state, layout)
            for lstm, state in zip((self.forwards[-1], self.backwards[-1]), before, strict=True)
        ]
        mask = layout.node_mask()[:, : layout.T]
        output = torch.cat(top, dim=-1)  # [B, T, D]
        norm = torch.where(mask, torch.cat(gates, dim=-1).norm(dim=-1), 0.0)[..., None]
        mean = output.sum(1) / mask.sum(1)[:, None]
        gated = (norm * output).sum(1) / norm.sum(1)
        return Encoding(torch.cat([mean, maximum(output, mask, plus_mean=False), gated], dim=-1))


def input_gate(lstm: nn.Module, words: Tensor, before: Tensor, layout: Layout) -> Tensor:
    """Recompute the input gates `[B, T, D]` of an LSTM in one product.

    Args:
        lstm: a `SingleBiasLSTM`.
        words: its inputs `[N, E]`.
        before: its states before each word `[B, T, D]`.
        layout: layout of the words.
    """
    assert isinstance(lstm, SingleBiasLSTM)
    D = before.shape[-1]
    inputs = F.linear(words, lstm.weight_ih[:D], lstm.bias[:D])
    return (layout.padded(inputs) + F.linear(before, lstm.weight_hh[:D])).sigmoid()
