"""The encoder of the biattentive classification network (McCann et al. 2017)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from gumbeltree.layout import Layout, Sentences
from gumbeltree.nn.encoders.encoder import Encoder
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
        projected = self.dropout(self.project(sentences.words[: layout.N]).relu())
        X = _run(self.encoder, projected, layout)
        lengths = layout.own_lengths()
        inside = torch.arange(layout.T, device=X.device) < lengths[:, None]  # [B, T]
        padded = layout.unpack(X)
        # both sides of the attention are the same sentence
        C = F.scaled_dot_product_attention(
            padded, padded, padded, attn_mask=inside[:, None], scale=1.0
        )
        C = C.flatten(0, 1).index_select(0, layout.word_places())
        Y = layout.unpack(_run(self.integrator, torch.cat([X, X - C, X * C], dim=1), layout))
        outside = ~inside[..., None]
        scores = self.attend(Y).masked_fill(outside, -torch.inf)  # [B, T, 1]
        pools = [
            Y.masked_fill(outside, -torch.inf).amax(1),
            Y.masked_fill(outside, torch.inf).amin(1),
            Y.sum(1) / lengths[:, None],
            (scores.softmax(1) * Y).sum(1),
        ]
        return Encoding(torch.cat(pools, dim=1))


def _run(lstm: nn.LSTM, rows: Tensor, layout: Layout) -> Tensor:
    """Return the outputs of a BiLSTM for rows of words, `[N, ...]` -> `[N, 2D]`."""
    # a packed sequence has the same order of rows
    packed = PackedSequence(rows, torch.tensor(layout.active))
    output: Tensor = lstm(packed)[0].data
    return output
