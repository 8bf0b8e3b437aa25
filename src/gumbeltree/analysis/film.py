"""Films of the merges, with the candidates of each layer, the choice and the runner-up."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from xml.etree.ElementTree import Element

from gumbeltree.analysis.figure import (
    Figure,
    Panel,
    arrange,
    circle,
    described,
    edges,
    footer,
    header,
    number,
)
from gumbeltree.analysis.trace import Layer, Trace
from gumbeltree.picture import DASHED, Mark, Place, Scene, clip, label, parent, path, rectangle
from gumbeltree.text.files import counted

MOST_WORDS = 120
"""Films of longer sentences would take minutes to render and to watch."""
BARS, CAPTION = 62.0, 64.0
"""The heights of the tallest bar and of the three lines of text below the bars."""
BARS_EXPLAINED = (
    "Bars show the odds of each candidate against the best one, and the numbers above them how far "
    "their scores are from that of the choice."
)
CHOICE, RUNNER_UP = "#d55e00", "#e69f00"
"""Colour is not the only cue: the bar of the choice is filled, that of the runner-up hollow."""


def draw_film(traces: Sequence[tuple[str, Trace]]) -> Figure:
    """Animate how a tree is built, or several at the same time.

    There is one frame per layer, and a final one with the finished trees. The height of a bar
    shows the odds of a candidate against the best of its layer, and the number above it its score
    minus that of the choice.

    Args:
        traces: As in `gumbeltree.analysis.figure.draw_trees`.

    Raises:
        ValueError: If a tree is fixed or has more than 120 words.
    """
    for name, trace in traces:
        if trace.trees != "learned":
            kind = "soft trees" if trace.trees == "soft" else f"fixed trees ({trace.trees})"
            raise ValueError(
                f"{name} builds {kind}, so there are no choices to show; "
                "draw its tree with --out instead"
            )
        if len(trace.tree) > MOST_WORDS:
            raise ValueError(
                f"films are limited to {MOST_WORDS} words and this text has {len(trace.tree)}; "
                "pass a shorter text"
            )
    panels, width, height = arrange(traces, below=34 + BARS + CAPTION)
    below, height = footer(traces, width, height, BARS_EXPLAINED)
    merges = max(len(trace.layers) for _, trace in traces)
    marks = list(map(Mark, below))
    for panel in panels:
        still = [*header(panel), *panel.layout.words(panel.trace.unknown)]
        marks += [*map(Mark, still), *_moving(panel, merges + 1)]
    # long sentences advance faster, to stay within a minute or so
    pause = max(0.7, min(2.4, 60 / max(merges, 1)))
    seconds = (*[pause] * merges, 4.0)
    return Figure(Scene(width, height, *described(traces), tuple(marks), seconds))


def _moving(panel: Panel, frames: int) -> Iterator[Mark]:
    """Yield the animated marks of one panel."""
    present = list(panel.layout.leaves)
    phrases = list(panel.trace.tree.words)
    circles: list[Mark] = []
    for step, layer in enumerate(panel.trace.layers):
        elements = [*_candidates(panel, present, layer), *_caption(panel, phrases, step)]
        yield from (Mark(element, (step, step + 1)) for element in elements)
        later, pair = (step + 1, frames), slice(layer.choice, layer.choice + 2)
        left, right = present[pair]
        yield Mark(edges(panel, step), later)
        circles += [Mark(element, later) for element in circle(panel, step)]
        present[pair] = [parent(left, right)]
        phrases[pair] = [" ".join(phrases[pair])]
    # circles cover all edges
    yield from circles


def _candidates(panel: Panel, present: Sequence[Place], layer: Layer) -> Iterator[Element]:
    """Yield a bar for each candidate, and dashed edges for the choice and the runner-up."""
    layout = panel.layout
    floor = _row(panel, 0) - 24
    width = min(26.0, 0.6 * min(layout.columns))
    unit = BARS / max(layer.probabilities)
    others = ""
    # draw the choice last, on top of the others
    for i, (left, right) in sorted(
        enumerate(pairwise(present)), key=lambda candidate: candidate[0] == layer.choice
    ):
        x = parent(left, right)[0]
        height = max(1.0, unit * layer.probabilities[i])
        # the last merge has no alternative
        bar = rectangle(x - width / 2, floor - height, width, height) if len(present) > 2 else ""
        if i == layer.choice:
            yield from [path(bar, CHOICE, CHOICE, 1.6)] * bool(bar)
            yield path(layout.bracket(left, right), CHOICE, width=2.2, dashes=DASHED)
        elif i == layer.runner_up:
            yield path(bar, RUNNER_UP, None, 2.2)
            yield path(layout.bracket(left, right), RUNNER_UP, width=1.8, dashes=DASHED)
        else:
            others += bar
        if not layout.turned and i != layer.choice:
            behind = number(layer.scores[i] - layer.scores[layer.choice])
            yield label(x, floor - height - 4, behind, 11, colour="muted")
    if others:
        yield path(others, None, "faint")


def _caption(panel: Panel, phrases: Sequence[str], step: int) -> Iterator[Element]:
    """Yield the three lines below the bars."""
    layer = panel.trace.layers[step]
    text = "no alternative"
    if layer.lead is not None:
        tie = ", near tie" if layer.near_tie else ""
        text = f"{counted(len(layer.scores), 'candidate')}, lead {number(layer.lead)}{tie}"
    text = f"layer {step + 1} of {len(panel.trace.layers)}: {text}"
    yield label(panel.x, _row(panel, 0), text, 12, "start", "muted")
    names = ("sampled", "best of the others") if panel.trace.sampled else ("chosen", "runner-up")
    positions = (layer.choice, layer.runner_up)
    for row, (name, position) in enumerate(zip(names, positions, strict=True), 1):
        if position is None:
            continue
        y = _row(panel, row)
        colour, fill = (CHOICE, CHOICE) if row == 1 else (RUNNER_UP, None)
        yield path(rectangle(panel.x + 1, y - 9, 9, 9), colour, fill, 1.8)
        both = " + ".join(phrases[position : position + 2])
        text = f"{name}: {both}"
        text = clip(text, int((panel.width - 18) / 6.8))
        yield label(panel.x + 18, y, text, 12, "start", "ink" if row == 1 else "muted")


def _row(panel: Panel, row: int) -> float:
    return panel.layout.bottom + 34 + BARS + 24 + 18 * row
