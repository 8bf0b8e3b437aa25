"""Texts from a file or from standard input, a line each, as soon as they are there."""

import io
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from gumbeltree.text.files import BadLines, MismatchError, Report, read_lines, shown

STANDARD_INPUT = Path("standard input")
"""What messages call it."""
CHUNK_LINES = 1024
"""Most lines that are given out together."""
CHUNK_CHARACTERS = 2**20
"""Lines are given out when they have so many characters together."""
PIECE = 2**16
"""Most bytes taken from standard input at once."""
SKIP = "leave the line out, or pass --skip-bad to do without it"


class Line(NamedTuple):
    """The texts of one line."""

    number: int
    """Counted from 1."""
    texts: tuple[str, ...]
    """One, or two of a pair."""


def read_texts(
    path: Path | None, report: Report, *, pair: bool = False, skip_bad: bool = False
) -> Iterator[list[Line]]:
    """Read texts, UTF-8, a line each; of pairs both in one line with a tab between them.

    A file, which may be gzip, is given out 1,024 lines at a time. Standard input is given out as
    it comes, so that who writes a line to a pipe gets an answer before writing the next.

    Args:
        path: The file; None is standard input.
        report: Counts the bad lines that are skipped.
        pair: Whether a line has two texts; otherwise a tab is white space like any other.
        skip_bad: Whether to count lines without words, of another number of texts, or that are
            not UTF-8, and go on, rather than raise.

    Raises:
        BadLineError: If a line is bad, unless `skip_bad`.
        OSError: If the file cannot be read to its end.
    """
    source = STANDARD_INPUT if path is None else path
    chunks = (
        _arriving(report, skip_bad)
        if path is None
        else _grouped(read_lines(path, report, skip_bad))
    )
    for chunk in chunks:
        lines = []
        for number, text in chunk:
            with BadLines(source, number, report, skip_bad):
                lines.append(Line(number, checked_texts(text, pair)))
        if lines:
            yield lines


def checked_texts(line: str, pair: bool) -> tuple[str, ...]:
    """Return the text or the two texts of a line, or refuse it."""
    if not pair:
        if not line.strip():
            raise MismatchError("at least one word", shown(line), SKIP)
        return (line,)
    texts = tuple(line.split("\t"))
    if len(texts) != 2 or not all(text.strip() for text in texts):
        raise MismatchError("two sentences with a tab between them", shown(line), SKIP)
    return texts


def _grouped(lines: Iterator[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """Give lines out together, so few at a time that they fit in memory."""
    group: list[tuple[int, str]] = []
    characters = 0
    for number, line in lines:
        group.append((number, line))
        characters += len(line)
        if len(group) == CHUNK_LINES or characters >= CHUNK_CHARACTERS:
            yield group
            group, characters = [], 0
    if group:
        yield group


def _arriving(report: Report, skip_bad: bool) -> Iterator[list[tuple[int, str]]]:
    """Give the lines of standard input as they come."""
    numbers = itertools.count(1)
    for raw in _raw_lines(_standard_input()):
        lines = []
        for bytes_of_line in raw:
            number = next(numbers)
            # a byte order mark is no part of the first word
            start = b"\xef\xbb\xbf" if number == 1 else b""
            with BadLines(STANDARD_INPUT, number, report, skip_bad):
                lines.append((number, _decoded(bytes_of_line.removeprefix(start))))
        yield from _grouped(iter(lines))


def _raw_lines(stream: BinaryIO) -> Iterator[list[bytes]]:
    """Give the lines that each piece of a stream completes."""
    # a long line comes in many pieces: joining them one by one would take quadratic time
    begun: list[bytes] = []
    while piece := stream.read1(PIECE):  # type: ignore[attr-defined]
        first, *others = piece.split(b"\n")
        begun.append(first)
        if others:
            yield [b"".join(begun), *others[:-1]]
            begun = [others[-1]]
    last = b"".join(begun)
    if last:
        yield [last]


def _standard_input() -> BinaryIO:
    if sys.stdin is None:
        raise OSError("standard input is closed; pass texts as arguments, or a file with --input")
    stream: BinaryIO | None = getattr(sys.stdin, "buffer", None)
    return io.BytesIO(sys.stdin.read().encode()) if stream is None else stream


def _decoded(line: bytes) -> str:
    try:
        return line.decode().removesuffix("\r")
    except UnicodeDecodeError as error:
        came = f"byte 0x{line[error.start]:02x} at byte {error.start} of the line"
        raise MismatchError("UTF-8 text", came, "convert the text to UTF-8") from error
