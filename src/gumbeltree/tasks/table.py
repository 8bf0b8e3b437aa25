"""Labelled text in the columns of a TSV, CSV or JSONL file."""

import csv
import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

from gumbeltree.tasks.checks import (
    checked_columns,
    checked_label,
    checked_object,
    checked_text,
    column_of,
)
from gumbeltree.tasks.task import Example, FileNames, Task
from gumbeltree.text.files import BadLines, MismatchError, Report, is_blank, read_lines, shown
from gumbeltree.text.tokenizer import undo_ptb_escapes

_SUFFIXES = (".tsv", ".csv", ".jsonl")


def _names(*stems: str) -> tuple[str, ...]:
    return tuple(stem + suffix for stem in stems for suffix in _SUFFIXES)


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
    """Texts and labels in columns of a .tsv, .csv or .jsonl file, optionally gzipped.

    The first row of a TSV or CSV file names the columns. Fields may be enclosed in double quotes
    and then contain separators, newlines and doubled quotes; a quoted field is at most 128 KiB.

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
        """
        self.columns = [text, label] if second is None else [text, second, label]
        numbers = [column.isdecimal() for column in self.columns]
        if any(numbers) and not all(numbers):
            raise ValueError(
                f"columns must be all names or all numbers, got {', '.join(self.columns)}; "
                "pass numbers for files without a header"
            )
        self.has_header = not any(numbers)
        self.pair = second is not None
        self.labels = None if labels is None else tuple(labels)
        if self.labels is not None and len(set(self.labels)) < len(self.labels):
            raise ValueError(f"labels must be distinct, got {', '.join(self.labels)}")
        self.quotes = quotes
        self.pretokenized = pretokenized

    def read(
        self, path: Path | str, split: str, report: Report, skip_bad: bool = False
    ) -> Iterator[Example]:
        """Read a TSV, CSV or JSONL file, according to its suffix; see `Task.read`."""
        path = Path(path)
        name = path.name.lower().removesuffix(".gz")
        if not name.endswith(_SUFFIXES):
            raise ValueError(
                f"{path} must have a name that ends in {', '.join(_SUFFIXES)}, optionally followed "
                "by .gz; rename the file"
            )
        if name.endswith(".jsonl"):
            return super().read(path, split, report, skip_bad)
        return self._read_rows(path, "\t" if name.endswith(".tsv") else ",", report, skip_bad)

    def parse(self, line: str, split: str, report: Report) -> list[Example]:
        """Read one line of JSONL; see `Task.parse`."""
        fields = checked_object(line)
        for name in self.columns:
            column_of(name, list(fields))
        values: list[Any] = [fields[name] for name in self.columns]
        if isinstance(values[-1], bool):
            values[-1] = str(values[-1]).lower()
        elif isinstance(values[-1], int):
            values[-1] = str(values[-1])
        return [self._example(values)]

    def _read_rows(
        self, path: Path, separator: str, report: Report, skip_bad: bool
    ) -> Iterator[Example]:
        places: list[int] = []
        count = 0
        for number, row in self._rows(path, separator, report, skip_bad):
            if not places:
                count = len(row)
                # a missing column affects every row, so it is always an error
                with BadLines(path, number, report, skip_bad=False):
                    places = self._places(row)
                if self.has_header:
                    continue
            with BadLines(path, number, report, skip_bad):
                checked_columns(row, count)
                example = self._example([row[place] for place in places])
                report.examples += 1
                yield example

    def _places(self, first_row: list[str]) -> list[int]:
        """Return the positions of the columns."""
        if self.has_header:
            header = [name.strip() for name in first_row]
            return [column_of(name, header) for name in self.columns]
        # int() rejects strings of thousands of digits
        places = [int(column[:9]) for column in self.columns]
        if max(places) >= len(first_row):
            raise MismatchError(
                f"a column {max(places)}, counted from 0",
                f"{len(first_row)} columns",
                "pass smaller numbers, or column names if there is a header",
            )
        return places

    def _rows(
        self, path: Path, separator: str, report: Report, skip_bad: bool
    ) -> Iterator[tuple[int, list[str]]]:
        """Yield each row with the number of its first line."""
        lines = _Lines(read_lines(path, report, skip_bad))
        rows = csv.reader(
            lines,
            delimiter=separator,
            quoting=csv.QUOTE_MINIMAL if self.quotes else csv.QUOTE_NONE,
            strict=True,
        )
        while True:
            lines.taken.clear()
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                number, text = lines.taken[0]
                with BadLines(path, number, report, skip_bad):
                    raise _unreadable(text, error) from error
                # a quote that is never closed must not swallow the lines after it
                lines.pending += reversed(lines.taken[1:])
                continue
            number, text = lines.taken[0]
            if len(lines.taken) > 1 or not is_blank(text, report):
                yield number, row

    def _example(self, values: list[Any]) -> Example:
        *texts, label = values
        label = label.strip() if isinstance(label, str) else label
        checked = tuple(
            checked_text(text, f"column {name!r}")
            for text, name in zip(texts, self.columns, strict=False)
        )
        if self.pretokenized:
            checked = tuple(" ".join(map(undo_ptb_escapes, text.split())) for text in checked)
        return Example(checked, checked_label(label, self.labels), (None,) * len(checked))


class _Lines:
    """Lines for the csv module; records those of the current row, so that they can be reread."""

    def __init__(self, lines: Iterator[tuple[int, str]]) -> None:
        self.lines = lines
        self.taken: list[tuple[int, str]] = []
        self.pending: list[tuple[int, str]] = []

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        number, line = self.pending.pop() if self.pending else next(self.lines)
        self.taken.append((number, line))
        return line + "\n"


def _unreadable(text: str, error: csv.Error) -> MismatchError:
    actual = f"{shown(text)} ({error})"
    if "new-line" in str(error):
        return MismatchError("rows that end in LF or CRLF", actual, "convert the line endings")
    return MismatchError(
        f"fields of at most {csv.field_size_limit():,} characters with matching quotes",
        actual,
        "double the quotes inside fields, or disable quoting with --set quotes=false",
    )
