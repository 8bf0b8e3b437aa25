"""Pretrained word vectors: GloVe text files, plain, .gz or .zip.

A line is a token and its numbers, separated by single spaces. In the official 840B file some tokens
hold spaces themselves (". . .", "at name@domain.com"), so it is the last `dim` fields that are the
numbers. A line is looked at closely only if its first field begins a word that is asked for; of the
others nothing but the number of fields is checked.
"""

import contextlib
import dataclasses
import gzip
import itertools
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Progress = Callable[[int, int], None]

BLOCK = 1 << 20  # fits the processor's cache: 16 MiB blocks were measured a third slower
LONGEST_LINE = 1 << 24
SAMPLE = 100
PROBLEMS = 5
FLOAT32_END = 2.0**128 - 2.0**103  # from here on float32 is infinite


class Coverage(NamedTuple):
    """How much of a text has vectors.

    Attributes:
        types: distinct words with a vector.
        all_types: distinct words.
        tokens: occurrences of words with a vector.
        all_tokens: occurrences of words.
    """

    types: int
    all_types: int
    tokens: int
    all_tokens: int


@dataclasses.dataclass(frozen=True, eq=False)
class Vectors:
    """Word vectors read from a file, for the words that were asked for.

    Attributes:
        words: the words found, in the order in which they were asked for.
        array: their vectors, float32 [len(words), dim].
        missing: the words not found, in the order in which they were asked for.
        lines: lines of the file, without a header.
        malformed: lines skipped: too few fields, no token or, for a word asked for, not a number.
        duplicates: lines skipped because their word, one asked for, had come before.
        problems: the first few malformed lines, each with its number and what is wrong with it.
    """

    words: tuple[str, ...]
    array: NDArray[np.float32]
    missing: tuple[str, ...] = ()
    lines: int = 0
    malformed: int = 0
    duplicates: int = 0
    problems: tuple[str, ...] = ()
    _rows: dict[str, int] = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.array.dtype != np.float32 or self.array.ndim != 2:
            raise ValueError(
                f"`array` must be float32 [words, dim], got {self.array.dtype} "
                f"{list(self.array.shape)}"
            )
        rows = {word: row for row, word in enumerate(self.words)}
        if not len(rows) == len(self.words) == len(self.array):
            raise ValueError(
                f"`array` must have a row for each word, each word once: got {len(self.array)} "
                f"rows, {len(self.words)} words, {len(rows)} of them distinct"
            )
        object.__setattr__(self, "_rows", rows)

    @property
    def dim(self) -> int:
        """Numbers per word."""
        return int(self.array.shape[1])

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._rows

    def __getitem__(self, word: str) -> NDArray[np.float32]:
        row: NDArray[np.float32] = self.array[self._rows[word]]
        return row

    def report(self) -> str:
        """Return a sentence or two on what was found and what was skipped."""
        asked = len(self.words) + len(self.missing)
        text = (
            f"{len(self.words):,} of {asked:,} words found in {self.lines:,} lines of {self.dim} "
            f"numbers; skipped {self.malformed:,} malformed lines, {self.duplicates:,} repeated"
        )
        if self.problems:
            text += ". Malformed: " + "; ".join(self.problems)
            text += "; ..." if self.malformed > len(self.problems) else ""
        return text

    def coverage(self, counts: Mapping[str, int]) -> Coverage:
        """Return how many of the words of a text have vectors.

        Args:
            counts: how often each word occurs.
        """
        covered = [count for word, count in counts.items() if word in self._rows]
        return Coverage(len(covered), len(counts), sum(covered), sum(counts.values()))

    def matrix(
        self,
        words: Iterable[str],
        missing: Literal["zero", "random"] = "zero",
        seed: int = 0,
        deviation: float = 0.01,
    ) -> NDArray[np.float32]:
        """Return vectors in the order of `words`, float32 [len(words), dim].

        Args:
            words: one word per row.
            missing: words without a vector get zeros, or random numbers around zero.
            seed: of these random numbers. They are drawn word by word in the order of `words`; a
                word that comes twice gets the same ones.
            deviation: standard deviation of these random numbers.
        """
        if missing not in ("zero", "random"):
            raise ValueError(f"`missing` must be 'zero' or 'random', got {missing!r}")
        words = distinct(words, keep_repeated=True)
        result = np.zeros((len(words), self.dim), dtype=np.float32)
        places = [place for place, word in enumerate(words) if word in self._rows]
        result[places] = self.array[[self._rows[words[place]] for place in places]]
        if missing == "random":
            absent: dict[str, int] = {}
            for word in words:
                if word not in self._rows:
                    absent.setdefault(word, len(absent))
            drawn = np.random.default_rng(seed).normal(0.0, deviation, (len(absent), self.dim))
            places = [place for place, word in enumerate(words) if word in absent]
            result[places] = drawn[[absent[words[place]] for place in places]]
        return result


