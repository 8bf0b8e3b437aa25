"""Collect labelled texts and convert them to ids."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gumbeltree.data.split import Split
from gumbeltree.layout import NO_CLASS
from gumbeltree.tasks.task import Example
from gumbeltree.text.batches import chunks
from gumbeltree.text.files import Report, counted, shown
from gumbeltree.text.ids import TextReader


class Examples:
    """Labelled sentences or pairs as text; a repeated sentence is stored once.

    Attributes:
        sentences: index of each distinct sentence.
        rows: indices of the sentences of each example.
        labels: label of each example.
        orders: merges of the gold tree of each distinct sentence that has one, by its index.
        nodes: labels of the nodes of each distinct sentence that has them, by its index; see
            `Example.nodes`.
        report: counts of examples read, dropped and skipped.

    Args:
        examples: the examples.
        report: counts so far.
        trees: whether to keep gold trees and the labels of their nodes; a repeated sentence keeps
            its first ones.
    """

    def __init__(
        self, examples: Iterable[Example] = (), report: Report | None = None, trees: bool = False
    ) -> None:
        self.sentences: dict[str, int] = {}
        self.rows: list[tuple[int, ...]] = []
        self.labels: list[str] = []
        self.orders: dict[int, NDArray[np.uint32]] = {}
        self.nodes: dict[int, tuple[str | None, ...]] = {}
        self.report = Report() if report is None else report
        for example in examples:
            row = self._add(example.texts, example.label)
            for index, tree in zip(row, example.trees if trees else (), strict=False):
                if tree is not None and index not in self.orders:
                    self.orders[index] = np.array(tree.order, dtype=np.uint32)
            for index, labels in zip(row, example.nodes if trees else (), strict=False):
                self.nodes.setdefault(index, labels)

    @property
    def pretokenized(self) -> bool:
        """Whether all texts have trees and, split at spaces, as many words as their trees."""
        return 0 < len(self.orders) == len(self.sentences) and all(
            len(text.split()) == len(self.orders[index]) + 1
            for text, index in self.sentences.items()
        )

    def _add(self, texts: Iterable[str], label: str) -> tuple[int, ...]:
        row = tuple(self.sentences.setdefault(text, len(self.sentences)) for text in texts)
        self.rows.append(row)
        self.labels.append(label)
        return row

    def texts(self) -> list[tuple[str, ...]]:
        """Return the texts of each example."""
        sentences = list(self.sentences)
        return [tuple(sentences[i] for i in row) for row in self.rows]

    def subset(self, rows: Sequence[int]) -> "Examples":
        """Return the examples of `rows`, with a new report."""
        subset, texts = Examples(), self.texts()
        for row in rows:
            added = subset._add(texts[row], self.labels[row])
            for old, new in zip(self.rows[row], added, strict=True):
                if old in self.orders:
                    subset.orders[new] = self.orders[old]
                if old in self.nodes:
                    subset.nodes[new] = self.nodes[old]
        subset.report.examples = len(rows)
        return subset

    def split(
        self, reader: TextReader, target: Callable[[str], Any], dtype: Any, trees: bool = False
    ) -> Split:
        """Convert sentences to ids and labels to targets.

        Args:
            reader: tokenises and truncates the sentences.
            target: returns the target of a label, a number or an array, or raises ValueError.
            dtype: dtype of the targets.
            trees: whether to include gold trees and the labels of their nodes, if there are any.
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
            self._merges(lengths[1:], reader.max_words) if trees and self.orders else None,
            self._node_labels(lengths[1:], target) if trees and self.nodes else None,
        )

    def _merges(self, lengths: Sequence[int], max_words: int) -> NDArray[np.unsignedinteger]:
        """Return the concatenated merges of all sentences, given their numbers of words."""
        for index, (text, words) in enumerate(zip(self.sentences, lengths, strict=True)):
            order = self.orders.get(index)
            if order is None:
                raise ValueError(f"{shown(text)} has no gold tree; remove it, or add its tree")
            if len(order) + 1 > max_words:
                raise ValueError(
                    f"{shown(text)} has {len(order) + 1:,} words, but model.max_words is "
                    f"{max_words:,}; a truncated text has no gold tree: remove it, or train with "
                    f"--set max_words={len(order) + 1}"
                )
            if len(order) + 1 != words:
                raise ValueError(
                    f"the gold tree of {shown(text)} has {counted(len(order) + 1, 'word')}, but "
                    f"the tokenizer finds {words:,} in the text; use data whose texts consist of "
                    "the words of their trees"
                )
        kind = np.uint16 if max(lengths) <= 2**16 else np.uint32
        merges = [self.orders[index] for index in range(len(lengths))]
        return np.concatenate([np.empty(0, kind), *merges]).astype(kind)

    def _node_labels(
        self, lengths: Sequence[int], target: Callable[[str], Any]
    ) -> NDArray[np.int16]:
        """Return the concatenated classes of the nodes of all sentences; see `Split`."""
        classes: dict[str | None, int] = {None: NO_CLASS}
        found: list[int] = []
        for index, (text, words) in enumerate(zip(self.sentences, lengths, strict=True)):
            labels = self.nodes.get(index, ())
            if len(labels) != 2 * words - 1:
                raise ValueError(
                    f"{shown(text)} has {words:,} words and {counted(len(labels), 'node label')}; "
                    f"a tree has {2 * words - 1:,} nodes, words included: label each of them"
                )
            for label in labels:
                if label not in classes:
                    assert label is not None
                    classes[label] = target(label)
                found.append(classes[label])
        return np.array(found, dtype=np.int16)

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
