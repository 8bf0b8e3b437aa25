"""What an encoder is: the part of a model that turns word vectors into sentence vectors."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gumbeltree.config import EncoderSettings
from gumbeltree.layout import Sentences
from gumbeltree.nn.encoders.inputs import (
    check_finite,
    check_noise,
    check_order,
    check_vectors,
    check_words,
)
from gumbeltree.nn.estimators.temperature import check_temperature
from gumbeltree.noise import is_keys, new_keys
from gumbeltree.registry import own
from gumbeltree.states import VECTORS, Draw, Encoding, Keep


class Encoder(nn.Module, ABC):
    """Base of all encoders: a subclass defines `encode`.

    Args:
        config: sizes and parts.
    """

    Config: ClassVar[type[EncoderSettings]] = EncoderSettings
    """Its settings."""
    trees: ClassVar[str] = "none"
    """Trees it builds: none; given, by data or caller; fixed, the same for all words; or sampled,
    chosen by score."""
    needs: ClassVar[frozenset[str]] = frozenset()
    """What sentences must bring beside their words, such as "order"."""
    capturable: ClassVar[bool] = False
    """Whether `encode` reads no value back from the device and asks a layout for no number of the
    host, so that it can be captured as a CUDA graph. A subclass says so again for itself."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config

    @property
    def vector_dim(self) -> int:
        """Width of the sentence vectors."""
        width: int = self.config.hidden_dim
        return width

    @property
    def builds_trees(self) -> bool:
        """Whether encodings have an `order`."""
        return self.trees != "none"

    @property
    def shape_of_trees(self) -> str:
        """Which trees these are, in a word; "" without any."""
        return {"none": "", "sampled": "learned"}.get(self.trees, self.trees)

    @property
    def draws_trees(self) -> bool:
        """Whether trees depend on noise."""
        return self.trees == "sampled"

    @abstractmethod
    def encode(self, sentences: Sentences, draw: Draw, keep: Keep) -> Encoding:
        """Return vectors `[B, vector_dim]` and, if it builds any, trees.

        Args:
            sentences: word vectors `[cap, E]` and where they stand. Rows beyond the words must have
                no effect.
            draw: how choices are made, where there are any.
            keep: what to return beside.
        """

    def check_needs(self, sentences: Sentences) -> None:
        """Raise unless sentences bring what the encoder needs beside their words."""
        for name in sorted(self.needs):
            if getattr(sentences, name, None) is None and name not in sentences.extras:
                raise ValueError(
                    f"the encoder {self.config.kind!r} needs `{name}` beside the words of each "
                    "sentence, got none; give it with the data, or take another encoder"
                )

    def prepare(self, T: int) -> None:
        """Make what must last and sentences of up to T words need, before a graph is captured."""

    def why_not_captured(self, sample: bool) -> str | None:
        """Return why `encode` cannot be captured as a CUDA graph, or None if it can."""
        if own(self, "capturable"):
            return None
        return f"{type(self).__name__} does not say that it can be captured"

    def forward(
        self,
        embedded: Tensor | Sentences,
        lengths: Tensor | None = None,
        *,
        draw: Draw | None = None,
        keep: Keep | None = None,
        noise: Tensor | None = None,
        sample: bool | None = None,
        order: Tensor | None = None,
        details: bool | None = None,
        generator: torch.Generator | None = None,
    ) -> Encoding:
        """Encode a batch of sentences: `Sentences`, or padded word vectors and their lengths.

        Args:
            embedded: word vectors, as `Sentences` or padded, `[B, T, E]`; of these, what stands
                beyond `lengths` is never read.
            lengths: of a padded batch, words per sentence, int64 `[B]`, each in 1..T.
            draw: of `Sentences`, how choices are made. None: sampled with new keys in training, the
                highest score otherwise.
            keep: of `Sentences`, what to return beside vectors and trees.
            noise: of a padded batch, Gumbel noise `[B, T-1, T-1]` (sentence, layer, position), used
                when sampling; entries outside a sentence are never read. Or keys, int64 `[B, 2]`,
                of which it is a function (`keyed_noise`) and takes no memory. If None, keys are
                drawn.
            sample: likewise, choose merges with noise and let gradients reach the scores; without,
                choose the highest score, and no gradient reaches the scores through the choice.
                Default: `self.training`.
            order: likewise, forced merges, int64 `[B, T-1]`, instead of a choice by score.
            details: likewise, return node states, scores and probabilities as well.
            generator: source of the keys; torch's own if None.
        """
        padded = {"lengths": lengths, "noise": noise, "sample": sample, "order": order}
        padded["details"] = details
        if isinstance(embedded, Sentences):
            _refuse("Sentences", padded)
            sentences, T = embedded, embedded.layout.T
            if draw is None:
                draw = Draw(self._new_keys(sentences, generator) if self.training else None)
            if sentences.layout.known:
                self._check(sentences, draw)
            return self.encode(sentences, draw, VECTORS if keep is None else keep)
        _refuse("a padded batch", {"draw": draw, "keep": keep})
        weight = next(self.parameters(), embedded)
        lengths = check_words(embedded, lengths, weight, self.config.embedding_dim)
        T = embedded.shape[1]
        sentences = Sentences.padded(embedded, lengths)
        check_finite(sentences)
        steps = sentences.layout.T
        if order is not None:
            check_order(order, lengths, weight, T)
            sentences = sentences.with_order(order[:, : steps - 1])
        if not (self.training if sample is None else sample):
            noise = None
        elif noise is None:
            noise = self._new_keys(sentences, generator)
        else:
            check_noise(noise, lengths, weight, T, getattr(self, "temperature", 1.0))
            noise = noise if is_keys(noise) else noise[:, : steps - 1, : steps - 1]
        self.check_needs(sentences)
        wanted = Keep(bool(details), bool(details))
        return self.encode(sentences, Draw(noise), wanted).widened(T)

    def _new_keys(self, sentences: Sentences, generator: torch.Generator | None) -> Tensor | None:
        """Draw keys of noise, if trees depend on any."""
        if not self.draws_trees:
            return None
        return new_keys(len(sentences), sentences.words.device, generator)

    def _check(self, sentences: Sentences, draw: Draw) -> None:
        """Check what a caller hands over; values are read on a CPU only."""
        layout, words = sentences.layout, sentences.words
        weight = next(self.parameters(), words)
        check_vectors(words, weight, self.config.embedding_dim)
        self.check_needs(sentences)
        check_finite(sentences)
        if sentences.order is not None:
            check_order(sentences.order, layout.own_lengths(), weight, layout.T)
        if draw.noise is not None:
            given = draw.temperature
            temperature = getattr(self, "temperature", 1.0) if given is None else given
            if isinstance(temperature, Tensor):
                # reading it would wait for the device, and break a graph
                temperature = float(temperature) if temperature.device.type == "cpu" else 1.0
            temperature = check_temperature(temperature)
            check_noise(draw.noise, layout.own_lengths(), weight, layout.T, temperature)


def _refuse(form: str, arguments: Mapping[str, object]) -> None:
    """Raise if an argument of the other form of a batch is given."""
    for name, value in arguments.items():
        if value is not None:
            raise TypeError(f"`{name}` does not go with {form}; see the encoder's `forward`")
