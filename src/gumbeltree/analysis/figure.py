"""Figures of the trees that models build, as SVG and PNG."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from gumbeltree.analysis import raster
from gumbeltree.analysis.trace import NEAR_TIE, Trace
from gumbeltree.answers import number as format_number
from gumbeltree.atomic import replace_file
from gumbeltree.drawing import clean
from gumbeltree.picture import (
    BLUE,
    DOTTED,
    MARGIN,
    ROW,
    Mark,
    Scene,
    TreeLayout,
    disc,
    label,
    lay_out,
    path,
    rectangle,
    svg,
    text_width,
    wrap,
)
from gumbeltree.plots import pyplot
from gumbeltree.text.files import counted
from gumbeltree.tree import Span

GAP, HEADER, LEGEND = 36.0, 62.0, 112.0
"""The space between panels, the height of a panel's header, and the width of its legend."""
STILL, MOVING = (".svg", ".png"), (".svg", ".gif")
"""File suffixes of figures and of films."""
CLEAR_LEAD = 1.0
"""Leads from here on have the darkest colour: of 100 draws between the two candidates at
temperature 1, at least 73 pick the choice."""
EXPLAINED = (
    "Numbers and colours show by how much the score of each merge leads that of the runner-up, "
    "which is the log-odds between the two; dotted edges mark near ties, less than "
    f"{NEAR_TIE} apart."
)
"""One sentence below every figure with scores."""
AGAINST = "Hollow circles mark merges against the model's scores: the runner-up has the higher one."
"""A second sentence if leads are negative."""
LEAST_WIDTH = 330.0
"""The minimum width of a panel, for the text below the trees."""
SMALL, LINE = 11.0, 15.0
"""The font size and the line height of the text below the trees."""
LONGEST_NAME = 48
"""Longer model names are shortened at the start, because paths differ at the end."""

