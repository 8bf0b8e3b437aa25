"""Shift-reduce with actions learned by policy gradients (Yogatama et al. 2017)."""

import dataclasses

import torch
from torch import Tensor, nn

from gumbeltree.config import TreeLSTMConfig
from gumbeltree.layout import Sentences
from gumbeltree.nn.encoders.stack_encoder import StackEncoder
from gumbeltree.nn.estimators.estimator import AdvanceEstimator
from gumbeltree.parts import ESTIMATORS, LEAVES
from gumbeltree.peers import LatentSyntaxConfig
from gumbeltree.registry import own
from gumbeltree.states import Draw, Encoding, Keep


class LatentSyntaxEncoder(StackEncoder):
    """Compose a tree by SHIFT and REDUCE, and learn the actions from the loss of the task.

    A perceptron with one ReLU layer scores the actions, given h of the second node on the stack,
    the top node and the next word; learned vectors stand for missing ones. With a tracker, a linear
    layer over its h scores the actions instead, and h takes part in the composition. Training draws
    actions from the softmax over those that are possible; otherwise the better one is taken. Where
    a node or a word is missing, only one action is possible, so the learned vectors have no effect
    on the result.

    The gradient of the loss reaches the composition, and the actions learn from `log_prob` and
    `entropy`; see `training.policy`. No code was released, and neither variant has the 500k
    parameters that the paper states.

    Args:
        config: see `LatentSyntaxConfig`.
    """

    Config = LatentSyntaxConfig
    trees = "sampled"
    capturable = True

    def __init__(self, config: LatentSyntaxConfig) -> None:
        super().__init__(config, TreeLSTMConfig())
        D = config.hidden_dim
        self.leaf = LEAVES[config.leaf.kind](config.embedding_dim, D, config.leaf)
        self.estimator = ESTIMATORS[config.estimator.kind](config.estimator)
        if not isinstance(self.estimator, AdvanceEstimator):
            raise ValueError(
                f"no gradient reaches the actions with the estimator {config.estimator.kind!r}; "
                "use estimator=reinforce or ppo"
            )
        self.policy: nn.Module
        if config.tracker:
            self.policy = nn.Linear(config.tracker, 2)
            self.register_parameter("absent", None)
        else:
            self.policy = nn.Sequential(nn.Linear(3 * D, D), nn.ReLU(), nn.Linear(D, 2))
            self.absent = nn.Parameter(torch.empty(3, D))
            nn.init.normal_(self.absent, std=0.01)

    def why_not_captured(self, sample: bool) -> str | None:
        """Return why `encode` cannot be captured as a CUDA graph, or None if it can."""
        if not own(self.leaf, "capturable"):
            return f"{type(self.leaf).__name__} does not declare itself capturable"
        return super().why_not_captured(sample)

    def missing(self) -> Tensor:
        """Return h of a missing top node, second node and next word `[3, D]`."""
        return super().missing() if self.absent is None else self.absent

    def action_scores(self, view: Tensor, tracked: Tensor | None) -> Tensor:
        """Return the scores of SHIFT and REDUCE `[n, 2]`; see `StackEncoder.action_scores`."""
        if tracked is not None:
            seen = tracked.chunk(2, dim=1)[0]
        else:
            top, second, word = view.chunk(3, dim=1)
            seen = torch.cat([second, top, word], dim=1)
        scores: Tensor = self.policy(seen.to(self.cell.weight.dtype))
        return scores.to(seen.dtype)

    def encode(self, sentences: Sentences, draw: Draw, keep: Keep) -> Encoding:
        """Return vectors and trees; they follow `sentences.order` if it is set."""
        layout = sentences.layout
        leaves = self.leaf(sentences.words, layout, self.config.impl)
        found = self.build(leaves, sentences, draw, keep, "free" if draw.sampled else "")
        if not draw.sampled:
            return found.encoding
        entropy = found.entropy
        if getattr(self.estimator.config, "mean_entropy", False):
            entropy = entropy / (layout.own_lengths() - 1).clamp(min=1)
        return dataclasses.replace(found.encoding, log_prob=found.log_prob, entropy=entropy)
