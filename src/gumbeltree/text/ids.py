"""Convert texts to word ids, truncated to the model's maximum length, and count them."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from tokenizers import Tokenizer

from gumbeltree.text import tokenizer as text_tokenizers
from gumbeltree.text.files import SKIP, MismatchError, counted, shown
from gumbeltree.text.lines import Check
from gumbeltree.text.tokenizer import undo_ptb_escapes


@dataclasses.dataclass
class TextCounts:
    """Counts of texts and words, updated by `TextReader`.

    Attributes:
        texts: number of texts read.
        words: number of words read, after truncation.
        unknown: number of out-of-vocabulary words among them.
        cut: number of texts that were truncated.
        max_words: the length they were truncated to.
        cut_characters: number of truncated texts with too many characters, but not too many words.
    """

    texts: int = 0
    words: int = 0
    unknown: int = 0
    cut: int = 0
    max_words: int = 0
    cut_characters: int = 0

    def add(self, other: "TextCounts") -> None:
        """Add the counts of other texts of the same model."""
        for name in ("texts", "words", "unknown", "cut", "cut_characters"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.max_words = max(self.max_words, other.max_words)

    def __str__(self) -> str:
        parts = [counted(self.texts, "text")]
        if self.words:
            parts.append(counted(self.words, "word"))
        if self.unknown:
            percent = 100 * self.unknown / self.words
            share = f"{percent:.1f} %" if percent >= 0.05 else "below 0.1 %"
            parts.append(f"{self.unknown:,} unknown ({share})")
        limits = {
            counted(self.max_words, "word"): self.cut - self.cut_characters,
            counted(max_characters(self.max_words), "character"): self.cut_characters,
        }
        for limit, texts in limits.items():
            if texts:
                parts.append(f"{counted(texts, 'text')} truncated to {limit}")
        return ", ".join(parts)


def max_characters(max_words: int) -> int:
    """Return how many characters of a text are read to find its first `max_words` words."""
    # tokenising 10 MB can take half a minute, and nearly all of it would be discarded
    return 64 * max_words + 2**16


class Sentence(NamedTuple):
    """The ids of one text, and the positions of its words."""

    ids: list[int]
    text: str
    """The text as tokenised: escapes undone, and truncated if it is very long."""
    offsets: list[tuple[int, int]]
    """Character range of each word; empty unless requested."""

    @property
    def words(self) -> list[str]:
        """The words as spelled in the text."""
        return [self.text[start:end] for start, end in self.offsets]


class TextReader:
    """Convert texts to ids.

    Args:
        tokenizer: the model's tokenizer.
        max_words: maximum number of words; longer texts are truncated.
        pretokenized: texts are words separated by white space, possibly with Penn Treebank
            escapes, and are not split any further.
        counts: updated with every text.
        check: raises a MismatchError for texts that the model cannot read.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        max_words: int,
        pretokenized: bool = False,
        counts: TextCounts | None = None,
        check: Check | None = None,
    ) -> None:
        self.tokenizer = text_tokenizers.pretokenized(tokenizer) if pretokenized else tokenizer
        self.pretokenized = pretokenized
        self.max_words = max_words
        self.max_characters = max_characters(max_words)
        self.counts = TextCounts() if counts is None else counts
        self.check = check
        name = getattr(tokenizer.model, "unk_token", None)
        unknown = None if name is None else tokenizer.token_to_id(name)
        # -1 matches no id
        self.unknown = -1 if unknown is None else unknown

    def read(self, texts: Sequence[str], first: int = 0, offsets: bool = False) -> list[Sentence]:
        """Return the ids of one chunk of texts (see `text.batches`).

        Args:
            texts: strings with at least one word each.
            first: index of the first text, for error messages.
            offsets: whether to return the character range of each word.
        """
        if self.check is not None:
            for number, text in enumerate(texts):
                try:
                    self.check(text)
                except MismatchError as error:
                    fix = error.fix.removesuffix(f"; {SKIP}")
                    raise ValueError(f"text {first + number}: {error.problem}; {fix}") from error
        pieces = [self._piece(text) for text in texts]
        tokenize = self.tokenizer.encode_batch if offsets else self.tokenizer.encode_batch_fast
        try:
            encodings = tokenize([text for text, _ in pieces])
        except BaseException as error:
            # a panic of the library is not an Exception, so callers would not catch it
            if type(error).__module__ != "pyo3_runtime":
                raise
            last = first + len(texts) - 1
            where = f"text {first}" if last == first else f"one of the texts {first} to {last}"
            raise ValueError(
                f"the model's tokenizer failed on {where}: {error}; check the patterns in its "
                "tokenizer.json"
            ) from error
        sentences = []
        for number, ((text, cut), encoding) in enumerate(zip(pieces, encodings, strict=True)):
            ids = encoding.ids
            if not ids:
                raise ValueError(
                    f"text {first + number} must contain at least one word, got "
                    f"{shown(texts[number])}; remove empty texts"
                )
            self.counts.cut_characters += cut and len(ids) <= self.max_words
            cut = cut or len(ids) > self.max_words
            ids = ids[: self.max_words]
            self.counts.texts += 1
            self.counts.words += len(ids)
            self.counts.unknown += ids.count(self.unknown)
            self.counts.cut += cut
            self.counts.max_words = self.max_words
            places = encoding.offsets[: self.max_words] if offsets else []
            sentences.append(Sentence(ids, text, places))
        return sentences

    def _piece(self, text: str) -> tuple[str, bool]:
        """Return the text to tokenise, and whether it was truncated."""
        cut = False
        if len(text) > self.max_characters:
            text = text.strip()
            cut = len(text) > self.max_characters
            text = text[: self.max_characters]
        if self.pretokenized:
            text = " ".join(map(undo_ptb_escapes, text.split()))
        return text, cut
