"""The paper's encoder, trained to build given trees."""

import dataclasses

import torch
from torch import Tensor

from gumbeltree.config import SupervisedTreeConfig
from gumbeltree.layout import Sentences
from gumbeltree.nn.encoders.gumbel_tree import GumbelTreeEncoder
from gumbeltree.nn.spans import random_orders
from gumbeltree.states import Draw, Encoding, Keep


class SupervisedTreeEncoder(GumbelTreeEncoder):
    """Learn merges from the gold trees of the training data; build its own trees otherwise.

    A tree can be built in several orders. In training, merges follow a random one. At each step,
    all candidates that are nodes of the tree are right: the loss "merges" is the sum of -log p over
    the steps, where p is their total probability.

    Args:
        config: see `SupervisedTreeConfig`.
    """

    Config = SupervisedTreeConfig
    capturable = True
    learns_from = frozenset({"order"})

    def encode(self, sentences: Sentences, draw: Draw, keep: Keep) -> Encoding:
        """Return vectors, trees and, for gold trees in training, the loss of the merges."""
        if sentences.order is None or not self.training:
            return super().encode(sentences, draw, keep)
        if sentences.node_labels is not None:
            raise ValueError(
                f"the encoder {self.config.kind!r} builds gold trees in a random order, which the "
                "labels of their nodes do not follow; use an encoder that does, such as "
                "level_tree, or a head for whole sentences"
            )
        gold = random_orders(sentences.order)
        followed = sentences.with_order(gold.order)
        encoding = super().encode(followed, draw, Keep(keep.nodes, scores=True, beams=keep.beams))
        assert encoding.scores is not None
        losses = {"merges": merge_loss(encoding.scores, gold.allowed)}
        scores = encoding.scores if keep.scores else None
        return dataclasses.replace(encoding, scores=scores, losses=losses)


def merge_loss(scores: Tensor, allowed: Tensor) -> Tensor:
    """Return the negative log-probability of allowed merges, summed over the steps, `[B]`.

    Args:
        scores: scores of the candidates of each step, `[B, T-1, T-1]`, -inf outside a sentence.
        allowed: which of them are allowed, bool `[B, T-1, T-1]`; none past the end.
    """
    exists = scores > -torch.inf
    made = exists.any(-1)
    # finite values where there is no candidate keep the gradients finite
    logs = torch.where(made[..., None], scores, 0.0).log_softmax(-1)
    right = logs.masked_fill(~(allowed & exists) & made[..., None], -torch.inf).logsumexp(-1)
    return -torch.where(made, right, 0.0).sum(-1)
