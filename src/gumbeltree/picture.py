"""Pictures of trees: layout, marks and SVG, shared by `Tree.svg`, figures and films.

Lengths are SVG pixels; x grows to the right and y downwards.
"""

import dataclasses
import math
import textwrap
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby
from typing import Literal, NamedTuple, TypeAlias
from xml.etree.ElementTree import Element, SubElement, tostring
from xml.sax.saxutils import escape

from gumbeltree.drawing import Drawn, clean

Place: TypeAlias = tuple[float, int]
"""The x of a node and its number of levels above the words."""

ROW = 1080.0
"""The maximum width for horizontal words and for trees placed side by side."""
MARGIN = 20.0
LONGEST_WORD = 24
"""Longer words are clipped."""

INK = {"ink": 1.0, "muted": 0.68, "faint": 0.38}
"""Opacities of the text colour, which is dark on light pages and light on dark ones."""
BLUE = "#0072b2"
DASHED, DOTTED = "4 3", "1.5 3.5"

_FONT = "'Helvetica Neue',Helvetica,Arial,'DejaVu Sans',system-ui,sans-serif"
# `svg:root` matches only a stand-alone file; inside a page the picture takes the page's colours
_STYLE = (
    "svg:root{color:#1f2328}svg:root>.gt-page{fill:#fff}"
    "@media(prefers-color-scheme:dark)"
    "{svg:root{color:#e6edf3}svg:root>.gt-page{fill:#0d1117}}"
)
_REDUCED_MOTION = (
    "@media(prefers-reduced-motion:reduce){.gt-stays{opacity:1!important}.gt-passes{display:none}}"
)
_NARROW = frozenset("iljI.,:;'`|!()[]{}-ftr/\\ \u2019")
_WIDE = frozenset("mwMW@%&#+<>=~\u2212\u2026")


class Mark(NamedTuple):
    """An SVG element and the half-open range of frames that show it; None means all frames."""

    element: Element
    frames: tuple[int, int] | None = None


@dataclass(frozen=True)
class Scene:
    """A picture, or an animation if `seconds` holds the duration of each frame.

    `title` and the longer `description` are text alternatives. Later marks cover earlier ones.
    """

    width: float
    height: float
    title: str
    description: str
    marks: tuple[Mark, ...]
    seconds: tuple[float, ...] = ()


def clip(text: str, length: int) -> str:
    """Shorten a text to at most `length` characters, ending in an ellipsis."""
    return text if len(text) <= length else text[: length - 1].rstrip() + "\u2026"


def wrap(text: str, width: float, size: float, lines: int) -> list[str]:
    """Break a text into at most `lines` lines, the last of which may end in an ellipsis."""
    text = clean(text)
    longest = max(8, int(width * len(text) / text_width(text, size)))
    return textwrap.wrap(
        text, longest, max_lines=lines, placeholder=" \u2026", break_on_hyphens=False
    )


def text_width(text: str, size: float) -> float:
    """Estimate the width of a text in a wide sans-serif font."""
    return size * sum(map(_character_width, text))


def _character_width(character: str) -> float:
    if character in _NARROW:
        return 0.42
    if character in _WIDE or unicodedata.east_asian_width(character) in "WF":
        return 1.0
    return 0.8 if character.isupper() else 0.64


# marks


def path(
    steps: str,
    stroke: str | None = "faint",
    fill: str | None = None,
    width: float = 1.4,
    dashes: str = "",
) -> Element:
    """Make a path from absolute SVG commands among M, L, Q and Z.

    Colours are names in `INK` or `#rrggbb`, here and in the other marks. `dashes` are the lengths
    of a dash and of a gap, such as `DASHED`.
    """
    element = Element("path", d=steps)
    _paint(element, "fill", fill)
    if stroke is not None:
        _paint(element, "stroke", stroke)
        element.set("stroke-width", _short(width))
    if dashes:
        element.set("stroke-dasharray", dashes)
    return element


def rectangle(x: float, y: float, width: float, height: float) -> str:
    """Return the path of a rectangle."""
    left, top, right, bottom = map(_short, (x, y, x + width, y + height))
    return f"M{left} {top}L{right} {top}L{right} {bottom}L{left} {bottom}Z"


