"""Read pretrained word vectors from GloVe text files, plain, .gz or .zip.

Each line contains a token and its numbers, separated by single spaces. Some tokens of the official
840B file include spaces (". . .", "at name@domain.com"), so the numbers are the last
`dim` fields. A line is parsed only if a requested word has the same first field.
"""

import contextlib
import gzip
import io
import itertools
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

BUFFER = 1 << 20
LONGEST_LINE = 1 << 24
SAMPLE = 100
"""Number of lines from which the vector size is determined."""


class Coverage(NamedTuple):
    """Coverage of a text by word vectors.

    Attributes:
        types: number of distinct words with a vector.
        all_types: number of distinct words.
        tokens: number of occurrences of words with a vector.
        all_tokens: number of occurrences of all words.
    """

    types: int
    all_types: int
    tokens: int
    all_tokens: int


@dataclass(frozen=True, eq=False)
class Vectors:
    """Word vectors.

    Attributes:
        words: distinct words.
        array: their vectors, float32 `[len(words), dim]`.
        malformed: number of lines skipped because a requested word had no valid vector.
        lines: line of each word in its file, from 1, `[len(words)]`; None if not read from a file.
        file_lines: number of lines of that file.
    """

    words: tuple[str, ...]
    array: NDArray[np.float32]
    malformed: int = 0
    lines: NDArray[np.int64] | None = None
    file_lines: int = 0

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {word: row for row, word in enumerate(self.words)}

    @property
    def dim(self) -> int:
        """Size of each vector."""
        return int(self.array.shape[1])

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._rows

    def __getitem__(self, word: str) -> NDArray[np.float32]:
        row: NDArray[np.float32] = self.array[self._rows[word]]
        return row

    def shares(self, words: Iterable[str]) -> NDArray[np.float64]:
        """Estimate the share of each word in the texts of the file by Zipf's law, `[words]`.

        Vector files start with the most frequent word. The share of the r-th one is taken to be
        proportional to 1 / r, and that of words without a line to be 0.
        """
        if self.lines is None:
            raise ValueError("shares need the lines of a file; use the result of `read_vectors`")
        scale = (1 / np.arange(1, self.file_lines + 1)).sum()
        known = dict(zip(self.words, (1 / (self.lines * scale)).tolist(), strict=True))
        return np.array([known.get(word, 0.0) for word in words])

    def coverage(self, counts: Mapping[str, int]) -> Coverage:
        """Return the coverage of a text, given the frequency of each word."""
        covered = [count for word, count in counts.items() if word in self]
        return Coverage(len(covered), len(counts), sum(covered), sum(counts.values()))

    def matrix(
        self,
        words: Iterable[str],
        missing: Literal["zero", "random"] = "zero",
        seed: int = 0,
        deviation: float = 0.01,
    ) -> NDArray[np.float32]:
        """Return the vectors of `words`, float32 `[len(words), dim]`.

        Args:
            words: one word per row.
            missing: how to fill the vectors of out-of-vocabulary words: with zeros, or with normal
                random numbers, drawn once per distinct word in the order of `words`.
            seed: seed of the random numbers.
            deviation: standard deviation of the random numbers.
        """
        words = list(words)
        absent = list(dict.fromkeys(word for word in words if word not in self))
        filled = np.zeros((len(absent), self.dim))
        if missing == "random":
            filled = np.random.default_rng(seed).normal(0.0, deviation, filled.shape)
        rows = self._rows | {word: len(self) + i for i, word in enumerate(absent)}
        array = np.concatenate([self.array, filled.astype(np.float32)])
        return cast(NDArray[np.float32], array[[rows[word] for word in words]])


def read_vectors(path: str | Path, words: Iterable[str], dim: int | None = None) -> Vectors:
    """Read the vectors of `words` from a GloVe text file, in the order of `words`.

    Malformed lines are skipped. If a word occurs repeatedly, its first valid line is used.

    Args:
        path: a .gz or .zip file; anything else is plain text. If a .zip has several .txt files,
            the one with `dim` in its name is read (glove.6B.100d.txt for 100), or the first if
            `dim` is None.
        words: words to look up.
        dim: vector size; by default, the most frequent one in the first 100 lines.

    Raises:
        OSError: If the file does not exist.
        ValueError: If the file is damaged or does not contain vectors of size `dim`.
    """
    requested = list(dict.fromkeys(words))
    tokens = {word.encode("utf-8", "surrogatepass"): word for word in requested}
    first_fields = {token.partition(b" ")[0] for token in tokens}
    found: dict[str, NDArray[np.float32]] = {}
    places: dict[str, int] = {}
    malformed = number = 0
    with _open(path, dim) as stream:
        dim, lines = _start(path, stream, dim)
        for number, line in enumerate(lines, 1):
            if line[: line.find(b" ")] not in first_fields:
                continue
            fields = _split(line, dim)
            word = tokens.get(fields[0])
            if word is None or word in found:
                continue
            numbers = _numbers(fields, dim)
            if numbers is None:
                malformed += 1
            else:
                found[word], places[word] = numbers, number
    kept = tuple(word for word in requested if word in found)
    array = np.array([found[word] for word in kept], dtype=np.float32)
    order = np.array([places[word] for word in kept], dtype=np.int64)
    return Vectors(kept, array.reshape(len(kept), dim), malformed, order, number)


