"""Parsed sentences, to learn a parser from: SNLI files with parses, or one tree per line."""

import zlib
from typing import Any, ClassVar

from gumbeltree.tasks.checks import checked_object, checked_text, checked_tree
from gumbeltree.tasks.task import Example, FileNames, Task
from gumbeltree.text.files import Report
from gumbeltree.text.tokenizer import treebank_tokenizer
from gumbeltree.tree import Tree

_NAMES = ("snli_1.0_dev.jsonl", "trees.txt")


class ParsedSentences(Task):
    """Each distinct sentence with its binary tree; the label is the order of merges.

    One tenth of the premises, or of the trees in a file without premises, is held out for
    development, with all sentences written for them. A sentence of the training part is not held
    out again. Sentences whose words the tokenizer finds differently are dropped. A file that is
    evaluated by itself, as the split "test", is read as a whole.
    """

    name = "parses"
    labels = None
    pair = False
    pretokenized = False
    file_names: ClassVar[FileNames] = {"train": _NAMES, "dev": _NAMES}

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.tokenizer = treebank_tokenizer([])

    def parse(self, line: str, split: str, report: Report) -> list[Example]:
        """Read one line: a JSON object of SNLI, or a tree in brackets."""
        if not line.lstrip().startswith("{"):
            tree = checked_tree(line.strip(), "tree")
            return self._examples([(" ".join(tree.words), tree)], split, report)
        fields = checked_object(line)
        found = [_parsed(fields, name) for name in ("sentence1", "sentence2")]
        return self._examples(found, split, report)

    def _examples(self, found: list[tuple[str, Tree]], split: str, report: Report) -> list[Example]:
        """Return the sentences of one premise, if the split contains it."""
        held_out = zlib.crc32(found[0][0].encode()) % 10 == 0
        if split != "test" and held_out != (split == "dev"):
            return []
        examples = []
        for text, tree in found:
            if text in self.seen:
                continue
            self.seen.add(text)
            if self._length(text) != len(tree):
                report.dropped["with other words in the parse"] += 1
                continue
            examples.append(Example((text,), " ".join(map(str, tree.order)), (tree,)))
        return examples

    def _length(self, text: str) -> int:
        normalised = self.tokenizer.normalizer.normalize_str(text)
        return len(self.tokenizer.pre_tokenizer.pre_tokenize_str(normalised))


def _parsed(fields: dict[str, Any], name: str) -> tuple[str, Tree]:
    parse = f"{name}_binary_parse"
    text = checked_text(fields.get(name), name)
    return text, checked_tree(checked_text(fields.get(parse), parse), parse)
