"""What every task gives and shares: examples, reports, errors, lines, split files."""

import gzip
import json
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple, TypeAlias

from gumbeltree.registry import suggest
from gumbeltree.tree import Tree

# for each split, patterns of file names, the best first
FileNames: TypeAlias = Mapping[str, tuple[str, ...]]

_GZIP_MAGIC = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_WIDE_MARKS = (b"\xff\xfe", b"\xfe\xff")


class Example(NamedTuple):
    """One labelled sentence or pair of sentences.

    Attributes:
        texts: One text or two. Words of pre-tokenised texts are joined by single spaces.
        label: The gold label.
        trees: The gold tree of each text, None where the file has none. For analysis only: the
            words of a tree need not be those of the text.
    """

    texts: tuple[str, ...]
    label: str
    trees: tuple[Tree | None, ...]


@dataclass
class Report:
    """What happened while reading; the readers add to it as they go.

    Attributes:
        examples: Examples given out.
        dropped: Examples left out on purpose, by reason.
        bad: Bad lines skipped.
        first_bad: The messages of the first bad lines, three at most.
    """

    examples: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    bad: int = 0
    first_bad: list[str] = field(default_factory=list)

    def add_bad(self, error: Exception) -> None:
        """Count one bad line."""
        self.bad += 1
        if len(self.first_bad) < 3:
            self.first_bad.append(str(error))

    def __str__(self) -> str:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(self.dropped.items()))
        lines = [
            f"{_counted(self.examples, 'example')} read",
            f"{self.dropped.total():,} dropped" + (f" ({reasons})" if reasons else ""),
            f"{_counted(self.bad, 'bad line')} skipped",
        ]
        return "; ".join(lines) + "".join(f"\n  {message}" for message in self.first_bad)


class MismatchError(ValueError):
    """Something else came than was expected, at a place that is not yet known."""

    def __init__(self, expected: str, came: str, remedy: str) -> None:
        super().__init__(f"expected {expected}, got {came}; {remedy}")
        self.expected = expected
        self.came = came
        self.remedy = remedy


class BadLineError(ValueError):
    """A line that a reader cannot use.

    Attributes:
        path: The file.
        number: The line, counted from 1.
        expected: What a good line has.
        came: What this one has.
        remedy: What to do about it.
    """

    def __init__(self, path: Path, number: int, expected: str, came: str, remedy: str) -> None:
        # all five reach `args`, so that the error survives pickling between processes
        super().__init__(path, number, expected, came, remedy)
        self.path = path
        self.number = number
        self.expected = expected
        self.came = came
        self.remedy = remedy

    def __str__(self) -> str:
        return (
            f"{self.path}, line {self.number}: expected {self.expected}, got {self.came}; "
            f"{self.remedy}"
        )


