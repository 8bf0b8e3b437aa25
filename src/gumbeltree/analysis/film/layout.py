"""Where everything stands in a film, and when it is there."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gumbeltree.analysis import figure
from gumbeltree.analysis.figure.layout import Panel, lay_out
from gumbeltree.analysis.figure.marks import (
    ORANGE,
    VERMILLION,
    Label,
    Mark,
    PathMark,
    Scene,
    Step,
    box,
    percent,
    shortened,
    text_width,
)
from gumbeltree.analysis.trace import Layer, Trace

SPANS = 16.0
"""Room below the words for the lines below the nodes that are there."""
BARS = 62.0
"""Height of the highest bar."""
CAPTION = 64.0
"""Room for the three lines below the bars."""
BELOW = SPANS + 18 + BARS + CAPTION
LEAST_WIDTH = 330.0
CHOICE, RUNNER_UP = VERMILLION, ORANGE
"""The choice is filled, the runner-up hollow: nobody needs the colours."""

During: TypeAlias = tuple[int, int]
"""The first picture that shows something and the one after the last."""


@dataclass(frozen=True)
class Reel:
    """A film.

    Attributes:
        scene: its size and texts, and what all pictures show.
        timed: what some pictures show, and which.
        seconds: how long each picture is shown; the last, the finished trees, longest.
    """

    scene: Scene
    timed: tuple[tuple[Mark, During], ...]
    seconds: tuple[float, ...]


def reel(traces: Sequence[tuple[str, Trace]]) -> Reel:
    """Return a film with one picture a layer and one of the finished trees.

    Args:
        traces: as in `draw_film`. If one has fewer merges, it waits at its end for the others.
    """
    # turned words hang straight down: their columns go on to the bars below
    layout = lay_out(traces, turn=90, below=BELOW, least_width=LEAST_WIDTH)
    merges = max(len(trace.layers) for _, trace in traces)
    pictures = merges + 1
    still: list[Mark] = []
    timed: list[tuple[Mark, During]] = []
    for panel in layout.panels:
        still += [*figure.header(panel), *figure.words(panel)]
        timed += _panel(panel, pictures)
    names = ", ".join(name for name, _ in traces)
    # a long sentence must not keep people waiting for minutes
    pause = max(0.7, min(2.4, 60 / max(merges, 1)))
    return Reel(
        Scene(
            layout.width,
            layout.height,
            f"{names}: {traces[0][1].text}",
            "The merges one by one. "
            + " ".join(figure.described(name, trace) for name, trace in traces),
            tuple(still),
        ),
        tuple(timed),
        (*[pause] * merges, 4.0),
    )


def _panel(panel: Panel, pictures: int) -> Iterator[tuple[Mark, During]]:
    """Give what comes and goes in one panel."""
    trace = panel.trace
    words = len(trace.tree)
    present = list(range(words))
    since = [0] * words
    # circles lie on all lines
    circles: list[tuple[Mark, During]] = []
    for step, layer in enumerate(trace.layers):
        now, later = (step, step + 1), (step + 1, pictures)
        for position in (layer.runner_up, layer.choice):
            if position is not None:
                yield _ghost(panel, present, position, position == layer.choice), now
        for mark in _bars(panel, present, layer):
            yield mark, now
        for mark in _caption(panel, present, step):
            yield mark, now
        yield figure.edges(panel, step), later
        circles += [(mark, later) for mark in figure.circle(panel, step)]
        for position in (layer.choice, layer.choice + 1):
            node = present[position]
            yield _span(panel, node), (since[node], step + 1)
        present[layer.choice : layer.choice + 2] = [words + step]
        since.append(step + 1)
    yield _span(panel, present[0]), (len(trace.layers), pictures)
    for row, text in enumerate(("finished", str(trace.tree))):
        yield _line(panel, row, text), (len(trace.layers), pictures)
    yield from circles


def _ghost(panel: Panel, present: Sequence[int], position: int, chosen: bool) -> PathMark:
    """Return the edges that a candidate gets or would have got."""
    left, right = present[position : position + 2]
    path = figure.bracket(panel.places[left], panel.above(left, right), panel.places[right])
    return PathMark(
        path, CHOICE if chosen else RUNNER_UP, width=2.2 if chosen else 1.8, dashed=True
    )


def _span(panel: Panel, node: int) -> PathMark:
    """Return the line below the words of a node."""
    start, end = panel.trace.nodes[node].span
    y = panel.bottom + SPANS / 2
    left, right = (panel.places[i][0] for i in (start, end - 1))
    ends = (
        (left - panel.columns[start] / 2 + 4, y),
        (right + panel.columns[end - 1] / 2 - 4, y),
    )
    return PathMark((("M", ends[0]), ("L", ends[1])), "muted", width=2)


def _bars(panel: Panel, present: Sequence[int], layer: Layer) -> Iterator[Mark]:
    """Give a bar for each candidate, as high as its probability is beside the layer's highest."""
    floor = panel.bottom + BELOW - CAPTION
    middles = [panel.above(*present[i : i + 2])[0] for i in range(len(present) - 1)]
    width = min(26.0, 0.6 * min(panel.columns))
    unit = BARS / max(layer.probabilities)
    others: list[Step] = []
    size = panel.style.score_size
    shown: list[tuple[float, float]] = []
    order = sorted(range(len(middles)), key=lambda i: (i != layer.choice, i != layer.runner_up, i))
    for i in order:
        probability = layer.probabilities[i]
        high = max(1.0, unit * probability)
        path = box(middles[i] - width / 2, floor - high, width, high)
        marked = i in (layer.choice, layer.runner_up)
        if not marked:
            others += path
        elif i == layer.choice:
            yield PathMark(path, CHOICE, CHOICE, 1.6, title=percent(probability))
        else:
            yield PathMark(path, RUNNER_UP, None, 2.2, title=percent(probability))
        text = f"{100 * probability:.0f} %"
        half = text_width(text, size) / 2 + 2
        # the choice and the runner-up come first, others get a figure where there is room
        if all(right <= middles[i] - half or left >= middles[i] + half for left, right in shown):
            shown.append((middles[i] - half, middles[i] + half))
            colour = "ink" if i == layer.choice else "muted"
            y = floor - high - 4
            yield Label(middles[i], y, text, size, colour=colour, bold=i == layer.choice)
    if others:
        yield PathMark(tuple(others), None, "faint")


