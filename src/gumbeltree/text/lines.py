"""Read texts, one per line, from a file or from standard input as they arrive."""

import io
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from gumbeltree.text.files import (
    SKIP,
    BadLines,
    MismatchError,
    Report,
    decode_line,
    read_lines,
    shown,
)

Check = Callable[[str], None]
"""A function that raises a MismatchError for texts that cannot be used."""
STANDARD_INPUT = Path("standard input")
"""Name of standard input in messages."""
CHUNK_LINES = 1024
"""Maximum number of lines per chunk."""
CHUNK_CHARACTERS = 2**20
"""A chunk ends once it has this many characters."""
PIECE = 2**16
"""Maximum number of bytes read from standard input at once."""


class Line(NamedTuple):
    """The text of one line, or the two texts of a pair."""

    number: int
    """Counted from 1."""
    texts: tuple[str, ...]
    cells: Sequence[Any] = ()
    """All cells of the row, if the line is one of a table."""


def read_texts(
    path: Path | None,
    report: Report,
    *,
    pair: bool = False,
    skip_bad: bool = False,
    check: Check | None = None,
) -> Iterator[list[Line]]:
    """Read UTF-8 texts in chunks of lines.

    Lines of standard input are yielded as soon as they arrive, so that a program that writes to a
    pipe gets its answer before it writes the next line.

    Args:
        path: The file, plain or gzip; None reads standard input.
        report: Counts skipped lines.
        pair: Whether each line has two texts separated by a tab; otherwise, tabs are white space.
        skip_bad: Skip and count lines that have no words, have the wrong number of texts or are
            not UTF-8, instead of raising an error.
        check: Raises a MismatchError for a text that makes its line a bad one.

    Raises:
        BadLineError: If a line is bad, unless `skip_bad`.
        OSError: If the file cannot be read.
    """

    def checked(lines: Iterable[tuple[int, str]], source: Path) -> Iterator[Line]:
        for number, line in lines:
            with BadLines(source, number, report, skip_bad):
                yield Line(number, check_all(_split(line, pair), check))

    if path is not None:
        yield from chunked(checked(read_lines(path, report, skip_bad), path))
        return
    for arrived in _arriving_lines(report, skip_bad):
        yield from chunked(checked(arrived, STANDARD_INPUT))


def check_all(texts: tuple[str, ...], check: Check | None) -> tuple[str, ...]:
    """Return the texts of a line if they pass the check."""
    if check is not None:
        for text in texts:
            check(text)
    return texts


def chunked(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """Group lines into chunks that fit in memory."""
    chunk: list[Line] = []
    characters = 0
    for line in lines:
        chunk.append(line)
        characters += sum(map(len, line.texts))
        if len(chunk) == CHUNK_LINES or characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def _split(line: str, pair: bool) -> tuple[str, ...]:
    """Return the one or two texts of a line, each with at least one word."""
    texts = tuple(line.split("\t")) if pair else (line,)
    if len(texts) != 1 + pair or not all(text.strip() for text in texts):
        expected = "two sentences separated by a tab" if pair else "at least one word"
        raise MismatchError(expected, shown(line), SKIP)
    return texts


def _arriving_lines(report: Report, skip_bad: bool) -> Iterator[list[tuple[int, str]]]:
    """Yield lists of complete lines from standard input as they arrive."""
    numbers = itertools.count(1)
    for raw_lines in _raw_lines(_standard_input()):
        lines = []
        for raw in raw_lines:
            number = next(numbers)
            with BadLines(STANDARD_INPUT, number, report, skip_bad):
                lines.append((number, decode_line(raw, number)))
        yield lines


def _raw_lines(stream: BinaryIO) -> Iterator[list[bytes]]:
    # joining the pieces of a long line one by one would take quadratic time
    begun: list[bytes] = []
    while piece := stream.read1(PIECE):  # type: ignore[attr-defined]
        first, *others = piece.split(b"\n")
        begun.append(first)
        if others:
            yield [b"".join(begun), *others[:-1]]
            begun = [others[-1]]
    if last := b"".join(begun):
        yield [last]


def _standard_input() -> BinaryIO:
    if sys.stdin is None:
        raise OSError("standard input is closed; pass texts as arguments, or a file with --input")
    stream: BinaryIO | None = getattr(sys.stdin, "buffer", None)
    return io.BytesIO(sys.stdin.read().encode()) if stream is None else stream
