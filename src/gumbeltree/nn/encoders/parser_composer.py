"""Encoder with separate weights for the choice of merges and for their composition."""

import dataclasses
from collections.abc import Generator

from torch import Tensor

from gumbeltree.config import ParserComposerConfig
from gumbeltree.layout import Sentences
from gumbeltree.nn.encoders.gumbel_tree import GumbelTreeEncoder
from gumbeltree.nn.encoders.tree_encoder import TreeEncoder
from gumbeltree.nn.estimators.estimator import AdvanceEstimator
from gumbeltree.states import BestTrees, Draw, Encoding, Keep


class ParserComposerEncoder(TreeEncoder):
    """Draw a tree with a parser and compose its nodes with a composer (Havrylov et al. 2019).

    The parser learns only from the advantages of its trees, the composer only from the loss. Both
    have their own leaf transformation and cell, and read the same word vectors.

    Args:
        config: settings; see `ParserComposerConfig`.
    """

    Config = ParserComposerConfig
    trees = "sampled"
    capturable = True

    def __init__(self, config: ParserComposerConfig) -> None:
        super().__init__(config)
        self.parser = GumbelTreeEncoder(config.of_parser)
        if not isinstance(self.parser.estimator, AdvanceEstimator):
            raise ValueError(
                f"no gradient reaches the parser with the estimator {config.estimator.kind!r}; "
                "use estimator=reinforce or ppo, or the encoder gumbel_tree"
            )
        if config.impl != "fused":
            # reject impossible settings early; for kernels, the device is not known yet
            self.explain()

    @property
    def query(self) -> Tensor:
        """Zero, because the composer does not score candidates."""
        return next(self.parameters()).new_zeros(self.config.hidden_dim)

    @property
    def temperature(self) -> float:
        """Temperature of the parser, which has no effect on its estimators."""
        return self.parser.temperature

    @temperature.setter
    def temperature(self, value: float) -> None:
        self.parser.temperature = value

    def why_not_captured(self, sample: bool) -> str | None:
        """Return why `encode` cannot be captured as a CUDA graph, or None if it can."""
        return super().why_not_captured(sample) or self.parser.why_not_captured(sample)

    def why_no_beams(self) -> str | None:
        """Return why beam search cannot find its most probable trees, or None if it can."""
        return self.parser.why_no_beams()

    def beam_steps(self, sentences: Sentences, k: int) -> Generator[None, None, BestTrees]:
        """Return the most probable trees of the parser in short steps, on a CPU."""
        return self.parser.beam_steps(sentences, k)

    def score(self, sentences: Sentences, draw: Draw) -> Encoding:
        """Return the encoding of the parser; see `Encoder.score`."""
        return self._parsed(sentences, draw, Keep())

    def encode(self, sentences: Sentences, draw: Draw, keep: Keep) -> Encoding:
        """Return vectors of the composer and trees of the parser.

        Args:
            sentences: word vectors; if they have an order, parser and composer follow it.
            draw: how the parser chooses merges.
            keep: what to return in addition: nodes of the composer, scores and beams of the
                parser.
        """
        parsed = self._parsed(sentences, draw, keep._replace(nodes=False))
        assert parsed.order is not None
        composed = self.merge(sentences.with_order(parsed.order), Draw(), Keep(nodes=keep.nodes))
        return dataclasses.replace(
            composed,
            scores=parsed.scores,
            log_prob=parsed.log_prob,
            entropy=parsed.entropy,
            beams=parsed.beams,
        )

    def _parsed(self, sentences: Sentences, draw: Draw, keep: Keep) -> Encoding:
        if not self.config.parser.tunes_words:
            sentences = sentences.with_words(sentences.words.detach())
        return self.parser.encode(sentences, draw, keep)
