"""How `parse` writes trees."""

import itertools
import json
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from gumbeltree.atomic import replace_file

if TYPE_CHECKING:
    from gumbeltree.text.lines import Line
    from gumbeltree.tree import Tree

Parsed: TypeAlias = "list[tuple[Line, Tree]]"


class Format(StrEnum):
    """How a tree is written."""

    brackets = "brackets"
    draw = "draw"
    json = "json"
    svg = "svg"


def written(chunks: Iterable[Parsed], form: Format) -> Iterator[list[str]]:
    """Give what to print for each chunk of trees."""
    drawn = 0
    for chunk in chunks:
        if form == Format.draw:
            # an empty line between drawings
            yield [
                ("\n" if drawn + place else "") + tree.draw()
                for place, (_, tree) in enumerate(chunk)
            ]
            drawn += len(chunk)
        elif form == Format.json:
            yield [_json(line, tree) for line, tree in chunk]
        else:
            yield [tree.svg() if form == Format.svg else str(tree) for _, tree in chunk]


def _json(line: "Line", tree: "Tree") -> str:
    about = {
        "text": line.texts[0],
        "words": tree.words,
        "order": tree.order,
        "spans": tree.spans,
        "brackets": str(tree),
    }
    return json.dumps(about, ensure_ascii=False)


def only_one(chunks: Iterable[list["Line"]]) -> Iterator[list["Line"]]:
    """Give one text, and refuse more: an SVG document holds one tree."""
    taken: list[Line] = []
    for chunk in chunks:
        taken += chunk
        if len(taken) > 1:
            raise ValueError(
                "one SVG document holds one tree, got several texts; pass --out FOLDER for a file "
                "for each (0001.svg, ...)"
            )
    if taken:
        yield taken


def write_images(folder: Path, chunks: Iterable[Parsed]) -> None:
    """Write one SVG file a tree, named by the number of its line."""
    # the first chunk is read before there is a folder: a mistake in it leaves none behind
    for chunk in itertools.chain(chunks, [[]]):
        folder.mkdir(parents=True, exist_ok=True)
        for line, tree in chunk:
            replace_file(folder / f"{line.number:04d}.svg", _Picture(tree))


class _Picture:
    """Writes the picture of a tree to a file."""

    def __init__(self, tree: "Tree") -> None:
        self.text = tree.svg() + "\n"

    def __call__(self, path: Path) -> None:
        path.write_text(self.text, encoding="utf-8")
