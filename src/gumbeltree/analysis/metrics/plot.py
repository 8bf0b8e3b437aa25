"""Draw the results of `gumbeltree trees`: F1 beside baselines, accuracy by length and depth."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gumbeltree.analysis.metrics.report import Accuracy, Comparison
from gumbeltree.nn.heads.class_evaluation import wilson
from gumbeltree.plots import COLOURS, any_names, check_picture, pyplot, save_picture

FEWEST = 10
"""Minimum number of examples per bin; with fewer, the interval is too wide to be useful."""
GREY = "#999999"


def draw(path: Path, comparison: Comparison, accuracies: Sequence[Accuracy] = ()) -> None:
    """Draw a comparison to a file.

    Args:
        path: image file; its extension determines the format.
        comparison: with gold trees, the bars show F1 with them, otherwise F1 with each baseline.
        accuracies: accuracies of the same models, drawn in two more panels.
    """
    check_picture(path)
    plt = pyplot()
    names = [row.name for row in comparison.of("model")]
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    bars = _bars(comparison)
    columns = 3 if accuracies else 1
    size = 5.6 + 3.6 * (columns - 1), max(3.2, 1.2 + 0.34 * len(bars))
    # keep text searchable, and do not parse names as math
    settings = {"svg.fonttype": "none", "font.size": 10, "text.parse_math": False}
    with plt.rc_context(settings), any_names():
        figure, axes = plt.subplots(1, columns, figsize=size, layout="constrained", squeeze=False)
        _draw_bars(axes[0][0], comparison, bars, colours)
        if accuracies:
            _draw_accuracy(axes[0][1], accuracies, "by_length", "words", colours)
            _draw_accuracy(axes[0][2], accuracies, "by_depth", "depth of the model's tree", colours)
        for axis in axes[0]:
            axis.spines[["top", "right"]].set_visible(False)
        save_picture(figure, path)


def _bars(comparison: Comparison) -> list[tuple[str, str, float | None]]:
    """Return the label of each bar, the model or baseline it belongs to, and its F1."""
    models = comparison.of("model")
    if comparison.of("gold"):
        rows = [*models, *comparison.of("baseline")]
        return [(row.name, row.name, row.f1.sentence if row.f1 else None) for row in rows]
    return [
        (f"{row.name}, {kind}", row.name, f1.sentence)
        for row in models
        for kind, f1 in row.f1_with.items()
    ]


def _draw_bars(
    axis: Any,
    comparison: Comparison,
    bars: Sequence[tuple[str, str, float | None]],
    colours: dict[str, str],
) -> None:
    places = range(len(bars), 0, -1)
    values = [100 * (share or 0.0) for _, _, share in bars]
    drawn = axis.barh(places, values, color=[colours.get(owner, GREY) for _, owner, _ in bars])
    # hatches tell baselines from models without colour
    for bar, (_, owner, _) in zip(drawn, bars, strict=True):
        bar.set_hatch("" if owner in colours else "///")
    labels = ["no spans" if share is None else f"{100 * share:.1f}" for _, _, share in bars]
    axis.bar_label(drawn, labels, padding=3)
    axis.set_yticks(places, [label for label, _, _ in bars])
    axis.margins(x=0.18)
    gold = bool(comparison.of("gold"))
    axis.set_xlabel(f"F1 with {'gold' if gold else 'baseline'} trees, %, mean over sentences")
    bound = comparison.of("bound")[0].f1 if gold else None
    if bound is not None and bound.sentence is not None and bound.sentence < 0.9995:
        best = 100 * bound.sentence
        axis.axvline(best, color="black", lw=1, ls="--")
        axis.text(best, 0.5, f"best binary tree {best:.1f} ", ha="right", va="bottom", fontsize=8)


def _draw_accuracy(
    axis: Any, accuracies: Sequence[Accuracy], key: str, label: str, colours: dict[str, str]
) -> None:
    drawn = {x.model: [b for b in getattr(x, key) if b.examples >= FEWEST] for x in accuracies}
    ticks = {b.shortest: b.name for buckets in drawn.values() for b in buckets}
    order = sorted(ticks)
    lines = []
    for i, (name, buckets) in enumerate(drawn.items()):
        # shift the models so that their intervals do not overlap
        shift = 0.12 * (i - (len(drawn) - 1) / 2)
        places = [order.index(b.shortest) + shift for b in buckets]
        values = np.array([b.correct / b.examples for b in buckets])
        ends = np.array([wilson(b.correct, b.examples) for b in buckets]).reshape(-1, 2)
        spread = np.abs(ends.T - values)
        style = {
            "color": colours[name],
            "marker": "os^DvP"[i % 6],
            "ls": ("-", "--", ":", "-.")[i % 4],
        }
        lines.append(axis.errorbar(places, 100 * values, 100 * spread, capsize=2, **style))
    axis.set_xticks(range(len(order)), [ticks[start] for start in order], rotation=45)
    axis.set_xlabel(f"{label}\n(bins with at least {FEWEST} examples)")
    axis.set_ylabel("accuracy, %, with 95 % interval")
    axis.grid(axis="y", alpha=0.3)
    if len(drawn) > 1:
        axis.legend(lines, list(drawn), frameon=False, fontsize=8)
