"""Drawings of what models did with a sentence, as SVG and PNG."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gumbeltree.analysis.figure.layout import (
    LEGEND,
    Panel,
    lay_out,
    remarks,
    score_range,
    shown_name,
    subtitle,
)
from gumbeltree.analysis.figure.marks import (
    GREY,
    Disc,
    Label,
    Mark,
    PathMark,
    Scene,
    Step,
    box,
    clean,
    joined,
    number,
    percent,
    ramp,
    readable_on,
)
from gumbeltree.analysis.figure.png import save_png
from gumbeltree.analysis.figure.svg import svg
from gumbeltree.analysis.trace import Trace
from gumbeltree.atomic import replace_file
from gumbeltree.plots import pyplot

SUFFIXES = (".svg", ".png")
_SWATCHES = 48


@dataclass(frozen=True)
class Figure:
    """One tree, or several for comparison; a notebook shows it as it is.

    Attributes:
        scene: the marks that make it up.
    """

    scene: Scene

    def svg(self) -> str:
        """Return the figure as an SVG document."""
        return svg(self.scene)

    _repr_svg_ = svg

    def save(self, path: str | Path) -> None:
        """Write the figure to a file, whole or not at all.

        Args:
            path: ends in .svg, or in .png, for which matplotlib is needed.
        """
        path = Path(path)
        suffix = check_suffix(path, SUFFIXES)
        if suffix == ".png":
            replace_file(path, lambda temporary: save_png(self.scene, temporary))
        else:
            text = self.svg() + "\n"
            replace_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def draw_trees(traces: Sequence[tuple[str, Trace]]) -> Figure:
    """Draw one tree, or several for comparison.

    The number in a circle says which merge it was, the figure at it and its colour how high its
    validity score was. Scores of two models cannot be compared, so that each has its own scale.
    Those of fixed trees, which decide nothing, are not shown.
    Figures that would run into something are left out; they are shown when the mouse rests on the
    circle. Edges are upright and level, since slanted ones can cross other nodes.

    Args:
        traces: the name of a model, or another title, and what `trace` returned; one or more.
    """
    check_traces(traces)
    layout = lay_out(traces)
    marks: list[Mark] = []
    for panel in layout.panels:
        marks += header(panel)
        for step in range(len(panel.trace.layers)):
            marks.append(edges(panel, step))
        for step in range(len(panel.trace.layers)):
            marks += circle(panel, step)
        marks += words(panel)
    names = ", ".join(name for name, _ in traces)
    return Figure(
        Scene(
            layout.width,
            layout.height,
            f"{names}: {traces[0][1].text}",
            " ".join(described(name, trace) for name, trace in traces),
            tuple(marks),
        )
    )


def check_suffix(path: Path, known: Sequence[str]) -> str:
    """Return the suffix of a file to write, or raise if it cannot be written."""
    suffix = path.suffix.lower()
    if suffix not in known:
        shown = " or ".join(known) if len(known) < 3 else f"{', '.join(known[:-1])} or {known[-1]}"
        raise ValueError(f"{path}: expected a file that ends in {shown}, got {path.name!r}")
    if suffix in (".png", ".gif"):
        # raises where matplotlib is missing
        pyplot()
    return suffix


def check_traces(traces: Sequence[tuple[str, Trace]]) -> None:
    """Raise if there is nothing to draw."""
    if not traces:
        raise ValueError("expected one pair of a name and a trace or more, got none")
    for pair in traces:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], Trace)):
            raise TypeError(
                f"expected pairs of a name and a trace, got {type(pair).__name__}; "
                'pass [("name", trace(model, text))]'
            )


def described(name: str, trace: Trace) -> str:
    """Return what a drawing shows, for those who hear it."""
    about = joined([clean(name), remarks(trace), str(trace.tree)])
    if not trace.scored:
        return about
    scores = [number(node.score) for node in trace.nodes if node.score is not None]
    return f"{about}. Scores of the merges, in order: {', '.join(scores)}."


def header(panel: Panel) -> Iterator[Mark]:
    """Give the name of the model, what is to be said of its tree, and the scale of its colours."""
    x, y = panel.x, panel.y
    name = shown_name(panel.name)
    whole = "" if name == panel.name else panel.name
    yield Label(x, y + 15, name, 15, "start", bold=True, title=whole)
    text = subtitle(panel.trace)
    if text:
        yield Label(x, y + 34, text, 12, "start", "muted")
    if not panel.trace.scored:
        return
    low, high = score_range(panel.trace)
    right = panel.x + panel.width
    left = right - LEGEND
    yield Label(right, y + 9, "validity score", 10, "end", "muted")
    if low == high:
        yield PathMark(box(right - 12, y + 14, 12, 8), "muted", ramp(1), 0.8)
        yield Label(right, y + 33, number(low), 10, "end", "muted")
        return
    size = LEGEND / _SWATCHES
    for i in range(_SWATCHES):
        # each reaches to the end and the next covers it, so that no seam shows
        place = box(left + i * size, y + 14, LEGEND - i * size, 8)
        yield PathMark(place, None, ramp(i / (_SWATCHES - 1)))
    yield Label(left, y + 33, number(low), 10, "start", "muted")
    yield Label(right, y + 33, number(high), 10, "end", "muted")


def bracket(
    left: tuple[float, float], top: tuple[float, float], right: tuple[float, float]
) -> tuple[Step, ...]:
    """Return a path from a left child up, across and down to the right child."""
    y = top[1]
    bend = max(0.0, min(6.0, (right[0] - left[0]) / 4, left[1] - y, right[1] - y))
    return (
        ("M", left),
        ("L", (left[0], y + bend)),
        ("Q", (left[0], y, left[0] + bend, y)),
        ("L", (right[0] - bend, y)),
        ("Q", (right[0], y, right[0], y + bend)),
        ("L", right),
    )


def edges(panel: Panel, step: int) -> PathMark:
    """Return the lines of a merge to its children."""
    merge = len(panel.trace.tree) + step
    left, right = panel.trace.nodes[merge].children or (0, 0)
    return PathMark(bracket(panel.places[left], panel.places[merge], panel.places[right]))


def circle(panel: Panel, step: int) -> Iterator[Mark]:
    """Give the circle of a merge with its number and its score."""
    trace, style = panel.trace, panel.style
    merge = len(trace.tree) + step
    node = trace.nodes[merge]
    score = node.score or 0.0
    low, high = score_range(trace)
    colour = ramp((score - low) / (high - low) if high > low else 1) if trace.scored else GREY
    x, y = panel.places[merge]
    about = told(trace, merge)
    yield Disc(x, y, style.radius, colour, about)
    shown = str(step + 1)
    size = style.number_size(shown)
    yield Label(x, y + 0.36 * size, shown, size, colour=readable_on(colour), bold=True, title=about)
    place = panel.scores[step]
    if place is not None:
        yield Label(*place, number(score), style.score_size, colour="muted")


def told(trace: Trace, merge: int) -> str:
    """Return all that is known of a merge, in a line."""
    node = trace.nodes[merge]
    start, end = node.span
    step = node.step or 0
    parts = [f"merge {step + 1}: {' '.join(trace.tree.words[start:end])}"]
    if trace.scored and node.score is not None and node.probability is not None:
        count = len(trace.layers[step].scores)
        parts.append(f"score {number(node.score)}")
        parts.append(f"{percent(node.probability)} of {count} candidate{'s'[: count > 1]}")
    if node.classes is not None:
        label = max(node.classes, key=lambda name: (node.classes or {})[name])
        parts.append(f"{label} {percent(node.classes[label])}")
    return joined(parts)


def words(panel: Panel) -> Iterator[Mark]:
    """Give the words, unknown ones slanted."""
    style, trace = panel.style, panel.trace
    size, turn = style.word_size, math.radians(style.turn)
    for i, word in enumerate(panel.words):
        x, y = panel.places[i]
        unknown = trace.unknown[i]
        title = clean(trace.tree.words[i]) + (" (unknown to the model)" if unknown else "")
        title = title if unknown or word != trace.tree.words[i] else ""
        if style.turn:
            # the middle of the letters, not their base line, runs through the foot of the edge
            place = (x - 0.34 * size * math.sin(turn), y + 7 + 0.34 * size * math.cos(turn))
            yield Label(*place, word, size, "start", italic=unknown, turn=style.turn, title=title)
        else:
            yield Label(x, y + 6 + size, word, size, italic=unknown, title=title)
