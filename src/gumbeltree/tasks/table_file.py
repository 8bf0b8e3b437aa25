"""Read columns of a table: CSV, TSV, JSON Lines, a JSON list or Parquet."""

import csv
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gumbeltree.extras import pip_command
from gumbeltree.registry import suggest
from gumbeltree.tasks.checks import checked_object, checked_text
from gumbeltree.text.files import (
    BadLines,
    MismatchError,
    Report,
    check_file,
    is_blank,
    read_lines,
    shown,
)
from gumbeltree.text.lines import Check, Line, check_all

ENDINGS = (".tsv", ".csv", ".jsonl", ".json", ".parquet")
"""Endings of the files that are read as tables, possibly followed by .gz."""
SPREADSHEETS = (".xlsx", ".xls", ".ods")
SEPARATORS = (",", "\t", ";", "|")
"""Separators that are recognised in the first line of a TSV or CSV file."""
SAMPLE_LINES = 10
"""Number of lines that decide about the separator of a file without a header."""
COLUMN_NAME = re.compile(r"(?=.{1,40}$)\w+(?: \w+)?")
"""What a column of a file that is not declared to be a table is called."""
SEPARATOR_NAMES = {"tab": "\t", "\\t": "\t"}


def table_ending(path: Path | str) -> str:
    """Return the ending that makes a file a table, or an empty string for other files."""
    name = Path(path).name.lower().removesuffix(".gz")
    if name.endswith(SPREADSHEETS):
        raise ValueError(f"{path} is a spreadsheet; save it as CSV (UTF-8) and pass that file")
    return next((ending for ending in ENDINGS if name.endswith(ending)), "")


def apparent_header(lines: Sequence[str]) -> list[str]:
    """Return the columns of lines that look like a CSV or TSV file with a header, or no columns.

    In prose, commas and semicolons are followed by spaces, which names of columns do not begin
    with.

    Args:
        lines: the first lines of a file, or more of them.
    """
    for separator in (",", "\t", ";"):
        # a field can contain line breaks
        sample = (f"{line}\n" for line in lines)
        try:
            rows = csv.reader(sample, delimiter=separator, strict=True)
            header, *others = itertools.islice(rows, SAMPLE_LINES)
        except (csv.Error, ValueError):
            continue
        names = [name for name in header if COLUMN_NAME.fullmatch(name) and not name.isdecimal()]
        distinct = len({name.casefold() for name in names}) == len(header) > 1
        if distinct and len(others) > 1 and all(len(row) == len(header) for row in others):
            return header
    return []


class TableRow(NamedTuple):
    """One row of a table."""

    number: int
    """Line of the file, or place in a JSON list or Parquet file, counted from 1."""
    values: list[Any]
    """Values of the requested columns."""
    cells: Sequence[Any]
    """Values of all columns, in the order of `TableFile.header`."""


