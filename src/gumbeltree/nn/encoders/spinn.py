"""SPINN (Bowman et al. 2016): shift-reduce along the trees of the data, or learned from them."""

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gumbeltree.config import TreeLSTMConfig
from gumbeltree.encoded import MissingInputError
from gumbeltree.layout import Layout, Sentences
from gumbeltree.nn.encoders.stack_encoder import StackEncoder
from gumbeltree.peers import SpinnConfig
from gumbeltree.states import Draw, Encoding, Keep


class SpinnEncoder(StackEncoder):
    """Compose a tree by SHIFT and REDUCE, with a tracker that takes part in the composition.

    Leaves are [h; c] = BN(W x + b), with statistics over the real words of a batch; the released
    code includes padding. If `parses` is false, trees come with the sentences, in training and in
    use: SPINN-PI, or SPINN-PI-NT without a tracker.

    If `parses` is true, the tracker's [h; c] scores the actions. In training, the encoder follows
    the trees of the data, and the loss "actions" is the mean cross-entropy over the steps of a
    sentence, including those where only one action is possible. Otherwise it takes the better
    action of those that are possible; in the released code, impossible actions can be taken.

    Initial values follow the released code: those of the projection, the tracker and the action
    layer are uniform in ±0.005, those of the composition normal with variance
    4 / (fan_in + fan_out) for each child, and the biases of its forget gates are 1.

    Args:
        config: see `SpinnConfig`.
    """

    Config = SpinnConfig
    capturable = True
    learns_from = frozenset({"order"})

    def __init__(self, config: SpinnConfig) -> None:
        super().__init__(config, TreeLSTMConfig(forget_offset=0.0))
        D, d = config.hidden_dim, config.tracker
        self.leaf = _Leaf(config.embedding_dim, D, config.dropout)
        self.trees = "sampled" if config.parses else "given"
        if not config.parses:
            self.needs = self.learns_from
        if config.parses and not d:
            raise ValueError(
                "`parses` is true, but `tracker` is 0, and only a tracker scores actions; set "
                "`tracker` to its width, such as 79"
            )
        self.action = nn.Linear(2 * d, 2) if config.parses else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise all weights but those of the leaves."""
        D = self.config.hidden_dim
        nn.init.normal_(self.cell.weight, std=math.sqrt(4 / (6 * D)))
        nn.init.zeros_(self.cell.bias)
        nn.init.ones_(self.cell.bias[D : 3 * D])
        if self.tracker is not None:
            d = self.config.tracker
            nn.init.normal_(self.tracker.to_cell, std=math.sqrt(4 / (5 * D + d)))
            for weight in (self.tracker.weight_ih, self.tracker.weight_hh):
                nn.init.uniform_(weight, -0.005, 0.005)
        if self.action is not None:
            nn.init.uniform_(self.action.weight, -0.005, 0.005)
            nn.init.zeros_(self.action.bias)

    def check_needs(self, sentences: Sentences) -> None:
        """Raise an error if the sentences lack the trees that the encoder follows or learns."""
        if sentences.order is not None or (self.config.parses and not self.training):
            return
        if self.config.parses:
            raise ValueError(
                "the encoder 'spinn' learns to parse from trees, but the training data has none; "
                "use data with trees, such as SNLI's files with `sentence1_binary_parse`"
            )
        raise MissingInputError(
            "the encoder 'spinn' follows the trees of the data (parses=false), but there are none "
            "with these texts; evaluate it on files with trees, such as SNLI's, with `gumbeltree "
            "evaluate`, or train an encoder with parses=true, which builds its own"
        )

    def action_scores(self, view: Tensor, tracked: Tensor | None) -> Tensor:
        """Return the scores of SHIFT and REDUCE `[n, 2]`; see `StackEncoder.action_scores`."""
        assert self.action is not None
        assert tracked is not None
        return F.linear(
            tracked, self.action.weight.to(tracked.dtype), self.action.bias.to(tracked.dtype)
        )

    def encode(self, sentences: Sentences, draw: Draw, keep: Keep) -> Encoding:
        """Return vectors and trees; they follow `sentences.order` if it is set."""
        layout = sentences.layout
        learns = self.config.parses and sentences.order is not None
        leaves = self.leaf(sentences.words, layout)
        keep = keep._replace(scores=keep.scores and self.config.parses)
        found = self.build(leaves, sentences, draw, keep, "all" if learns else "")
        if not learns:
            return found.encoding
        steps = 2 * layout.own_lengths() - 1
        return dataclasses.replace(found.encoding, losses={"actions": -found.log_prob / steps})


class _Leaf(nn.Module):
    """Compute [h; c] = dropout(BN(W x + b)) of each word."""

    def __init__(self, embedding_dim: int, hidden_dim: int, dropout: float) -> None:
        super().__init__()
        self.linear = nn.Linear(embedding_dim, 2 * hidden_dim)
        nn.init.uniform_(self.linear.weight, -0.005, 0.005)
        nn.init.zeros_(self.linear.bias)
        self.norm = nn.BatchNorm1d(2 * hidden_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, words: Tensor, layout: Layout, *_: Any) -> Tensor:
        """Return the leaf states of the words, `[rows, 2D]`."""
        states = self.linear(words[: layout.rows])
        if self.training and not layout.known:
            states = self._normalized(states, layout)
        elif self.training and len(states) == 1:
            # a single word has no statistics
            norm = self.norm
            assert norm.running_mean is not None
            assert norm.running_var is not None
            states = F.batch_norm(
                states, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps
            )
        else:
            states = self.norm(states)
        dropped: Tensor = self.dropout(states)
        return dropped

    def _normalized(self, states: Tensor, layout: Layout) -> Tensor:
        """Normalise states `[cap, 2D]` by the statistics of the words inside a graph."""
        norm, count = self.norm, layout.start[-1]
        assert norm.running_mean is not None
        assert norm.running_var is not None
        assert norm.num_batches_tracked is not None
        inside = (torch.arange(layout.cap, device=count.device) < count)[:, None]
        wide = states.to(norm.weight.dtype)
        mean = torch.where(inside, wide, 0).sum(0) / count
        var = torch.where(inside, wide - mean, 0).square().sum(0) / count
        # a single word has no statistics
        several = count > 1
        with torch.no_grad():
            unbiased = var * count / (count - 1).clamp(min=1)
            for running, own in ((norm.running_mean, mean), (norm.running_var, unbiased)):
                running.copy_(torch.where(several, running.lerp(own, norm.momentum or 0), running))
            norm.num_batches_tracked.add_(several)
        mean = torch.where(several, mean, norm.running_mean)
        var = torch.where(several, var, norm.running_var)
        return (wide - mean) * (var + norm.eps).rsqrt() * norm.weight + norm.bias
