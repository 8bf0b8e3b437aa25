"""An approximate index, made by faiss, which is an extra: lists of similar vectors.

Vectors are divided among lists by k-means, each number rounded to a byte. A search reads the few
lists whose centres are nearest to the query. What it finds is scored again with the vectors
themselves, so that only the choice of candidates is approximate.
"""

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gumbeltree.analysis.index.files import ANEW, APPROXIMATE, Header

PER_LIST = 64
"""Vectors that k-means looks at, for each list."""
SHARE = 8
"""A search reads one of so many lists, and at least `LEAST`."""
LEAST = 16
BLOCK = 2**14
"""Vectors that are added at once."""


def import_faiss() -> Any:
    """Return faiss; raise with the command that installs it."""
    with warnings.catch_warnings():
        # what its wrapper is made with warns of its own types in newer Pythons
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            import faiss
        except ImportError as error:
            raise ImportError(
                "an approximate index needs faiss: pip install 'gumbeltree[faiss]'"
            ) from error
    return faiss


def make(folder: Path, vectors: NDArray[np.float32]) -> int:
    """Write the approximate index of unit vectors `[N, D]`; return the number of its lists."""
    faiss = import_faiss()
    N, D = vectors.shape
    # faiss complains of fewer than 39 vectors a list
    lists: int = max(1, min(math.isqrt(N), N // 39))
    centres = faiss.IndexFlatIP(D)
    index = faiss.IndexIVFScalarQuantizer(
        centres, D, lists, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
    )
    sample = np.linspace(0, N - 1, min(N, PER_LIST * lists)).astype(np.int64)
    index.train(np.ascontiguousarray(vectors[sample]))
    for start in range(0, N, BLOCK):
        index.add(np.ascontiguousarray(vectors[start : start + BLOCK]))
    faiss.write_index(index, str(folder / APPROXIMATE))
    return lists


def read(path: Path, header: Header) -> Any:
    """Open the approximate index of an index; its lists are read when a search wants them."""
    file = path / APPROXIMATE
    if not header.lists:
        raise ValueError(
            f"{path} has no approximate index; make it with `gumbeltree index --faiss`, or search "
            "without --approximate"
        )
    faiss = import_faiss()
    if not file.is_file():
        raise FileNotFoundError(
            f"{path} is incomplete: it has no {APPROXIMATE}; copy it whole, or {ANEW}"
        )
    try:
        index = faiss.read_index(str(file), faiss.IO_FLAG_MMAP)
    except RuntimeError as error:
        # faiss tells where in its own source it stopped, on several lines
        message = " ".join(str(error).split())
        raise ValueError(f"{file} is damaged or cut short: {message}; {ANEW}") from error
    came = (index.ntotal, index.d, getattr(index, "nlist", None))
    if came != (header.count, header.width, header.lists):
        raise ValueError(
            f"{file} is of another index: expected {header.count:,} vectors of {header.width} "
            f"numbers in {header.lists:,} lists, got {came[0]:,} of {came[1]} in {came[2]}; {ANEW}"
        )
    index.nprobe = min(header.lists, max(LEAST, header.lists // SHARE))
    return index
