"""Validate the fields of a line; invalid fields raise `MismatchError`."""

import json
from typing import Any

from gumbeltree.registry import suggest
from gumbeltree.text.files import SKIP, MismatchError, shown
from gumbeltree.tree import Tree


def checked_text(text: object, name: str) -> str:
    """Return a text without surrounding white space.

    Args:
        text: A value from the file.
        name: Name of the field, for messages.

    Raises:
        MismatchError: If the value is not a string, is blank, or cannot be encoded as UTF-8.
    """
    if not isinstance(text, str):
        # pandas writes missing values as None or NaN
        missing = text is None or text != text
        raise MismatchError(
            f"text as {name}", shown(text), SKIP if missing else "write it as a string"
        )
    text = text.strip()
    if not text:
        raise MismatchError(f"text as {name}", "an empty string", SKIP)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            actual = f"an unpaired surrogate at character {error.start}"
            raise MismatchError(f"Unicode text as {name}", actual, "write the pair") from error
    return text


def checked_label(label: object, labels: tuple[str, ...] | None) -> str:
    """Return a label after checking that it is one of `labels`; None accepts any text."""
    if labels is None:
        return checked_text(label, "label")
    if not isinstance(label, str) or label not in labels:
        near = suggest(label[:100], list(labels)) if isinstance(label, str) else ""
        fix = f"correct the label, {SKIP}.{near}"
        raise MismatchError(f"one of the labels {', '.join(labels)}", shown(label), fix)
    return label


def checked_columns(values: list[str], count: int) -> list[str]:
    """Return the values of a line after checking that there are `count`."""
    if len(values) != count:
        raise MismatchError(
            f"{count} columns", str(len(values)), "check the separators here and on the line above"
        )
    return values


def column_of(name: str, header: list[str]) -> int:
    """Return the position of a column, whose name must occur exactly once."""
    if header.count(name) != 1:
        known = ", ".join(map(shown, header[:30])) + (", ..." if len(header) > 30 else "")
        actual = f"{header.count(name)} of them" if name in header else f"columns {known}"
        fix = f"name a column of the file.{suggest(name, header[:30])}"
        raise MismatchError(f"a column {name!r}", actual, fix)
    return header.index(name)


def checked_tree(text: str, name: str) -> Tree:
    """Parse a binary tree in bracket notation."""
    try:
        return Tree.from_brackets(text)
    except ValueError as error:
        expected = f"a binary tree such as ( ( a b ) c ) as {name}"
        raise MismatchError(expected, shown(text), f"correct the tree: {error}") from error


def checked_object(line: str) -> dict[str, Any]:
    """Parse a line that holds one JSON object."""
    try:
        fields = json.loads(line)
        reason = "valid JSON, but not an object"
    except RecursionError:
        fields, reason = None, "nested too deeply"
    except ValueError as error:
        fields, reason = None, str(error)
    if not isinstance(fields, dict):
        actual = f"{shown(line)} ({reason})"
        raise MismatchError("a JSON object", actual, "write one object per line")
    return fields
