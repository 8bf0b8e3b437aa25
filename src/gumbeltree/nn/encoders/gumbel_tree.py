"""The paper's encoder: leaf transformation, merges, sentence vector."""

import dataclasses
import math

import torch
from torch import Tensor, nn

from gumbeltree.config import EncoderConfig
from gumbeltree.layout import Sentences
from gumbeltree.nn.cells import CELLS
from gumbeltree.nn.encoders.encoder import Encoder
from gumbeltree.nn.encoders.fixed_trees import FixedTrees
from gumbeltree.nn.estimators import ESTIMATORS
from gumbeltree.nn.estimators.temperature import check_temperature
from gumbeltree.nn.leaves import LEAVES
from gumbeltree.ops.merge import IMPLEMENTATIONS, Choice, choose, report
from gumbeltree.ops.merge.problem import TreeProblem
from gumbeltree.registry import own
from gumbeltree.states import Draw, Encoding, Keep


class GumbelTreeEncoder(Encoder):
    """Merge the words of each sentence into a tree and return its vector.

    Args:
        config: sizes and parts; see `EncoderConfig`.

    Example:
        >>> encoder = GumbelTreeEncoder(EncoderConfig(embedding_dim=8, hidden_dim=16)).eval()
        >>> vector, order = encoder(torch.randn(2, 5, 8), torch.tensor([5, 3]))
        >>> vector.shape, order.shape
        (torch.Size([2, 16]), torch.Size([2, 4]))
    """

    trees = "sampled"
    capturable = True

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.fixed: FixedTrees | None = None
        if config.trees != "learned":
            self.trees = "fixed"
            self.fixed = FixedTrees(config.trees)
        D = config.hidden_dim
        self.leaf = LEAVES[config.leaf](config.embedding_dim, D, config.leaf_init)
        self.cell = CELLS[config.cell](D, config.cell_init, config.forget_offset)
        self.query = nn.Parameter(torch.empty(D))
        self.estimator = ESTIMATORS[config.estimator]()
        self.scale = 1 / math.sqrt(D) if config.score == "scaled_dot" else 1.0
        self.temperature = config.temperature
        nn.init.normal_(self.query, std=0.01)
        if config.impl != "fused":
            # of what the kernels need, the device is not known yet
            self.explain()

    @property
    def temperature(self) -> float:
        """Temperature of the softmax in the backward pass; assign to anneal it."""
        return self._temperature

    @temperature.setter
    def temperature(self, value: float) -> None:
        self._temperature = check_temperature(value)

    def explain(self, sample: bool | None = None) -> Choice:
        """Return which implementation of the merge runs, and why."""
        sample = self.training if sample is None else sample
        return choose(self.config.impl, self.cell, self.estimator, sample)

    def why_not_captured(self, sample: bool) -> str | None:
        """Return why `encode` cannot be captured as a CUDA graph, or None if it can."""
        for part in (self, self.leaf):
            if not own(part, "capturable"):
                return f"{type(part).__name__} does not say that it can be captured"
        choice = self.explain(sample)
        return None if choice.name == "fused" else f"it merges with {choice.name!r}"

    def prepare(self, T: int) -> None:
        """Make the table of fixed trees, if there is one."""
        if self.fixed is not None:
            self.fixed.prepare(T, self.query.device)

    def encode(self, sentences: Sentences, draw: Draw, keep: Keep) -> Encoding:
        """Return vectors and trees; by `sentences.order`, where that is given."""
        layout, order = sentences.layout, sentences.order
        if self.fixed is not None:
            if order is None:
                order = self.fixed(layout.own_lengths(), layout.T, draw.noise)
            draw = Draw()
        choice = self.explain(draw.sampled)
        report(choice)
        impl = IMPLEMENTATIONS[choice.name]
        operands = impl.prepare(self.cell, self.query, self.scale, layout)
        # products may be narrow under autocast; states stay as wide as the weights
        leaves = self.leaf(sentences.words, layout, choice.name).to(self.query.dtype)
        weighed = draw.sampled and not getattr(self.estimator, "local", True)
        result = impl.build_tree(
            TreeProblem(
                leaves,
                layout,
                self.cell,
                self.query,
                self.scale,
                self.estimator,
                self.temperature if draw.temperature is None else draw.temperature,
                draw.sampled,
                draw.noise,
                order,
                Keep(keep.nodes or self.config.attention, keep.scores or weighed),
                operands,
            )
        )
        vector, weights = result.vector, None
        mask = None if result.nodes is None else layout.node_mask()
        if self.config.attention:
            assert mask is not None
            vector, weights = attend(result.nodes.h, mask)
        found = Encoding(vector, result.order)
        if weighed:
            log_prob, entropy = of_choices(result.scores, result.order)
            found = dataclasses.replace(found, log_prob=log_prob, entropy=entropy)
        if keep.nodes:
            found = dataclasses.replace(found, nodes=result.nodes, mask=mask, attention=weights)
        return dataclasses.replace(found, scores=result.scores) if keep.scores else found


def attend(h: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Pool all nodes of each tree: softmax of h_n . mean(h), weighted sum.

    Args:
        h: nodes `[B, 2T-1, D]`, zero where there is none.
        mask: where there is one, bool `[B, 2T-1]`.

    Returns:
        Vectors `[B, D]` and weights `[B, 2T-1]`.
    """
    wide = h.to(torch.promote_types(h.dtype, torch.float32))
    mean = wide.sum(1) / mask.sum(1)[:, None]
    scores = (wide * mean[:, None]).sum(-1)
    weights = torch.softmax(scores.masked_fill(~mask, -torch.inf), dim=1)
    return (weights[..., None] * wide).sum(1).to(h.dtype), weights


def of_choices(scores: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-probability and entropy of the merges of each tree, each `[B]`.

    Args:
        scores: of each layer, `[B, T-1, T-1]`, -inf where there is no candidate.
        order: merges, int64 `[B, T-1]`, -1 past a sentence's end.
    """
    exists = scores > -torch.inf
    made = exists.any(-1)  # [B, T-1]
    # a layer past the end has no candidate at all: give its softmax something finite
    logs = torch.where(made[..., None], scores, 0.0).log_softmax(-1)
    logs = torch.where(exists, logs, 0.0)
    chosen = logs.gather(-1, order.clamp(min=0)[..., None])[..., 0]
    entropy = -(logs.exp() * logs * exists).sum((-1, -2))
    return torch.where(made, chosen, 0.0).sum(-1), entropy
