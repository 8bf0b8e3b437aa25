"""Base class of encoders, which turn word vectors into sentence vectors."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gumbeltree.config import EncoderSettings
from gumbeltree.encoded import EncoderTraits, MissingInputError
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


class Encoder(EncoderTraits, nn.Module, ABC):
    """Base class of all encoders. Subclasses define `encode`.

    Args:
        config: settings of the encoder.
    """

    Config: ClassVar[type[EncoderSettings]] = EncoderSettings
    """Class of its settings."""
    needs: frozenset[str] = frozenset()
    """Inputs required in addition to the words, such as "order"."""
    learns_from: frozenset[str] = frozenset()
    """Inputs required in training only, such as "order"."""
    reads_vectors: ClassVar[bool] = True
    """Whether it reads word vectors; encoders that read the spelling alone do not."""
    spelling: str = ""
    """How models add the spelling of each word to `Sentences.extras`, under the same name:
    characters or bytes, uint8 `[cap, K]`, 0 past the end of a word; see `text.spelling`."""
    joins_words: ClassVar[bool] = False
    """Whether it reads a sentence as one text of all symbols of its words. In captured batches,
    `Layout.most_symbols` is an upper bound on their number."""
    capturable: ClassVar[bool] = False
    """Whether `encode` can be captured as a CUDA graph: it reads no values back from the
    device and no host-side numbers of a layout. Every subclass must set it; inherited values do
    not count."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config

    @abstractmethod
    def encode(self, sentences: Sentences, draw: Draw, keep: Keep) -> Encoding:
        """Return vectors `[B, vector_dim]` and, if the encoder builds trees, merge orders.

        Args:
            sentences: word vectors `[cap, E]` and their layout. Rows past the last word
                must have no effect.
            draw: how to choose merges.
            keep: what to return in addition to vectors and trees.
        """

    def score(self, sentences: Sentences, draw: Draw) -> Encoding:
        """Return an encoding whose log-probabilities and entropies are those of `encode`.

        Encoders that can compute them without the vectors do so.

        Args:
            sentences: word vectors and the merges to score.
            draw: how the merges were chosen.
        """
        return self.encode(sentences, draw, VECTORS)

    def check_needs(self, sentences: Sentences) -> None:
        """Raise an error if the sentences lack an input that the encoder needs."""
        for name in sorted(self.needs):
            if getattr(sentences, name, None) is None and name not in sentences.extras:
                raise MissingInputError(
                    f"the encoder {self.config.kind!r} needs `{name}` for every sentence, but the "
                    "data has none; provide it with the data, or choose another encoder"
                )

    def advance(self, step: int, epochs: float) -> None:
        """Before a training step, update what changes in the course of training.

        Encoders that change override it; what they change must be in their `state_dict`.

        Args:
            step: number of completed steps.
            epochs: number of completed passes over the training data, with a fraction.
        """

    def prepare(self, T: int) -> None:
        """Before a capture, allocate what graphs for sentences of up to T words will read."""

    def why_not_captured(self, sample: bool) -> str | None:
        """Return why `encode` cannot be captured as a CUDA graph, or None if it can."""
        if own(self, "capturable"):
            return None
        return f"{type(self).__name__} does not declare itself capturable"

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
            embedded: word vectors, as `Sentences` or padded to `[B, T, E]`. Entries of a padded
                batch past `lengths` are never read.
            lengths: padded batch only. Words per sentence, int64 `[B]`, each in 1..T.
            draw: `Sentences` only. How to choose merges. Default: sampled in training mode, by the
                highest score otherwise.
            keep: `Sentences` only. What to return in addition to vectors and trees.
            noise: padded batch only. Gumbel noise for sampling, `[B, T-1, T-1]` (sentence, layer,
                position), or keys, int64 `[B, 2]`, from which it is computed. Entries outside a
                sentence are never read. Default: new random keys.
            sample: padded batch only. If True, merges are chosen with noise, and gradients reach
                the scores. If False, the highest score wins, and no gradient reaches the scores.
                Default: `self.training`.
            order: padded batch only. Merges to follow instead of choosing any, int64 `[B, T-1]`.
            details: padded batch only. Whether to return node states, scores and probabilities.
            generator: source of random keys; torch's default generator if None.
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
        """Draw noise keys if trees depend on noise."""
        if not self.draws_trees:
            return None
        return new_keys(len(sentences), sentences.words.device, generator)

    def _check(self, sentences: Sentences, draw: Draw) -> None:
        """Validate a batch; values are checked only on a CPU."""
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
                # reading it would wait for the device, which a capture does not allow
                temperature = float(temperature) if temperature.device.type == "cpu" else 1.0
            temperature = check_temperature(temperature)
            check_noise(draw.noise, layout.own_lengths(), weight, layout.T, temperature)


def _refuse(form: str, arguments: Mapping[str, object]) -> None:
    """Raise an error if an argument belongs to the other form of a batch."""
    for name, value in arguments.items():
        if value is not None:
            raise TypeError(f"`{name}` cannot be combined with {form}; see `Encoder.forward`")
