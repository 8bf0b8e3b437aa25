"""Draw a tree in the terminal, with box-drawing characters."""

import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Protocol, TypeAlias

Place: TypeAlias = tuple[int, int]

# fillers are letters without a shape; the other exceptions are visible or belong to emoji flags
_FILLERS = frozenset("\u115f\u1160\u3164\uffa0")
_VISIBLE = frozenset("\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2")
_FLAG = re.compile("\U0001f3f4[\U000e0020-\U000e007e]+\U000e007f")


class Drawn(Protocol):
    """The part of `Tree` that drawings use; importing `Tree` would be circular."""

    @property
    def words(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def depth(self) -> int: ...  # noqa: D102
    @property
    def merges(self) -> Any: ...  # noqa: D102
    def __len__(self) -> int: ...


def draw(tree: Drawn, width: int, marked: Collection[int] = ()) -> str:
    """Draw a tree upright if it fits in `width` columns, otherwise sideways; see `Tree.draw`."""
    words = tuple(map(clean, tree.words))
    fits = sum(map(_columns, words)) + len(words) - 1 <= width
    if fits or len(words) == 1:
        return _draw_upright(tree, words, marked)
    return _draw_sideways(tree, words, width, marked)


def whole_width(tree: Drawn) -> int:
    """Return the width at which `draw` leaves out no level of a tree."""
    return 2 * tree.depth + max(_columns(clean(word)) for word in tree.words) + 1


def clean(text: str) -> str:
    """Show characters that are invisible, or control a terminal, as marks: ␇ or <U+202E>."""
    if text.isprintable() and _FILLERS.isdisjoint(text):
        return text
    kept = {i for flag in _FLAG.finditer(text) for i in range(*flag.span())}
    return "".join(
        _mark(one) if _is_hidden(one) and i not in kept and not _joins(text, i) else one
        for i, one in enumerate(text)
    )


def _is_hidden(character: str) -> bool:
    code = ord(character)
    return (
        unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
        and character not in _VISIBLE
    ) or (character in _FILLERS or code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF)


def _joins(text: str, i: int) -> bool:
    """Whether a zero-width joiner or non-joiner is between two letters or symbols."""
    if text[i] not in "\u200c\u200d" or not 0 < i < len(text) - 1:
        return False
    before, after = (unicodedata.category(text[j])[0] for j in (i - 1, i + 1))
    return before in "LMS" and after in "LS"


def _mark(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"<U+{code:04X}>"


def _placed(
    tree: Drawn, places: Iterable[int], above: Callable[[int, int], int]
) -> Iterator[tuple[Place, Place, Place]]:
    """Yield the (position, height) pairs of left child, right child and parent of every merge."""
    yield from tree.merges(
        [(place, 0) for place in places],
        lambda left, right: (above(left[0], right[0]), 1 + max(left[1], right[1])),
    )


def _draw_upright(tree: Drawn, words: Sequence[str], marked: Collection[int]) -> str:
    columns = [_columns(word) for word in words]
    ends = accumulate(size + 1 for size in columns)
    centres = [end - 2 - size // 2 for end, size in zip(ends, columns, strict=True)]
    levels: list[list[tuple[int, int, int, str]]] = [[] for _ in range(tree.depth)]
    for step, (left, right, (middle, height)) in enumerate(_placed(tree, centres, _middle)):
        levels[-height].append((left[0], middle, right[0], "≈" if step in marked else "┴"))
    stems = [" "] * (sum(columns) + len(tree))
    lines = []
    for level in levels:
        line = stems.copy()
        for left_place, middle, right_place, top in level:
            arms = "─" * (middle - left_place - 1), "─" * (right_place - middle - 1)
            line[left_place : right_place + 1] = f"┌{arms[0]}{top}{arms[1]}┐"
            stems[middle] = " "
            stems[left_place] = stems[right_place] = "│"
        lines.append("".join(line).rstrip())
    return "\n".join([*lines, " ".join(words)])


def _draw_sideways(tree: Drawn, words: Sequence[str], width: int, marked: Collection[int]) -> str:
    depth = tree.depth
    room = max(1, width - max(map(_columns, words)) - 1)
    step = 2 if 2 * depth <= room else 1
    size = step * (depth - 1) + 2
    cut = size - room + 1 if size > room else 0
    # a node is drawn on the line of its first word, and its corner on the first line of its right
    # child, so every line except the first has one corner
    corners = [0] * len(tree)
    branches: list[list[tuple[int, str]]] = [[] for _ in words]
    for merge, (_, (split, _), (start, height)) in enumerate(_placed(tree, range(len(tree)), min)):
        corners[split] = step * (depth - height)
        branches[start].append((step * (depth - height), "≈" if merge in marked else "┬"))
    stems = [" "] * size
    lines = []
    for word, corner, starts in zip(words, corners, branches, strict=True):
        line = [*stems[:corner], "└", *("─" * (size - corner - 1))]
        stems[corner] = " "
        for column, branch in starts:
            line[column] = branch
            stems[column] = "│"
        if cut:
            line[:cut] = "…" if "".join(line[:cut]).strip() else " "
        lines.append(f"{''.join(line)} {word}")
    return "\n".join(lines)


def _columns(word: str) -> int:
    """Estimate the number of terminal columns of a word."""
    columns = 0
    for character in word:
        if unicodedata.category(character) not in ("Mn", "Me", "Cf"):
            columns += 2 if unicodedata.east_asian_width(character) in "WF" else 1
    return max(columns, 1)


def _middle(left: int, right: int) -> int:
    return (left + right) // 2