class Task(ABC):
    """A reader of one kind of labelled text.

    A task whose examples are lines, each by itself, defines `parse`; others define `read`.

    Attributes:
        name: The name in `TASKS`.
        labels: The labels in the order of the classes; None while they are not known.
        pair: Whether an example has two texts.
        pretokenized: Whether texts are words joined by single spaces.
        file_names: For each split, patterns of file names, the best first. `.gz` is added.
        trees: Whether gold trees that only analysis needs are read; without, SNLI reads faster.
    """

    trees: bool = True
    name: ClassVar[str]
    labels: tuple[str, ...] | None
    pair: bool
    pretokenized: bool
    file_names: ClassVar[FileNames]

    def splits(self, folder: Path | str) -> dict[str, Path]:
        """Find the files of the splits in a folder, by their official names, also with `.gz`.

        Args:
            folder: Where to look.

        Returns:
            The file of each split that is there.

        Raises:
            FileNotFoundError: If the folder has none of them.
            ValueError: If several files could be one split.
        """
        folder = Path(folder)
        if not folder.is_dir():
            kind = "a file" if folder.exists() else "nothing there"
            raise NotADirectoryError(
                f"{folder}: expected a folder with the {self.name} files, or one file, got {kind}; "
                "check the path"
            )
        found: dict[str, Path] = {}
        for split, patterns in self.file_names.items():
            for pattern in (name + suffix for name in patterns for suffix in ("", ".gz")):
                matches = sorted(path for path in folder.glob(pattern) if path.is_file())
                if len(matches) > 1:
                    names = ", ".join(path.name for path in matches)
                    raise ValueError(
                        f"{folder}: expected one file {pattern} for {split}, got {names}; "
                        "leave one there, or read the file by its path"
                    )
                if matches:
                    found[split] = matches[0]
                    break
        if not found:
            names = ", ".join(patterns[0] for patterns in self.file_names.values())
            raise FileNotFoundError(
                f"{folder}: expected {names} (also with .gz), got none of them; "
                f"pass the folder that holds the {self.name} files"
            )
        return found

    def read(
        self, path: Path | str, split: str, report: Report, skip_bad: bool = False
    ) -> Iterator[Example]:
        """Read a file, one example after the other.

        Args:
            path: The file, plain or gzip, UTF-8.
            split: Which split it is, such as "train"; some tasks read the training split
                differently.
            report: Counts what is read, dropped and skipped.
            skip_bad: Whether to count bad lines and go on, rather than raise.

        Raises:
            BadLineError: If a line is bad, unless `skip_bad`; if a header is bad, always.
            OSError: If the file cannot be read to its end.
        """
        path = Path(path)
        for number, line in read_lines(path, report, skip_bad):
            if is_blank(line, report):
                continue
            with BadLines(path, number, report, skip_bad):
                for example in self.parse(line, split, report):
                    report.examples += 1
                    yield example

    @abstractmethod
    def parse(self, line: str, split: str, report: Report) -> Iterable[Example]:
        """Read the examples of one line, whole: it is bad before its first example or not at all.

        Raises:
            MismatchError: If the line is bad.
        """


class BadLines:
    """Turn a mismatch inside the `with` block into a `BadLineError`, or count it and go on."""

    def __init__(self, path: Path, number: int, report: Report, skip_bad: bool) -> None:
        self.path = path
        self.number = number
        self.report = report
        self.skip_bad = skip_bad

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if not isinstance(error, MismatchError):
            return False
        bad = BadLineError(self.path, self.number, error.expected, error.came, error.remedy)
        if not self.skip_bad:
            raise bad from error.__cause__
        self.report.add_bad(bad)
        return True


def read_lines(
    path: Path | str, report: Report, skip_bad: bool = False
) -> Iterator[tuple[int, str]]:
    """Read a UTF-8 file, plain or gzip, line by line.

    Lines end in LF or CRLF; a byte order mark at the start is left out.

    Args:
        path: The file. It is gzip if its name ends in .gz or its first bytes say so.
        report: Counts the lines skipped.
        skip_bad: Whether to count lines that are not UTF-8 and go on, rather than raise.

    Yields:
        The number of the line, from 1, and the line without its end.

    Raises:
        BadLineError: If a line is not UTF-8, unless `skip_bad`.
        OSError: If there is no such file, if it is a folder, or if gzip data is damaged.
    """
    path = Path(path)
    number = 0
    with _opened(path) as stream:
        while True:
            try:
                raw = stream.readline()
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                kind = "the end of a cut file" if isinstance(error, EOFError) else "damaged data"
                raise OSError(
                    f"{path}, after line {number}: expected more gzip data, got {kind} ({error}); "
                    "fetch the file anew"
                ) from error
            if not raw:
                return
            number += 1
            if number == 1:
                wide = raw.startswith(_WIDE_MARKS)
                raw = raw.removeprefix(_BYTE_ORDER_MARK)
            try:
                line = raw.decode()
            except UnicodeDecodeError as error:
                came = f"byte 0x{raw[error.start]:02x} at byte {error.start} of the line"
                if wide:
                    came += " in a file that starts as UTF-16 does"
                with BadLines(path, number, report, skip_bad):
                    raise MismatchError("UTF-8 text", came, "save the file as UTF-8") from error
                continue
            yield number, line.removesuffix("\n").removesuffix("\r")


