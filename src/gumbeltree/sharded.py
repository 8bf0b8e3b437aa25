"""Vectors of many texts in shards: files of equally many rows, which a later run can complete.

A folder of shards contains:

- `part-00000.npy`, `part-00001.npy`, ...: vectors, float32 `[rows, D]`, in the order of the texts;
- `index.json`: the `Job`, the number of texts, and rows and SHA-256 digest of each shard.

A shard is complete once the index lists it and its file has the listed digest.
"""

import dataclasses
import functools
import hashlib
import io
import itertools
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import ArrayLike, NDArray

from gumbeltree import __version__
from gumbeltree.array_file import write_header, write_rows
from gumbeltree.atomic import replace_file
from gumbeltree.settings import from_dict
from gumbeltree.text.lines import Line

INDEX, LOCK = "index.json", ".lock"
FORMAT, VERSION = "gumbeltree-vectors", 1
SAVE_SECONDS = 5.0
"""Minimum time between two writes of the index; a killed process loses at most this much work."""
BLOCK_BYTES = 2**20


@dataclasses.dataclass(frozen=True)
class Job:
    """What the vectors in a folder depend on.

    Attributes:
        model: name or folder of the model.
        model_digest: digest of everything that vectors depend on.
        width: D.
        input: the input file.
        input_size: its size in bytes.
        input_digest: SHA-256 digest of its content.
        column: column of the texts; empty unless the file is a table.
        pretokenized: whether the texts were already split into words.
        skip_bad: whether malformed lines are skipped.
        shard_rows: rows of every shard but the last.
    """

    model: str
    model_digest: str
    width: int
    input: str
    input_size: int
    input_digest: str
    column: str
    pretokenized: bool
    skip_bad: bool
    shard_rows: int

    def differences(self, other: "Job") -> str:
        """Describe what differs, with the values of both jobs; empty if the vectors are equal."""
        # names of model and input may differ if both have moved
        compared = {
            "model_digest": "the digest of the model",
            "input_size": "the size of the input in bytes",
            "input_digest": "the digest of the input",
            "column": "--text",
            "pretokenized": "--pretokenized",
            "skip_bad": "--skip-bad",
            "shard_rows": "--shard-rows",
        }

        def short(value: object) -> str:
            return value[:12] if isinstance(value, str) else str(value)

        found = []
        for name, words in compared.items():
            before, now = getattr(self, name), getattr(other, name)
            if before != now:
                found.append(f"{words} was {short(before)}, now {short(now)}")
        return "; ".join(found)


class Shard(NamedTuple):
    """Texts whose vectors go into one file."""

    number: int
    texts: list[str]
    first_line: int
    last_line: int


class ShardRecord(NamedTuple):
    """A complete shard, as the index lists it."""

    rows: int
    sha256: str