def disc(
    x: float, y: float, radius: float, fill: str, title: str = "", rim: str = "muted"
) -> Element:
    """Make a filled circle; `title` is its tooltip. A rim of another colour is thicker."""
    element = Element("circle", cx=_short(x), cy=_short(y), r=_short(radius))
    _paint(element, "fill", fill)
    _paint(element, "stroke", rim)
    if rim != "muted":
        element.set("stroke-width", "2")
    return _titled(element, title)


def label(
    x: float,
    y: float,
    text: str,
    size: float,
    anchor: Literal["start", "middle", "end"] = "middle",
    colour: str = "ink",
    *,
    bold: bool = False,
    italic: bool = False,
    turned: bool = False,
    title: str = "",
) -> Element:
    """Make one line of text whose baseline is at `y`, or at `x` reading down if `turned`."""
    element = Element("text", x=_short(x), y=_short(y))
    element.attrib |= {"font-size": _short(size), "text-anchor": anchor}
    _paint(element, "fill", colour)
    if bold:
        element.set("font-weight", "600")
    if italic:
        element.set("font-style", "italic")
    if turned:
        element.set("transform", f"rotate(90 {_short(x)} {_short(y)})")
    element.text = clean(text)
    return _titled(element, title)


def _paint(element: Element, attribute: str, colour: str | None) -> None:
    if colour in INK:
        element.set(attribute, "currentColor")
        element.set(f"{attribute}-opacity", _short(INK[colour]))
    else:
        element.set(attribute, colour or "none")


def _titled(element: Element, title: str) -> Element:
    if title:
        SubElement(element, "title").text = clean(title)
    return element


