"""Labelled texts in memory: lists, columns of data frames and data sets, arrays, iterators."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from gumbeltree.data.examples import Examples
from gumbeltree.tasks.checks import checked_tags
from gumbeltree.tasks.task import Example
from gumbeltree.text.batches import as_list, as_texts, is_missing
from gumbeltree.text.files import MismatchError, counted, shown
from gumbeltree.text.tokenizer import undo_ptb_escapes


def examples_of(
    texts: Iterable[str],
    labels: Iterable[Any],
    second: Iterable[str] | None = None,
    *,
    pretokenized: bool = False,
    tag_separator: str = "",
) -> Examples:
    """Return labelled sentences, or pairs of sentences, as examples.

    Args:
        texts: sentences, in any iterable.
        labels: label of each sentence: a string, a whole number, a number or a truth value.
        second: second sentence of each pair.
        pretokenized: split texts at white space only, and undo Penn Treebank escapes.
        tag_separator: separates tags in a string; if given, labels can also be lists of tags.

    Raises:
        TypeError: If a text is not a string, or a label is of another type.
        ValueError: If a text or label is missing, or the lengths differ.
    """
    columns = [as_texts(column) for column in (texts, second) if column is not None]
    read = partial(_tags, separator=tag_separator) if tag_separator else _label
    names = [read(label, row) for row, label in enumerate(as_list(labels))]
    for column in columns:
        if len(column) != len(names):
            raise ValueError(
                f"every text needs one label, but there are {counted(len(column), 'text')} and "
                f"{counted(len(names), 'label')}; pass columns of equal length"
            )
    rows = zip(zip(*columns, strict=True), names, strict=True)
    examples = Examples(_example(row, texts, pretokenized, name)
                        for row, (texts, name) in enumerate(rows))  # fmt: skip
    examples.report.examples = len(names)
    return examples


def _example(row: int, texts: Sequence[str], pretokenized: bool, label: str) -> Example:
    stripped = tuple(text.strip() for text in texts)
    if not all(stripped):
        raise ValueError(f"the text of row {row} is empty; remove the row")
    if pretokenized:
        stripped = tuple(" ".join(map(undo_ptb_escapes, text.split())) for text in stripped)
    return Example(stripped, label, (None,) * len(stripped))


def _tags(label: Any, row: int, separator: str) -> str:
    """Return the tags of a string, or of a list, tuple, set or array, joined by the separator."""
    value = label.tolist() if hasattr(label, "tolist") else label
    value = sorted(value) if isinstance(value, set | frozenset) else value
    try:
        return checked_tags(list(value) if isinstance(value, tuple) else value, None, separator)
    except MismatchError as error:
        raise ValueError(f"the label of row {row}: {error}") from error


def _label(label: Any, row: int) -> str:
    """Return a label as text, as it would stand in a table."""
    # the scalars of NumPy and of torch have a Python value
    value = label.item() if hasattr(label, "item") else label
    if is_missing(value):
        raise ValueError(f"the label of row {row} is missing ({shown(label)}); remove the row")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        # data frames turn whole numbers into floats if any of them is missing
        value = int(value)
    if not isinstance(value, str | int | float):
        raise TypeError(
            f"the label of row {row} must be a string or a number, got {shown(label)} "
            f"({type(label).__name__})"
        )
    text = str(value).strip()
    if not text:
        raise ValueError(f"the label of row {row} is empty; remove the row")
    return text