def is_blank(line: str, report: Report) -> bool:
    """Return whether a line has nothing but spaces, and count it as dropped if so."""
    blank = not line.strip(" ")
    if blank:
        report.dropped["blank lines"] += 1
    return blank


def checked_text(text: object, name: str) -> str:
    """Return a text without white space around it, or refuse what is no text.

    Args:
        text: What should be a text.
        name: What the text is called in the file.

    Raises:
        MismatchError: If it is not a str, empty, or not to be written as UTF-8.
    """
    if not isinstance(text, str):
        raise MismatchError(f"text as {name}", shown(text), "write it as a string")
    text = text.strip()
    if not text:
        raise MismatchError(f"text as {name}", "an empty one", "leave out empty sentences")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise MismatchError(
                f"Unicode text as {name}",
                f"half a surrogate pair at character {error.start}",
                "write both halves, or the character itself",
            ) from error
    return text


def checked_label(label: object, labels: tuple[str, ...] | None) -> str:
    """Return a label, or refuse one that is not in `labels`."""
    if labels is None:
        return checked_text(label, "label")
    if not isinstance(label, str) or label not in labels:
        near = suggest(label[:100], list(labels)) if isinstance(label, str) else ""
        known = ", ".join(labels)
        remedy = "correct the label, or leave the line out" + near.replace(" D", "; d", 1)
        raise MismatchError(f"one of the labels {known}", shown(label), remedy)
    return label


def checked_columns(values: list[str], count: int) -> list[str]:
    """Return the values of a line, or refuse a line with more or fewer than `count`."""
    if len(values) != count:
        raise MismatchError(
            f"{count} columns", str(len(values)), "check its separators and the line before"
        )
    return values


def column_of(name: str, header: list[str]) -> int:
    """Return where a header has a column, or refuse a name that is not there once."""
    if header.count(name) != 1:
        known = ", ".join(map(shown, header[:30])) + (", ..." if len(header) > 30 else "")
        came = f"{header.count(name)} times that name" if name in header else f"columns {known}"
        remedy = "name a column of the file." + suggest(name, header[:30])
        raise MismatchError(f"a column {name!r}", came, remedy)
    return header.index(name)


def checked_tree(text: str, name: str) -> Tree:
    """Read a tree in brackets, or refuse a malformed one."""
    try:
        return Tree.from_brackets(text)
    except ValueError as error:
        expected = f"a binary tree such as ( ( a b ) c ) as {name}"
        raise MismatchError(expected, shown(text), f"correct the tree: {error}") from error


def checked_object(line: str) -> dict[str, Any]:
    """Read a line of JSON, or refuse what is not an object."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise MismatchError(
            "a JSON object", f"{shown(line)} ({reason})", "write one object a line"
        ) from error
    if not isinstance(fields, dict):
        raise MismatchError("a JSON object", shown(line), "write one object a line")
    return fields


def shown(value: object) -> str:
    """Return a value as messages show it: quoted, and cut when it is long."""
    if isinstance(value, str) and len(value) > 60:
        return f"{value[:60]!r}..."
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "..."


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """Open a file for reading bytes, unpacked when it is gzip."""
    try:
        stream = open(path, "rb")  # noqa: SIM115
    except FileNotFoundError as error:
        near = suggest(path.name, _siblings(path))
        raise FileNotFoundError(
            f"{path}: expected a file, got nothing there; pass the path of a file.{near}"
        ) from error
    except IsADirectoryError as error:
        raise IsADirectoryError(
            f"{path}: expected a file, got a folder; pass a file in it, as `splits` finds them"
        ) from error
    with stream:
        packed = stream.peek(2).startswith(_GZIP_MAGIC)
        if path.suffix == ".gz" and not packed:
            raise OSError(
                f"{path}, after line 0: expected gzip data, got something else; "
                "fetch the file anew, or take .gz off its name"
            )
        if packed:
            with gzip.GzipFile(fileobj=stream, mode="rb") as unpacked:
                yield unpacked
        else:
            yield stream


def _siblings(path: Path) -> list[str]:
    try:
        return [other.name for other in path.parent.iterdir()]
    except OSError:
        return []