def _short(value: float) -> str:
    """Format a length without digits too small to see."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


# SVG


def svg(scene: Scene, timed: Callable[[str, tuple[int, int]], str] | None = None) -> str:
    """Write a scene as a self-contained SVG document.

    Animations use SMIL, because the names of CSS keyframes would clash if a page contains two
    pictures. Viewers without animation, and readers who prefer reduced motion, get the last frame.

    Args:
        scene: What to draw.
        timed: Wraps elements that only some frames show; by default, in an animation.
    """
    timed = timed or (lambda elements, frames: _timed(elements, frames, scene.seconds))
    size = f'width="{math.ceil(scene.width)}" height="{math.ceil(scene.height)}"'
    box = f'viewBox="0 0 {math.ceil(scene.width)} {math.ceil(scene.height)}"'
    body = []
    for frames, group in groupby(scene.marks, key=lambda mark: mark.frames):
        elements = "\n".join(tostring(mark.element, "unicode") for mark in group)
        body.append(elements if frames is None else timed(elements, frames))
    texts = {"title": scene.title, "desc": scene.description}
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size} {box} '
            'style="max-width:100%;height:auto">',
            *(f"<{tag}>{escape(clean(text))}</{tag}>" for tag, text in texts.items() if text),
            f"<style>{_STYLE}{_REDUCED_MOTION if scene.seconds else ''}</style>",
            f'<rect class="gt-page" {size} fill="none"/>',
            f'<g font-family="{_FONT}" stroke-linejoin="round">',
            *body,
            "</g>",
            "</svg>",
        ]
    )


def _timed(elements: str, frames: tuple[int, int], seconds: Sequence[float]) -> str:
    """Wrap elements in a group that fades in and out once per loop."""
    first, end = frames
    stays = end == len(seconds)
    starts = [0.0, *accumulate(seconds)]
    total = starts[-1]
    fade = min(0.2, min(seconds) / 4)
    points = [(0.0, 1)] if first == 0 else [(0.0, 0), (starts[first], 0), (starts[first] + fade, 1)]
    if not stays:
        # fade out before the next frame fades in: overlapping texts are unreadable
        points += [(starts[end] - fade, 1), (starts[end], 0)]
    points.append((total, int(stays)))
    values = ";".join(str(value) for _, value in points)
    times = ";".join(f"{time / total:.5g}" for time, _ in points)
    return (
        f'<g class="gt-{"stays" if stays else "passes"}" opacity="{int(stays)}">'
        f'<animate attributeName="opacity" dur="{_short(total)}s" repeatCount="indefinite" '
        f'values="{values}" keyTimes="{times}"/>\n{elements}</g>'
    )


# layout


@dataclass(frozen=True)
class TreeLayout:
    """Positions of the words and nodes of one tree.

    Each word has its own column, with the widths in `columns`; the first starts at `x`. Words are
    written below y = `base`, downwards if `turned`. `level` is the height of one level of nodes.
    """

    tree: Drawn
    columns: tuple[float, ...]
    turned: bool
    level: float
    x: float = MARGIN
    base: float = MARGIN

    @property
    def width(self) -> float:
        """The width of all columns."""
        return sum(self.columns)

    @property
    def radius(self) -> float:
        """The radius of circles that contain a number."""
        return 8 if self.turned else 10

    @property
    def bottom(self) -> float:
        """The y of the bottom of the words."""
        if not self.turned:
            return self.base + 26
        return self.base + 8 + max(text_width(_shown(word), 12) for word in self.tree.words)

    @cached_property
    def leaves(self) -> list[Place]:
        """The place of each word."""
        ends = accumulate(self.columns, initial=self.x)
        return [(end + column / 2, 0) for end, column in zip(ends, self.columns, strict=False)]

    @cached_property
    def merges(self) -> list[tuple[Place, Place, Place]]:
        """The places of left child, right child and parent of each merge, in merge order."""
        return list(self.tree.merges(self.leaves, parent))

    def point(self, place: Place) -> tuple[float, float]:
        """Return the x and y of a node."""
        return place[0], self.base - self.level * place[1]

    def bracket(self, left: Place, right: Place) -> str:
        """Return the path from a left child up to its parent and down to the right child."""
        (x1, y1), (x2, y2) = self.point(left), self.point(right)
        y = self.point(parent(left, right))[1]
        bend = min(6.0, (x2 - x1) / 4)
        left_x, right_x, inner_left, inner_right = map(_short, (x1, x2, x1 + bend, x2 - bend))
        top, below = _short(y), _short(y + bend)
        return (
            f"M{left_x} {_short(y1)}L{left_x} {below}Q{left_x} {top} {inner_left} {top}"
            f"L{inner_right} {top}Q{right_x} {top} {right_x} {below}L{right_x} {_short(y2)}"
        )

    def words(self, unknown: Sequence[bool] = ()) -> Iterator[Element]:
        """Yield the words, with out-of-vocabulary words in italics."""
        for i, (word, (x, _)) in enumerate(zip(self.tree.words, self.leaves, strict=True)):
            italic = any(unknown[i : i + 1])
            title = f"{word} (unknown to the model)" if italic else word
            yield label(
                x - 4 if self.turned else x,
                self.base + (6 if self.turned else 21),
                _shown(word),
                12 if self.turned else 15,
                "start" if self.turned else "middle",
                italic=italic,
                turned=self.turned,
                title=title if title != _shown(word) else "",
            )


def lay_out(trees: Sequence[Drawn]) -> list[TreeLayout]:
    """Lay out trees of one picture, all at the same scale."""
    columns = [
        tuple(max(46.0, text_width(_shown(word), 15) + 16) for word in tree.words) for tree in trees
    ]
    turned = max(map(sum, columns)) > ROW
    if turned:
        column = min(34.0, max(18.0, ROW / max(map(len, trees))))
        columns = [(column,) * len(tree) for tree in trees]
    depth = max(1, *(tree.depth for tree in trees))
    level = max(21.0, min(46.0, 440 / depth))
    return [
        TreeLayout(tree, slots, turned, level) for tree, slots in zip(trees, columns, strict=True)
    ]


def parent(left: Place, right: Place) -> Place:
    """Return the place of the parent of two nodes."""
    return (left[0] + right[0]) / 2, 1 + max(left[1], right[1])


def tree_scene(tree: Drawn) -> Scene:
    """Draw one tree without numbers or scores; see `Tree.svg`."""
    (layout,) = lay_out([tree])
    level = min(30.0, layout.level)
    layout = dataclasses.replace(layout, level=level, base=MARGIN + level * tree.depth)
    merges = layout.merges
    elements = [path(layout.bracket(left, right)) for left, right, _ in merges]
    elements += [disc(*layout.point(node), 4, BLUE) for _, _, node in merges]
    marks = tuple(map(Mark, [*elements, *layout.words()]))
    return Scene(layout.width + 2 * MARGIN, layout.bottom + MARGIN, str(tree), "", marks)


def _shown(word: str) -> str:
    return clip(clean(word), LONGEST_WORD)
