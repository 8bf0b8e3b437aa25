"""Draw the pictures of docs/results.md: accuracy over training, and over parameters and minutes."""

import itertools
import statistics
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gumbeltree.analysis.curves import mean_curve
from gumbeltree.plots import COLOURS, pyplot, save_picture


def draw(
    groups: Mapping[str, Any],
    path: Path,
    dashed: Collection[str] = (),
    title: str = "",
    *,
    paces: Mapping[str, float | None],
) -> None:
    """Draw the mean and range of each group over epochs, and its mean over minutes.

    Args:
        groups: runs with curves, by label.
        path: picture to write.
        dashed: labels of dashed lines.
        title: title of the picture.
        paces: minutes of an epoch alone on the GPU, by label; None if unknown. The panel over
            minutes appears if at least two are known.
    """
    plt = pyplot()
    timed = sum(bool(paces[label]) for label in groups) > 1
    figure, axes = plt.subplots(
        1,
        1 + timed,
        figsize=(10 if timed else 7, 4.6),
        layout="constrained",
        sharey=True,
        squeeze=False,
    )
    left, right = axes[0, 0], axes[0, -1]
    lowest, top = [], 0.0
    for (label, each), colour in zip(groups.items(), itertools.cycle(COLOURS), strict=False):
        style = {"color": colour, "linestyle": "--" if label in dashed else "-"}
        curves = [(run["curve"]["epoch"], run["curve"]["dev_accuracy"]) for run in each.runs]
        epochs, shares = mean_curve(curves)
        values = 100 * shares
        mean = values.mean(0)
        lowest.append((mean.min(), mean.max() - 12))
        top = max(top, values.max())
        count = len(each.runs)
        text = f"{label} ({count} seed{'' if count == 1 else 's'})"
        left.fill_between(epochs, values.min(0), values.max(0), color=colour, alpha=0.18, lw=0)
        left.plot(epochs, mean, label=text, linewidth=1.6, **style)
        if timed and (pace := paces[label]):
            right.plot(np.multiply(epochs, pace), mean, linewidth=1.6, **style)
    for axis, name in zip(axes[0], ("epochs", "minutes"), strict=False):
        axis.set_xlabel(name)
        axis.set_xlim(left=0)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    left.set_ylabel("development accuracy, %")
    if lowest:
        # cut off the steep start, which would compress the rest
        bottom = max(map(min, zip(*lowest, strict=True)))
        left.set_ylim(bottom, top + 0.04 * (top - bottom) + 0.1)
    handles, labels = left.get_legend_handles_labels()
    widest = (4 if len(labels) in (4, 7, 8) else 3) if timed else 2
    columns = max(1, min(len(labels), widest))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    if title:
        figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_picture(figure, path)


class Point(NamedTuple):
    """A recipe in a comparison of systems."""

    label: str
    kind: str
    """A key of `KINDS`."""
    parameters: int
    minutes: float | None
    """Alone on the GPU; None if unknown."""
    accuracies: list[float]


KINDS = {
    "tree": ("Gumbel tree", {"marker": "*", "s": 110, "color": COLOURS[1], "zorder": 3}),
    "matched": ("other system, matched", {"marker": "o", "s": 26, "color": COLOURS[0]}),
    "authors": (
        "other system, settings of its authors",
        {"marker": "o", "s": 26, "facecolors": "white", "edgecolors": COLOURS[0]},
    ),
}
"""Text in the legend and style of each kind of point."""


def comparable(points: Sequence[Point]) -> list[Point]:
    """Return the points with comparable times; none unless there are other systems, too."""
    timed = [point for point in points if point.minutes]
    return timed if len({point.kind == "tree" for point in timed}) == 2 else []


def draw_points(points: Sequence[Point], path: Path, ylabel: str) -> None:
    """Draw mean accuracies over parameters and, if these can be compared, minutes."""
    plt = pyplot()
    from matplotlib.ticker import EngFormatter

    timed = comparable(points)
    # 200k, 1M
    counts: Any = EngFormatter(sep="")
    panels = [("parameters without word vectors", counts, [(x.parameters, x) for x in points])]
    if timed:
        places = [(x.minutes, x) for x in timed]
        panels.append(("minutes to the best accuracy", "{x:,.9g}", places))
    figure, axes = plt.subplots(
        len(panels), 1, figsize=(9, 5.2 * len(panels)), layout="constrained", squeeze=False
    )
    for axis, (name, numbers, places) in zip(axes[:, 0], panels, strict=True):
        for x, point in places:
            values = point.accuracies
            _, style = KINDS[point.kind]
            axis.scatter(x, statistics.fmean(values), linewidths=1.2, **style)
            if len(values) > 1:
                spread = statistics.stdev(values)
                colour = style.get("edgecolors", style.get("color"))
                axis.errorbar(
                    x, statistics.fmean(values), spread, color=colour, alpha=0.4, lw=1, zorder=1
                )
        axis.set(xscale="log", xlabel=name, ylabel=ylabel)
        axis.xaxis.set_major_locator(plt.LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter(numbers)
        axis.xaxis.set_minor_formatter(plt.NullFormatter())
        axis.margins(0.12)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    present = [kind for kind in KINDS if any(point.kind == kind for point in points)]
    handles = [axes[0, 0].scatter([], [], label=KINDS[x][0], **KINDS[x][1]) for x in present]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(present), frameon=False)
    # labels are placed among points that no longer move
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axis, (*_, places) in zip(axes[:, 0], panels, strict=True):
        place_labels(axis, places)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_picture(figure, path)


def place_labels(axis: Any, places: Sequence[tuple[float, Point]]) -> None:
    """Write a label beside each point, at the nearest place that overlaps nothing."""
    renderer = axis.figure.canvas.get_renderer()
    frame = np.array(axis.get_window_extent(renderer).extents)
    labels = [(x, statistics.fmean(point.accuracies), point) for x, point in places]
    at = np.array([axis.transData.transform((x, y)) for x, y, _ in labels])
    pixels = axis.figure.dpi / 72
    taken = [np.array([*point - 5 * pixels, *point + 5 * pixels]) for point in at]
    angles = np.deg2rad([0, 180, 90, 270, 45, 135, 225, 315, 20, 160, 200, 340])
    for (x, y, about), point in zip(labels, at, strict=True):
        text = axis.text(x, y, about.label, fontsize=8)
        size = text.get_window_extent(renderer)
        text.remove()
        half = np.array([size.width, size.height]) / 2
        best: tuple[float, Any, Any] = (np.inf, None, None)
        for radius, angle in itertools.product((7, 14, 22, 32, 44, 58, 74), angles):
            direction = np.array([np.cos(angle), np.sin(angle)])
            middle = point + direction * (radius * pixels + np.where(direction == 0, 0, half))
            box = np.array([*middle - half - 1, *middle + half + 1])
            cost = sum(overlap(box, other) for other in taken)
            # parts outside the frame
            cost += (half * 2 + 2).prod() - overlap(box, frame)
            if cost < best[0] - 0.5:
                best = cost, middle, box
        _, middle, box = best
        taken.append(box)
        axis.annotate(
            *(about.label, (x, y), (middle - half - point) / pixels),
            textcoords="offset points",
            va="bottom",
            fontsize=8,
            color=COLOURS[1] if about.kind == "tree" else "black",
            arrowprops={"arrowstyle": "-", "color": "0.6", "lw": 0.6, "shrinkA": 0, "shrinkB": 3},
        )


def overlap(a: Any, b: Any) -> float:
    """Return the common area of two boxes, each x0, y0, x1, y1."""
    sides = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
    return float(sides.clip(0).prod())
