"""Group texts into chunks to tokenise and batches to encode."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

CHUNK_TEXTS = 4096
"""Maximum number of texts tokenised together."""
CHUNK_CHARACTERS = 2**20
"""Maximum number of characters tokenised together, unless a single text is longer."""
BATCH_WORDS = 2**14
"""Maximum number of words encoded together, including padding, unless a single text is longer."""

Item = TypeVar("Item")


def as_list(items: Iterable[Item]) -> list[Item]:
    """Return an iterable as a list; raise TypeError for a single string or a table."""
    if isinstance(items, str | bytes):
        raise TypeError(f"expected a list of strings, got one string; pass [{items[:20]!r}]")
    # iterating over a dictionary or a data frame would yield its column names, and over a data set
    # its rows
    if isinstance(items, Mapping) or hasattr(items, "columns") or hasattr(items, "column_names"):
        kind = type(items).__name__
        raise TypeError(f"expected a list of strings, got {kind}; pass one of its columns")
    if not (hasattr(items, "__iter__") or hasattr(items, "__getitem__")):
        raise TypeError(f"expected a list of strings, got {items!r}")
    return list(items)


def is_missing(value: object) -> bool:
    """Return whether a value stands for a missing one: None, NaN, or pandas' NA or NaT."""
    kind = type(value).__name__
    return (
        value is None
        or kind in ("NAType", "NaTType")
        or (kind.startswith("float") and value != value)
    )


def as_texts(texts: Iterable[str], name: str = "text") -> list[str]:
    """Return the strings of an iterable; raise for anything that is not valid text.

    Args:
        texts: strings.
        name: what they are, for messages.
    """
    texts = as_list(texts)
    for number, text in enumerate(texts):
        if is_missing(text):
            raise TypeError(
                f"the {name} of row {number} is missing ({text}); drop such rows first, for "
                "example with dropna() in pandas, or pass a text instead"
            )
        if not isinstance(text, str):
            raise TypeError(f"{name} {number} must be a string, got {type(text).__name__}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{name} {number} is not valid Unicode at character {error.start}: "
                f"{text[error.start : error.start + 10]!r}; decode it with the right encoding"
            ) from None
    return texts


def chunks(columns: Sequence[Sequence[str]], most: int | None = None) -> Iterator[slice]:
    """Yield slices of rows to tokenise together, which bounds memory use.

    Args:
        columns: one list of texts, or two of equal length.
        most: maximum number of rows per chunk; `CHUNK_TEXTS` by default.
    """
    most = most or CHUNK_TEXTS
    start = characters = 0
    for row, texts in enumerate(zip(*columns, strict=True)):
        size = sum(map(len, texts))
        if row > start and (row - start == most or characters + size > CHUNK_CHARACTERS):
            yield slice(start, row)
            start, characters = row, 0
        characters += size
    if columns[0]:
        yield slice(start, len(columns[0]))


def batches(lengths: ArrayLike, most: int, words: int = BATCH_WORDS) -> Iterator[NDArray[np.int64]]:
    """Yield indices of sentences to encode together: similar lengths, shortest first.

    Args:
        lengths: words per sentence, `[n]`.
        most: maximum number of sentences per batch.
        words: maximum number of words per batch, including padding.
    """
    lengths = np.asarray(lengths)
    order = np.argsort(lengths, kind="stable")
    start = 0
    for end, length in enumerate(lengths[order].tolist()):
        size = end - start
        if size and (size == most or length * (size + 1) > words):
            yield order[start:end]
            start = end
    if len(order):
        yield order[start:]


def ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Yield the items of an iterator, prefetching the next one in a background thread."""
    end = object()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(next, items, end)
        while (item := future.result()) is not end:
            future = pool.submit(next, items, end)
            yield cast("Item", item)
