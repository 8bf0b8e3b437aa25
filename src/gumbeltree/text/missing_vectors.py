"""Vectors for out-of-vocabulary words: mapped from another file, or averaged from word parts.

Both functions return the input vectors followed by those of the added words.
"""

import math
import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gumbeltree.text.vectors import Vectors

# hyphens (also U+2010 and U+2011), slashes, full stops, apostrophes (also U+2019)
SEPARATORS = re.compile("[-\u2010\u2011/.'\u2019]+")
WORDS_PER_NUMBER = 10
"""Minimum number of shared words per dimension of the second file."""
RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Candidate regularisation strengths, relative to the mean variance of the second file."""
KEPT_BITS = 20
"""Mapped values are rounded to this many bits relative to the largest value of the first file, so
that they do not depend on the order of summation, which varies with processor and thread count."""


class Fit(NamedTuple):
    """Statistics of the linear map from one file's vectors to another's.

    Attributes:
        shared: number of words in both files.
        ridge: regularisation strength, chosen from `RIDGES`.
        cosine: mean cosine similarity of mapped and true vectors on the held-out tenth of words.
    """

    shared: int
    ridge: float
    cosine: float


def parts(word: str) -> list[str]:
    """Split a word at hyphens, slashes, full stops and apostrophes.

    `coming-of-age` has the parts coming, of, age; `'tis` has one, tis; `--` has none.
    """
    return [part for part in SEPARATORS.split(word) if part]


def add_parts(vectors: Vectors, words: Iterable[str]) -> Vectors:
    """Add each new word whose parts all have vectors, with the mean of those vectors."""
    means = {
        word: np.mean([vectors[part] for part in pieces], axis=0, dtype=np.float64)
        for word in words
        if word not in vectors and (pieces := parts(word)) and all(p in vectors for p in pieces)
    }
    return _extend(vectors, list(means), np.reshape(list(means.values()), (-1, vectors.dim)))


def borrow(vectors: Vectors, other: Vectors) -> tuple[Vectors, Fit]:
    """Add words that only `other` has, with their vectors mapped linearly into this space.

    The map is fitted by ridge regression, `min |(X - mean) W - (Y - mean)|^2 + r |W|^2`, on the
    words that both have. Every tenth word is held out to choose the strength `r` by squared error;
    the final map is then fitted on all shared words.

    Args:
        vectors: vectors to extend.
        other: vectors to borrow from; their size may differ.
    """
    shared = [word for word in vectors.words if word in other]
    needed = WORDS_PER_NUMBER * other.dim
    if len(shared) < needed:
        raise ValueError(
            f"the two vector files share {len(shared):,} words of the data, but mapping vectors of "
            f"size {other.dim} needs at least {needed:,}; pass a second file with more of these "
            "words, or with smaller vectors"
        )
    x = other.matrix(shared).astype(np.float64)
    y = vectors.matrix(shared).astype(np.float64)
    held = np.arange(len(shared)) % 10 == 9
    mapped = [_fit(x[~held], y[~held], ridge).apply(x[held]) for ridge in RIDGES]
    best = int(np.argmin([np.square(tried - y[held]).sum() for tried in mapped]))
    fit = Fit(len(shared), RIDGES[best], round(_mean_cosine(mapped[best], y[held]), 4))
    only = [word for word in other.words if word not in vectors]
    new = _fit(x, y, fit.ridge).apply(other.matrix(only).astype(np.float64))
    unit = math.ldexp(1.0, math.frexp(np.abs(y).max())[1] - KEPT_BITS)
    return _extend(vectors, only, np.round(new / unit) * unit), fit


class _Map(NamedTuple):
    """y = (x - x_mean) weight + y_mean."""

    x_mean: NDArray[np.float64]
    weight: NDArray[np.float64]
    y_mean: NDArray[np.float64]

    def apply(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        result: NDArray[np.float64] = (x - self.x_mean) @ self.weight + self.y_mean
        return result


def _fit(x: NDArray[np.float64], y: NDArray[np.float64], ridge: float) -> _Map:
    """Fit a map from `x`, `[words, E2]`, to `y`, `[words, E]`."""
    x_mean, y_mean = x.mean(axis=0), y.mean(axis=0)
    x, y = x - x_mean, y - y_mean
    gram = x.T @ x
    # with zero variance, the map returns the mean
    strength = ridge * (np.trace(gram) / len(gram) or 1.0)
    weight = np.linalg.solve(gram + strength * np.eye(len(gram)), x.T @ y)
    return _Map(x_mean, np.asarray(weight, dtype=np.float64), y_mean)


def _mean_cosine(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    lengths = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    products = (x * y).sum(axis=1)
    # the cosine with a zero vector counts as 0
    cosines = np.divide(products, lengths, out=np.zeros(len(x)), where=lengths > 0)
    return float(cosines.mean())


def _extend(vectors: Vectors, words: list[str], array: NDArray[np.float64]) -> Vectors:
    new = np.concatenate([vectors.array, array.astype(np.float32)])
    return Vectors((*vectors.words, *words), new, vectors.malformed)
