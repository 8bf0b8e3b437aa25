"""Where the words and nodes of trees stand in a picture."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from gumbeltree.analysis.figure.marks import clean, joined, number, percent, text_width
from gumbeltree.analysis.trace import Trace

ROW = 1080.0
"""Width that a picture should stay within; words are turned, then it grows."""
MARGIN = 20.0
GAP = 36.0
"""Between panels."""
HEADER = 62.0
"""Height of a panel's title and legend, with the space below."""
LEGEND = 112.0
"""Width of a panel's legend."""
LONGEST_WORD, LONGEST_NAME = 24, 48
"""Characters of a word and of a model's name that are shown."""


@dataclass(frozen=True)
class Style:
    """How large things are; the same for all panels of a picture.

    Attributes:
        word_size: font size of the words.
        turn: degrees by which words are turned, 0 for upright ones.
        least: narrowest column of a word.
        pad: added to the width of a word for its column.
        radius: of the circles.
        score_size: font size of the scores.
    """

    word_size: float
    turn: float
    least: float
    pad: float
    radius: float
    score_size: float

    def column(self, word: str) -> float:
        """Return the width of a word's column."""
        if self.turn:
            return self.least
        return max(self.least, text_width(word, self.word_size) + self.pad)

    def number_size(self, number: str) -> float:
        """Return the font size of a number in its circle."""
        return self.radius * (1.1 if len(number) < 3 else 0.8)


@dataclass(frozen=True)
class Panel:
    """The places of one tree.

    Attributes:
        name: of the model.
        trace: what is drawn.
        style: sizes.
        x: left edge.
        y: upper edge.
        width: from edge to edge.
        height: likewise.
        base: height of the line on which the words hang.
        level: distance of two levels of nodes.
        bottom: lower end of the words.
        words: as they are shown.
        columns: width of each word's column.
        places: x and y of each node of the trace.
        heights: levels of each node above the words.
        scores: x and y of the middle of each merge's score at its base line, None where it would
            run into something.
    """

    name: str
    trace: Trace
    style: Style
    x: float
    y: float
    width: float
    height: float
    base: float
    level: float
    bottom: float
    words: tuple[str, ...]
    columns: tuple[float, ...]
    places: tuple[tuple[float, float], ...]
    heights: tuple[int, ...]
    scores: tuple[tuple[float, float] | None, ...]

    def above(self, left: int, right: int) -> tuple[float, float]:
        """Return where the parent of two nodes stands or would stand."""
        middle = (self.places[left][0] + self.places[right][0]) / 2
        return middle, self.base - self.level * (1 + max(self.heights[left], self.heights[right]))


@dataclass(frozen=True)
class FigureLayout:
    """The places of all panels of a picture, and its size."""

    width: float
    height: float
    panels: tuple[Panel, ...]


def lay_out(
    traces: Sequence[tuple[str, Trace]],
    *,
    turn: float = 60,
    below: float = 0,
    least_width: float = 0,
) -> FigureLayout:
    """Return where everything stands.

    Panels stand side by side where they fit into `ROW`, as in the paper's Figure 4: the eye then
    compares shapes, and short sentences do not leave most of the page empty. Otherwise they stand
    one below the other, a word at the same x in all of them, so that it can be followed down the
    page.

    Args:
        traces: the name of a model and what it did, one a panel.
        turn: degrees by which words are turned if there are too many to stand upright.
        below: height that each panel keeps free below its words.
        least_width: of a panel.
    """
    words = [tuple(map(_shown, trace.tree.words)) for _, trace in traces]
    style = _style(words, turn)
    columns = [tuple(map(style.column, row)) for row in words]
    insides = [_inside(row, slots, style) for row, slots in zip(words, columns, strict=True)]
    widths = [
        max(inside, _header_width(name, trace), least_width)
        for inside, (name, trace) in zip(insides, traces, strict=True)
    ]
    beside = sum(widths) + GAP * (len(traces) - 1) <= ROW
    depth = max(trace.tree.depth for _, trace in traces)
    level = max(2 * style.radius + 5, min(46, 440 / max(depth, 1)))
    bottom = max(_word_height(row, style) for row in words)
    panels: list[Panel] = []
    x = y = MARGIN
    for i, (name, trace) in enumerate(traces):
        # side by side all trees stand on one line; one below the other none is taller than needed
        levels = depth if beside else trace.tree.depth
        base = y + HEADER + level * levels + (style.radius if levels else 0)
        # one below the other all begin at one x
        width, inside = (widths[i], insides[i]) if beside else (max(widths), max(insides))
        height = base - y + bottom + below
        panels.append(
            _panel(
                *(name, trace, style, x, y, width, height, base, level, base + bottom),
                *(words[i], columns[i], x + (width - inside) / 2),
            )
        )
        if beside:
            x += width + GAP
        else:
            y += height + GAP
    return FigureLayout(
        max(panel.x + panel.width for panel in panels) + MARGIN,
        max(panel.y + panel.height for panel in panels) + MARGIN,
        tuple(panels),
    )


def verdict(trace: Trace) -> str:
    """Return the class of the sentence and its probability, empty for models of pairs."""
    classes = trace.nodes[-1].classes
    if classes is None:
        return ""
    label = max(classes, key=lambda name: classes[name])
    shown = f"{clean(label)} {percent(classes[label])}"
    # with attention the sentence's vector is not the root's
    if not np.allclose(trace.vector, trace.states[-1], rtol=1e-4, atol=1e-6):
        return f"root alone: {shown}"
    return shown


