"""Validate the fields of a line; invalid fields raise `MismatchError`."""

import json
import math
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


def checked_number(label: object) -> str:
    """Return a label, text or a JSON number, after checking that it is a finite number."""
    text = str(label) if isinstance(label, int | float) and not isinstance(label, bool) else label
    try:
        if isinstance(text, str) and math.isfinite(float(text)):
            return text.strip()
    except ValueError:
        pass
    fix = "correct the label or remove the line, or train a classifier with --target classes"
    if isinstance(text, str) and text.count(",") == 1 and "." not in text:
        fix = f"write it with a decimal point: {text.replace(',', '.')}"
    raise MismatchError("a number as label", shown(label), fix)


def split_tags(label: str, separator: str) -> list[str]:
    """Return the distinct tags in a label such as "plot|music", which may be none.

    Example:
        >>> split_tags("plot | music|plot", "|")
        ['plot', 'music']
    """
    tags = (tag.strip() for tag in label.split(separator))
    return [tag for tag in dict.fromkeys(tags) if tag]


def checked_tags(label: object, tags: tuple[str, ...] | None, separator: str) -> str:
    """Return the tags of a label, joined by the separator; an empty label has none.

    Args:
        label: text with separated tags, or a JSON list of tags.
        tags: the tags that are allowed; None accepts any.
        separator: separates the tags.
    """
    if isinstance(label, str):
        found = split_tags(label, separator)
    elif isinstance(label, list):
        found = [checked_text(str(x) if type(x) is int else x, "tag") for x in label]
        for tag in found:
            if separator in tag:
                raise MismatchError(
                    f"tags without the separator {separator!r}",
                    shown(tag),
                    "choose a separator that no tag contains, with --set head.tag_separator=...",
                )
    else:
        fix = f'write a list such as ["a", "b"] or text such as "a{separator}b"'
        raise MismatchError("tags as label", shown(label), fix)
    for tag in found:
        if tags is None:
            checked_text(tag, "tag")
        else:
            checked_label(tag, tags)
    return separator.join(dict.fromkeys(found))


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
