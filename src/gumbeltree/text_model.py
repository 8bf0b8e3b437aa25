"""Base class of models that read text: encode, parse and predict, whatever computes them."""

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from gumbeltree.answers import softmax
from gumbeltree.config import ModelConfig
from gumbeltree.encoded import VECTORS, BestTrees, Encoded, Keep, check_beams
from gumbeltree.tasks import text_check
from gumbeltree.text.batches import ahead, as_list, as_texts, batches, chunks
from gumbeltree.text.files import shown
from gumbeltree.text.ids import Sentence, TextCounts, TextReader
from gumbeltree.text.lines import Check
from gumbeltree.threads import in_threads, share
from gumbeltree.tree import Tree

logger = logging.getLogger(__name__)


class ProbableTree(NamedTuple):
    """One of the most probable trees of a sentence."""

    tree: Tree
    """The tree, with its order of merges."""
    probability: float
    """Its share among the trees found; these shares add up to 1."""
    log_prob: float
    """Log-probability of its merges, in their order."""


def ranked_trees(sentence: Sentence, order: Any, log_prob: Any) -> list[ProbableTree]:
    """Return the trees of one sentence, given their merges `[k, T-1]` and log-probabilities `[k]`.

    Entries past the end of the sentence, and trees with the probability 0, do not exist.
    """
    merges = order[:, : len(sentence.ids) - 1].tolist()
    rows = zip(merges, softmax(log_prob).tolist(), log_prob.tolist(), strict=True)
    return [
        ProbableTree(Tree(sentence.words, row), share, log_prob)
        for row, share, log_prob in rows
        if log_prob > -math.inf
    ]


