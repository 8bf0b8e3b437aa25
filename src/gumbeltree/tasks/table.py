"""Labelled text in the columns of a table."""

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

from gumbeltree.tasks.checks import (
    checked_label,
    checked_number,
    checked_object,
    checked_tags,
    checked_text,
)
from gumbeltree.tasks.table_file import ENDINGS, TableFile, check_columns, checked_separator
from gumbeltree.tasks.task import Example, FileNames, Task
from gumbeltree.text.files import Report
from gumbeltree.text.tokenizer import undo_ptb_escapes


def _names(*stems: str) -> tuple[str, ...]:
    return tuple(stem + suffix for stem in stems for suffix in ENDINGS)


def split(examples_count: int, fractions: Sequence[float], seed: int) -> list[list[int]]:
    """Split examples at random.

    Example:
        >>> split(10, [0.8, 0.2], seed=0)
        [[0, 1, 2, 3, 4, 5, 7, 9], [6, 8]]

    Args:
        examples_count: Number of examples.
        fractions: The fraction of each part. If they sum to less than 1, the rest is unused.
        seed: Any integer.

    Returns:
        For each part, the positions of its examples in ascending order.
    """
    if not all(0 <= fraction <= 1 for fraction in fractions) or sum(fractions) > 1 + 1e-9:
        raise ValueError(
            f"`fractions` must lie between 0 and 1 and sum to at most 1, got {list(fractions)}; "
            "pass smaller fractions"
        )
    generator = random.Random(seed)
    positions = list(range(examples_count))
    # use only `random()`, whose values are guaranteed not to change in later Python versions
    for last in range(examples_count - 1, 0, -1):
        other = int(generator.random() * (last + 1))
        positions[last], positions[other] = positions[other], positions[last]
    totals = [sum(fractions[: place + 1]) for place in range(len(fractions))]
    ends = [min(examples_count, round(total * examples_count)) for total in totals]
    return [sorted(positions[start:end]) for start, end in pairwise([0, *ends])]


class Table(Task):
    """Texts and labels in columns of a .tsv, .csv, .jsonl, .json or .parquet file.

    All but .parquet files may be gzipped. The first row of a TSV or CSV file names the columns.
    Fields may be enclosed in double quotes and then contain separators, newlines and doubled
    quotes; a quoted field is at most 128 KiB.

    Example:
        For a file films.csv that starts with `review,stars`:

            task = Table(text="review", label="stars")
            examples = list(task.read("films.csv", "train", Report()))
            train, dev = split(len(examples), [0.9, 0.1], seed=0)
    """

    name = "table"
    file_names: ClassVar[FileNames] = {
        "train": _names("train"),
        "dev": _names("dev", "valid", "validation"),
        "test": _names("test"),
    }

    def __init__(
        self,
        text: str,
        second: str | None = None,
        label: str = "label",
        labels: Iterable[str] | None = None,
        quotes: bool = True,
        pretokenized: bool = False,
        separator: str = "",
        target: str = "classes",
        tag_separator: str = "|",
    ) -> None:
        """Describe a table.

        Args:
            text: The column of the text. If all columns are numbers such as "0", they are
                positions, counted from 0, in a file without a header.
            second: The column of the second text of a pair.
            label: The column of the label.
            labels: The labels in the order of the classes; None accepts any label.
            quotes: Whether a double quote at the start of a TSV or CSV field encloses it.
            pretokenized: Whether texts are words separated by white space, possibly with Penn
                Treebank escapes, which are undone.
            separator: Separator of a TSV or CSV file to try first; by default, it is recognised.
            target: What the labels are: "classes", "number" or "tags".
            tag_separator: Separates the tags in a label.
        """
        columns = {"text": text, "text2": second, "label": label}
        self.columns = {role: name for role, name in columns.items() if name is not None}
        check_columns(self.columns.values())
        self.pair = second is not None
        self.labels = None if labels is None else tuple(labels)
        if self.labels is not None and len(set(self.labels)) < len(self.labels):
            raise ValueError(f"labels must be distinct, got {', '.join(self.labels)}")
        self.quotes = quotes
        self.pretokenized = pretokenized
        self.separator = checked_separator(separator)
        self.target = target
        self.tag_separator = tag_separator

    def read(
        self, path: Path | str, split: str, report: Report, skip_bad: bool = False
    ) -> Iterator[Example]:
        """Read a table, according to its ending; see `Task.read`."""
        table = TableFile(path, self.columns, self.separator, self.quotes)
        for row in table.rows(report, skip_bad):
            with table.bad(row.number, report, skip_bad):
                example = self._example(row.values)
                report.examples += 1
                yield example

    def parse(self, line: str, split: str, report: Report) -> list[Example]:
        """Read one line of JSON Lines; see `Task.parse`."""
        table = TableFile("a.jsonl", self.columns)
        return [self._example(table.values(checked_object(line)))]

    def _example(self, values: list[Any]) -> Example:
        *texts, label = values
        if isinstance(label, bool):
            label = str(label).lower()
        elif isinstance(label, float) and label.is_integer():
            # data frames turn whole numbers into floats if any of them is missing
            label = str(int(label))
        elif isinstance(label, int | float) and label == label:
            label = str(label)
        label = label.strip() if isinstance(label, str) else label
        checked = tuple(
            checked_text(text, f"column {name!r}")
            for text, name in zip(texts, self.columns.values(), strict=False)
        )
        if self.pretokenized:
            checked = tuple(" ".join(map(undo_ptb_escapes, text.split())) for text in checked)
        return Example(checked, self._label(label), (None,) * len(checked))

    def _label(self, label: object) -> str:
        if self.target == "number":
            return checked_number(label)
        if self.target == "tags":
            return checked_tags(label, self.labels, self.tag_separator)
        return checked_label(label, self.labels)
