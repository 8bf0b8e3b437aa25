"""Nearest neighbours of sentences: an index of their vectors, and search in it.

Legend: N texts in an index, Q queries, D width of the vectors, k neighbours.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from gumbeltree import __version__
from gumbeltree.analysis.index import approximate as index_approximate
from gumbeltree.analysis.index.files import (
    ANEW,
    TEXTS,
    VECTORS,
    Header,
    open_arrays,
    read_header,
    unit,
    write_files,
    write_folder,
    write_header,
)
from gumbeltree.config import EncoderConfig
from gumbeltree.migrate import first_encoder
from gumbeltree.model import SentenceModel
from gumbeltree.text.batches import as_texts
from gumbeltree.text.ids import TextCounts

CHUNK_TEXTS = 4096
"""Most texts that are encoded together."""
CHUNK_CHARACTERS = 2**20
"""Texts are encoded when they have so many characters together."""
BLOCK_ROWS = 2**14
"""Vectors that are compared at once."""
BLOCK_QUERIES = 256
"""Queries that they are compared with at once."""
BLOCK_FOUND = 2**20
"""Neighbours that are kept at once, unless one query alone has more."""
RESCORED_ROWS = 2**12
"""Vectors that are taken to float64 at once."""


class Index:
    """Texts and their vectors in a folder, memory-mapped: opening it reads next to nothing.

    Attributes:
        path: the folder.
        header: what is known of it, model and counts.
        vectors: unit vectors, float32 `[N, D]`; vectors of length zero are kept as zeros.

    Example:
        >>> index = Index.build("dev.index", model, ["a dog sleeps .", "it is sunny ."])
        >>> rows, scores = index.search(model.encode(["a cat sleeps ."]), k=1)
        >>> index.texts(rows[0])
        ['a dog sleeps .']
    """

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        self.header = header
        arrays = open_arrays(path, header)
        self.vectors = arrays.vectors
        self._offsets, self._text = arrays.offsets, arrays.text

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open an index."""
        return cls(Path(path), read_header(Path(path)))

    @classmethod
    def build(
        cls,
        path: str | Path,
        model: SentenceModel,
        texts: Iterable[str],
        *,
        name: str = "",
        unique: bool = True,
        batch_size: int = 256,
        pretokenized: bool = False,
        approximate: bool = False,
        replace: bool = False,
        counts: TextCounts | None = None,
    ) -> Self:
        """Encode texts and write the index, whole or not at all; then open it.

        Texts are read as they are needed and are not kept; of each that is distinct, 16 bytes are.

        Args:
            path: the folder to make.
            model: what encodes.
            texts: any number of them.
            name: of the model, or its folder, for who opens the index.
            unique: take each distinct text once, the first time it comes.
            batch_size: see `SentenceModel.encode`, as the next two.
            pretokenized: texts are words with spaces between.
            approximate: add an approximate index; needs faiss.
            replace: whether an index of that name gives way.
            counts: what to add to.
        """
        if isinstance(texts, str):
            raise TypeError(f"expected texts, got one string; pass [{texts[:20]!r}]")
        if approximate:
            index_approximate.import_faiss()
        path = Path(path)
        counts = TextCounts() if counts is None else counts
        width = model.encoder.vector_dim
        distinct = _Distinct()

        def blocks() -> Iterator[tuple[list[str], NDArray[np.float32]]]:
            for group in _grouped(texts):
                some = distinct.of(as_texts(group)) if unique else group
                vectors = model.encode(some, batch_size, pretokenized=pretokenized, counts=counts)
                yield some, vectors

        def write(folder: Path) -> None:
            header = Header(
                gumbeltree_version=__version__,
                model=name,
                model_digest=model_digest(model),
                width=width,
                count=write_files(folder, width, blocks()),
                unique=unique,
                repeated=distinct.repeated,
                pretokenized=pretokenized,
                lists=0,
            )
            if approximate:
                lists = index_approximate.make(folder, open_arrays(folder, header).vectors)
                header = dataclasses.replace(header, lists=lists)
            write_header(folder, header)

        write_folder(path, write, replace)
        return cls.open(path)

    def __len__(self) -> int:
        return self.header.count

    def check_model(self, model: SentenceModel, name: str = "the model") -> None:
        """Raise unless the vectors of `model` can be compared with those of this index.

        Args:
            model: that encodes the queries.
            name: what the message calls it.
        """
        digest = model_digest(model)
        if digest != self.header.model_digest:
            made = self.header.model or "a model without a name"
            raise ValueError(
                f"{self.path} was made with another model: expected {made} with digest "
                f"{self.header.model_digest[:12]}, got {name} with {digest[:12]}; pass the model "
                f"that made it, or {ANEW}"
            )

    def texts(self, rows: Iterable[int]) -> list[str]:
        """Return the texts of rows."""
        found = []
        for row in rows:
            if not 0 <= row < len(self):
                raise IndexError(f"rows lie in 0..{len(self) - 1}, got {row}")
            start, end = (int(place) for place in self._offsets[row : row + 2])
            if not 0 <= start < end <= len(self._text):
                raise self._damaged(TEXTS, f"text {row} from byte {start} to {end}")
            try:
                # the line end behind it is no part of it
                found.append(self._text[start : end - 1].tobytes().decode())
            except UnicodeDecodeError as error:
                raise self._damaged(TEXTS, f"text {row} is not UTF-8") from error
        return found

    def search(
        self, vectors: NDArray[np.floating[Any]], k: int = 5, *, approximate: bool = False
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the k nearest rows of each query and their cosines, the nearest first.

        The cosine with a vector of length zero is 0. Of rows with equal cosines, as float32, the
        lower comes first.

        Args:
            vectors: queries of any lengths, `[Q, D]`, or one, `[D]`.
            k: neighbours; where the index has fewer texts, all of them are given.
            approximate: let faiss choose the candidates; the cosines are exact all the same.

        Returns:
            Rows, int64, and cosines, float32, both `[Q, min(k, N)]`.
        """
        queries, k = self._checked(vectors, k)
        rows = np.empty((len(queries), k), dtype=np.int64)
        scores = np.empty((len(queries), k), dtype=np.float32)
        for i, best in enumerate(self._found(queries, k, approximate)):
            rows[i], scores[i] = best.rows, best.scores
        return rows, scores

    def search_each(
        self, vectors: NDArray[np.floating[Any]], k: int = 5, *, approximate: bool = False
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Give the k nearest rows and their cosines query by query, as `search` finds them.

        Only some of them are in memory at a time, however many queries there are.
        """
        queries, k = self._checked(vectors, k)
        return ((best.rows, best.scores) for best in self._found(queries, k, approximate))

    def _found(self, queries: NDArray[np.float32], k: int, approximate: bool) -> Iterator["_Best"]:
        search = self._approximate if approximate else self._exact
        size = max(1, min(BLOCK_QUERIES, BLOCK_FOUND // k))
        for start in range(0, len(queries), size):
            yield from search(queries[start : start + size], k)

    def _checked(
        self, vectors: NDArray[np.floating[Any]], k: int
    ) -> tuple[NDArray[np.float32], int]:
        """Return queries as unit vectors `[Q, D]` and how many can be found, or refuse them."""
        if not isinstance(k, int) or k < 1:
            raise ValueError(f"`k` must be a whole number from 1 on, got {k!r}")
        queries = np.asarray(vectors)
        queries = queries[None] if queries.ndim == 1 else queries
        if queries.ndim != 2 or queries.shape[1] != self.header.width:
            raise ValueError(
                f"`vectors` must be [Q, {self.header.width}] for this index, got "
                f"{list(np.shape(vectors))}; encode them with the model that made it"
            )
        if not np.isfinite(queries).all():
            raise ValueError("`vectors` must be finite, got NaN or infinite numbers")
        return unit(queries), min(k, len(self))

    def _exact(self, queries: NDArray[np.float32], k: int) -> list["_Best"]:
        """Compare queries with every vector: fast first, then precisely where it may matter."""
        found = [_Best(k) for _ in queries]
        for query, best in zip(queries, found, strict=True):
            if not query.any():
                # all are as near as any
                best.add(np.arange(k), np.zeros(k, dtype=np.float32))
        lengthy = [i for i, query in enumerate(queries) if query.any()]
        # a sum of D rounded products of unit vectors is off by less than this, in any order
        error = (self.header.width + 8) * float(np.finfo(np.float32).eps)
        for start in range(0, len(self), BLOCK_ROWS):
            block = self.vectors[start : start + BLOCK_ROWS]
            cosines = queries @ block.T  # [Q, R]
            if not np.isfinite(cosines).all():
                raise self._damaged(VECTORS, "numbers that are not finite")
            for i in lengthy:
                rows = start + _candidates(cosines[i], k, found[i].limit, error)
                if len(rows):
                    found[i].add(rows, self._scores(queries[i], rows))
        return found

    def _approximate(self, queries: NDArray[np.float32], k: int) -> list["_Best"]:
        """Compare queries with what faiss finds; with all vectors where it finds too few."""
        # bytes in place of numbers change the order a little
        _, rows = self._lists.search(queries, min(len(self), max(4 * k, k + 32)))
        found = []
        for query, near in zip(queries, rows, strict=True):
            best = _Best(k)
            near = near[near >= 0]
            if len(near) < k:
                best = self._exact(query[None], k)[0]
            else:
                best.add(near, self._scores(query, near))
            found.append(best)
        return found

    @cached_property
    def _lists(self) -> Any:
        return index_approximate.read(self.path, self.header)

    def _scores(self, query: NDArray[np.float32], rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return cosines that do not depend on where a row stands, unlike those of a product."""
        scores = np.empty(len(rows), dtype=np.float32)
        wide = query.astype(np.float64)
        for start in range(0, len(rows), RESCORED_ROWS):
            some = slice(start, start + RESCORED_ROWS)
            products = self.vectors[rows[some]].astype(np.float64) * wide
            scores[some] = products.sum(axis=1).clip(-1, 1)
        return scores

    def _damaged(self, name: str, what: str) -> ValueError:
        return ValueError(f"{self.path / name} is damaged: it has {what}; {ANEW}")


class _Best:
    """The k best rows so far and their scores, the best first."""

    def __init__(self, k: int) -> None:
        self.k = k
        self.rows = np.empty(0, dtype=np.int64)
        self.scores = np.empty(0, dtype=np.float32)

    @property
    def limit(self) -> float:
        """What a row must reach to be one of them."""
        return float(self.scores[-1]) if len(self.scores) == self.k else -np.inf

    def add(self, rows: NDArray[np.int64], scores: NDArray[np.float32]) -> None:
        """Take rows in that belong here."""
        rows, scores = np.concatenate([self.rows, rows]), np.concatenate([self.scores, scores])
        order = np.lexsort((rows, -scores))[: self.k]
        self.rows, self.scores = rows[order], scores[order]


class _Distinct:
    """Keeps texts from coming twice, and counts those that would."""

    def __init__(self) -> None:
        self.repeated = 0
        # digests: the texts themselves may not fit into memory
        self._seen: set[bytes] = set()

    def of(self, texts: Iterable[str]) -> list[str]:
        """Return the texts that have not come before."""
        new = []
        for text in texts:
            digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
            if digest in self._seen:
                self.repeated += 1
                continue
            self._seen.add(digest)
            new.append(text)
        return new


def model_digest(model: SentenceModel) -> str:
    """Return what tells models apart whose vectors differ: not of the head, nor of the device."""
    # in the form that indexes have always had; a setting that a later version adds has a default
    # that changes nothing
    usual = first_encoder(dataclasses.asdict(EncoderConfig()))
    settings = {
        name: value
        for name, value in first_encoder(dataclasses.asdict(model.config.encoder)).items()
        if name != "impl" and value != usual.get(name)
    }
    digest = hashlib.sha256(json.dumps([settings, model.config.max_words]).encode())
    digest.update(model.tokenizer.to_str().encode())
    for name, weight in sorted(model.state_dict().items()):
        if name.startswith(("embedding.", "encoder.")):
            digest.update(f"{name} {weight.dtype} {list(weight.shape)}".encode())
            flat = weight.detach().cpu().contiguous().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy())
    return digest.hexdigest()


def _grouped(texts: Iterable[str]) -> Iterator[list[str]]:
    """Give texts out together, so few at a time that they fit in memory."""
    group: list[str] = []
    characters = 0
    for text in texts:
        group.append(text)
        characters += len(text)
        if len(group) == CHUNK_TEXTS or characters >= CHUNK_CHARACTERS:
            yield group
            group, characters = [], 0
    if group:
        yield group


def _candidates(fast: NDArray[np.float32], k: int, limit: float, error: float) -> NDArray[np.int64]:
    """Return where scores that are off by `error` at most may be among the k best.

    Args:
        fast: scores.
        k: how many are wanted.
        limit: what they must reach.
        error: how far they may be off.
    """
    near = np.flatnonzero(fast >= limit - error)
    if len(near) > k:
        # k of them truly reach `least - error`
        least = np.partition(fast[near], len(near) - k)[len(near) - k]
        near = near[fast[near] >= least - 2 * error]
    return near
