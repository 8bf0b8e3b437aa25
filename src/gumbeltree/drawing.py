"""Drawings of a tree: in the terminal and as SVG."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Any, Protocol, TypeAlias
from xml.sax.saxutils import escape

Place: TypeAlias = tuple[int, int]
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Drawn(Protocol):
    """What a drawing reads of a `Tree`."""

    @property
    def words(self) -> tuple[str, ...]:
        """Its words."""

    @property
    def depth(self) -> int:
        """Merges above its lowest word."""

    @property
    def merges(self) -> Any:
        """See `Tree.merges`."""

    def __len__(self) -> int:
        """Return the number of words."""


def draw(tree: Drawn, width: int) -> str:
    """Draw with box-drawing characters, upright where `width` columns suffice; see `Tree.draw`."""
    fits = sum(map(_columns, tree.words)) + len(tree) - 1 <= width
    return _draw_upright(tree) if fits or len(tree) == 1 else _draw_sideways(tree, width)


def svg(tree: Drawn) -> str:
    """Draw as a self-contained SVG image; see `Tree.svg`."""
    slots = [8 * _columns(word) + 16 for word in tree.words]
    turned = sum(slots) > 960
    longest = max(slots)
    if turned:
        slots = [20] * len(tree)
    centres = [end - slot // 2 for end, slot in zip(accumulate(slots), slots, strict=True)]
    depth = tree.depth
    level = max(10, min(30, 480 // max(depth, 1)))
    base = 12 + level * depth
    width, height = sum(slots), base + (longest if turned else 30)
    edges, nodes = [], []
    for left, right, node in placed(tree, centres, _middle):
        top, left_top, right_top = (base - level * place[1] for place in (node, left, right))
        edges.append(f"M{left[0]} {left_top}V{top}H{right[0]}V{right_top}")
        nodes.append(f'<circle cx="{node[0]}" cy="{top}" r="3"/>')
    texts = []
    for centre, word in zip(centres, tree.words, strict=True):
        y = base + (6 if turned else 18)
        where = f' dy="0.35em" transform="rotate(90 {centre} {y})"' if turned else ""
        texts.append(f'<text x="{centre}" y="{y}"{where}>{_xml(word)}</text>')
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" '
            f'height="{height}" viewBox="0 0 {width} {height}" '
            'style="max-width:100%;height:auto">',
            f"<title>{_xml(str(tree))}</title>",
            # only matches where the image is a document of its own, not part of a page
            "<style>svg:root{color:#767676}</style>",
            f'<path d="{"".join(edges)}" fill="none" stroke="currentColor"/>',
            f'<g fill="#3b82f6">{"".join(nodes)}</g>',
            '<g fill="currentColor" font-family="system-ui, sans-serif" font-size="14" '
            f'text-anchor="{"start" if turned else "middle"}">{"".join(texts)}</g>',
            "</svg>",
        ]
    )


def placed(
    tree: Drawn, places: Iterable[int], above: Callable[[int, int], int]
) -> Iterator[tuple[Place, Place, Place]]:
    """Give the (place, height) pairs of left child, right child and node of every merge."""
    found: Iterator[tuple[Place, Place, Place]] = tree.merges(
        [(place, 0) for place in places],
        lambda left, right: (above(left[0], right[0]), 1 + max(left[1], right[1])),
    )
    return found


def _draw_upright(tree: Drawn) -> str:
    columns = [_columns(word) for word in tree.words]
    ends = accumulate(size + 1 for size in columns)
    centres = [end - 2 - size // 2 for end, size in zip(ends, columns, strict=True)]
    levels: list[list[tuple[int, int, int]]] = [[] for _ in range(tree.depth)]
    for left, right, (middle, height) in placed(tree, centres, _middle):
        levels[-height].append((left[0], middle, right[0]))
    stems = [" "] * (sum(columns) + len(tree))
    lines = []
    for level in levels:
        line = stems.copy()
        for left_place, middle, right_place in level:
            arms = "─" * (middle - left_place - 1), "─" * (right_place - middle - 1)
            line[left_place : right_place + 1] = f"┌{arms[0]}┴{arms[1]}┐"
            stems[middle] = " "
            stems[left_place] = stems[right_place] = "│"
        lines.append("".join(line).rstrip())
    return "\n".join([*lines, " ".join(tree.words)])


def _draw_sideways(tree: Drawn, width: int) -> str:
    depth = tree.depth
    room = max(1, width - max(map(_columns, tree.words)) - 1)
    step = 2 if 2 * depth <= room else 1
    size = step * (depth - 1) + 2
    cut = size - room + 1 if size > room else 0
    # a node stands on the line of its first word, and its corner on the first line of its
    # right child, so that every line but the first has one corner
    corners = [0] * len(tree)
    branches: list[list[int]] = [[] for _ in tree.words]
    for _, (split, _), (start, height) in placed(tree, range(len(tree)), min):
        corners[split] = step * (depth - height)
        branches[start].append(step * (depth - height))
    stems = [" "] * size
    lines = []
    for word, corner, starts in zip(tree.words, corners, branches, strict=True):
        line = [*stems[:corner], "└", *("─" * (size - corner - 1))]
        stems[corner] = " "
        for column in starts:
            line[column] = "┬"
            stems[column] = "│"
        if cut:
            line[:cut] = "…" if "".join(line[:cut]).strip() else " "
        lines.append(f"{''.join(line)} {word}")
    return "\n".join(lines)


def _columns(word: str) -> int:
    """Count the terminal columns of a word, roughly."""
    columns = 0
    for character in word:
        if unicodedata.category(character) not in ("Mn", "Me", "Cf"):
            columns += 2 if unicodedata.east_asian_width(character) in "WF" else 1
    return max(columns, 1)


def _middle(left: int, right: int) -> int:
    return (left + right) // 2


def _xml(text: str) -> str:
    """Escape text for XML; characters XML cannot hold become U+FFFD."""
    return escape(_NOT_XML.sub("\ufffd", text))