class TableFile:
    """A table whose requested columns are read row by row.

    Attributes:
        header: names of all columns, or numbers without a header; known once a row is read.
        unit: what row numbers count, "line" or "row".
    """

    def __init__(
        self, path: Path | str, columns: Mapping[str, str], separator: str = "", quotes: bool = True
    ) -> None:
        """Describe a table.

        Args:
            path: The file, recognised by its ending.
            columns: Column of each option, for example `{"text": "review"}`. If all columns are
                numbers, they are positions, counted from 0, in a file without a header.
            separator: Separator to try first. By default, a separator under which the first line
                has the columns is chosen, that of the ending before others.
            quotes: Whether a double quote at the start of a TSV or CSV field encloses it.
        """
        self.path, self.columns, self.quotes = Path(path), dict(columns), quotes
        self.has_header = not check_columns(self.columns.values())
        self.separator = checked_separator(separator)
        self.ending = table_ending(path)
        if not self.ending:
            raise ValueError(
                f"{path} must have a name that ends in {', '.join(ENDINGS)}, optionally followed "
                "by .gz; rename the file"
            )
        self.header: list[str] = []
        self.unit = "line"

    def rows(self, report: Report, skip_bad: bool = False) -> Iterator[TableRow]:
        """Yield the rows.

        Args:
            report: Counts blank and skipped lines.
            skip_bad: Skip and count malformed rows instead of raising an error.

        Raises:
            BadLineError: If a row is malformed, unless `skip_bad`; always if a column is missing.
            ImportError: If the file is Parquet and pyarrow is not installed.
            OSError: If the file cannot be read.
        """
        check_file(self.path)
        if self.ending in (".tsv", ".csv"):
            return self._delimited(report, skip_bad)
        if self.ending == ".parquet":
            return self._records(self._parquet(), report, skip_bad)
        if self.ending == ".json":
            return self._json(report, skip_bad)
        return self._json_lines(read_lines(self.path, report, skip_bad), report, skip_bad)

    def texts(
        self, report: Report, skip_bad: bool = False, check: Check | None = None
    ) -> Iterator[Line]:
        """Yield the rows as lines, if all requested columns are texts; see `rows`, `read_texts`."""
        for row in self.rows(report, skip_bad):
            with self.bad(row.number, report, skip_bad):
                texts = tuple(
                    checked_text(value, f"column {name!r}")
                    for value, name in zip(row.values, self.columns.values(), strict=True)
                )
                yield Line(row.number, check_all(texts, check), row.cells)

    def bad(self, number: int, report: Report, skip_bad: bool) -> BadLines:
        """Return a context in which a `MismatchError` is an error of row `number`."""
        return BadLines(self.path, number, report, skip_bad, self.unit)

    def values(self, fields: Mapping[str, Any]) -> list[Any]:
        """Return the requested columns of a JSON object."""
        names = list(fields)
        return [fields[names[self._place(role, names)]] for role in self.columns]

    def _place(self, role: str, header: list[str]) -> int:
        """Return the position of a column, whose name must occur exactly once."""
        name = self.columns[role]
        if header.count(name) == 1:
            return header.index(name)
        if name in header:
            actual, fix = f"{header.count(name)} of them", "rename the others in the file"
            raise MismatchError(f"one column {name!r}", actual, fix)
        known = ", ".join(map(shown, header[:30])) + (", ..." if len(header) > 30 else "")
        fix = f"name a column of the file with --{role} COLUMN"
        if self.ending in (".tsv", ".csv"):
            fix += ", or its number, counted from 0, if the file has no header"
            fix += (
                "; for columns separated by X, train with --set separator=X"
                if len(header) == 1
                else ""
            )
        near = suggest(name, header[:30])
        raise MismatchError(f"a column {name!r}", f"columns {known}", f"{fix}.{near}")

    # JSON and Parquet

    def _json_lines(
        self, lines: Iterator[tuple[int, str]], report: Report, skip_bad: bool
    ) -> Iterator[TableRow]:
        for number, line in lines:
            if is_blank(line, report):
                continue
            with self.bad(number, report, skip_bad):
                yield self._row(number, checked_object(line))

    def _json(self, report: Report, skip_bad: bool) -> Iterator[TableRow]:
        """Read a list of objects; some programs also write JSON Lines to .json files."""
        lines = list(read_lines(self.path, report, skip_bad))
        try:
            content = json.loads("\n".join(line for _, line in lines))
        except (ValueError, RecursionError) as error:
            if sum(bool(line.strip()) for _, line in lines) > 1 and lines[0][1].startswith("{"):
                return self._json_lines(iter(lines), report, skip_bad)
            reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
            raise ValueError(f"{self.path} is not valid JSON: {reason}") from error
        if isinstance(content, dict):
            asked = [content[name] for name in self.columns.values() if name in content]
            if not any(isinstance(value, dict | list) for value in asked or content.values()):
                content = [content]
        if not isinstance(content, list):
            raise ValueError(
                f"{self.path} must be a list of objects, one per row, got {shown(content)}; with "
                "pandas, write it with to_json(..., orient='records')"
            )
        return self._records(content, report, skip_bad)

    def _parquet(self) -> Iterator[dict[str, Any]]:
        try:
            from pyarrow import parquet
        except ImportError as error:
            raise ImportError(
                f"reading {self.path} requires pyarrow: {pip_command('pyarrow')} (or save the "
                "table as .csv or .jsonl)"
            ) from error
        try:
            with parquet.ParquetFile(self.path) as file:
                for batch in file.iter_batches():
                    yield from batch.to_pylist()
        except ValueError as error:  # the base class of pyarrow's errors
            raise ValueError(f"{self.path} is not a valid Parquet file: {error}") from error

    def _records(
        self, records: Sequence[Any] | Iterator[Any], report: Report, skip_bad: bool
    ) -> Iterator[TableRow]:
        self.unit = "row"
        for number, fields in enumerate(records, 1):
            with self.bad(number, report, skip_bad):
                if not isinstance(fields, dict):
                    raise MismatchError("an object", shown(fields), "write one object per row")
                yield self._row(number, fields)

    def _row(self, number: int, fields: dict[str, Any]) -> TableRow:
        self.header = self.header or list(fields)
        values = self.values(fields)
        return TableRow(number, values, [fields.get(name) for name in self.header])

    # TSV and CSV

    def _delimited(self, report: Report, skip_bad: bool) -> Iterator[TableRow]:
        lines = _Lines(read_lines(self.path, report, skip_bad))
        separator = self._recognised(lines)
        places: list[int] = []
        for number, row in self._split(lines, separator, report, skip_bad):
            if not places:
                # a missing column affects every row, so it is always an error
                with self.bad(number, report, skip_bad=False):
                    places = self._places(row)
                if self.has_header:
                    continue
            if len(row) == len(self.header):
                yield TableRow(number, [row[place] for place in places], row)
                continue
            with self.bad(number, report, skip_bad):
                raise _other_columns(row, self.header, separator)

    def _recognised(self, lines: "_Lines") -> str:
        """Return the separator of a file, given its lines, and skip a line such as `sep=;`."""
        usual = "\t" if self.ending == ".tsv" else ","
        sample: list[str] = []
        for line in lines:
            sample += [line] if line.strip() else []
            if len(sample) == (1 if self.has_header else SAMPLE_LINES):
                break
        declared = re.fullmatch(r'"?sep=(.)"?\n', sample[0]) if sample else None
        # Excel writes this line
        lines.put_back(1 if declared else 0)
        if declared:
            return declared[1]
        candidates = list(dict.fromkeys([self.separator or usual, usual, *SEPARATORS]))
        rows = {separator: self._sample_rows(sample, separator) for separator in candidates}
        fitting = [separator for separator in candidates if self._fits(rows[separator])]
        return fitting[0] if fitting else max(candidates, key=lambda x: len(rows[x][0]))

    def _fits(self, rows: list[list[str]]) -> bool:
        """Return whether the first rows have the requested columns."""
        if self.has_header:
            return set(self.columns.values()) <= {name.strip() for name in rows[0]}
        return all(max(map(_number, self.columns.values())) < len(row) for row in rows)

    def _sample_rows(self, lines: list[str], separator: str) -> list[list[str]]:
        try:
            return list(csv.reader(lines, delimiter=separator, quoting=self._quoting)) or [[]]
        except csv.Error:
            return [[]]

    @property
    def _quoting(self) -> Any:
        return csv.QUOTE_MINIMAL if self.quotes else csv.QUOTE_NONE

    def _places(self, first_row: list[str]) -> list[int]:
        """Return the positions of the requested columns, and set the header."""
        if self.has_header:
            self.header = [name.strip() for name in first_row]
            return [self._place(role, self.header) for role in self.columns]
        self.header = [str(place) for place in range(len(first_row))]
        places = [_number(column) for column in self.columns.values()]
        if max(places) >= len(first_row):
            raise MismatchError(
                f"a column {max(places)}, counted from 0",
                f"{len(first_row)} columns",
                "pass smaller numbers, or column names if there is a header",
            )
        return places

    def _split(
        self, lines: "_Lines", separator: str, report: Report, skip_bad: bool
    ) -> Iterator[tuple[int, list[str]]]:
        """Yield each row with the number of its first line."""
        rows = csv.reader(lines, delimiter=separator, quoting=self._quoting, strict=True)
        while True:
            lines.taken.clear()
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                number, text = lines.taken[0]
                with self.bad(number, report, skip_bad):
                    raise _unreadable(text, error) from error
                # a quote that is never closed must not swallow the lines after it
                lines.put_back(1)
                continue
            number, text = lines.taken[0]
            if len(lines.taken) > 1 or not is_blank(text, report):
                yield number, row