@dataclasses.dataclass
class _Text:
    """An open file of vectors; `line` is the last one read by whoever takes its blocks."""

    name: str
    stream: IO[bytes] | gzip.GzipFile
    total: int
    position: Callable[[], int]
    line: int = 0

    def blocks(self, block_size: int, progress: Progress | None) -> Iterator[bytes]:
        """Yield the file in blocks of whole lines; only the last may lack its newline."""
        if block_size < 1:
            raise ValueError(f"`block_size` must be positive, got {block_size}")
        rest, done = b"", 0
        while block := self._read(block_size, done):
            done += len(block)
            cut = block.rfind(b"\n") + 1
            if cut:
                whole = rest + block[:cut] if cut < len(block) or rest else block
                rest = block[cut:]
                yield whole
            else:
                rest += block
            if len(rest) > LONGEST_LINE:
                raise ValueError(
                    f"{self.name}, line {self.line + 1}: expected GloVe text, got a line of over "
                    f"{LONGEST_LINE:,} bytes: is it the right file?"
                )
            if progress is not None:
                progress(self.position(), self.total)
        if rest:
            yield rest

    def _read(self, size: int, done: int) -> bytes:
        try:
            return self.stream.read(size)
        except gzip.BadGzipFile as error:
            raise ValueError(
                f"{self.name} is damaged or not gzip ({error}), after line {self.line}; "
                "download it again, or name it .txt if it is plain text"
            ) from error
        except (EOFError, zlib.error, zipfile.BadZipFile) as error:
            raise ValueError(
                f"{self.name} is damaged or cut short ({error}) after {done:,} bytes of text, "
                f"line {self.line}; download it again"
            ) from error


def read_vectors(
    path: str | Path,
    words: Iterable[str],
    dim: int | None = None,
    *,
    progress: Progress | None = None,
    block_size: int = BLOCK,
) -> Vectors:
    """Read the vectors of some words from a GloVe text file.

    Malformed lines are skipped and counted; the first good line of a word wins.

    Args:
        path: .gz, .zip, anything else is plain text. Of a .zip with several .txt files the one
            with `dim` in its name is read (glove.6B.100d.txt for 100), without `dim` the first.
        words: those to keep; any order, repeated ones count once.
        dim: numbers per word; otherwise that of most of the first 100 lines.
        progress: called as progress(bytes_done, bytes_total) after each block; of a .gz these are
            compressed bytes.
        block_size: bytes read at once.

    Raises:
        OSError: there is no such file.
        ValueError: it is damaged, or no file of vectors of this `dim`.
    """
    asked = distinct(words)
    needed = {token: word for word in asked if (token := _encode(word)) is not None}
    # a line may matter if its first field is the first of a needed word, or empty (no token)
    heads = {token.partition(b" ")[0] for token in needed} | {b""}
    found: dict[str, NDArray[np.float32]] = {}
    problems: list[str] = []
    malformed = duplicates = 0
    with _open(path, dim) as text:
        blocks = text.blocks(block_size, progress)
        first, dim, line = _begin(text, blocks, dim)
        header = line
        for block in itertools.chain([first], blocks):
            find, count = block.find, block.count
            start, size = 0, len(block)
            while start < size:
                line += 1
                stop = find(b"\n", start)
                if stop < 0:
                    stop = size
                space = find(b" ", start, stop)
                if (
                    space >= 0
                    and block[start:space] not in heads
                    and count(b" ", space, stop) >= dim
                ):
                    start = stop + 1
                    continue
                fields = _fields(block[start:stop], dim)
                start = stop + 1
                problem = _problem(fields, dim)
                if problem is None:
                    word = needed.get(fields[0])
                    if word is None:
                        continue
                    if word in found:
                        duplicates += 1
                        continue
                    numbers = _numbers(fields)
                    if numbers is not None:
                        found[word] = numbers
                        continue
                    problem = _not_number(fields)
                malformed += 1
                if len(problems) < PROBLEMS:
                    problems.append(f"line {line}: {problem}")
            text.line = line
    array = np.empty((len(found), dim), dtype=np.float32)
    kept = tuple(word for word in asked if word in found)
    for row, word in enumerate(kept):
        array[row] = found.pop(word)
    present = set(kept)
    return Vectors(
        kept,
        array,
        tuple(word for word in asked if word not in present),
        line - header,
        malformed,
        duplicates,
        tuple(problems),
    )


