"""Read text files line by line, plain or gzip, and count malformed lines."""

import codecs
import gzip
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

_GZIP_MAGIC = b"\x1f\x8b"
SKIP = "remove the line, or pass --skip-bad to skip such lines"
"""What to do about a bad line."""


@dataclass
class Report:
    """Counts of examples read, dropped and skipped, updated by the readers.

    Attributes:
        examples: Number of examples read.
        dropped: Number of examples excluded by design, for each reason.
        bad: Number of bad lines skipped.
        first_bad: Error messages of the first three bad lines.
    """

    examples: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    bad: int = 0
    first_bad: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(self.dropped.items()))
        parts = [
            f"{counted(self.examples, 'example')} read",
            f"{self.dropped.total():,} dropped" + (f" ({reasons})" if reasons else ""),
            f"{counted(self.bad, 'bad line')} skipped",
        ]
        return "; ".join(parts) + "".join(f"\n  {message}" for message in self.first_bad)


class MismatchError(ValueError):
    """Raised for a malformed line; `BadLines` adds the file and the line number."""

    def __init__(self, expected: str, actual: str, fix: str) -> None:
        self.problem, self.fix = f"expected {expected}, got {actual}", fix
        super().__init__(f"{self.problem}; {fix}")


class BadLineError(ValueError):
    """Raised for a malformed line; the message names the file, the line and the fix."""


@dataclass
class BadLines:
    """Turn a `MismatchError` in the `with` block into a `BadLineError`, or count and skip it."""

    path: Path
    number: int
    report: Report
    skip_bad: bool
    unit: str = "line"

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if not isinstance(error, MismatchError):
            return False
        place = f"{self.path}, {self.unit} {self.number}"
        if not self.skip_bad:
            raise BadLineError(f"{place}: {error}") from error
        self.report.bad += 1
        if len(self.report.first_bad) < 3:
            advice = "" if "--skip-bad" in error.fix else f"; {error.fix}"
            self.report.first_bad.append(f"{place}: {error.problem}{advice}")
        return True


def check_file(path: Path) -> None:
    """Raise an OSError unless `path` is a file."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; pass a file")
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; check the path")


def read_lines(
    path: Path | str, report: Report, skip_bad: bool = False
) -> Iterator[tuple[int, str]]:
    """Read a UTF-8 file, plain or gzip, line by line.

    Args:
        path: The file; gzip is recognised by its first bytes.
        report: Counts skipped lines.
        skip_bad: Skip and count lines that are not UTF-8 instead of raising an error.

    Yields:
        The line number, counted from 1, and the line without its LF or CRLF.

    Raises:
        BadLineError: If a line is not UTF-8, unless `skip_bad`.
        OSError: If the file does not exist, is a folder, or contains damaged gzip data.
    """
    path = Path(path)
    check_file(path)
    number = 0
    with open(path, "rb") as file:
        stream: IO[bytes] | gzip.GzipFile = file
        if file.peek(2).startswith(_GZIP_MAGIC):
            stream = gzip.GzipFile(fileobj=file)
        try:
            for number, raw in enumerate(stream, 1):
                with BadLines(path, number, report, skip_bad):
                    yield number, decode_line(raw, number)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise OSError(
                f"{path} is damaged or truncated after line {number} ({error}); download it again"
            ) from error


def decode_line(raw: bytes, number: int) -> str:
    """Decode a line and strip its line ending; line 1 may start with a byte order mark."""
    if number == 1:
        raw = raw.removeprefix(codecs.BOM_UTF8)
    try:
        return raw.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        actual = f"byte 0x{raw[error.start]:02x} at byte {error.start} of the line"
        encoding = "WINDOWS-1252"
        if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            actual += " (the text looks like UTF-16)"
            encoding = "UTF-16"
        fix = (
            "convert the text to UTF-8, for example with "
            f"`iconv -f {encoding} -t UTF-8 old.csv > new.csv`, or save it as CSV UTF-8 in Excel"
        )
        raise MismatchError("UTF-8 text", actual, fix) from error


def is_blank(line: str, report: Report) -> bool:
    """Return whether a line contains only spaces; if so, count it as dropped."""
    blank = not line.strip(" ")
    if blank:
        report.dropped["blank lines"] += 1
    return blank


def shown(value: object) -> str:
    """Quote a value for a message, truncated if it is long."""
    if isinstance(value, str) and len(value) > 60:
        return f"{value[:60]!r}..."
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "..."


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, for example "1 word" or "1,204 words"."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
