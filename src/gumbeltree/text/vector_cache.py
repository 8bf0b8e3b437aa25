"""Word vectors that were read once, kept in a small file beside others of their kind."""

import hashlib
import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from gumbeltree.atomic import replace_file
from gumbeltree.text.vectors import Progress, Vectors, check_file, distinct, read_vectors

log = logging.getLogger(__name__)

CACHE_FORMAT = "gumbeltree-vectors-1"


def cached_vectors(
    path: str | Path,
    words: Iterable[str],
    cache_folder: str | Path,
    dim: int | None = None,
    *,
    progress: Progress | None = None,
) -> Vectors:
    """Return `read_vectors(path, words, dim)`, from a cache if it has been read before.

    The cache is one .safetensors file for each name, size and modification time of the file, set
    of words and `dim`. One that is damaged is written anew.

    Args:
        path: as in `read_vectors`.
        words: as in `read_vectors`.
        cache_folder: made if absent.
        dim: as in `read_vectors`.
        progress: as in `read_vectors`; not called if the cache has them.
    """
    path, cache_folder = Path(path), Path(cache_folder)
    asked = distinct(words)
    check_file(path)
    state = path.stat()
    about = [CACHE_FORMAT, path.name, state.st_size, state.st_mtime_ns, dim, sorted(asked)]
    key = hashlib.sha256(json.dumps(about).encode()).hexdigest()
    cache = cache_folder / f"{path.name}.{key[:20]}.safetensors"
    vectors = _load_cache(cache, key, asked)
    if vectors is None:
        vectors = read_vectors(path, asked, dim, progress=progress)
        try:
            cache_folder.mkdir(parents=True, exist_ok=True)
            _save_cache(cache, key, vectors)
        except OSError as error:
            # what was asked for is here; only the next time will take longer
            log.warning("word vectors are not kept for the next time: %s", error)
    return vectors


def _save_cache(cache: Path, key: str, vectors: Vectors) -> None:
    """Write `vectors` with what tells whether they are still good."""
    # no word found holds a newline
    tokens = np.frombuffer("\n".join(vectors.words).encode(), dtype=np.uint8)
    metadata = {
        "key": key,
        "checksum": _checksum(tokens, vectors.array),
        "counts": json.dumps([vectors.lines, vectors.malformed, vectors.duplicates]),
        "problems": json.dumps(vectors.problems),
    }
    tensors: dict[str, NDArray[Any]] = {"array": vectors.array, "words": tokens}
    replace_file(cache, lambda path: save_file(tensors, path, metadata))


def _load_cache(cache: Path, key: str, asked: list[str]) -> Vectors | None:
    """Return what `cache` holds, its words in the order of `asked`; None if it is no good."""
    if not cache.is_file():
        return None
    try:
        with safe_open(cache, framework="numpy") as file:
            metadata = file.metadata() or {}
            array, tokens = file.get_tensor("array"), file.get_tensor("words")
        if metadata["key"] != key or metadata["checksum"] != _checksum(tokens, array):
            return None
        lines, malformed, duplicates = json.loads(metadata["counts"])
        problems = tuple(json.loads(metadata["problems"]))
        words = tokens.tobytes().decode().split("\n") if len(array) else []
        rows = {word: row for row, word in enumerate(words)}
        kept = tuple(word for word in asked if word in rows)
        missing = tuple(word for word in asked if word not in rows)
        if list(kept) != words:
            array = array[[rows[word] for word in kept]]
        return Vectors(kept, array, missing, lines, malformed, duplicates, problems)
    except (SafetensorError, OSError, KeyError, ValueError, TypeError):
        return None


def _checksum(*arrays: NDArray[np.generic]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
