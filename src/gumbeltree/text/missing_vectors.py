"""Vectors for words that a vector file lacks: borrowed from another file, or made of their parts.

Both functions return the vectors they were given with more words behind them. Words that have a
vector keep it.
"""

import dataclasses
import math
import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gumbeltree.text.vectors import Vectors, distinct

# hyphens (also U+2010 and U+2011), slashes, full stops, apostrophes (also U+2019)
SEPARATORS = re.compile("[-\u2010\u2011/.'\u2019]+")
WORDS_PER_NUMBER = 10
"""So many shared words are needed for each number of the second file's vectors."""
RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Strengths to choose from, as shares of the second file's mean variance."""
KEPT_BITS = 20
"""Borrowed numbers are rounded to so many bits behind the first file's largest number: a sum taken
in another order, by another processor or more threads, then gives the same bytes."""


class Fit(NamedTuple):
    """How a map from one file's vectors to another's was fitted.

    Attributes:
        shared: words that both files have.
        ridge: the strength chosen, one of `RIDGES`.
        cosine: mean cosine of mapped and true vectors, over the tenth of the shared words that the
            map was not fitted on.
    """

    shared: int
    ridge: float
    cosine: float


def parts(word: str) -> list[str]:
    """Return what stands between hyphens, slashes, full stops and apostrophes.

    `coming-of-age` has the parts coming, of, age; `'tis` has one, tis; `--` has none.
    """
    return [part for part in SEPARATORS.split(word) if part]


def add_parts(vectors: Vectors, words: Iterable[str]) -> Vectors:
    """Give words without a vector the mean of their parts' vectors.

    Args:
        vectors: those known, of the parts too.
        words: of these, those that have parts, all of them with a vector, get one.
    """
    made = {
        word: np.mean([vectors[part] for part in found], axis=0, dtype=np.float64)
        for word in distinct(words)
        if word not in vectors and (found := parts(word)) and all(p in vectors for p in found)
    }
    return _joined(vectors, list(made), np.reshape(list(made.values()), (len(made), vectors.dim)))


def borrow(vectors: Vectors, other: Vectors) -> tuple[Vectors, Fit]:
    """Give words that only `other` has the vectors that a linear map makes of its own.

    The map is fitted by ridge regression, `min |(X - mean) W - (Y - mean)|^2 + r |W|^2`, on the
    words that both have. Every tenth of them, in their order, is held out to choose the strength by
    its squared error; then the map is fitted on all of them.

    Args:
        vectors: those to add to.
        other: those to take from, of any width.
    """
    shared = [word for word in vectors.words if word in other]
    if len(shared) < WORDS_PER_NUMBER * other.dim:
        raise ValueError(
            f"expected at least {WORDS_PER_NUMBER * other.dim:,} words that both vector files "
            f"have, {WORDS_PER_NUMBER} for each of the second's {other.dim} numbers, got "
            f"{len(shared):,}; take a second file with more of the words, or with fewer numbers"
        )
    x = other.matrix(shared).astype(np.float64)
    y = vectors.matrix(shared).astype(np.float64)
    held = np.arange(len(shared)) % 10 == 9
    tried = [_fit(x[~held], y[~held], ridge).apply(x[held]) for ridge in RIDGES]
    best = int(np.argmin([np.square(mapped - y[held]).sum() for mapped in tried]))
    fit = Fit(len(shared), RIDGES[best], round(_mean_cosine(tried[best], y[held]), 4))
    only = [word for word in other.words if word not in vectors]
    mapped = _fit(x, y, fit.ridge).apply(other.matrix(only).astype(np.float64))
    unit = math.ldexp(1.0, math.frexp(np.abs(y).max())[1] - KEPT_BITS)
    return _joined(vectors, only, np.round(mapped / unit) * unit), fit


class _Map(NamedTuple):
    """y = (x - x_mean) weight + y_mean."""

    x_mean: NDArray[np.float64]
    weight: NDArray[np.float64]
    y_mean: NDArray[np.float64]

    def apply(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        result: NDArray[np.float64] = (x - self.x_mean) @ self.weight + self.y_mean
        return result


def _fit(x: NDArray[np.float64], y: NDArray[np.float64], ridge: float) -> _Map:
    """Fit a map from `x`, [words, E2], to `y`, [words, E]."""
    x_mean, y_mean = x.mean(axis=0), y.mean(axis=0)
    x, y = x - x_mean, y - y_mean
    gram = x.T @ x
    # vectors that are all equal have no variance, and a map to the mean
    strength = ridge * (np.trace(gram) / len(gram) or 1.0)
    weight = np.linalg.solve(gram + strength * np.eye(len(gram)), x.T @ y)
    return _Map(x_mean, np.asarray(weight, dtype=np.float64), y_mean)


def _mean_cosine(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    lengths = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    products = (x * y).sum(axis=1)
    # a vector of zeros is like none
    cosines = np.divide(products, lengths, out=np.zeros(len(x)), where=lengths > 0)
    return float(cosines.mean())


def _joined(vectors: Vectors, words: list[str], array: NDArray[np.float64]) -> Vectors:
    """Return `vectors` with more words behind those it has."""
    new = set(words)
    return dataclasses.replace(
        vectors,
        words=(*vectors.words, *words),
        array=np.concatenate([vectors.array, array.astype(np.float32)]),
        missing=tuple(word for word in vectors.missing if word not in new),
    )