class TextModel(ABC):
    """A tokenizer, an encoder and a head, which together encode, parse and classify text."""

    config: ModelConfig
    """Settings of the model."""
    tokenizer: Tokenizer
    """Tokenizer with the vocabulary."""
    provenance: dict[str, Any]
    """Origin of the weights, any JSON data."""
    encoder: Any
    """Encoder, which turns words into vectors and trees."""
    head: Any
    """Head, which turns sentence vectors into predictions."""
    reads_ahead: bool = False
    """Whether to tokenise the next texts while the current ones are encoded."""
    parallel: bool = False
    """Whether threads encode several batches at once."""
    step_words: int = 1024
    """Number of words to encode at a time where others wait: some hundredths of a second."""

    # What a runtime provides: encodings in its own form, `Encoded` or `gumbeltree.Encoding`.

    @abstractmethod
    def encode_ids(
        self,
        ids: Sequence[Sequence[int]],
        keep: Keep = VECTORS,
        noise: NDArray[np.float32] | None = None,
    ) -> Any:
        """Encode one batch of sentences, given as word ids.

        Args:
            ids: word ids of each sentence.
            keep: what to return in addition to vectors and trees.
            noise: added to the scores to choose merges, `[B, T-1, T-1]`; None for greedy trees.
        """

    @abstractmethod
    def joined(self, encodings: Sequence[Any], rows: NDArray[np.int64]) -> Any:
        """Concatenate encodings and return the given rows of the result."""

    @abstractmethod
    def as_numpy(self, encoding: Any) -> Encoded:
        """Return an encoding as NumPy arrays."""

    @abstractmethod
    def head_output(self, *encodings: Any) -> NDArray[np.floating[Any]]:
        """Return the output of the head for encodings of B sentences each, `[B, ...]`."""

    @abstractmethod
    def output_of(self, vectors: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
        """Return the output of the head for single vectors `[n, D]`, such as those of nodes."""

    @abstractmethod
    def weight_bytes(self) -> Iterator[tuple[str, str, NDArray[np.uint8]]]:
        """Yield each weight by name: its name, dtype and shape as "float32 [3, 4]", its bytes."""

    # What follows from it.

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes; empty if the head does not classify."""
        labels: tuple[str, ...] = self.head.labels
        return labels

    def encode(
        self,
        texts: Iterable[str],
        batch_size: int = 256,
        *,
        pretokenized: bool = False,
        counts: TextCounts | None = None,
    ) -> NDArray[np.float32]:
        """Return the vectors of `texts`, float32 `[len(texts), D]`, using greedy trees.

        Args:
            texts: sentences, in any iterable; only the first `max_words` words of each are read.
            batch_size: maximum number of sentences encoded at once; fewer if they are long.
            pretokenized: split texts at white space only, and undo Penn Treebank escapes
                such as -LRB-.
            counts: updated with the number of texts, words, unknown words and truncated texts. If
                None, a warning is logged when texts are truncated.
        """
        texts = as_texts(texts)
        vectors = np.empty((len(texts), self.encoder.vector_dim), dtype=np.float32)
        for rows, _, (encoding,) in self._encode([texts], batch_size, pretokenized, counts):
            vectors[rows] = self.as_numpy(encoding).vector
        return vectors

    def parse(
        self, text: str, *, pretokenized: bool = False, counts: TextCounts | None = None
    ) -> Tree:
        """Return the greedy tree of one text.

        Args:
            text: a sentence.
            pretokenized: see `encode`.
            counts: see `encode`.
        """
        return self.parse_many([text], pretokenized=pretokenized, counts=counts)[0]

    def parse_many(
        self,
        texts: Iterable[str],
        batch_size: int = 256,
        *,
        pretokenized: bool = False,
        counts: TextCounts | None = None,
    ) -> list[Tree]:
        """Return the greedy tree of each text.

        Args:
            texts: see `encode`.
            batch_size: see `encode`.
            pretokenized: see `encode`.
            counts: see `encode`.
        """
        self.check_builds_trees()
        columns = [as_texts(texts)]
        trees: list[Tree] = []
        for _, (sentences,), (encoding,) in self._encode(
            columns, batch_size, pretokenized, counts, offsets=True
        ):
            orders = self.as_numpy(encoding).order
            assert orders is not None
            for sentence, order in zip(sentences, orders.tolist(), strict=True):
                trees.append(Tree(sentence.words, order[: len(sentence.ids) - 1]))
        return trees

    def best_trees(
        self,
        texts: Iterable[str],
        beams: int = 5,
        batch_size: int = 256,
        *,
        pretokenized: bool = False,
        counts: TextCounts | None = None,
    ) -> list[list[ProbableTree]]:
        """Return the most probable trees of each text that beam search finds, best first.

        Short texts may have fewer than `beams` trees. The trees differ: of several orders of merges
        that lead to the same nodes, the search continues the most probable one.

        Args:
            texts: see `encode`.
            beams: number of trees per text.
            batch_size: see `encode`; smaller batches are used for many beams.
            pretokenized: see `encode`.
            counts: see `encode`.
        """
        self.check_has_beams(beams)
        columns, keep = [as_texts(texts)], Keep(beams=beams)
        # each beam takes the memory of a sentence
        fits = isinstance(batch_size, int) and batch_size > 0
        most = max(1, batch_size // beams) if fits else batch_size
        found: list[list[ProbableTree]] = []
        for _, (sentences,), (encoding,) in self._encode(
            columns, most, pretokenized, counts, keep, offsets=True
        ):
            found += map(ranked_trees, sentences, *self._beams_of(encoding))
        return found

    def beam_steps(self, ids: Sequence[int], beams: int) -> Generator[None, None, BestTrees]:
        """Return the most probable trees of one sentence, given as word ids, in short steps.

        The caller can do something else between steps. Encoders whose class does not define
        `beam_steps` itself take a single step.

        Args:
            ids: word ids of the sentence.
            beams: number of trees.
        """
        yield from ()
        return self._beams_of(self.encode_ids([ids], Keep(beams=beams)))

    def _beams_of(self, encoding: Any) -> BestTrees:
        best = self.as_numpy(encoding).beams
        if best is None:
            raise ValueError(f"{type(self.encoder).__name__}.encode ignores `keep.beams`")
        return best

    def predict(
        self,
        texts: Iterable[str] | Iterable[tuple[str, str]],
        second: Iterable[str] | None = None,
        batch_size: int = 256,
        *,
        pretokenized: bool = False,
        counts: TextCounts | None = None,
    ) -> list[Any]:
        """Return the head's answer for each sentence or pair; classifiers return a `Prediction`.

        Args:
            texts: sentences, or (first, second) pairs for a pair model, in any iterable.
            second: the second sentences, if `texts` contains only the first ones.
            batch_size: maximum number of sentences encoded at once; fewer if they are long.
            pretokenized: see `encode`.
            counts: see `encode`.
        """
        columns, keep = self._columns(texts, second), self.head.keep
        answers: list[Any] = []
        for _, _, encodings in self._encode(columns, batch_size, pretokenized, counts, keep):
            answers += self.head.answers(self.head_output(*encodings))
        return answers

    @property
    def data_settings(self) -> dict[str, Any]:
        """Settings of the training data; empty if they are not recorded."""
        recipe = self.provenance.get("recipe")
        settings = recipe.get("data") if isinstance(recipe, dict) else None
        return settings if isinstance(settings, dict) else {}

    def text_check(self, pretokenized: bool = False) -> Check | None:
        """Return a function that raises a MismatchError for texts that the model cannot read.

        It is None for most models. Those of ListOps read expressions alone, and those of logic
        formulas.

        Args:
            pretokenized: see `encode`.
        """
        return text_check(self.data_settings.get("task"), pretokenized)

    def check_builds_trees(self, name: str = "this model") -> None:
        """Raise a ValueError unless the encoder merges words into a tree.

        Args:
            name: name of the model in the error message.
        """
        if not self.encoder.builds_trees:
            raise ValueError(
                f"{name} builds no tree: its encoder is {self.config.encoder.kind!r}; use a model "
                "with another encoder, such as 'gumbel_tree'"
            )

    def check_has_beams(self, beams: int, name: str = "this model") -> None:
        """Raise a ValueError unless beam search can find this many trees of the model.

        Args:
            beams: number of trees per text.
            name: name of the model in the error message.
        """
        check_beams(beams)
        reason = self.encoder.why_no_beams()
        if reason is not None:
            raise ValueError(
                f"{name} has no most probable trees: its encoder is {self.config.encoder.kind!r}, "
                f"and {reason}; use a model with learned trees, such as 'gumbel_tree'"
            )

    def _columns(
        self, texts: Iterable[str] | Iterable[tuple[str, str]], second: Iterable[str] | None
    ) -> list[list[str]]:
        """Return one list of texts per sentence of an example; raise if the head expects others."""
        first: list[Any] = as_list(texts)
        if self.head.sentences == 1:
            if second is not None or any(isinstance(x, tuple | list) for x in first):
                raise ValueError("this model reads single sentences: pass a list of strings")
            return [as_texts(first)]
        names = ("first text", "second text")
        if second is None:
            for row, pair in enumerate(first):
                if not isinstance(pair, tuple | list) or len(pair) != 2:
                    raise ValueError(
                        "this model reads pairs: pass (first, second) tuples, or two lists of "
                        f"strings; item {row} is {shown(pair)}"
                    )
            return [as_texts((x[i] for x in first), name) for i, name in enumerate(names)]
        columns = [as_texts(*column) for column in zip((first, second), names, strict=True)]
        if len(columns[0]) != len(columns[1]):
            raise ValueError(
                "this model reads pairs: pass two lists of equal length, got "
                f"{len(columns[0])} and {len(columns[1])} texts"
            )
        return columns

    def _encode(
        self,
        columns: Sequence[list[str]],
        batch_size: int,
        pretokenized: bool,
        counts: TextCounts | None,
        keep: Keep = VECTORS,
        offsets: bool = False,
    ) -> Iterator[tuple[slice, list[list[Sentence]], list[Any]]]:
        """Encode texts chunk by chunk, in order.

        Yields:
            The rows of a chunk, and for each column its sentences and their encodings.
        """
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"`batch_size` must be a positive integer, got {batch_size!r}")
        check = self.text_check(pretokenized)
        reader = TextReader(self.tokenizer, self.config.max_words, pretokenized, counts, check)

        def read() -> Iterator[tuple[slice, list[list[Sentence]]]]:
            # node states take much memory, so keep those of one batch at a time
            for rows in chunks(columns, None if keep == VECTORS else batch_size):
                yield rows, [reader.read(texts[rows], rows.start, offsets) for texts in columns]

        def encoded(sentences: list[Sentence]) -> Any:
            def one(rows: NDArray[np.int64]) -> Any:
                return self.encode_ids([sentences[row].ids for row in rows], keep)

            most = share(len(sentences), batch_size) if self.parallel else batch_size
            lengths = np.array([len(sentence.ids) for sentence in sentences])
            groups = list(batches(self.encoder.batch_cost(lengths), most))
            parts = in_threads(one, groups) if self.parallel else list(map(one, groups))
            return self.joined(parts, np.concatenate(groups).argsort())

        for rows, chunk in ahead(read()) if self.reads_ahead else read():
            yield rows, chunk, [encoded(sentences) for sentences in chunk]
        if counts is None and reader.counts.cut:
            logger.warning("%s", reader.counts)
