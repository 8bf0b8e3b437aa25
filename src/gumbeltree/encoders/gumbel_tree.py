"""The paper's encoder: leaf transformation, merges, sentence vector."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gumbeltree.cells import CELLS
from gumbeltree.config import EncoderConfig
from gumbeltree.encoders.encoder import Encoder
from gumbeltree.encoders.fixed_trees import fixed_order
from gumbeltree.encoders.inputs import check_finite, check_noise, check_order, check_words
from gumbeltree.estimators import ESTIMATORS
from gumbeltree.estimators.gumbel import check_temperature
from gumbeltree.estimators.keyed_noise import is_keys, keyed_noise, new_keys
from gumbeltree.leaves import LEAVES
from gumbeltree.ops import Choice, build_tree, choose
from gumbeltree.ops.fused import merge, prepare
from gumbeltree.ops.layout import Layout
from gumbeltree.ops.problem import TreeProblem
from gumbeltree.packing import Packing
from gumbeltree.states import Encoding, NodeState


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

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        if config.trees != "learned":
            self.trees = "fixed"
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

    def forward(
        self,
        embedded: Tensor,
        lengths: Tensor,
        *,
        noise: Tensor | None = None,
        sample: bool | None = None,
        order: Tensor | None = None,
        details: bool = False,
        generator: torch.Generator | None = None,
    ) -> Encoding:
        """Encode a batch of sentences.

        Args:
            embedded: word vectors `[B, T, E]`; what stands beyond `lengths` is never read.
            lengths: number of words per sentence, int64 `[B]`, each in 1..T.
            noise: Gumbel noise `[B, T-1, T-1]` (sentence, layer, position), used when sampling;
                entries outside a sentence are never read. Or keys, int64 `[B, 2]`, of which it is
                a function (`keyed_noise`) and takes no memory. If None, keys are drawn.
            sample: choose merges with noise and let gradients reach the scores; without, choose
                the highest score, and no gradient reaches the scores through the choice. Default:
                `self.training`.
            order: forced merges, int64 `[B, T-1]`, instead of a choice by score.
            details: return node states, scores and probabilities as well.
            generator: source of the keys; torch's own if None.
        """
        check_words(embedded, lengths, self.query, self.config.embedding_dim)
        B, T, _ = embedded.shape
        lengths = lengths.long()
        sample = self.training if sample is None else sample
        packing = Packing(lengths, T)
        words = packing.pack(embedded)
        check_finite(words, packing)
        if order is not None:
            check_order(order, lengths, self.query, T)
            order = order[:, : packing.steps - 1]
        # from here on T is the longest sentence's length, whatever the padding
        packing = packing.narrowed()
        merges = packing.T - 1
        if not sample:
            noise = None
        elif noise is None:
            noise = new_keys(B, embedded.device, generator)
        else:
            check_noise(noise, lengths, self.query, T, self.temperature)
            noise = noise if is_keys(noise) else noise[:, :merges, :merges]
        if self.config.trees != "learned":
            if order is None:
                order = fixed_order(self.config.trees, lengths, packing.T, noise)
            sample, noise = False, None
        fused = choose(self.config.impl, self.cell, self.estimator, sample).name == "fused"
        if fused and hasattr(self.leaf, "rows"):
            joined = self.leaf.rows(words, Layout.of(packing))
            leaves = NodeState(*joined.chunk(2, dim=-1))
        else:
            leaves = self.leaf(words, packing)
        if torch.is_autocast_enabled(embedded.device.type):
            # products may be narrow under autocast; states stay as wide as the weights
            leaves = NodeState(*(x.to(self.query.dtype) for x in leaves))
        result = build_tree(
            TreeProblem(
                leaves,
                packing,
                self.cell,
                self.query,
                self.scale,
                self.estimator,
                self.temperature,
                sample,
                noise,
                order,
                keep_nodes=details or self.config.attention,
                keep_scores=details,
            ),
            self.config.impl,
        )
        vector, weights = result.vector, None
        if self.config.attention:
            assert result.nodes is not None
            vector, weights = attend(result.nodes.h, lengths)
        more = T - packing.T
        merged = F.pad(result.order, (0, more), value=-1)
        if not details:
            return Encoding(vector, merged)
        assert result.scores is not None
        assert result.nodes is not None
        scores = F.pad(result.scores, (0, more, 0, more), value=-torch.inf)
        nodes = NodeState(*(widen_nodes(x, more) for x in result.nodes))
        if weights is not None:
            weights = widen_nodes(weights[..., None], more)[..., 0]
        return Encoding(vector, merged, nodes, scores, layer_probabilities(scores), weights)

    def encode_rows(
        self,
        words: Tensor,
        layout: Layout,
        *,
        keys: Tensor | None = None,
        temperature: Tensor | None = None,
    ) -> Encoding:
        """Encode sentences that stand as a layout says, with `fused`; no value is read back.

        So the whole call can be captured in a CUDA graph and replayed on other sentences.

        Args:
            words: word vectors `[cap, E]`; rows beyond the words may be anything finite.
            layout: where words stand.
            keys: of the noise that merges are sampled with, int64 `[B, 2]` (`keyed_noise`); None:
                the highest score.
            temperature: one number on the device, needed with `keys`; it stands for
                `self.temperature`.
        """
        operands = prepare(self.cell, self.query, self.scale)
        leaves = self.leaf.rows(words, layout).to(self.query.dtype)
        order = None
        if self.config.trees != "learned":
            noise = None
            if self.config.trees == "random" and keys is not None:
                # a table takes fewer kernels than a layer at a time
                noise = keyed_noise(keys, layout.T)
            order = fixed_order(self.config.trees, layout.own_lengths(), layout.T, noise)
            keys = None
        result = merge(
            leaves,
            layout,
            self.cell,
            self.query,
            self.scale,
            noise=keys,
            temperature=temperature,
            order=order,
            keep_nodes=self.config.attention,
            operands=operands,
        )
        vector = result.vector
        if self.config.attention:
            assert result.nodes is not None
            vector, _ = attend(result.nodes.h, layout.own_lengths())
        return Encoding(vector, result.order)


def attend(h: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Pool all nodes of each tree: softmax of h_n . mean(h), weighted sum.

    Args:
        h: nodes `[B, 2T-1, D]`, word i at i, the node made at step t at T + t, zero elsewhere.
        lengths: words per sentence, int64 `[B]`.

    Returns:
        Vectors `[B, D]` and weights `[B, 2T-1]`.
    """
    T = (h.shape[1] + 1) // 2
    place = torch.arange(T, device=h.device)
    words = place < lengths[:, None]
    exists = torch.cat([words, words[:, 1:]], dim=1)  # [B, 2T-1]
    wide = h.to(torch.promote_types(h.dtype, torch.float32))
    mean = wide.sum(1) / (2 * lengths - 1)[:, None]
    scores = (wide * mean[:, None]).sum(-1)
    weights = torch.softmax(scores.masked_fill(~exists, -torch.inf), dim=1)
    return (weights[..., None] * wide).sum(1).to(h.dtype), weights


def widen_nodes(nodes: Tensor, more: int) -> Tensor:
    """Lay nodes `[B, 2T-1, D]` out for a padded width of T + `more`."""
    T = (nodes.shape[1] + 1) // 2
    words, merged = nodes.split([T, T - 1], dim=1)
    return torch.cat([F.pad(words, (0, 0, 0, more)), F.pad(merged, (0, 0, 0, more))], dim=1)


def layer_probabilities(scores: Tensor) -> Tensor:
    """Return Eq. 12 for each layer of `scores` `[B, T-1, T-1]`; zero without a candidate."""
    exists = scores > -torch.inf
    # a layer past the end has no candidate at all: give its softmax something finite
    finite = torch.where(exists.any(-1, keepdim=True), scores, 0.0)
    return torch.where(exists, torch.softmax(finite, dim=-1), 0.0)
