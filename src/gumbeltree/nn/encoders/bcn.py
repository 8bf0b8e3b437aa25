"""The encoder of the biattentive classification network (McCann et al. 2017)."""

import torch
from torch import nn
from torch.nn import functional as F

from gumbeltree.layout import Sentences
from gumbeltree.nn.bilstm import bilstm
from gumbeltree.nn.encoders.encoder import Encoder
from gumbeltree.nn.encoders.tree_encoder import maximum
from gumbeltree.peers import BCNConfig
from gumbeltree.states import Draw, Encoding, Keep


class BCNEncoder(Encoder):
    """Let every word attend to its own sentence between two BiLSTMs, and pool in four ways.

    The words are projected, x' = ReLU(W x + b), and read by a BiLSTM with D units per direction,
    whose outputs are X `[T, 2D]`. Each output attends to all of them, C = softmax(X X^T) X, and a
    second BiLSTM reads [X; X - C; X * C]. The sentence vector is the maximum, the minimum, the mean
    and an attentive average of the second BiLSTM's outputs, 8D numbers in all.

    The published system also reads characters and vectors from a translation system (CoVe). This
    encoder reads word vectors only, and follows the version of the AllenNLP library.

    Args:
        config: see `BCNConfig`.
    """

    Config = BCNConfig
    capturable = True

    def __init__(self, config: BCNConfig) -> None:
        super().__init__(config)
        D = config.hidden_dim
        self.project = nn.Linear(config.embedding_dim, D)
        self.encoder = nn.LSTM(D, D, bidirectional=True)
        self.integrator = nn.LSTM(6 * D, D, bidirectional=True)
        self.attend = nn.Linear(2 * D, 1)
        self.dropout = nn.Dropout(config.dropout)

    @property
    def vector_dim(self) -> int:
        """Width of the sentence vectors: four pools of both directions."""
        return 8 * int(self.config.hidden_dim)

    def encode(self, sentences: Sentences, draw: Draw, keep: Keep) -> Encoding:
        """Return the pooled outputs `[B, 8D]`."""
        layout = sentences.layout
        projected = self.dropout(self.project(sentences.words[: layout.rows]).relu())
        X = bilstm(self.encoder, projected, layout)  # [rows, 2D]
        inside, padded = layout.word_mask(), layout.unpack(X)
        # both sides of the attention are the same sentence
        C = F.scaled_dot_product_attention(
            padded, padded, padded, attn_mask=inside[:, None], scale=1.0
        )
        C = C.flatten(0, 1).index_select(0, layout.word_places())
        rows = torch.cat([X, X - C, X * C], dim=1)
        Y = layout.unpack(bilstm(self.integrator, rows, layout))  # [B, T, 2D]
        scores = self.attend(Y).masked_fill(~inside[..., None], -torch.inf)  # [B, T, 1]
        pools = [
            maximum(Y, inside),
            -maximum(-Y, inside),
            Y.sum(1) / inside.sum(1)[:, None],
            (scores.softmax(1) * Y).sum(1),
        ]
        return Encoding(torch.cat(pools, dim=1))