def first_words(path: str | Path, n: int, dim: int | None = None) -> list[str]:
    """Return the first `n` distinct words of a GloVe text file that have valid vectors.

    Args:
        path: as in `read_vectors`.
        n: number of words; fewer are returned if the file has fewer.
        dim: as in `read_vectors`.
    """
    words: dict[str, None] = {}
    with _open(path, dim) as stream:
        dim, lines = _start(path, stream, dim)
        for line in lines:
            if len(words) >= n:
                break
            fields = _split(line, dim)
            if _numbers(fields, dim) is not None:
                with contextlib.suppress(UnicodeDecodeError):
                    words[fields[0].decode()] = None
    return list(words)


def text_files(path: Path) -> list[str]:
    """Return the names of the .txt files in a .zip; an empty list for any other file."""
    if not zipfile.is_zipfile(path):
        return []
    with zipfile.ZipFile(path) as archive:
        return [
            name
            for name in archive.namelist()
            if name.lower().endswith(".txt") and not name.startswith("__MACOSX/")
        ]


@contextlib.contextmanager
def _open(path: str | Path, dim: int | None) -> Iterator[IO[bytes]]:
    """Open a vector file; decompression errors in the `with` block become ValueErrors."""
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; pass a GloVe vector file")
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; pass a GloVe vector file")
    try:
        with contextlib.ExitStack() as stack:
            raw: IO[bytes] | gzip.GzipFile
            if path.suffix.lower() == ".zip":
                archive = stack.enter_context(zipfile.ZipFile(path))
                raw = stack.enter_context(archive.open(_member(path, dim)))
            else:
                file = stack.enter_context(open(path, "rb", buffering=0))
                raw = gzip.GzipFile(fileobj=file) if path.suffix.lower() == ".gz" else file
            yield io.BufferedReader(cast(io.RawIOBase, raw), BUFFER)
    # zipfile raises RuntimeError for encrypted files and unknown compression methods
    except (EOFError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile, RuntimeError) as error:
        raise ValueError(
            f"{path} is damaged, truncated or not a {path.suffix} file ({error}); download it "
            "again, or unpack it first"
        ) from error


def _member(path: Path, dim: int | None) -> str:
    """Choose the file to read from a .zip."""
    texts = text_files(path)
    if not texts:
        raise ValueError(f"{path} contains no .txt file; pass a GloVe vector file")
    if len(texts) == 1 or dim is None:
        return texts[0]
    for name in texts:
        if re.search(rf"(?<!\d){dim}d(?![a-z0-9])", name.rpartition("/")[2].lower()):
            return name
    raise ValueError(
        f"{path} contains no .txt file with {dim}d in its name, only {', '.join(texts)}; choose "
        "another vector size, or unpack the archive and pass one of its files"
    )


def _start(path: str | Path, stream: IO[bytes], dim: int | None) -> tuple[int, Iterator[bytes]]:
    """Determine the vector size from the first lines; return it and all lines after the header."""
    lines = _lines(path, stream)
    sample = list(itertools.islice(lines, SAMPLE + 1))
    sizes = [_trailing_numbers(line) for line in sample]
    # the header of word2vec files: number of words and vector size
    if sample and re.fullmatch(rb"\d+ \d+\s*", sample[0]) and dim != 1 and sizes[1:2] != [1]:
        del sample[0], sizes[0]
    counts = Counter(size for size in sizes if size)
    # break ties by `dim`, then by the larger size: lines are more often too short than too long
    likely = max(counts, key=lambda size: (counts[size], size == dim, size), default=0)
    if counts[likely] * 10 < len(sample) or not counts:
        start = repr(sample[0][:60].decode("utf-8", "backslashreplace")) if sample else "nothing"
        raise ValueError(
            f"{path} is not a GloVe vector file: expected a token and its numbers on each line, "
            f"separated by single spaces, but it starts with {start}; pass another file"
        )
    if dim not in (None, likely):
        raise ValueError(f"{path} contains vectors of size {likely}, not {dim}; pass another file")
    return likely, itertools.chain(sample, lines)


def _lines(path: str | Path, stream: IO[bytes]) -> Iterator[bytes]:
    first = stream.readline(LONGEST_LINE).removeprefix(b"\xef\xbb\xbf")
    for line in itertools.chain([first], iter(lambda: stream.readline(LONGEST_LINE), b"")):
        if len(line) == LONGEST_LINE:
            raise ValueError(
                f"{path} has a line of over {LONGEST_LINE:,} bytes; pass a GloVe vector file"
            )
        yield line


def _split(line: bytes, dim: int) -> list[bytes]:
    """Split a line into its token and its last `dim` fields."""
    return line.rstrip(b" \r\n").rsplit(b" ", dim)


def _numbers(fields: list[bytes], dim: int) -> NDArray[np.float32] | None:
    """Return the numbers of a line; None if it lacks a token or `dim` finite numbers."""
    if len(fields) <= dim or not fields[0].strip(b" "):
        return None
    try:
        with np.errstate(over="ignore"):
            numbers = np.array(list(map(float, fields[1:])), dtype=np.float32)
    except ValueError:
        return None
    return numbers if np.isfinite(numbers).all() else None


def _trailing_numbers(line: bytes) -> int:
    """Count the numbers at the end of a line, not counting the first field."""
    fields = line.rstrip(b" \r\n").split(b" ")
    numbers = len(list(itertools.takewhile(_is_number, reversed(fields[1:]))))
    return numbers if any(fields[: len(fields) - numbers]) else 0


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True
