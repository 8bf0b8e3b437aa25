"""SNLI (Bowman et al. 2015): entailment between sentences, from the official jsonl or txt files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from gumbeltree.tasks.checks import (
    checked_label,
    checked_object,
    checked_text,
    checked_tree,
    column_of,
)
from gumbeltree.tasks.task import Example, FileNames, Task
from gumbeltree.text.files import Report
from gumbeltree.text.tokenizer import undo_ptb_escapes
from gumbeltree.tree import Tree

_FIELDS = ("gold_label", "sentence1", "sentence2")


def _names(split: str) -> tuple[str, ...]:
    stem = f"snli_1.0_{split}"
    return (f"{stem}.jsonl", f"{stem}.txt", f"{stem}*.jsonl", f"{stem}*.txt")


class SNLI(Task):
    """Pairs of raw sentences; pairs without a gold label are dropped.

    Gold trees come from the fields `sentence1_binary_parse` and `sentence2_binary_parse`, if
    present, with the parser's tokens, which can take the place of the sentences.
    """

    name = "snli"
    labels = ("neutral", "entailment", "contradiction")
    pair = True
    pretokenized = False
    file_names: ClassVar[FileNames] = {split: _names(split) for split in ("train", "dev", "test")}

    def header(self, line: str) -> list[str]:
        """Return the columns of a tab-separated file; see `Task.header`."""
        if line.lstrip().startswith("{"):
            return []
        header = line.split("\t")
        for name in _FIELDS:
            column_of(name, header)
        return header

    def parse(self, line: str, split: str, report: Report) -> list[Example]:
        """Read one line of a jsonl file; see `Task.parse`."""
        return self.parse_fields(checked_object(line), report)

    def parse_fields(self, fields: dict[str, Any], report: Report) -> list[Example]:
        """Read one pair; see `Task.parse_fields`."""
        for name in _FIELDS:
            column_of(name, list(fields))
        if fields["gold_label"] == "-":
            report.dropped["without a gold label"] += 1
            return []
        label = checked_label(fields["gold_label"], SNLI.labels)
        first, second = (checked_text(fields[name], name) for name in _FIELDS[1:])
        trees: tuple[Tree | None, ...] = (None, None)
        if self.trees:
            trees = (_tree(fields, "sentence1"), _tree(fields, "sentence2"))
        known = [tree for tree in trees if tree is not None]
        if self.words_of_trees and len(known) == 2:
            first, second = (" ".join(map(undo_ptb_escapes, tree.words)) for tree in known)
        return [Example((first, second), label, trees)]


class SNLISimilarity(SNLI):
    """Premises with similar and different sentences: those that they entail and contradict.

    Neutral pairs are dropped, and so are training pairs whose premise only has different sentences:
    the loss does not use it. A label is the kind of a pair and the number of its premise, by which
    pairs form triplets.
    """

    name = "snli_similarity"
    labels = None  # type: ignore[assignment]
    kinds: ClassVar[dict[str, str]] = {"entailment": "similar", "contradiction": "different"}

    def __init__(self) -> None:
        self.premises: dict[str, int] = {}

    def read(
        self, path: Path | str, split: str, report: Report, skip_bad: bool = False
    ) -> Iterator[Example]:
        """Read a file; see `Task.read`."""
        examples = super().read(path, split, report, skip_bad)
        if split != "train":
            yield from examples
            return
        pairs = list(examples)
        used = {pair.texts[0] for pair in pairs if pair.label.startswith("similar ")}
        for pair in pairs:
            if pair.texts[0] in used:
                yield pair
            else:
                report.examples -= 1
                report.dropped["without a similar sentence"] += 1

    def parse_fields(self, fields: dict[str, Any], report: Report) -> list[Example]:
        """Read one pair; see `Task.parse_fields`."""
        pairs = []
        for texts, label, trees, _ in super().parse_fields(fields, report):
            if label not in self.kinds:
                report.dropped["neutral"] += 1
                continue
            number = self.premises.setdefault(texts[0], len(self.premises))
            pairs.append(Example(texts, f"{self.kinds[label]} {number}", trees))
        return pairs


def _tree(fields: dict[str, Any], sentence: str) -> Tree | None:
    name = f"{sentence}_binary_parse"
    text = fields.get(name)
    if text is None or text == "":
        return None
    return checked_tree(checked_text(text, name), name)
