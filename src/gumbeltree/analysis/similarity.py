"""Semantic textual similarity: do cosines of sentence vectors rank pairs as people do?"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gumbeltree.answers import ResultTable
from gumbeltree.light.arrays import unit
from gumbeltree.nn.heads.number_evaluation import pearson, spearman
from gumbeltree.tasks.table import Table
from gumbeltree.text.files import Report
from gumbeltree.text_model import TextModel

COLUMNS = ("sent1", "sent2", "score")
"""Columns of a file: two sentences and their similarity, a number."""
ENGLISH = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sick", "semrel")
"""Data sets whose mean is commonly reported."""


class SimilarityResult(NamedTuple):
    """Correlation of cosines with the similarities of one file."""

    name: str
    """Name of the file without its ending and `_test`."""
    pairs: int
    spearman: float
    """Spearman's rank correlation, from -1 to 1."""
    pearson: float


def find_pairs(folder: Path) -> list[Path]:
    """Return the tables in a folder, the English data sets first; raise if there are none."""
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} does not exist; pass the folder with the similarities")
    endings = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
    found = [path for path in sorted(folder.iterdir()) if path.name.endswith(endings)]
    if not found:
        raise FileNotFoundError(
            f"{folder} has no .csv or .tsv file; each needs the columns {', '.join(COLUMNS)}"
        )
    names = {path: name_of(path) for path in found}
    places = {name: place for place, name in enumerate(ENGLISH)}
    return sorted(found, key=lambda path: (places.get(names[path], len(places)), names[path]))


def name_of(path: Path) -> str:
    """Return the name of a data set: that of its file without ending and `_test`."""
    return path.name.partition(".")[0].removesuffix("_test")


def cosine(first: NDArray[np.float32], second: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the cosine of each row of two arrays `[n, D]`; 0 if a vector is zero."""
    found: NDArray[np.float64] = (unit(first.astype(np.float64)) * unit(second)).sum(1)
    return found


def evaluate_similarity(
    model: TextModel, paths: Iterable[Path], batch_size: int = 256, skip_bad: bool = False
) -> Iterator[SimilarityResult]:
    """Compare the cosines of sentence vectors with the similarities in files.

    Args:
        model: any model.
        paths: tables with the columns sent1, sent2 and score.
        batch_size: sentences encoded at once.
        skip_bad: skip malformed rows instead of raising an error.

    Yields:
        The correlations of each file.
    """
    for path in paths:
        task = Table(*COLUMNS, target="number")
        try:
            rows = list(task.read(path, "test", Report(), skip_bad))
        except ValueError as error:
            if "--text" not in str(error):
                raise
            # columns cannot be selected here
            raise ValueError(f"{path} must have the columns {', '.join(COLUMNS)}") from error
        if not rows:
            raise ValueError(f"{path} contains no pairs")
        places: dict[str, int] = {}
        pairs = np.array([[places.setdefault(x, len(places)) for x in row.texts] for row in rows])
        vectors = model.encode(list(places), batch_size)
        found = cosine(vectors[pairs[:, 0]], vectors[pairs[:, 1]])
        gold = np.array([float(row.label) for row in rows])
        correlations = spearman(found, gold), pearson(found, gold)
        yield SimilarityResult(name_of(path), len(rows), *correlations)


def english_mean(results: Sequence[SimilarityResult]) -> float | None:
    """Return the mean Spearman correlation of the English data sets, None if one is missing."""
    values = {result.name: result.spearman for result in results}
    if not set(ENGLISH) <= values.keys():
        return None
    return sum(values[name] for name in ENGLISH) / len(ENGLISH)


def similarity_table(results: Sequence[SimilarityResult]) -> ResultTable:
    """Return correlations in percent, one row per file."""
    rows = [
        (name, f"{pairs:,}", f"{100 * rank:.1f}", f"{100 * linear:.1f}")
        for name, pairs, rank, linear in results
    ]
    mean = english_mean(results)
    if mean is not None:
        rows.insert(len(ENGLISH), ("mean of these eight", "", f"{100 * mean:.1f}", ""))
    return ResultTable("", ("data set", "pairs", "Spearman, %", "Pearson, %"), rows)