def _caption(panel: Panel, present: Sequence[int], step: int) -> Iterator[Mark]:
    """Give the three lines below the bars."""
    layer = panel.trace.layers[step]
    count = len(layer.scores)
    several = f"{count} candidates" if count > 1 else "1 candidate"
    yield _line(panel, 0, f"layer {step + 1} of {len(panel.trace.layers)}: {several}")
    names = ("sampled", "best of the others") if panel.trace.sampled else ("chosen", "runner-up")
    positions = (layer.choice, layer.runner_up)
    for row, (name, position) in enumerate(zip(names, positions, strict=True), 1):
        if position is None:
            continue
        y = _row(panel, row)
        chosen = position == layer.choice
        yield PathMark(
            box(panel.x + 1, y - 9, 9, 9),
            CHOICE if chosen else RUNNER_UP,
            CHOICE if chosen else None,
            1.8,
        )
        share = percent(layer.probabilities[position])
        spans = [panel.trace.nodes[node].span for node in present[position : position + 2]]
        both = " + ".join(" ".join(panel.trace.tree.words[start:end]) for start, end in spans)
        yield _line(panel, row, f"{name}, {share}: {both}", 18, "ink" if chosen else "muted")


def _line(panel: Panel, row: int, text: str, indent: float = 0, colour: str = "muted") -> Label:
    """Return a line of text below the bars, as much as fits."""
    text = shortened(text, 12, panel.width - indent)
    return Label(panel.x + indent, _row(panel, row), text, 12, "start", colour)


def _row(panel: Panel, row: int) -> float:
    return panel.bottom + BELOW - CAPTION + 24 + 18 * row