YELLOW, SKY, GREY = "#f0e442", "#56b4e9", "#d0d0d0"
HOLLOW, RIM = "#ffffff", "#d55e00"
"""Fill and rim of merges whose runner-up has the higher score."""
# yellow to blue through sky blue: monotone in lightness, safe for colour-blind readers
_RAMP = np.array([[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in (YELLOW, SKY, BLUE)])
_SWATCHES = 28


@dataclass(frozen=True, repr=False)
class Figure:
    """A picture or film of one or more trees, which notebooks display.

    Attributes:
        scene: What is drawn.
    """

    scene: Scene

    def svg(self) -> str:
        """Return the figure as an SVG document."""
        return svg(self.scene)

    _repr_svg_ = svg

    def __repr__(self) -> str:
        return f"<Figure: {self.scene.title}>"

    def save(self, file: str | Path) -> None:
        """Write the figure to a file atomically.

        Args:
            file: A path that ends in .svg, or in .png (.gif for films), which require matplotlib.
        """
        file = Path(file)
        if check_suffix(file, MOVING if self.scene.seconds else STILL) != ".svg":
            replace_file(file, lambda temporary: raster.save(self.scene, temporary))
            return
        text = self.svg() + "\n"
        replace_file(file, lambda temporary: temporary.write_text(text, encoding="utf-8"))


@dataclass(frozen=True)
class Panel:
    """The part of a figure that shows one tree."""

    name: str
    trace: Trace
    layout: TreeLayout
    x: float
    y: float
    width: float


def draw_trees(traces: Sequence[tuple[str, Trace]]) -> Figure:
    """Draw one tree, or several for comparison.

    Each circle contains the number of its merge. Its colour shows the lead over the runner-up,
    which is also printed below if there is room. Edges of near ties are dotted. The last merge has
    no alternative, and fixed trees have no scores: both are grey. The sentence and an explanation
    are written below the trees.

    Args:
        traces: Pairs of a title, such as the model's name, and the result of `trace`.
    """
    panels, width, height = arrange(traces)
    elements: list[Element] = []
    for panel in panels:
        steps = range(len(panel.trace.layers))
        elements += header(panel)
        elements += [edges(panel, step) for step in steps]
        elements += [element for step in steps for element in circle(panel, step)]
        elements += panel.layout.words(panel.trace.unknown)
    written, height = footer(traces, width, height)
    elements += written
    return Figure(Scene(width, height, *described(traces), tuple(map(Mark, elements))))


def check_suffix(file: Path, suffixes: Sequence[str]) -> str:
    """Return the suffix of a file to write, or raise if the format cannot be written."""
    suffix = file.suffix.lower()
    if suffix not in suffixes:
        raise ValueError(f"{file}: the file name must end in {' or '.join(suffixes)}")
    if suffix != ".svg":
        pyplot()  # raises if matplotlib is missing
    return suffix


def arrange(
    traces: Sequence[tuple[str, Trace]], below: float = 0
) -> tuple[list[Panel], float, float]:
    """Return one panel per trace, and the width and height of the figure.

    Panels are placed side by side if they fit within `ROW`, as in Figure 4 of the paper. Otherwise
    they are stacked, with each word at the same x in all of them. `below` is the space to leave
    below the words of each panel.
    """
    if not traces:
        raise ValueError("there is nothing to draw: pass one or more (name, trace) pairs")
    layouts = lay_out([trace.tree for _, trace in traces])
    widths = [
        max(layout.width, _header_width(name, trace), LEAST_WIDTH)
        for layout, (name, trace) in zip(layouts, traces, strict=True)
    ]
    beside = sum(widths) + GAP * (len(traces) - 1) <= ROW
    deepest = max(trace.tree.depth for _, trace in traces)
    panels = []
    x = y = MARGIN
    right = bottom = 0.0
    for layout, width, (name, trace) in zip(layouts, widths, traces, strict=True):
        depth = deepest if beside else trace.tree.depth
        width = width if beside else max(widths)
        layout = dataclasses.replace(
            layout,
            x=x + (width - layout.width) / 2,
            base=y + HEADER + layout.level * depth + layout.radius,
        )
        panels.append(Panel(name, trace, layout, x, y, width))
        right, bottom = max(right, x + width), max(bottom, layout.bottom + below)
        if beside:
            x += width + GAP
        else:
            y = bottom + GAP
    return panels, right + MARGIN, bottom + MARGIN


def footer(
    traces: Sequence[tuple[str, Trace]], width: float, height: float, more: str = ""
) -> tuple[list[Element], float]:
    """Return the sentences and the explanation below the trees, and the height of the figure.

    Args:
        traces: As in `draw_trees`.
        width: The width of the figure.
        height: Its height without them.
        more: A second sentence of explanation.
    """
    room = width - 2 * MARGIN
    lines = [
        (line, "ink")
        for text in dict.fromkeys(trace.text for _, trace in traces)
        for line in wrap(text, room, SMALL, 6)
    ]
    leads = [layer.lead for _, trace in traces for layer in trace.layers if layer.lead is not None]
    if leads:
        text = " ".join([EXPLAINED, *[AGAINST] * (min(leads) < 0), more]).rstrip()
        lines += [(line, "muted") for line in wrap(text, room, SMALL, 12)]
    written = [
        label(MARGIN, height + LINE * row, line, SMALL, "start", colour)
        for row, (line, colour) in enumerate(lines)
    ]
    return written, height + LINE * (len(lines) - 1) + MARGIN


def merge_colour(lead: float | None) -> str:
    """Return the colour of a merge with this lead; grey without an alternative."""
    if lead is None:
        return GREY
    return HOLLOW if lead < 0 else ramp(lead / CLEAR_LEAD)


def ramp(share: float) -> str:
    """Map a fraction from 0 (light yellow) to 1 (dark blue) to a colour; clip others."""
    mixed = [round(np.interp(share, (0, 0.5, 1), channel)) for channel in _RAMP.T]
    return "#" + "".join(f"{value:02x}" for value in mixed)


def readable_on(colour: str) -> str:
    """Return black or white, whichever contrasts more with a colour of `ramp`."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#000000" if 0.3 * red + 0.59 * green + 0.11 * blue > 95 else "#ffffff"


def header(panel: Panel) -> Iterator[Element]:
    """Yield the title, subtitle and colour legend of a panel."""
    x, y, right = panel.x, panel.y, panel.x + panel.width
    yield label(x, y + 15, _shown_name(panel.name), 15, "start", bold=True)
    if _subtitle(panel.trace):
        yield label(x, y + 34, _subtitle(panel.trace), 12, "start", "muted")
    if not _has_legend(panel.trace):
        return
    yield label(right, y + 9, "lead over runner-up", 10, "end", "muted")
    left, size = right - LEGEND, LEGEND / _SWATCHES
    for i in range(_SWATCHES):
        # each swatch extends to the end and the next one covers it, which avoids seams
        steps = rectangle(left + i * size, y + 14, LEGEND - i * size, 8)
        yield path(steps, None, ramp(i / (_SWATCHES - 1)))
    yield label(left, y + 33, "0", 10, "start", "muted")
    yield label(right, y + 33, f"\u2265 {CLEAR_LEAD:g}", 10, "end", "muted")


def edges(panel: Panel, step: int) -> Element:
    """Return the edges from a merge to its children, dotted if it was a near tie."""
    left, right, _ = panel.layout.merges[step]
    near_tie = panel.trace.layers[step].near_tie
    return path(panel.layout.bracket(left, right), dashes=DOTTED if near_tie else "")


def circle(panel: Panel, step: int) -> Iterator[Element]:
    """Yield the circle of a merge, its number, and its lead if there is room."""
    layout, trace = panel.layout, panel.trace
    left, right, node = layout.merges[step]
    x, y = layout.point(node)
    lead = trace.layers[step].lead
    colour = merge_colour(lead)
    rim = RIM if colour == HOLLOW else "muted"
    yield disc(x, y, layout.radius, colour, about_merge(trace, step), rim)
    size = layout.radius * (1.1 if step < 99 else 0.8)
    shown = label(x, y + 0.36 * size, str(step + 1), size, colour=readable_on(colour), bold=True)
    # let the pointer reach the tooltip of the circle underneath
    shown.set("pointer-events", "none")
    yield shown
    if lead is not None:
        size = 9 if layout.turned else 11
        text = number(lead)
        # only the children's edges and circles can overlap the text
        wide = right[0] - left[0] > text_width(text, size) + 4
        if wide and layout.level > 2 * layout.radius + size + 3:
            yield label(x, y + layout.radius + 2 + 0.8 * size, text, size, colour="muted")


def about_merge(trace: Trace, step: int) -> str:
    """Describe a merge in one line: its words, lead, runner-up, score and class."""
    node, layer = trace.nodes[len(trace.tree) + step], trace.layers[step]
    parts = [f"merge {step + 1}: {phrase(trace, node.span)}"]
    if layer.lead is not None:
        against = ", against the scores" if layer.lead < 0 else ""
        tie = ", a near tie" if layer.near_tie else ""
        parts.append(f"lead {number(layer.lead)} over {runner_up(trace, step)}{against}{tie}")
    if trace.scored and node.score is not None:
        parts.append(f"score {number(node.score)} among {counted(len(layer.scores), 'candidate')}")
    return _joined(*parts, _best_class(node.classes))


def phrase(trace: Trace, span: Span) -> str:
    """Return the words of a span."""
    return " ".join(trace.tree.words[slice(*span)])


def runner_up(trace: Trace, step: int) -> str:
    """Return the words of the best candidate that was not merged; empty if there is none."""
    position = trace.layers[step].runner_up
    if position is None:
        return ""
    present = [(i, i + 1) for i in range(len(trace.tree))]
    for choice in trace.tree.order[:step]:
        present[choice : choice + 2] = [(present[choice][0], present[choice + 1][1])]
    return phrase(trace, (present[position][0], present[position + 1][1]))


def remarks(trace: Trace) -> str:
    """Describe the prediction and how the tree was built; may be empty."""
    lacking = sum(trace.unknown)
    return _joined(
        # a verdict about words that the model cannot tell apart
        f"{lacking} of {counted(len(trace.tree), 'word')} unknown to the model"
        if lacking > len(trace.tree) / 2
        else "",
        _verdict(trace.answer),
        _origin(trace.trees),
        "sampled" if trace.sampled else "",
        "" if trace.sampled or trace.greedy else "not the model's choice",
        "text truncated" if trace.cut else "",
    )


def _origin(trees: str) -> str:
    """Return why merges have no scores; empty if they have."""
    if trees == "learned":
        return ""
    kind = "heaviest tree of a mixture" if trees == "soft" else f"fixed tree ({trees})"
    return f"{kind}, no scores"


def heading(name: str, trace: Trace) -> str:
    """Return the name of a model with the remarks on its tree."""
    return _joined(clean(name), remarks(trace))


def described(traces: Sequence[tuple[str, Trace]]) -> tuple[str, str]:
    """Return the title and the description of a figure, for screen readers."""
    parts = []
    for name, trace in traces:
        leads = [number(layer.lead) for layer in trace.layers if layer.lead is not None]
        ties = [str(step) for step, layer in enumerate(trace.layers, 1) if layer.near_tie]
        parts.append(f"{heading(name, trace)}: {trace.tree}.")
        parts += [f"Leads over the runner-up, in order: {', '.join(leads)}."] if leads else []
        parts += [f"Near ties: merges {', '.join(ties)}."] if ties else []
    names = ", ".join(name for name, _ in traces if name)
    return f"{names}: {traces[0][1].text}".removeprefix(": "), " ".join(parts)


def number(value: float) -> str:
    """Format a score with two decimals and a Unicode minus sign."""
    return f"{value:z.2f}".replace("-", "\u2212")


def percent(probability: float) -> str:
    """Format a probability as a percentage with one decimal."""
    return f"{100 * probability:.1f} %"


def _joined(*parts: str) -> str:
    return " \u00b7 ".join(filter(None, parts))


def _verdict(answer: Any) -> str:
    """Write a prediction in words; empty for pair models and custom heads."""
    about = {} if answer is None else answer.as_dict()
    if "label" in about:
        return _best_class(about["probabilities"])
    if "labels" in about:
        return "tags: " + clean(", ".join(about["labels"]) or "none")
    return format_number(about["value"]) if "value" in about else ""


def _best_class(classes: dict[str, float] | None) -> str:
    if not classes:
        return ""
    name, probability = max(classes.items(), key=lambda item: item[1])
    return f"{clean(name)} {percent(probability)}"


def _subtitle(trace: Trace) -> str:
    return _joined(remarks(trace), "italic: unknown to the model" if any(trace.unknown) else "")


def _shown_name(name: str) -> str:
    name = clean(name)
    return name if len(name) <= LONGEST_NAME else "\u2026" + name[1 - LONGEST_NAME :]


def _header_width(name: str, trace: Trace) -> float:
    text = max(text_width(_shown_name(name), 15) * 1.1, text_width(_subtitle(trace), 12))
    return text + (24 + LEGEND if _has_legend(trace) else 0)


def _has_legend(trace: Trace) -> bool:
    return any(layer.lead is not None for layer in trace.layers)
