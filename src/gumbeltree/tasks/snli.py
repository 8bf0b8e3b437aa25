"""SNLI (Bowman et al. 2015), the official jsonl and txt files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from gumbeltree.tasks.checks import (
    checked_columns,
    checked_label,
    checked_object,
    checked_text,
    checked_tree,
    column_of,
)
from gumbeltree.tasks.task import Example, FileNames, Task
from gumbeltree.text.files import BadLines, Report, is_blank, read_lines
from gumbeltree.tree import Tree

_FIELDS = ("gold_label", "sentence1", "sentence2")


def _names(split: str) -> tuple[str, ...]:
    stem = f"snli_1.0_{split}"
    return (f"{stem}.jsonl", f"{stem}.txt", f"{stem}*.jsonl", f"{stem}*.txt")


class SNLI(Task):
    """Pairs of raw sentences; pairs without a gold label are dropped.

    Gold trees come from the fields `sentence1_binary_parse` and `sentence2_binary_parse` where a
    file has them, with the tokens of the parser.
    """

    name = "snli"
    labels = ("neutral", "entailment", "contradiction")
    pair = True
    pretokenized = False
    file_names: ClassVar[FileNames] = {split: _names(split) for split in ("train", "dev", "test")}

    def read(
        self, path: Path | str, split: str, report: Report, skip_bad: bool = False
    ) -> Iterator[Example]:
        """Read a jsonl file, or a tab-separated file with a header; see `Task.read`."""
        path = Path(path)
        header: list[str] = []
        is_first = True
        for number, line in read_lines(path, report, skip_bad):
            if is_blank(line, report):
                continue
            if is_first and not line.lstrip().startswith("{"):
                header = line.split("\t")
                # without its header the rest of the file has no meaning
                with BadLines(path, number, report, skip_bad=False):
                    for name in _FIELDS:
                        column_of(name, header)
                is_first = False
                continue
            is_first = False
            with BadLines(path, number, report, skip_bad):
                if header:
                    values = checked_columns(line.split("\t"), len(header))
                    example = self._example(dict(zip(header, values, strict=True)), report)
                else:
                    example = self.parse(line, split, report)
                if example:
                    report.examples += 1
                    yield from example

    def parse(self, line: str, split: str, report: Report) -> list[Example]:
        """Read one line of a jsonl file; see `Task.parse`."""
        return self._example(checked_object(line), report)

    def _example(self, fields: dict[str, Any], report: Report) -> list[Example]:
        for name in _FIELDS:
            column_of(name, list(fields))
        if fields["gold_label"] == "-":
            report.dropped["without a gold label"] += 1
            return []
        label = checked_label(fields["gold_label"], self.labels)
        first, second = (checked_text(fields[name], name) for name in _FIELDS[1:])
        trees: tuple[Tree | None, ...] = (None, None)
        if self.trees:
            trees = (_tree(fields, "sentence1"), _tree(fields, "sentence2"))
        return [Example((first, second), label, trees)]


def _tree(fields: dict[str, Any], sentence: str) -> Tree | None:
    name = f"{sentence}_binary_parse"
    text = fields.get(name)
    if text is None or text == "":
        return None
    return checked_tree(checked_text(text, name), name)