def check_columns(columns: Any) -> bool:
    """Return whether columns are numbers; raise if only some of them are."""
    columns = list(columns)
    numbers = [column.isdecimal() for column in columns]
    if any(numbers) and not all(numbers):
        raise ValueError(
            f"columns must be all names or all numbers, got {', '.join(columns)}; "
            "pass numbers for files without a header"
        )
    return any(numbers)


def checked_separator(separator: str) -> str:
    """Return a separator as one character; an empty string stands for automatic recognition."""
    separator = SEPARATOR_NAMES.get(separator, separator)
    if len(separator) > 1 or separator in ('"', "\n", "\r"):
        raise ValueError(
            f"`separator` must be one character, such as ; or |, or tab, got {separator!r}"
        )
    return separator


def _number(column: str) -> int:
    # int() rejects strings of thousands of digits
    return int(column[:9])


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

    def put_back(self, start: int) -> None:
        """Return the lines of the current row from position `start` to the front."""
        self.pending += reversed(self.taken[start:])


def _other_columns(row: list[str], header: list[str], separator: str) -> MismatchError:
    count = len(header)
    fix = f"put fields that contain {separator!r} in double quotes, or pass --skip-bad"
    if count == 1:
        fix += "; if every line is one text, rename the file to .txt"
    return MismatchError(f"{count} column{'s'[: count != 1]}", str(len(row)), fix)


def _unreadable(text: str, error: csv.Error) -> MismatchError:
    actual = f"{shown(text)} ({error})"
    if "new-line" in str(error):
        return MismatchError(
            "rows that end in LF or CRLF",
            actual,
            "convert the line endings, for example with tr '\\r' '\\n'",
        )
    if "limit" in str(error):
        return MismatchError(
            f"fields of at most {csv.field_size_limit():,} characters",
            actual,
            "close the quotes of the field, shorten it, or pass --skip-bad",
        )
    return MismatchError(
        "fields with matching quotes",
        actual,
        "double the quotes inside fields; if quotes are ordinary characters in your files, train "
        "with --set quotes=false",
    )