def first_words(
    path: str | Path, n: int, dim: int | None = None, *, block_size: int = BLOCK
) -> list[str]:
    """Return the first `n` words of a GloVe text file, each once; fewer if it has fewer.

    Lines that `read_vectors` would skip are left out, and so are tokens that are not UTF-8: each
    of these words has a vector.

    Args:
        path: as in `read_vectors`.
        n: how many.
        dim: as in `read_vectors`.
        block_size: bytes read at once.
    """
    if n < 0:
        raise ValueError(f"`n` must not be negative, got {n}")
    words: dict[str, None] = {}
    with _open(path, dim) as text:
        blocks = text.blocks(block_size, None)
        first, dim, _ = _begin(text, blocks, dim)
        for block in itertools.chain([first], blocks):
            lines = block.removesuffix(b"\n").split(b"\n")
            text.line += 0 if block is first else len(lines)
            for line in lines:
                if len(words) >= n:
                    return list(words)
                fields = _fields(line, dim)
                if _problem(fields, dim) is None:
                    with contextlib.suppress(UnicodeDecodeError):
                        word = fields[0].decode("utf-8")
                        if word not in words and _numbers(fields) is not None:
                            words[word] = None
    return list(words)


def distinct(words: Iterable[str], keep_repeated: bool = False) -> list[str]:
    """Return `words` as a list, in order, each once."""
    if isinstance(words, str | bytes):
        raise TypeError(f"`words` must be several words, got one string: {words[:40]!r}")
    result = list(words)
    for word in result:
        if not isinstance(word, str):
            raise TypeError(f"`words` must be strings, got {word!r}")
    return result if keep_repeated else list(dict.fromkeys(result))


def _encode(word: str) -> bytes | None:
    """Return `word` as UTF-8, None if no line can hold it."""
    try:
        return word.encode("utf-8")
    except UnicodeEncodeError:
        return None


def _fields(line: bytes, dim: int) -> list[bytes]:
    """Split a line into its token, spaces and all, and its last `dim` fields."""
    return line.rstrip(b" \r").rsplit(b" ", dim)


def _problem(fields: list[bytes], dim: int) -> str | None:
    """Return what is wrong with a line apart from its numbers."""
    if len(fields) == 1 and not fields[0]:
        return "empty"
    if len(fields) <= dim:
        return f"expected a token and {dim} numbers, got {len(fields)} fields"
    if not fields[0].strip(b" "):
        return f"expected a token and {dim} numbers, got no token"
    return None


def _numbers(fields: list[bytes]) -> NDArray[np.float32] | None:
    """Return a line's numbers, None unless all are finite numbers."""
    try:
        with np.errstate(over="ignore"):
            numbers = np.array(list(map(float, fields[1:])), dtype=np.float32)
    except ValueError:
        return None
    # float() takes 1_000 and nan
    if b"_" in b" ".join(fields[1:]) or not np.isfinite(numbers).all():
        return None
    return numbers


def _is_number(field: bytes) -> bool:
    """Say whether `_numbers` takes a field."""
    try:
        return abs(float(field)) < FLOAT32_END and b"_" not in field
    except ValueError:
        return False


def _not_number(fields: list[bytes]) -> str:
    """Say which field of a line is no number."""
    place = next(i for i, field in enumerate(fields) if i and not _is_number(field))
    return f"expected {len(fields) - 1} numbers, number {place} is {_show(fields[place])}"


def _show(line: bytes) -> str:
    """Return the beginning of a line for a message."""
    text = repr(line[:60].decode("utf-8", "backslashreplace"))
    return text + "..." if len(line) > 60 else text


