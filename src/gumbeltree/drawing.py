"""Draw a tree in the terminal, with box-drawing characters."""

import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import accumulate
from typing import Any, Protocol, TypeAlias

Place: TypeAlias = tuple[int, int]


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
    fits = sum(map(_columns, tree.words)) + len(tree) - 1 <= width
    if fits or len(tree) == 1:
        return _draw_upright(tree, marked)
    return _draw_sideways(tree, width, marked)


def _placed(
    tree: Drawn, places: Iterable[int], above: Callable[[int, int], int]
) -> Iterator[tuple[Place, Place, Place]]:
    """Yield the (position, height) pairs of left child, right child and parent of every merge."""
    yield from tree.merges(
        [(place, 0) for place in places],
        lambda left, right: (above(left[0], right[0]), 1 + max(left[1], right[1])),
    )


def _draw_upright(tree: Drawn, marked: Collection[int]) -> str:
    columns = [_columns(word) for word in tree.words]
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
    return "\n".join([*lines, " ".join(tree.words)])


def _draw_sideways(tree: Drawn, width: int, marked: Collection[int]) -> str:
    depth = tree.depth
    room = max(1, width - max(map(_columns, tree.words)) - 1)
    step = 2 if 2 * depth <= room else 1
    size = step * (depth - 1) + 2
    cut = size - room + 1 if size > room else 0
    # a node is drawn on the line of its first word, and its corner on the first line of its right
    # child, so every line except the first has one corner
    corners = [0] * len(tree)
    branches: list[list[tuple[int, str]]] = [[] for _ in tree.words]
    for merge, (_, (split, _), (start, height)) in enumerate(_placed(tree, range(len(tree)), min)):
        corners[split] = step * (depth - height)
        branches[start].append((step * (depth - height), "≈" if merge in marked else "┬"))
    stems = [" "] * size
    lines = []
    for word, corner, starts in zip(tree.words, corners, branches, strict=True):
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
