"""The encoder on padded batches, in tensor operations only, for torch.export and torch.compile."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._higher_order_ops.while_loop import while_loop
from torch.nn import functional as F

from gumbeltree.nn.encoders.gumbel_tree import GumbelTreeEncoder
from gumbeltree.nn.encoders.tree_encoder import attend, maximum, plus_words
from gumbeltree.nn.leaves.affine import AffineLeaf
from gumbeltree.nn.leaves.lstm import BidirectionalLSTMLeaf, LSTMLeaf
from gumbeltree.nn.leaves.norm import NormLeaf
from gumbeltree.ops.merge.argmax import first_best
from gumbeltree.states import NodeState


class PaddedEncoder(nn.Module):
    """Compute the greedy trees and the vectors of an encoder by tensor operations only.

    `GumbelTreeEncoder` packs each batch on the host, which `torch.export` cannot trace and
    `torch.compile` must compile for every new shape. This module shares the weights of an encoder
    and reads padded batches instead. Its loops do not depend on the values of any tensor, so one
    graph is valid for all batch sizes and for all T from 3; pad shorter batches. Like `exact`, it
    composes at most two new candidates per merge. It computes no gradients.

    Args:
        encoder: a `GumbelTreeEncoder`, used in evaluation mode.

    Example:
        >>> padded = PaddedEncoder(GumbelTreeEncoder(EncoderConfig(embedding_dim=8, hidden_dim=16)))
        >>> vector, order = padded(torch.randn(2, 5, 8), torch.tensor([5, 3]))
        >>> vector.shape, order.shape
        (torch.Size([2, 16]), torch.Size([2, 4]))
    """

    def __init__(self, encoder: GumbelTreeEncoder) -> None:
        super().__init__()
        # subclasses choose or mix trees in other ways
        if type(encoder) is not GumbelTreeEncoder:
            raise TypeError(
                f"`encoder` must be a GumbelTreeEncoder, got {type(encoder).__name__}; other "
                "encoders have no padded form"
            )
        if type(encoder.leaf) not in (AffineLeaf, NormLeaf, LSTMLeaf, BidirectionalLSTMLeaf):
            raise ValueError(
                f"the leaf {encoder.config.leaf.kind!r} has no padded form; use affine, norm, lstm "
                "or bilstm"
            )
        self.encoder = encoder.eval()

    @torch.no_grad()
    def forward(self, words: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Encode a padded batch.

        Args:
            words: word vectors `[B, T, E]`; padding may hold any finite values.
            lengths: words per sentence, int64 `[B]`, each in 1..T; not checked.

        Returns:
            Vectors `[B, D]` and merges, int64 `[B, T-1]`, -1 past the end of a sentence.
        """
        encoder, device = self.encoder, words.device
        size = encoder.scale * encoder.scoring_query.norm()
        h, c = self._leaves(words, lengths)
        B, T, D = h.shape
        # a placeholder on both sides gives every node two neighbours
        nodes = F.pad(torch.cat([h, c], dim=-1), (0, 0, 1, 1))  # [B, T+2, 2D]
        made, scores = self._compose(nodes[:, :-1], nodes[:, 1:])
        # two rows per position: its node, and the candidate that joins it with the next node
        table = torch.cat([nodes, F.pad(made, (0, 0, 0, 1))], dim=-1).view(-1, 2 * D)
        place = torch.arange(T + 2, device=device)
        valid = (place > 0) & (place < lengths[:, None])
        scores = F.pad(scores, (0, 1)).masked_fill(~valid, -torch.inf)  # [B, T+2]
        # rows of the nodes that are left, from left to right
        alive = 2 * torch.arange(B * (T + 2), device=device).view(B, T + 2)
        # both children of both new candidates, then the rows to replace
        near = torch.tensor([-1, 0, 0, 2, -1, 0, 0], device=device)
        rows = torch.tensor([0, 1, 1, 0, 1, 1, 0], device=device)
        sides, replaced = (torch.tensor(x, device=device) for x in ([-1, 1], [-1, 0]))

        def merge(
            t: Tensor, table: Tensor, alive: Tensor, scores: Tensor, order: Tensor, merged: Tensor
        ) -> tuple[Tensor, ...]:
            # finished sentences merge anything
            choice = first_best(scores, size).clamp(min=1)[:, None]  # [B, 1]
            index = alive.gather(1, choice + near) + rows  # [B, 7]
            old = table[index[:, :4]]  # [B, 4, 2D]
            parent = old[:, 1:2]
            made, fresh = self._compose(old[:, 0::2], old[:, 1::2])  # [B, 2, 2D], [B, 2]
            made = torch.cat([made, parent], dim=1)
            new_table = table.index_copy(0, index[:, 4:].flatten(), made.flatten(0, 1))
            # the right child leaves; a candidate next to a placeholder stays impossible
            shift = (place + (place > choice)).clamp(max=T + 1)
            beside = scores.gather(1, choice + sides)
            fresh = torch.where(beside.isinf(), beside, fresh)
            new_scores = scores.gather(1, shift).scatter(1, choice + replaced, fresh)
            at = t.view(1)
            new_order = order.index_copy(1, at, choice - 1)
            new_merged = merged.index_copy(1, at, parent[..., :D])
            return t + 1, new_table, alive.gather(1, shift), new_scores, new_order, new_merged

        order = torch.zeros((B, T - 1), dtype=torch.int64, device=device)
        start = table, alive, scores, order, h.new_zeros((B, T - 1, D))
        *_, order, merged = _repeat(T - 1, merge, start)
        exists = place[: T - 1] < lengths[:, None] - 1
        order = order.masked_fill(~exists, -1)
        mask = torch.cat([place[:T] < lengths[:, None], exists], dim=1)
        h = torch.cat([h, merged], dim=1)  # [B, 2T-1, D]
        if encoder.pools:
            h = h.masked_fill(~mask[..., None], 0.0)
            if encoder.config.attention:
                vector = attend(h, mask)[0]
            else:
                vector = maximum(h, mask, encoder.config.pooling == "mean_max")
        else:
            root = torch.where(lengths > 1, T + lengths - 2, 0)
            vector = h.gather(1, root[:, None, None].expand(-1, 1, D))[:, 0]
        if encoder.config.add_words:
            vector = plus_words(vector, words.masked_fill(~mask[:, :T, None], 0.0))
        return vector, order

    def _compose(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """Return the parents `[..., 2D]` of children `[..., 2D]` and their scores `[...]`."""
        encoder = self.encoder
        l, r = NodeState(*left.chunk(2, dim=-1)), NodeState(*right.chunk(2, dim=-1))
        parent = encoder.cell(l, r)
        if encoder.scorer is None:
            scores = encoder.scale * (parent.h @ encoder.query)
        else:
            scores = encoder.scorer(l.h, r.h)
        return torch.cat([parent.h, parent.c], dim=-1), scores

    def _leaves(self, words: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return h and c of the words, each `[B, T, D]`."""
        leaf: Any = self.encoder.leaf
        if isinstance(leaf, LSTMLeaf):
            h, c = _lstm(leaf, words, lengths)
        elif isinstance(leaf, BidirectionalLSTMLeaf):
            there, back = (_lstm(x, words, lengths) for x in (leaf.forwards, leaf.backwards))
            h, c = (torch.cat(pair, dim=-1) for pair in zip(there, back, strict=True))
        else:
            # each word by itself
            h, c = leaf(words, None).chunk(2, dim=-1)
        return h, h if getattr(self.encoder.cell, "single_state", False) else c


def _lstm(leaf: LSTMLeaf, words: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return h and c of an LSTM at every word of `[B, T, E]`, each `[B, T, D]`."""
    inputs = F.linear(words, leaf.weight_ih, leaf.bias)
    B, T, D = words.shape[0], words.shape[1], leaf.weight_hh.shape[1]

    def step(t: Tensor, h: Tensor, c: Tensor, hs: Tensor, cs: Tensor) -> tuple[Tensor, ...]:
        at = (T - 1 - t if leaf.reverse else t).view(1)
        gates = inputs.index_select(1, at)[:, 0] + F.linear(h, leaf.weight_hh)
        i, f, g, o = gates.chunk(4, dim=-1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        # from the end, the state stays zero until the last word
        c = torch.where(at < lengths[:, None], c, 0.0)
        h = o.sigmoid() * c.tanh()
        return t + 1, h, c, hs.index_copy(1, at, h[:, None]), cs.index_copy(1, at, c[:, None])

    state, every = inputs.new_zeros((B, D)), inputs.new_zeros((B, T, D))
    *_, hs, cs = _repeat(T, step, (state, state.clone(), every, every.clone()))
    return hs, cs


def _repeat(
    count: int, body: Callable[..., tuple[Tensor, ...]], state: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Call `body` with the number of the step and the state, `count` times; return the state.

    A graph contains the body once, whatever the count.
    """
    step = torch.zeros((), dtype=torch.int64, device=state[0].device)
    if torch.compiler.is_compiling():
        found: tuple[Tensor, ...] = while_loop(lambda t, *_: t < count, body, (step, *state))
        return found[1:]
    for _ in range(count):
        step, *state = body(step, *state)  # type: ignore[assignment]
    return tuple(state)