def remarks(trace: Trace) -> str:
    """Return what is to be said of a tree: the class, and how it came about."""
    return joined(
        [
            verdict(trace),
            "" if trace.trees == "learned" else f"fixed tree ({trace.trees}), no scores",
            "sampled" if trace.sampled else "",
            "end of the text left out" if trace.cut else "",
        ]
    )


def subtitle(trace: Trace) -> str:
    """Return what stands below the name of the model."""
    unknown = "italic: unknown to the model" if any(trace.unknown) else ""
    return joined([remarks(trace), unknown])


def score_range(trace: Trace) -> tuple[float, float]:
    """Return the lowest and the highest score of the merges; of one word there is none."""
    scores = [node.score for node in trace.nodes if node.score is not None]
    return min(scores), max(scores)


def shown_name(name: str) -> str:
    """Return the end of a name, since names of folders differ there."""
    name = clean(name)
    return name if len(name) <= LONGEST_NAME else "\u2026" + name[1 - LONGEST_NAME :]


def _shown(word: str) -> str:
    word = clean(word)
    return word if len(word) <= LONGEST_WORD else word[: LONGEST_WORD - 1] + "\u2026"


def _style(words: Sequence[tuple[str, ...]], turn: float) -> Style:
    """Return the largest style in which the longest sentence fits."""
    for style in (Style(15, 0, 46, 16, 10, 11), Style(13, 0, 36, 10, 9, 10)):
        if max(sum(map(style.column, row)) for row in words) <= ROW:
            return style
    # below 18 pixels the lines of turned words would touch
    slot = max(18.0, min(34.0, ROW / max(map(len, words))))
    return Style(13, turn, slot, 0, 9, 10) if slot >= 22 else Style(12, turn, slot, 0, 7.5, 8.5)


def _inside(words: tuple[str, ...], columns: tuple[float, ...], style: Style) -> float:
    """Return the width of a tree with its words."""
    if not style.turn:
        return sum(columns)
    lean = math.cos(math.radians(style.turn))
    ends = accumulate(columns)
    return max(
        end + max(0.0, text_width(word, style.word_size) * lean - column / 2)
        for word, column, end in zip(words, columns, ends, strict=True)
    )


def _word_height(words: tuple[str, ...], style: Style) -> float:
    """Return how far words reach below the base line."""
    if not style.turn:
        return 8 + style.word_size * 1.2
    longest = max(text_width(word, style.word_size) for word in words)
    return 8 + longest * math.sin(math.radians(style.turn)) + style.word_size / 2


def _header_width(name: str, trace: Trace) -> float:
    """Return the width of a panel's name, remarks and legend."""
    text = max(text_width(shown_name(name), 15) * 1.1, text_width(subtitle(trace), 12))
    return text + (24 + LEGEND if trace.scored else 0)


def _panel(
    name: str,
    trace: Trace,
    style: Style,
    x: float,
    y: float,
    width: float,
    height: float,
    base: float,
    level: float,
    bottom: float,
    words: tuple[str, ...],
    columns: tuple[float, ...],
    start: float,
) -> Panel:
    """Place the nodes of one tree."""
    places: list[tuple[float, float]] = []
    heights: list[int] = []
    ends = list(accumulate(columns))
    for node in trace.nodes:
        if node.children is None:
            i = node.span[0]
            heights.append(0)
            places.append((start + ends[i] - columns[i] / 2, base))
        else:
            left, right = node.children
            heights.append(1 + max(heights[left], heights[right]))
            middle = (places[left][0] + places[right][0]) / 2
            places.append((middle, base - level * heights[-1]))
    scores = _score_places(trace, style, places)
    return Panel(
        *(name, trace, style, x, y, width, height, base, level, bottom, words, columns),
        *(tuple(places), tuple(heights), scores),
    )


def _score_places(
    trace: Trace, style: Style, places: Sequence[tuple[float, float]]
) -> tuple[tuple[float, float] | None, ...]:
    """Return where scores can stand, under their arches, without touching anything."""
    if not trace.scored:
        return (None,) * len(trace.layers)
    size, radius = style.score_size, style.radius
    # left, top, right, bottom of what is in the way; words are below all scores
    taken: list[tuple[float, float, float, float]] = []
    for node, (x, y) in zip(trace.nodes, places, strict=True):
        if node.children is not None:
            (left, left_y), (right, right_y) = (places[child] for child in node.children)
            taken.append((x - radius, y - radius, x + radius, y + radius))
            taken += [(left, y, right, y), (left, y, left, left_y), (right, y, right, right_y)]
    obstacles = np.array(taken).reshape(-1, 4)
    found: list[tuple[float, float] | None] = []
    for node, (x, y) in zip(trace.nodes, places, strict=True):
        if node.score is None:
            continue
        place = (x, y + radius + 2 + size * 0.8)
        box = _around(place, text_width(number(node.score), size) / 2, size)
        apart = (
            (obstacles[:, 0] >= box[2])
            | (obstacles[:, 2] <= box[0])
            | (obstacles[:, 1] >= box[3])
            | (obstacles[:, 3] <= box[1])
        )
        found.append(place if apart.all() else None)
        if apart.all():
            obstacles = np.vstack([obstacles, box])
    return tuple(found)


def _around(
    place: tuple[float, float], half: float, size: float
) -> tuple[float, float, float, float]:
    """Return left, top, right and bottom of a score, with a pixel around it."""
    x, y = place
    return x - half - 1, y - size * 0.8 - 1, x + half + 1, y + 1
