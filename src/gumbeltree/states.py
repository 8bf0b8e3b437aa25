"""The records that travel through the package: node states, encodings, and how they are made."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class NodeState(NamedTuple):
    """State of tree nodes, r = [h; c] of the paper, each half `[..., D]`."""

    h: Tensor
    c: Tensor


class Draw(NamedTuple):
    """How choices are made in a call: the highest score, or sampled with noise."""

    noise: Tensor | None = None
    """Gumbel noise `[B, T-1, T-1]` (sentence, layer, position), of which entries outside a sentence
    are never read; or keys, int64 `[B, 2]`, that it is a function of (`noise.keyed_noise`), which
    takes no memory. None: the highest score wins, and no gradient reaches the scores."""
    temperature: float | Tensor | None = None
    """Of the softmax in the backward pass, a number, or one on the device; None: the encoder's."""

    @property
    def sampled(self) -> bool:
        """Whether choices are sampled."""
        return self.noise is not None


class Keep(NamedTuple):
    """What an encoder is asked to return beside its vectors and trees."""

    nodes: bool = False
    scores: bool = False


VECTORS = Keep()
"""Vectors and trees, and nothing beside."""


@dataclass(frozen=True)
class Encoding:
    """What an encoder returns; unpacks as ``vector, order = encoder(...)``.

    Nodes, scores and attention are None unless asked for, with ``details=True`` or `Keep`.
    """

    vector: Tensor
    """Sentence vectors `[B, D]`."""
    order: Tensor | None = None
    """Position merged at each step, int64 `[B, T-1]`, -1 past a sentence's end; None where the
    encoder builds no tree."""
    nodes: NodeState | None = None
    """States `[B, 2T-1, D]`: word i at i, the node made at step t at T + t, zero elsewhere."""
    scores: Tensor | None = None
    """Validity scores without noise, `[B, T-1, T-1]` (layer, position); -inf outside a sentence."""
    attention: Tensor | None = None
    """Weights of the nodes `[B, 2T-1]` where the encoder pools by attention."""
    mask: Tensor | None = None
    """Where there is a node, bool `[B, 2T-1]`; with `nodes`."""
    log_prob: Tensor | None = None
    """Log-probability of each sentence's sampled choices, `[B]`, where the estimator needs it."""
    entropy: Tensor | None = None
    """Entropy of each sentence's layers, summed, `[B]`, likewise."""
    losses: Mapping[str, Tensor] = field(default_factory=dict)
    """Losses of the encoder's own, `[B]` each, by name; `training.losses` weighs them."""

    @property
    def probabilities(self) -> Tensor | None:
        """Eq. 12 at each layer, softmax of `scores`, `[B, T-1, T-1]`; zero outside a sentence."""
        return None if self.scores is None else layer_probabilities(self.scores)

    def map(self, function: Callable[[Tensor], Tensor]) -> "Encoding":
        """Return what a function makes of each tensor, such as some of its rows."""

        def of(x: Any) -> Any:
            if isinstance(x, Mapping):
                return {name: function(loss) for name, loss in x.items()}
            return NodeState(*map(function, x)) if isinstance(x, NodeState) else function(x)

        there = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return Encoding(**{name: of(x) for name, x in there.items() if x is not None})

    def chunk(self, parts: int) -> "tuple[Encoding, ...]":
        """Return the encodings of equal numbers of sentences, one after the other."""
        return tuple(self.map(lambda x: x.chunk(parts)[i]) for i in range(parts))  # noqa: B023

    @staticmethod
    def joined(encodings: "Sequence[Encoding]") -> "Encoding":
        """Return the encodings of several batches as those of one, as wide as the widest."""

        def together(parts: list[Any]) -> Any:
            if isinstance(parts[0], Mapping):
                return {name: together([part[name] for part in parts]) for name in parts[0]}
            if isinstance(parts[0], NodeState):
                return NodeState(*(torch.cat(halves) for halves in zip(*parts, strict=True)))
            return None if parts[0] is None else torch.cat(parts)

        T = max(0 if x.order is None else x.order.shape[1] + 1 for x in encodings)
        wide = [x.widened(T) for x in encodings]
        names = [f.name for f in dataclasses.fields(Encoding)]
        return Encoding(**{name: together([getattr(x, name) for x in wide]) for name in names})

    def widened(self, T: int) -> "Encoding":
        """Return the same for sentences padded to T words."""
        if self.order is None or self.order.shape[1] == T - 1:
            return self
        more = T - 1 - self.order.shape[1]

        def wide(x: Tensor) -> Tensor:
            """Widen `[B, 2T-1, ...]`."""
            words = (x.shape[1] + 1) // 2
            empty = x.new_zeros((len(x), more, *x.shape[2:]))
            return torch.cat([x[:, :words], empty, x[:, words:], empty], dim=1)

        nodes, scores = self.nodes, self.scores
        return dataclasses.replace(
            self,
            order=F.pad(self.order, (0, more), value=-1),
            nodes=None if nodes is None else NodeState(*map(wide, nodes)),
            scores=None if scores is None else F.pad(scores, (0, more, 0, more), value=-torch.inf),
            attention=None if self.attention is None else wide(self.attention),
            mask=None if self.mask is None else wide(self.mask),
        )

    def __iter__(self) -> Iterator[Tensor | None]:
        return iter((self.vector, self.order))


def layer_probabilities(scores: Tensor) -> Tensor:
    """Return Eq. 12 for each layer of `scores` `[B, T-1, T-1]`; zero without a candidate."""
    exists = scores > -torch.inf
    # a layer past the end has no candidate at all: give its softmax something finite
    finite = torch.where(exists.any(-1, keepdim=True), scores, 0.0)
    return torch.where(exists, torch.softmax(finite, dim=-1), 0.0)