def _begin(text: _Text, blocks: Iterator[bytes], dim: int | None) -> tuple[bytes, int, int]:
    """Find `dim` in the first lines.

    Returns:
        These lines without a header, `dim`, how many lines the header has.
    """
    name = text.name
    parts: list[bytes] = []
    for block in blocks:
        parts.append(block)
        text.line += block.count(b"\n")
        if text.line > SAMPLE:
            break
    first = b"".join(parts).removeprefix(b"\xef\xbb\xbf")
    if not first.strip():
        raise ValueError(
            f"{name} is empty; expected GloVe text, lines of a token and its numbers; "
            "download it again"
        )
    lines = first.split(b"\n", SAMPLE + 1)[: SAMPLE + 1]
    header = 0
    if re.fullmatch(rb"\d+ \d+[ \r]*", lines[0]):
        rest = Counter(_trailing_numbers(line) for line in lines[1:] if line)
        header = 0 if dim == 1 or (rest and rest.most_common(1)[0][0] == 1) else 1
    lines = [line for line in lines[header : header + SAMPLE] if line.strip(b" \r")]
    lengths = [_trailing_numbers(line) for line in lines]
    counts = Counter(length for length in lengths if length)
    # on a tie `dim`, if it is given, then the longer: lines are cut short more often than prolonged
    likely = max(counts, key=lambda length: (counts[length], length == dim, length), default=0)
    if sum(length >= likely for length in lengths if likely) * 10 < max(1, len(lines)):
        shown = f"got {_show(lines[0])}" if lines else "got nothing after the header"
        expected = f"{dim} numbers" if dim else "its numbers"
        raise ValueError(
            f"{name}, line {header + 1}: expected GloVe text in UTF-8, a token and {expected} "
            f"separated by single spaces, {shown}; none or hardly any of the first "
            f"{len(lines)} lines fit: is it the right file?"
        )
    if dim is not None and likely != dim:
        line = header + 1 + lengths.index(likely)
        raise ValueError(
            f"{name}, line {line}: expected a token and {dim} numbers, got {likely} numbers; "
            f"pass dim={likely}, or no dim, or name the file with {dim} numbers"
        )
    if header:
        first = first.partition(b"\n")[2]
    return first, likely, header


def _trailing_numbers(line: bytes) -> int:
    """Count the numbers at the end of a line, the first field left out; 0 without a token."""
    fields = line.rstrip(b" \r").split(b" ")
    numbers = len(list(itertools.takewhile(_is_number, reversed(fields[1:]))))
    return numbers if any(fields[: len(fields) - numbers]) else 0


def check_file(path: Path) -> None:
    """Raise unless `path` is a file."""
    if path.is_dir():
        raise IsADirectoryError(
            f"{path} is a folder; expected a file of GloVe vectors: name one in it"
        )
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist; expected a file of GloVe vectors (.txt, .gz or .zip): "
            "check the name or download it"
        )


@contextlib.contextmanager
def _open(path: str | Path, dim: int | None) -> Iterator[_Text]:
    """Open a file of vectors, whichever way it is packed."""
    path = Path(path)
    if dim is not None and dim < 1:
        raise ValueError(f"`dim` must be positive, got {dim}")
    check_file(path)
    with contextlib.ExitStack() as stack:
        raw = stack.enter_context(open(path, "rb", buffering=0))
        size = path.stat().st_size
        if path.suffix.lower() == ".zip":
            try:
                archive = stack.enter_context(zipfile.ZipFile(raw))
            except zipfile.BadZipFile as error:
                raise ValueError(
                    f"{path} is no .zip file, or is cut short ({error}); download it again"
                ) from error
            member = _member(path, archive.infolist(), dim)
            name = f"{path} ({member.filename})"
            try:
                file = stack.enter_context(archive.open(member))
            except (zipfile.BadZipFile, RuntimeError) as error:  # encrypted, unknown compression
                raise ValueError(f"{name} cannot be read: {error}; unpack it first") from error
            yield _Text(name, file, member.file_size, file.tell)
        elif path.suffix.lower() == ".gz":
            unpacked = stack.enter_context(gzip.GzipFile(fileobj=raw))
            yield _Text(str(path), unpacked, size, raw.tell)
        else:
            yield _Text(str(path), raw, size, raw.tell)


def text_files(path: Path) -> list[str]:
    """Return the names of the text files in a .zip; none for any other file."""
    if path.suffix.lower() == ".zip":
        # what is wrong with a file is said when it is read
        with contextlib.suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
            return [member.filename for member in _texts(archive.infolist())]
    return []


def _texts(members: list[zipfile.ZipInfo]) -> list[zipfile.ZipInfo]:
    return [
        member
        for member in members
        if member.filename.lower().endswith(".txt") and not member.filename.startswith("__MACOSX/")
    ]


def _member(path: Path, members: list[zipfile.ZipInfo], dim: int | None) -> zipfile.ZipInfo:
    """Choose the file to read from a .zip."""
    texts = _texts(members)
    if not texts:
        held = ", ".join(member.filename for member in members[:5]) or "nothing"
        raise ValueError(f"{path} has no .txt file in it, but {held}; expected GloVe text")
    if len(texts) == 1 or dim is None:
        return texts[0]
    for member in texts:
        if re.search(rf"(?<!\d){dim}d(?![a-z0-9])", member.filename.rpartition("/")[2].lower()):
            return member
    raise ValueError(
        f"{path} has no .txt file with {dim}d in its name, but "
        f"{', '.join(member.filename for member in texts)}; pass another dim, or unpack it and "
        "name the file"
    )
