"""Word vectors from the training texts, for training without a vector file.

A word is described by its neighbours in the texts: the positive pointwise mutual information of
each pair of words, reduced to E dimensions by a singular value decomposition (Levy et al. 2015).
"""

import numpy as np
import torch
from numpy.typing import NDArray

from gumbeltree.data.split import Split
from gumbeltree.threads import limited

WINDOW = 4
"""Maximum distance of neighbours, in words."""
SMOOTHING = 0.75
"""Exponent of the neighbours' frequencies, which gives less weight to rare neighbours."""
SCALE = 0.2
"""Root mean square of the elements of all vectors."""
SPARE, ROUNDS = 20, 3
"""Additional dimensions and power iterations of the decomposition, for accuracy."""
PLACES = 16
"""Fractional bits that are kept: the last ones depend on the CPU and the number of threads."""


@limited(1)  # faster than several threads, and their number must not change the result
def own_vectors(split: Split, size: int, dim: int, seed: int) -> NDArray[np.float32] | None:
    """Return word vectors, float32 `[size, dim]`; None if no two words are neighbours.

    Args:
        split: training sentences as word ids.
        size: number of ids. Ids that do not occur in the split get zeros.
        dim: width E of the vectors.
        seed: seed of the decomposition.
    """
    words = split.words.astype(np.int64)
    sentence = np.repeat(np.arange(len(split.starts) - 1), np.diff(split.starts))
    cells, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    for distance in range(1, WINDOW + 1):
        left, right = words[:-distance], words[distance:]
        same = sentence[:-distance] == sentence[distance:]
        for first, second in ((left, right), (right, left)):
            found, times = np.unique(first[same] * size + second[same], return_counts=True)
            # merged one by one, which bounds memory
            cells, place = np.unique(np.concatenate([cells, found]), return_inverse=True)
            counts = np.bincount(place, np.concatenate([counts, times])).astype(np.int64)
    row, column = np.divmod(cells, size)
    total = counts.sum()
    word = np.bincount(row, counts, size)
    neighbour = np.bincount(column, counts, size) ** SMOOTHING
    neighbour *= total / max(neighbour.sum(), 1)
    information = np.log(counts * total / (word[row] * neighbour[column]))
    kept = information > 0
    if not kept.any():
        return None
    places = torch.from_numpy(np.stack([row[kept], column[kept]]))
    values = torch.from_numpy(information[kept])
    shape = (size, size)
    table = torch.sparse_coo_tensor(places, values, shape, check_invariants=False).coalesce()
    vectors = _decompose(table, dim, seed)
    vectors *= SCALE / np.sqrt(np.square(vectors[vectors.any(1)]).mean())
    rounded: NDArray[np.float32] = (np.round(vectors * 2**PLACES) / 2**PLACES).astype(np.float32)
    return rounded


def _decompose(table: torch.Tensor, dim: int, seed: int) -> NDArray[np.float64]:
    """Return the left singular vectors times the roots of the singular values, `[V, dim]`.

    The decomposition is randomised (Halko et al. 2011). Columns past the rank are zero.
    """
    size, transposed = table.shape[0], table.t().coalesce()
    width = min(dim + SPARE, size)
    start = np.random.default_rng(seed).normal(size=(size, width))
    basis = torch.from_numpy(start)
    for _ in range(ROUNDS):
        basis = torch.linalg.qr(table @ basis).Q
        basis = torch.linalg.qr(transposed @ basis).Q
    basis = torch.linalg.qr(table @ basis).Q
    left, values, _ = torch.linalg.svd((transposed @ basis).t(), full_matrices=False)
    found = (basis @ left * values.sqrt()).numpy()[:, :dim]
    # each column is determined up to its sign
    largest = found[np.abs(found).argmax(0), np.arange(found.shape[1])]
    vectors = np.zeros((size, dim))
    vectors[:, : found.shape[1]] = found * np.where(largest < 0, -1, 1)
    return vectors
