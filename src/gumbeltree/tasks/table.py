"""Any table of labelled text: TSV, CSV or JSONL."""

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

_SEPARATORS = {".tsv": "\t", ".csv": ","}
_SUFFIXES = (*_SEPARATORS, ".jsonl")


def _names(*stems: str) -> tuple[str, ...]:
    return tuple(stem + suffix for stem in stems for suffix in _SUFFIXES)


def split(examples_count: int, fractions: Sequence[float], seed: int) -> list[list[int]]:
    """Divide examples at random.

    Example:
        >>> split(10, [0.8, 0.2], seed=0)
        [[0, 1, 2, 3, 4, 5, 7, 9], [6, 8]]

    Args:
        examples_count: How many examples there are.
        fractions: The share of each part; what is left of 1 belongs to no part.
        seed: Any integer; the same one gives the same parts.

    Returns:
        For each part, the positions of its examples, ascending.
    """
    if examples_count < 0:
        raise ValueError(f"`examples_count` must be at least 0, got {examples_count}; pass a count")
    if not fractions or not all(0 <= fraction <= 1 for fraction in fractions):
        raise ValueError(f"`fractions` must lie in 0..1, got {list(fractions)}; pass shares of 1")
    if sum(fractions) > 1 + 1e-9:
        raise ValueError(
            f"`fractions` must add up to 1 at most, got {sum(fractions):g}; pass smaller shares"
        )
    generator = random.Random(seed)
    positions = list(range(examples_count))
    # only `random()` is drawn from: Python promises that it stays the same for the same seed
    for last in range(examples_count - 1, 0, -1):
        other = int(generator.random() * (last + 1))
        positions[last], positions[other] = positions[other], positions[last]
    ends = [0]
    for place in range(len(fractions)):
        ends.append(min(examples_count, round(sum(fractions[: place + 1]) * examples_count)))
    return [sorted(positions[start:end]) for start, end in pairwise(ends)]


