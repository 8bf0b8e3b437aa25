"""Nearest neighbours of sentences: an index of their vectors on disk, and exact search in it.

An index is a folder of four files:

- `vectors.npy`: unit vectors, float32 `[N, D]`;
- `texts.txt`: the texts in UTF-8, each followed by a newline;
- `offsets.npy`: the first byte of each text and the size of the file, int64 `[N + 1]`;
- `index.json`: the `Header`.

Shapes: N texts, Q queries, D vector dimension, k neighbours.
"""

import dataclasses
import hashlib
import itertools
import json
import shutil
import uuid
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gumbeltree import __version__
from gumbeltree.array_file import write_rows
from gumbeltree.config import EncoderConfig
from gumbeltree.migrate import first_encoder
from gumbeltree.settings import from_dict
from gumbeltree.text.batches import as_texts
from gumbeltree.text.ids import TextCounts
from gumbeltree.text_model import TextModel

HEADER, VECTORS, TEXTS, OFFSETS = "index.json", "vectors.npy", "texts.txt", "offsets.npy"
# older versions could add an approximate index, which is ignored
FILES = {HEADER, VECTORS, TEXTS, OFFSETS, "approximate.faiss"}
FORMAT, VERSION = "gumbeltree-index", 1
REBUILD = "rebuild the index with `gumbeltree index`"

CHUNK_TEXTS = 1024
"""Number of texts that are encoded together."""
BLOCK_ROWS, BLOCK_QUERIES = 2**14, 256
"""Numbers of vectors and queries that are compared at once."""
Neighbours: TypeAlias = tuple[NDArray[np.int64], NDArray[np.float32]]


@dataclasses.dataclass
class Header:
    """Contents of index.json.

    Attributes:
        gumbeltree_version: version that wrote the index.
        model: name or folder of the model; empty if it has none.
        model_digest: see `model_digest`.
        width: D.
        unique: whether repeated texts were skipped.
        pretokenized: whether the texts were already split into words.
        count: N.
        repeated: number of repeated texts skipped.
        lists: unused; older versions expect it.
    """

    gumbeltree_version: str
    model: str
    model_digest: str
    width: int
    unique: bool
    pretokenized: bool
    count: int = 0
    repeated: int = 0
    lists: int = 0


