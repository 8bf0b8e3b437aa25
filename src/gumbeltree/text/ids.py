"""From texts to ids: cut to what a model takes, and counted."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from tokenizers import Tokenizer

from gumbeltree.text import tokenizer as tokenizers_of_text
from gumbeltree.text.tokenizer import undo_ptb_escapes


@dataclasses.dataclass
class TextCounts:
    """What became of texts on their way to ids; readers add to it as they go.

    Attributes:
        texts: texts read.
        words: words read, after cutting.
        unknown: words among them that the vocabulary lacks.
        cut: texts that were cut short.
        max_words: what they were cut to.
    """

    texts: int = 0
    words: int = 0
    unknown: int = 0
    cut: int = 0
    max_words: int = 0

    def __str__(self) -> str:
        parts = [counted(self.texts, "text")]
        if self.words:
            parts.append(counted(self.words, "word"))
        if self.unknown:
            percent = 100 * self.unknown / self.words
            share = f"{percent:.1f} %" if percent >= 0.05 else "below 0.1 %"
            parts.append(f"{self.unknown:,} unknown ({share})")
        if self.cut:
            parts.append(f"{counted(self.cut, 'text')} cut to {counted(self.max_words, 'word')}")
        return ", ".join(parts)


class Sentence(NamedTuple):
    """The ids of one text, and where they stand in it."""

    ids: list[int]
    text: str
    """The text as it was tokenised: escapes undone, the end left out where it is very long."""
    offsets: list[tuple[int, int]]
    """First character and the one after the last of each id's word; empty unless asked for."""

    @property
    def words(self) -> list[str]:
        """The text's own words."""
        return [self.text[start:end] for start, end in self.offsets]


class TextReader:
    """Turns texts into ids.

    Args:
        tokenizer: of the model.
        max_words: longer texts are cut.
        pretokenized: texts are words separated by white space, perhaps with the escapes of the
            Penn Treebank, and are split nowhere else.
        counts: what to add to.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        max_words: int,
        pretokenized: bool = False,
        counts: TextCounts | None = None,
    ) -> None:
        self.tokenizer = tokenizers_of_text.pretokenized(tokenizer) if pretokenized else tokenizer
        self.pretokenized = pretokenized
        self.max_words = max_words
        # a text of 10 MB may take half a minute, although nearly all of it is then cut
        self.max_characters = 64 * max_words + 2**16
        self.counts = TextCounts() if counts is None else counts
        name = getattr(tokenizer.model, "unk_token", None)
        unknown = None if name is None else tokenizer.token_to_id(name)
        # no id is negative
        self.unknown = -1 if unknown is None else unknown

    def read(self, texts: Sequence[str], first: int = 0, offsets: bool = False) -> list[Sentence]:
        """Return the ids of texts, one chunk at a time (see `text.batches`).

        Args:
            texts: strings, each with at least one word.
            first: the number that errors give the first of them.
            offsets: whether the place of each word is wanted.
        """
        pieces = [self._piece(text) for text in texts]
        tokenize = self.tokenizer.encode_batch if offsets else self.tokenizer.encode_batch_fast
        encodings = tokenize([text for text, _ in pieces])
        sentences = []
        for number, ((text, cut), encoding) in enumerate(zip(pieces, encodings, strict=True)):
            ids = encoding.ids
            if not ids:
                shown = texts[number] if len(texts[number]) <= 60 else texts[number][:60] + "..."
                raise ValueError(
                    f"text {first + number} must hold at least one word, got {shown!r}; drop empty "
                    "texts"
                )
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
        """Return the text to tokenise, and whether that leaves some of it out."""
        cut = False
        if len(text) > self.max_characters:
            text = text.strip()
            cut = len(text) > self.max_characters
            text = text[: self.max_characters]
        if self.pretokenized:
            text = " ".join(map(undo_ptb_escapes, text.split()))
        return text, cut


def counted(count: int, noun: str) -> str:
    """Return such as "1 word" or "1,204 words"."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
