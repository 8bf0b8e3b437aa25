"""Lines of text files, plain or gzip; what is wrong with a line, and how many were."""

import gzip
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from gumbeltree.registry import suggest

_GZIP_MAGIC = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_WIDE_MARKS = (b"\xff\xfe", b"\xfe\xff")


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
