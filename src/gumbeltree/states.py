"""Data types shared by all modules: node states, sampling options and encodings."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from gumbeltree.encoded import VECTORS as VECTORS
from gumbeltree.encoded import BestTrees as BestTrees
from gumbeltree.encoded import Keep as Keep


class NodeState(NamedTuple):
    """State of tree nodes: r = [h; c] in the paper, each half `[..., D]`."""

    h: Tensor
    """Hidden state; that of the root is the sentence vector."""
    c: Tensor
    """Cell state."""


class Draw(NamedTuple):
    """How a call chooses merges: by the highest score, or by sampling with noise."""

    noise: Tensor | None = None
    """Gumbel noise `[B, T-1, T-1]` (sentence, layer, position), or keys, int64 `[B, 2]`, from which
    the noise is computed without storing it (see `noise.keyed_noise`). Entries outside a sentence
    are never read. If None, the highest score wins, and no gradient reaches the scores."""
    temperature: float | Tensor | None = None
    """Temperature of the softmax in the backward pass; if None, that of the encoder."""

    @property
    def sampled(self) -> bool:
        """Whether merges are sampled."""
        return self.noise is not None


class Alternatives(NamedTuple):
    """Several trees of each sentence."""

    vector: Tensor
    """Their vectors `[B, k, D]`."""
    log_prob: Tensor
    """Their log-probabilities `[B, k]`, -inf for trees that do not exist."""


@dataclass(frozen=True)
class Encoding:
    """What an encoder returns; unpacks as ``vector, order = encoder(...)``.

    `nodes`, `scores` and `attention` are None unless requested by ``details=True`` or `Keep`.
    """

    vector: Tensor
    """Sentence vectors `[B, D]`."""
    order: Tensor | None = None
    """Position merged at each step, int64 `[B, T-1]`, -1 past the end of a sentence; None if the
    encoder builds no tree."""
    nodes: NodeState | None = None
    """States `[B, 2T-1, D]`: word i at i, the node created at step t at T + t, zero elsewhere."""
    scores: Tensor | None = None
    """Validity scores without noise, `[B, T-1, T-1]` (layer, position); -inf outside a sentence."""
    attention: Tensor | None = None
    """Attention weights of the nodes `[B, 2T-1]`, if the encoder pools by attention."""
    mask: Tensor | None = None
    """Which entries of `nodes` exist, bool `[B, 2T-1]`."""
    log_prob: Tensor | None = None
    """Log-probability of the sampled merges of each sentence `[B]`, if the estimator needs it."""
    entropy: Tensor | None = None
    """Sum of the entropies of each sentence's choices `[B]`, if the estimator needs it."""
    losses: Mapping[str, Tensor] = field(default_factory=dict)
    """Auxiliary losses of the encoder by name, each `[B]`; `training.losses` sets their weights."""
    beams: BestTrees | None = None
    """The k most probable trees of each sentence: `order`, int64 `[B, k, T-1]`, and `log_prob`
    `[B, k]`, if the encoder searches for them or `Keep.beams` requests them."""

    alternatives: Alternatives | None = None
    """A vector and a log-probability for each of several trees, if the head is to classify each of
    them and average the probabilities of the classes."""

    @property
    def probabilities(self) -> Tensor | None:
        """Softmax of `scores` at each layer (Eq. 12), `[B, T-1, T-1]`; zero outside a sentence."""
        return None if self.scores is None else layer_probabilities(self.scores)

    def map(self, function: Callable[[Tensor], Tensor]) -> "Encoding":
        """Apply a function to every tensor."""

        def of(x: Any) -> Any:
            if isinstance(x, Mapping):
                return {name: function(loss) for name, loss in x.items()}
            return type(x)(*map(function, x)) if isinstance(x, tuple) else function(x)

        there = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return Encoding(**{name: of(x) for name, x in there.items() if x is not None})

    def chunk(self, parts: int) -> "tuple[Encoding, ...]":
        """Split into `parts` encodings with equal numbers of sentences."""
        return tuple(self.map(lambda x: x.chunk(parts)[i]) for i in range(parts))  # noqa: B023

    @staticmethod
    def joined(encodings: "Sequence[Encoding]") -> "Encoding":
        """Concatenate the encodings of several batches, padded to the longest."""

        def together(parts: list[Any]) -> Any:
            if isinstance(parts[0], Mapping):
                return {name: together([part[name] for part in parts]) for name in parts[0]}
            if isinstance(parts[0], tuple):
                return type(parts[0])(*map(torch.cat, zip(*parts, strict=True)))
            return None if parts[0] is None else torch.cat(parts)

        T = max(0 if x.order is None else x.order.shape[1] + 1 for x in encodings)
        wide = [x.widened(T) for x in encodings]
        names = [f.name for f in dataclasses.fields(Encoding)]
        return Encoding(**{name: together([getattr(x, name) for x in wide]) for name in names})

    def widened(self, T: int) -> "Encoding":
        """Pad to sentences of T words."""
        if self.order is None or self.order.shape[1] == T - 1:
            return self
        more = T - 1 - self.order.shape[1]

        def wide(x: Tensor) -> Tensor:
            """Pad `[B, 2T-1, ...]`."""
            words = (x.shape[1] + 1) // 2
            empty = x.new_zeros((len(x), more, *x.shape[2:]))
            return torch.cat([x[:, :words], empty, x[:, words:], empty], dim=1)

        nodes, scores, beams = self.nodes, self.scores, self.beams
        return dataclasses.replace(
            self,
            order=F.pad(self.order, (0, more), value=-1),
            nodes=None if nodes is None else NodeState(*map(wide, nodes)),
            scores=None if scores is None else F.pad(scores, (0, more, 0, more), value=-torch.inf),
            attention=None if self.attention is None else wide(self.attention),
            mask=None if self.mask is None else wide(self.mask),
            beams=beams and beams._replace(order=F.pad(beams.order, (0, more), value=-1)),
        )

    def __iter__(self) -> Iterator[Tensor | None]:
        return iter((self.vector, self.order))


def layer_probabilities(scores: Tensor) -> Tensor:
    """Return the softmax of each layer (Eq. 12), `[B, T-1, T-1]`; zero if there is no candidate."""
    exists = scores > -torch.inf
    # layers past the end have no candidates: zeros keep their softmax from returning NaN
    finite = torch.where(exists.any(-1, keepdim=True), scores, 0.0)
    return torch.where(exists, torch.softmax(finite, dim=-1), 0.0)