class Index:
    """Texts and their vectors in a folder. The files are memory-mapped, so opening is instant.

    Attributes:
        path: the folder.
        header: model, counts and options.
        vectors: unit vectors, float32 `[N, D]`; zero vectors stay zero.

    Example:
        >>> index = Index.build("dev.index", model, ["a dog sleeps .", "it is sunny ."])
        >>> rows, scores = index.search(model.encode(["a cat sleeps ."]), k=1)
        >>> index.texts(rows[0])
        ['a dog sleeps .']
    """

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        self.header = header
        try:
            self.vectors: NDArray[np.float32] = np.load(path / VECTORS, mmap_mode="r")
            self._offsets = np.load(path / OFFSETS, mmap_mode="r")
            self._text = np.memmap(path / TEXTS, dtype=np.uint8, mode="r")
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{path} is incomplete: {Path(error.filename).name} is missing; copy the whole "
                f"folder, or {REBUILD}"
            ) from error
        except (ValueError, EOFError) as error:
            raise ValueError(f"{path} is damaged: {error}; {REBUILD}") from error
        arrays = [(x.dtype, x.shape) for x in (self.vectors, self._offsets)]
        expected = [(np.float32, (header.count, header.width)), (np.int64, (header.count + 1,))]
        if arrays != expected or len(self._text) != self._offsets[-1]:
            raise ValueError(f"{path} is damaged: its files do not match; {REBUILD}")

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open an index.

        Args:
            path: folder of the index.
        """
        return cls(Path(path), _read_header(Path(path)))

    @classmethod
    def build(
        cls,
        path: str | Path,
        model: TextModel,
        texts: Iterable[str],
        *,
        name: str = "",
        unique: bool = True,
        batch_size: int = 256,
        pretokenized: bool = False,
        replace: bool = False,
        counts: TextCounts | None = None,
    ) -> Self:
        """Encode texts, write the index and open it. If anything fails, no files are left behind.

        Texts are read and written in chunks; only 16 bytes per distinct text stay in memory.

        Args:
            path: folder to create.
            model: model that encodes the texts.
            texts: iterable of sentences, of any length.
            name: name or folder of the model, stored in the index.
            unique: skip repeated texts.
            batch_size: see `TextModel.encode`.
            pretokenized: see `TextModel.encode`.
            replace: overwrite an existing index.
            counts: see `TextModel.encode`.
        """
        if isinstance(texts, str):
            raise TypeError(f"`texts` must be a list of strings; pass [{texts[:20]!r}]")
        counts = TextCounts() if counts is None else counts
        digest, width = model_digest(model), model.encoder.vector_dim
        header = Header(__version__, name, digest, width, unique, pretokenized)
        # digests, because the texts themselves might not fit into memory
        seen: set[bytes] = set()

        def is_new(text: str) -> bool:
            before = len(seen)
            seen.add(hashlib.blake2b(text.encode(), digest_size=16).digest())
            return len(seen) > before

        def blocks() -> Iterator[tuple[list[str], NDArray[np.float32]]]:
            remaining = iter(texts)
            while chunk := as_texts(itertools.islice(remaining, CHUNK_TEXTS)):
                kept = [text for text in chunk if is_new(text)] if unique else chunk
                header.repeated += len(chunk) - len(kept)
                yield kept, model.encode(kept, batch_size, pretokenized=pretokenized, counts=counts)

        write_index(Path(path), header, blocks(), replace=replace)
        return cls.open(path)

    def __len__(self) -> int:
        return self.header.count

    def check_model(self, model: TextModel, name: str = "the model") -> None:
        """Raise a ValueError unless a model gives the same vectors as the one that built the index.

        Args:
            model: model to check.
            name: name of the model in the error message.
        """
        digest = model_digest(model)
        if digest != self.header.model_digest:
            raise ValueError(
                f"{self.path} was built with another model: "
                f"{self.header.model or 'an unnamed one'} (digest {self.header.model_digest[:12]}),"
                f" not {name} (digest {digest[:12]}); pass the model that built it, or {REBUILD}"
            )

    def texts(self, rows: Iterable[int]) -> list[str]:
        """Return the texts of the given rows."""
        texts = []
        for row in rows:
            if not 0 <= row < len(self):
                raise IndexError(f"row {row} is out of range; rows are 0..{len(self) - 1}")
            start, end = self._offsets[row : row + 2]
            texts.append(self._text[start : end - 1].tobytes().decode())
        return texts

    def search(self, vectors: NDArray[np.floating[Any]], k: int = 5) -> Neighbours:
        """Return the k nearest rows of each query and their cosines, nearest first.

        Search is exact: every vector is compared, in float32. If cosines are equal, the lower row
        comes first. The cosine with a zero vector is 0.

        Args:
            vectors: queries `[Q, D]` or a single one `[D]`; they need not be unit vectors.
            k: number of neighbours.

        Returns:
            Rows, int64, and cosines, float32, both `[Q, min(k, N)]`.
        """
        if k < 1:
            raise ValueError(f"`k` must be at least 1, got {k}")
        queries = np.asarray(vectors, dtype=np.float32)
        queries = queries[None] if queries.ndim == 1 else queries
        if queries.ndim != 2 or queries.shape[1] != self.header.width:
            raise ValueError(
                f"`vectors` must have shape [Q, {self.header.width}] for {self.path}, got "
                f"{list(np.shape(vectors))}; encode the queries with the model that built the index"
            )
        if not np.isfinite(queries).all():
            raise ValueError("`vectors` must be finite, got NaN or infinite numbers")
        k = min(k, len(self))
        rows = np.empty((len(queries), k), dtype=np.int64)
        scores = np.empty((len(queries), k), dtype=np.float32)
        for start in range(0, len(queries), BLOCK_QUERIES):
            block = self._search_block(unit(queries[start : start + BLOCK_QUERIES]), k)
            for i, best in enumerate(block, start):
                rows[i], scores[i] = best
        return rows, scores

    def _search_block(self, queries: NDArray[np.float32], k: int) -> list[Neighbours]:
        """Return the k nearest rows and their cosines for each unit vector of a block `[Q, D]`."""
        best = [(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32))] * len(queries)
        for start in range(0, len(self), BLOCK_ROWS):
            cosines = (queries @ self.vectors[start : start + BLOCK_ROWS].T).clip(-1, 1)
            for i, (rows, scores) in enumerate(best):
                # later rows must exceed the k-th best cosine, because ties go to the lower row
                lowest = scores[-1] if len(scores) == k else -np.inf
                near = np.flatnonzero(cosines[i] > lowest)
                rows = np.concatenate([rows, start + near])
                scores = np.concatenate([scores, cosines[i, near]])
                if len(scores) > k:
                    # sorting everything would take longer than computing the cosines
                    kept = np.flatnonzero(scores >= np.partition(scores, -k)[-k])
                    rows, scores = rows[kept], scores[kept]
                order = np.argsort(-scores, kind="stable")[:k]
                best[i] = rows[order], scores[order]
        return best


def write_index(
    path: Path,
    header: Header,
    blocks: Iterable[tuple[Sequence[str], NDArray[np.float32]]],
    *,
    replace: bool = False,
) -> None:
    """Write an index of texts and their vectors. If anything fails, no files are left behind.

    Args:
        path: folder to create.
        header: its count is filled in.
        blocks: texts and their vectors `[n, D]`, block by block.
        replace: overwrite an existing index.
    """
    with _created(path, replace) as folder:
        offsets = array("q", [0])
        with (folder / TEXTS).open("wb") as file:

            def vectors() -> Iterator[NDArray[np.float32]]:
                for texts, block in blocks:
                    for text in texts:
                        offsets.append(offsets[-1] + file.write(text.encode() + b"\n"))
                    yield unit(block)

            header.count = write_rows(folder / VECTORS, header.width, vectors())
        if not header.count:
            raise ValueError("there are no texts to index; check the input")
        np.save(folder / OFFSETS, np.array(offsets, dtype="<i8"))
        content = {"format": FORMAT, "format_version": VERSION, **dataclasses.asdict(header)}
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        (folder / HEADER).write_text(text, encoding="utf-8")


def unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return vectors `[n, D]` scaled to length 1; zero vectors stay zero."""
    # squares of float32 numbers neither overflow nor underflow in float64
    wide = vectors.astype(np.float64)
    lengths = np.sqrt(np.square(wide).sum(axis=1, keepdims=True))
    return (wide / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def model_digest(model: TextModel) -> str:
    """Return a digest of everything that vectors depend on, which excludes head and device."""
    # Hash only settings that differ from their defaults, in the layout of version 1, so that
    # settings added later do not change the digest.
    usual = first_encoder(dataclasses.asdict(EncoderConfig()))
    settings = {
        name: value
        for name, value in first_encoder(dataclasses.asdict(model.config.encoder)).items()
        if name != "impl" and value != usual.get(name)
    }
    digest = hashlib.sha256(json.dumps([settings, model.config.max_words]).encode())
    digest.update(model.tokenizer.to_str().encode())
    for name, about, weight in model.weight_bytes():
        if name.startswith(("embedding.", "encoder.")):
            digest.update(f"{name} torch.{about}".encode())
            digest.update(weight.data)
    return digest.hexdigest()


@contextmanager
def _created(path: Path, replace: bool) -> Iterator[Path]:
    """Yield a temporary folder beside `path`, and rename it to `path` if nothing was raised."""
    _check_free(path, replace)
    # follow a symbolic link rather than replace it
    path = path.resolve()
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
    temporary.mkdir()
    try:
        yield temporary
        # `path` may have been created in the meantime
        _check_free(path, replace)
        if path.exists():
            shutil.rmtree(path)
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _check_free(path: Path, replace: bool) -> None:
    """Raise unless an index can be written to `path`."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: the folder {path.parent} does not exist; create it first")
    if not path.exists():
        return
    if not replace:
        raise FileExistsError(f"{path} already exists; choose another folder, or pass --replace")
    names = {file.name for file in path.iterdir()} if path.is_dir() else set()
    if HEADER not in names or not names <= FILES:
        raise FileExistsError(
            f"{path} is not an index or contains other files, so it was not replaced; choose "
            "another folder"
        )


def _read_header(path: Path) -> Header:
    file = path / HEADER
    if not file.is_file():
        raise FileNotFoundError(
            f"{path} is not an index: it has no {HEADER}; build one with `gumbeltree index`"
        )
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
            raise ValueError(f'"format" is not "{FORMAT}"')
        version = content.pop("format_version", None)
        if version != VERSION:
            raise ValueError(
                f"format version {version!r}, but gumbeltree {__version__} reads version {VERSION}"
            )
        header: Header = from_dict(Header, content)
    except ValueError as error:
        raise ValueError(f"{file} is not the header of an index: {error}; {REBUILD}") from error
    return header
