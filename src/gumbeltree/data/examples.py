"""Collect labelled texts and convert them to ids."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gumbeltree.data.split import Split
from gumbeltree.tasks.task import Example
from gumbeltree.text.batches import chunks
from gumbeltree.text.files import Report
from gumbeltree.text.ids import TextReader


class Examples:
    """Labelled sentences or pairs as text; a repeated sentence is stored once.

    Attributes:
        sentences: index of each distinct sentence.
        rows: indices of the sentences of each example.
        labels: label of each example.
        report: counts of examples read, dropped and skipped.
    """

    def __init__(self, examples: Iterable[Example] = (), report: Report | None = None) -> None:
        self.sentences: dict[str, int] = {}
        self.rows: list[tuple[int, ...]] = []
        self.labels: list[str] = []
        self.report = Report() if report is None else report
        for example in examples:
            self._add(example.texts, example.label)

    def _add(self, texts: Iterable[str], label: str) -> None:
        row = (self.sentences.setdefault(text, len(self.sentences)) for text in texts)
        self.rows.append(tuple(row))
        self.labels.append(label)

    def texts(self) -> list[tuple[str, ...]]:
        """Return the texts of each example."""
        sentences = list(self.sentences)
        return [tuple(sentences[i] for i in row) for row in self.rows]

    def subset(self, rows: Sequence[int]) -> "Examples":
        """Return the examples of `rows`, with a new report."""
        subset, texts = Examples(), self.texts()
        for row in rows:
            subset._add(texts[row], self.labels[row])
        subset.report.examples = len(rows)
        return subset

    def split(self, reader: TextReader, target: Callable[[str], Any], dtype: Any) -> Split:
        """Convert sentences to ids and labels to targets.

        Args:
            reader: tokenises and truncates the sentences.
            target: returns the target of a label, a number or an array, or raises ValueError.
            dtype: dtype of the targets.
        """
        texts = list(self.sentences)
        kind = np.uint16 if reader.tokenizer.get_vocab_size() <= 2**16 else np.uint32
        words: list[NDArray[Any]] = [np.empty(0, kind)]
        lengths = [0]
        for rows in chunks([texts]):
            ids = [sentence.ids for sentence in reader.read(texts[rows], rows.start)]
            lengths += map(len, ids)
            words.append(np.fromiter(itertools.chain.from_iterable(ids), dtype=kind))
        return Split(
            np.concatenate(words),
            np.cumsum(lengths, dtype=np.int64),
            np.array(self.rows, dtype=np.int32).reshape(len(self.rows), -1 if self.rows else 1),
            self._targets(target, dtype),
        )

    def _targets(self, target: Callable[[str], Any], dtype: Any) -> NDArray[Any]:
        targets = {}
        for label in dict.fromkeys(self.labels):
            try:
                targets[label] = target(label)
            except ValueError as error:
                texts = self.texts()[self.labels.index(label)]
                raise ValueError(
                    f"label {label!r} of {' | '.join(texts)[:80]!r} is not valid for the model's "
                    f"head: {error}"
                ) from error
        return np.array([targets[label] for label in self.labels], dtype=dtype)