class Table(Task):
    r"""Texts and labels in columns of a .tsv, .csv or .jsonl file, also with .gz.

    The first row of a TSV or CSV file names the columns. Fields may stand in double quotes, with
    separators, newlines and doubled quotes inside; a quoted field ends within 128 KiB.

    Example:
        `review,stars` in the first row of films.csv:

            task = Table(text="review", label="stars")
            task.discover("films.csv")
            examples = list(task.read("films.csv", "train", Report()))
            train, dev = split(len(examples), [0.9, 0.1], seed=0)
    """

    name = "table"
    pretokenized = False
    file_names: ClassVar[FileNames] = {
        "train": _names("train"),
        "dev": _names("dev", "valid", "validation"),
        "test": _names("test"),
    }

    split = staticmethod(split)

    def __init__(
        self,
        text: str,
        second: str | None = None,
        label: str = "label",
        labels: Iterable[str] | None = None,
        quotes: bool = True,
    ) -> None:
        """Describe a table.

        Args:
            text: The column of the text. If all columns are numbers such as "0", they are
                positions, from 0, in a file without a header.
            second: The column of the second text of a pair.
            label: The column of the label.
            labels: The labels in the order of the classes; others are refused. None takes any
                label, and `discover` finds them.
            quotes: Whether double quotes at the start of a field of TSV or CSV enclose it;
                otherwise they are characters like others.
        """
        self.columns = [text, label] if second is None else [text, second, label]
        for column in self.columns:
            if not isinstance(column, str) or not column:
                raise ValueError(
                    f"columns must be names or numbers as str, got {column!r}; pass such as 'text'"
                )
        numbers = [column.isdecimal() for column in self.columns]
        if any(numbers) and not all(numbers):
            raise ValueError(
                f"columns must be all names or all numbers, got {', '.join(self.columns)}; "
                "pass numbers for files without a header"
            )
        self.has_header = not any(numbers)
        self.pair = second is not None
        self.labels = None if labels is None else tuple(labels)
        if self.labels is not None and len(set(self.labels)) != max(1, len(self.labels)):
            raise ValueError(
                f"`labels` must hold each label once, got {self.labels}; pass each once"
            )
        self.quotes = quotes

    def discover(
        self, path: Path | str, report: Report | None = None, skip_bad: bool = False
    ) -> tuple[str, ...]:
        """Read a file once for its labels, and keep them, sorted, as `labels`.

        Args:
            path: The file, best that of the training split.
            report: Counts what is read and skipped.
            skip_bad: Whether to count bad lines and go on, rather than raise.
        """
        self.labels = None
        examples = self.read(path, "train", Report() if report is None else report, skip_bad)
        labels = tuple(sorted({example.label for example in examples}))
        if not labels:
            raise ValueError(f"{path}: expected rows with labels, got none; pass another file")
        self.labels = labels
        return labels

    def read(
        self, path: Path | str, split: str, report: Report, skip_bad: bool = False
    ) -> Iterator[Example]:
        """Read a TSV, CSV or JSONL file, by its suffix; see `Task.read`."""
        path = Path(path)
        name = path.name.lower().removesuffix(".gz")
        suffix = next((suffix for suffix in _SUFFIXES if name.endswith(suffix)), None)
        if suffix is None:
            raise ValueError(
                f"{path}: expected a name that ends in {', '.join(_SUFFIXES)} (also with .gz), got "
                f"{path.name!r}; rename the file"
            )
        if suffix == ".jsonl":
            return super().read(path, split, report, skip_bad)
        return self._read_rows(path, _SEPARATORS[suffix], report, skip_bad)

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
                # a wrong column is wrong in every row
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
        if self.has_header:
            header = [name.strip() for name in first_row]
            return [column_of(name, header) for name in self.columns]
        # so many digits that int() would refuse them are no position either
        places = [int(column[:9]) for column in self.columns]
        if max(places) >= len(first_row):
            raise MismatchError(
                f"a column {max(places)}, counted from 0",
                f"{len(first_row)} columns",
                "pass smaller numbers, or the names of a header",
            )
        return places

    def _rows(
        self, path: Path, separator: str, report: Report, skip_bad: bool
    ) -> Iterator[tuple[int, list[str]]]:
        """Give each row with the number of its first line."""
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
                lines.give_back()
                continue
            number, text = lines.taken[0]
            if len(lines.taken) == 1 and is_blank(text, report):
                continue
            yield number, row

    def _example(self, values: list[Any]) -> Example:
        *texts, label = values
        label = label.strip() if isinstance(label, str) else label
        checked = [
            checked_text(text, f"column {name!r}")
            for text, name in zip(texts, self.columns, strict=False)
        ]
        return Example(tuple(checked), checked_label(label, self.labels), (None,) * len(checked))


class _Lines:
    """Lines for the csv module, which remember those of the row at hand."""

    def __init__(self, lines: Iterator[tuple[int, str]]) -> None:
        self.lines = lines
        self.taken: list[tuple[int, str]] = []
        self.again: list[tuple[int, str]] = []

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        number, line = self.again.pop() if self.again else next(self.lines)
        self.taken.append((number, line))
        return line + "\n"

    def give_back(self) -> None:
        """Take all but the first line of the row at hand again."""
        self.again += reversed(self.taken[1:])


def _unreadable(text: str, error: csv.Error) -> MismatchError:
    limit = csv.field_size_limit()
    if "limit" in str(error) or "unexpected end" in str(error):
        expected = f"fields of at most {limit:,} characters, with a closing quote if quoted"
    elif "new-line" in str(error):
        came = "a carriage return inside a row"
        return MismatchError("rows that end in LF or CRLF", came, "rewrite the ends of the lines")
    else:
        expected = "a separator after a closing quote"
    came = f"{shown(text)} ({error})"
    return MismatchError(
        expected, came, "double the quotes inside fields, or turn quotes off (--set quotes=false)"
    )
