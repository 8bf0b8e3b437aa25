"""Dynamic memory networks (Kumar et al. 2016) as encoders of single sentences."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gumbeltree.layout import Layout, Sentences
from gumbeltree.nn.encoders.encoder import Encoder
from gumbeltree.ops.attention_gru import attention_gru
from gumbeltree.peers import DMNConfig
from gumbeltree.states import Draw, Encoding, Keep


class DMNEncoder(Encoder):
    """Read a sentence several times, with attention that depends on a memory.

    A GRU over the words returns facts c_1..c_T. The memory m starts as the question q, a learned
    vector. Each pass computes a gate per word from

        z_t = [c; m; q; c * q; c * m; |c - q|; |c - m|; c^T W q; c^T W m]
        g_t = sigmoid(w_2^T tanh(W_1 z_t + b_1) + b_2)
        e_t = g_t GRU_e(c_t, e_{t-1}) + (1 - g_t) e_{t-1},    e_0 = 0

    and updates the memory, m <- GRU_m(e_T, m). The sentence vector is the first state of the answer
    module, GRU_a(q, m). A linear head without hidden layers completes the published model. There,
    the answer module also reads the previous answer, which is zero at its only step; the weights of
    this input are left out.

    Each GRU has one bias vector, as in the equations of the paper, while `torch.nn.GRU` has two.
    The paper does not state the width of the states.

    Args:
        config: see `DMNConfig`.
    """

    Config = DMNConfig
    capturable = True

    def __init__(self, config: DMNConfig) -> None:
        super().__init__(config)
        D = config.hidden_dim
        # the weights of an additional input, which is 1, are the bias
        self.facts = nn.GRU(config.embedding_dim + 1, D, bias=False)
        self.question = nn.Parameter(torch.empty(D))
        self.relation = nn.Linear(D, D, bias=False)
        self.gate = nn.Sequential(nn.Linear(7 * D + 2, D), nn.Tanh(), nn.Linear(D, 1))
        self.episode, self.memory, self.answer = (_GRU(D) for _ in range(3))
        nn.init.normal_(self.question, std=D**-0.5)

    def encode(self, sentences: Sentences, draw: Draw, keep: Keep) -> Encoding:
        """Return the answer states `[B, D]`."""
        layout, q = sentences.layout.full(), self.question
        words = F.pad(sentences.layout.spread(sentences.words), (0, 1), value=1.0)
        if layout.spare:
            facts = self.facts(words.view(layout.T, layout.B, -1))[0].flatten(0, 1)
        else:
            facts = self.facts(layout.packed(words))[0].data
        attention, inputs = self._attention(facts, layout), self.episode.inputs(facts).to(q.dtype)
        m = q.expand(layout.B, -1)
        for _ in range(self.config.passes):
            e = attention_gru(inputs, attention(m), self.episode.hidden.weight, layout)
            m = self.memory(self.memory.inputs(e), m)
        answer = self.answer(self.answer.inputs(q), m)
        return Encoding(answer[layout.rank])

    def _attention(self, c: Tensor, layout: Layout) -> Callable[[Tensor], Tensor]:
        """Return a function that computes gates `[N, 1]` of facts `[N, D]`, given m `[B, D]`.

        Parts of W_1 z_t + b_1 that do not depend on the memory are computed only once.
        """
        q, related, (W_1, b_1, W_2, b_2) = self.question, self.relation(c), self.gate.parameters()
        # columns of c, m, q, c * q, c * m, |c - q|, |c - m|, c^T W q and c^T W m
        columns = W_1.split([len(q)] * 7 + [1, 1], dim=1)
        of_words = torch.cat([columns[i] for i in (0, 2, 3, 5, 7)], dim=1)
        of_m = torch.cat([columns[i] for i in (1, 4, 6, 8)], dim=1)
        known = torch.cat([c, q.expand_as(c), c * q, (c - q).abs(), related @ q[:, None]], dim=1)
        known = F.linear(known, of_words, b_1)
        bias: Tensor = b_2
        rank = None
        if layout.spare:
            # a gate of zero keeps the episode past the end of a sentence
            bias = torch.where(layout.valid(layout.T).t().reshape(-1, 1), b_2, -torch.inf)
        else:
            rank = layout.row_places()[1]

        def gates(m: Tensor) -> Tensor:
            # without `rank`, all sentences have T rows; the gradient of an index is slower
            m = m.repeat(layout.T, 1) if rank is None else m[rank]  # [N, D]
            features = [m, c * m, (c - m).abs(), (related * m).sum(1, keepdim=True)]
            inner = torch.addmm(known, torch.cat(features, dim=1), of_m.t()).tanh()
            return torch.addmm(bias, inner, W_2.t()).sigmoid()

        return gates


class _GRU(nn.Module):
    """One step of a GRU whose input and state have the same width."""

    def __init__(self, hidden_dim: int) -> None:
        super().__init__()
        self.inputs = nn.Linear(hidden_dim, 3 * hidden_dim)
        self.hidden = nn.Linear(hidden_dim, 3 * hidden_dim, bias=False)

    def forward(self, inputs: Tensor, h: Tensor) -> Tensor:
        """Return the next state from W x + b `[..., 3D]` (reset, update, new) and `h` `[n, D]`."""
        D = h.shape[1]
        hidden: Tensor = self.hidden(h)
        if hidden.is_cuda and hidden.dtype == inputs.dtype == h.dtype:
            # one kernel for all gates, that of `torch.gru_cell`, which would compute the products
            cell = torch.ops.aten._thnn_fused_gru_cell
            fused: Tensor = cell(inputs.expand_as(hidden), hidden, h)[0]
            return fused
        reset, update = (inputs[..., : 2 * D] + hidden[:, : 2 * D]).sigmoid().chunk(2, dim=1)
        new = (inputs[..., 2 * D :] + reset * hidden[:, 2 * D :]).tanh()
        return new + update * (h - new)
