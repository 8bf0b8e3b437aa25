"""What readers check in a line: texts, labels, columns, trees, objects."""

import json
from typing import Any

from gumbeltree.registry import suggest
from gumbeltree.text.files import MismatchError, shown
from gumbeltree.tree import Tree


def checked_text(text: object, name: str) -> str:
    """Return a text without white space around it, or refuse what is no text.

    Args:
        text: What should be a text.
        name: What the text is called in the file.

    Raises:
        MismatchError: If it is not a str, empty, or not to be written as UTF-8.
    """
    if not isinstance(text, str):
        raise MismatchError(f"text as {name}", shown(text), "write it as a string")
    text = text.strip()
    if not text:
        raise MismatchError(f"text as {name}", "an empty one", "leave out empty sentences")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise MismatchError(
                f"Unicode text as {name}",
                f"half a surrogate pair at character {error.start}",
                "write both halves, or the character itself",
            ) from error
    return text


def checked_label(label: object, labels: tuple[str, ...] | None) -> str:
    """Return a label, or refuse one that is not in `labels`."""
    if labels is None:
        return checked_text(label, "label")
    if not isinstance(label, str) or label not in labels:
        near = suggest(label[:100], list(labels)) if isinstance(label, str) else ""
        known = ", ".join(labels)
        remedy = "correct the label, or leave the line out" + near.replace(" D", "; d", 1)
        raise MismatchError(f"one of the labels {known}", shown(label), remedy)
    return label


def checked_columns(values: list[str], count: int) -> list[str]:
    """Return the values of a line, or refuse a line with more or fewer than `count`."""
    if len(values) != count:
        raise MismatchError(
            f"{count} columns", str(len(values)), "check its separators and the line before"
        )
    return values


def column_of(name: str, header: list[str]) -> int:
    """Return where a header has a column, or refuse a name that is not there once."""
    if header.count(name) != 1:
        known = ", ".join(map(shown, header[:30])) + (", ..." if len(header) > 30 else "")
        came = f"{header.count(name)} times that name" if name in header else f"columns {known}"
        remedy = "name a column of the file." + suggest(name, header[:30])
        raise MismatchError(f"a column {name!r}", came, remedy)
    return header.index(name)


def checked_tree(text: str, name: str) -> Tree:
    """Read a tree in brackets, or refuse a malformed one."""
    try:
        return Tree.from_brackets(text)
    except ValueError as error:
        expected = f"a binary tree such as ( ( a b ) c ) as {name}"
        raise MismatchError(expected, shown(text), f"correct the tree: {error}") from error


def checked_object(line: str) -> dict[str, Any]:
    """Read a line of JSON, or refuse what is not an object."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise MismatchError(
            "a JSON object", f"{shown(line)} ({reason})", "write one object a line"
        ) from error
    if not isinstance(fields, dict):
        raise MismatchError("a JSON object", shown(line), "write one object a line")
    return fields