class ShardFolder:
    """The shards of a job in a folder; a context in which no other process can write to it.

    Args:
        path: the folder, which is created if its parent exists.
        job: what to compute. Shards of another job raise a ValueError.

    Attributes:
        done: complete shards by number. Missing and damaged ones are not among them.
        rows: number of texts; None until all of them have been read.
    """

    def __init__(self, path: Path, job: Job) -> None:
        self.path, self.job = path, job
        self.done: dict[int, ShardRecord] = {}
        self.rows: int | None = None
        self._lock = FileLock(path / LOCK, timeout=0)
        self._saved = 0.0

    def __enter__(self) -> Self:
        self._create()
        try:
            self._lock.acquire()
        except Timeout as error:
            raise OSError(
                f"another process is writing to {self.path}; wait for it, or choose another folder"
            ) from error
        try:
            self._read()
            self._save()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._save()
        finally:
            self._lock.release()

    def _create(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise NotADirectoryError(f"{self.path} is a file; pass the name of a folder")
        if not self.path.parent.is_dir():
            raise FileNotFoundError(
                f"{self.path}: the folder {self.path.parent} does not exist; create it first"
            )
        self.path.mkdir(exist_ok=True)
        names = {file.name for file in self.path.iterdir()}
        if INDEX not in names and names - {LOCK}:
            raise FileExistsError(
                f"{self.path} contains other files and no {INDEX}; choose another folder"
            )

    def _read(self) -> None:
        """Find the complete shards, and delete what a killed process left behind."""
        for temporary in self.path.glob("*.part"):
            temporary.unlink()
        if not (self.path / INDEX).exists():
            return
        job, rows, parts = read_index(self.path)
        differences = job.differences(self.job)
        if differences:
            raise ValueError(
                f"{self.path} contains vectors of another job: {differences}; repeat the earlier "
                "command to complete them, or choose another folder with --out"
            )
        self.rows = rows
        self.done = {n: part for n, part in parts.items() if self._is_intact(n, part)}

    def _is_intact(self, number: int, part: ShardRecord) -> bool:
        path, header = self.path / part_name(number), io.BytesIO()
        write_header(header, part.rows, self.job.width)
        size = header.tell() + 4 * part.rows * self.job.width
        # comparing sizes first saves reading truncated files
        return path.is_file() and path.stat().st_size == size and _digest(path) == part.sha256

    def _save(self) -> None:
        content = {
            "format": FORMAT,
            "format_version": VERSION,
            "gumbeltree_version": __version__,
            "job": dataclasses.asdict(self.job),
            "rows": self.rows,
            "shards": {part_name(n): part._asdict() for n, part in sorted(self.done.items())},
        }
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        replace_file(self.path / INDEX, lambda path: path.write_text(text, encoding="utf-8"))
        self._saved = time.monotonic()

    @property
    def complete(self) -> bool:
        """Whether no shard is missing."""
        return is_complete(self.job, self.rows, self.done)

    def missing(self, lines: Iterable[Line]) -> Iterator[Shard]:
        """Group texts into shards and yield those that are not complete.

        Args:
            lines: all texts of the input. One shard at a time is held in memory.
        """
        lines, rows = iter(lines), 0
        for number in itertools.count():
            chunk = list(itertools.islice(lines, self.job.shard_rows))
            if not chunk:
                break
            rows += len(chunk)
            if number not in self.done:
                texts = [line.texts[0] for line in chunk]
                yield Shard(number, texts, chunk[0].number, chunk[-1].number)
        self.rows = rows

    def write(self, number: int, vectors: NDArray[np.float32]) -> None:
        """Write a shard; its file appears only once it is complete.

        Args:
            number: number of the shard.
            vectors: its rows, `[rows, D]`.
        """
        path = self.path / part_name(number)
        rows = write_rows(path, self.job.width, [vectors])
        self.done[number] = ShardRecord(rows, _digest(path))
        if time.monotonic() - self._saved >= SAVE_SECONDS:
            self._save()


class ShardedVectors:
    """Read-only view of the vectors in a folder of shards, `[len(vectors), D]`.

    Files are memory-mapped when they are first used. Index the view with a row, a slice or an
    array of rows; the result is an ordinary array.

    Attributes:
        shape: number of vectors and D.
        shard_rows: rows of every shard but the last.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        job, rows, parts = read_index(self.path)
        if rows is None or not is_complete(job, rows, parts):
            raise ValueError(
                f"{path} is incomplete: {len(parts):,} shards are finished; repeat the command "
                "that began it"
            )
        self.shape, self.shard_rows = (rows, job.width), job.shard_rows
        # of a billion rows, all maps together would exceed what some systems allow
        self._shard = functools.lru_cache(1024)(self._open)

    def _open(self, number: int) -> NDArray[np.float32]:
        shard: NDArray[np.float32] = np.load(self.path / part_name(number), mmap_mode="r")
        return shard

    def __len__(self) -> int:
        return self.shape[0]

    def shards(self) -> Iterator[NDArray[np.float32]]:
        """Yield the memory-mapped vectors of each shard, in order."""
        yield from map(self._shard, range(-(-len(self) // self.shard_rows)))

    def __getitem__(self, rows: int | slice | ArrayLike) -> NDArray[np.float32]:
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        wanted = np.asarray(rows)
        if wanted.dtype == bool:
            if wanted.shape != (len(self),):
                raise IndexError(f"a mask must have shape [{len(self)}], got {[*wanted.shape]}")
            wanted = np.flatnonzero(wanted)
        wanted = wanted.astype(np.int64, casting="same_kind" if wanted.size else "unsafe")
        wanted = np.where(wanted < 0, wanted + len(self), wanted)
        if ((wanted < 0) | (wanted >= len(self))).any():
            raise IndexError(f"rows must lie in 0..{len(self) - 1}, got {rows!r}")
        numbers, places = np.divmod(wanted, self.shard_rows)
        vectors = np.empty((*wanted.shape, self.shape[1]), dtype=np.float32)
        for number in np.unique(numbers).tolist():
            here = numbers == number
            vectors[here] = self._shard(number)[places[here]]
        return vectors


def open_vectors(folder: str | Path) -> ShardedVectors:
    """Open the vectors that `gumbeltree encode --engine ray` wrote, without reading them.

    Args:
        folder: the folder of the option `--out`.

    Returns:
        A view that behaves like an array `[N, D]`: `len(vectors)`, `vectors[5]`, `vectors[10:20]`
        and `vectors[[3, 1]]`. `vectors.shards()` iterates over the shards.

    Raises:
        ValueError: If shards are missing.
    """
    return ShardedVectors(folder)


def part_name(number: int) -> str:
    """Return the file name of a shard."""
    return f"part-{number:05d}.npy"


def is_complete(job: Job, rows: int | None, parts: dict[int, ShardRecord]) -> bool:
    """Return whether all shards of `rows` texts are listed."""
    return rows is not None and len(parts) == -(-rows // job.shard_rows)


def read_index(folder: Path) -> tuple[Job, int | None, dict[int, ShardRecord]]:
    """Return the job, the number of texts and the finished shards of a folder."""
    path = folder / INDEX
    if not path.is_file():
        raise FileNotFoundError(f"{folder} is not a folder of shards: it has no {INDEX}")
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT or content["format_version"] != VERSION:
            raise ValueError(f"its format is not {FORMAT} {VERSION}")
        job: Job = from_dict(Job, content["job"])
        listed = {name: ShardRecord(**part) for name, part in content["shards"].items()}
        parts = {int(name[5:-4]): part for name, part in listed.items()}
        rows: int | None = content["rows"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is damaged ({type(error).__name__}: {error}); delete {folder} and encode again"
        ) from error
    return job, rows, parts


def read_through(path: Path) -> tuple[int, str, int]:
    """Return the size of a file, the SHA-256 digest of its content, and its number of lines."""
    digest, size, lines, last = hashlib.sha256(), 0, 0, b"\n"
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
            size += len(block)
            lines += block.count(b"\n")
            last = block[-1:]
    return size, digest.hexdigest(), lines + (last != b"\n")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
