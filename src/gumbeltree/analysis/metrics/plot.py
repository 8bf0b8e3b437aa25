"""The picture of `gumbeltree trees`: F1 beside baselines, accuracy by length and depth."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gumbeltree.analysis.curves import check_picture
from gumbeltree.analysis.metrics.report import Accuracy, Comparison, Row
from gumbeltree.atomic import replace_file
from gumbeltree.nn.heads.class_evaluation import wilson
from gumbeltree.plots import COLOURS, any_names, legend, pyplot

MARKERS = ("o", "s", "^", "D", "v", "P")
DASHES = ("-", "--", ":", "-.")
FEWEST = 10
"""Examples of a bin that is drawn: the interval of fewer says nothing."""


def draw(path: Path, comparison: Comparison, accuracies: Sequence[Accuracy] = ()) -> None:
    """Draw a comparison to a file.

    Args:
        path: its ending says the format, such as .png or .svg.
        comparison: without gold trees, the bars are the F1 with each baseline.
        accuracies: of the same models; two panels more.
    """
    check_picture(path)
    plt = pyplot()
    models = comparison.of("model")
    colours = {row.name: COLOURS[i % len(COLOURS)] for i, row in enumerate(models)}
    wide = 1 + (2 if accuracies else 0)
    bars = len(models) + 5 if comparison.of("gold") else 4 * (len(models) + 1)
    height = max(3.2, 1.2 + 0.34 * bars)
    # text stays text, so that a picture can be searched
    settings = {"svg.fonttype": "none", "font.size": 10, "text.parse_math": False}
    with plt.rc_context(settings), any_names():
        figure, axes = plt.subplots(
            1, wide, figsize=(5.6 + 3.6 * (wide - 1), height), layout="constrained", squeeze=False
        )
        if comparison.of("gold"):
            _against_gold(axes[0][0], comparison, colours)
        else:
            _against_baselines(axes[0][0], comparison, colours)
        if accuracies:
            names = "words", "depth of the model's tree"
            for axis, name, what in zip(axes[0][1:], names, ("length", "depth"), strict=True):
                _accuracy(axis, accuracies, what, name, colours)
        for axis in axes[0]:
            axis.spines[["top", "right"]].set_visible(False)
        metadata = {"Software": None} if path.suffix.lower() == ".png" else None
        kind = path.suffix.removeprefix(".").lower()
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(
            path, lambda part: figure.savefig(part, dpi=130, format=kind, metadata=metadata)
        )
        plt.close(figure)


def _percent(value: float | None) -> float:
    return 100 * value if value is not None else 0.0


def _told(value: float | None) -> str:
    """Return what stands at the end of a bar."""
    return "no spans" if value is None else f"{100 * value:.1f}"


def _against_gold(axis: Any, comparison: Comparison, colours: dict[str, str]) -> None:
    rows: list[Row] = [*comparison.of("model"), *comparison.of("baseline")]
    bound = comparison.of("bound")[0].f1
    shares = [row.f1.sentence if row.f1 else None for row in rows]
    values = [_percent(share) for share in shares]
    places = range(len(rows), 0, -1)
    filled = [colours.get(row.name, "#999999") for row in rows]
    axis.barh(places, values, color=filled, height=0.7)
    # the kinds differ by more than colour
    for place, value, share, row in zip(places, values, shares, rows, strict=True):
        axis.annotate(_told(share), (value, place), (3, 0), textcoords="offset points", va="center")
        if row.kind == "baseline":
            axis.barh(place, value, height=0.7, fill=False, hatch="///", edgecolor="#555555", lw=0)
    # without a span there is nothing to reach
    best = 100 * bound.sentence if bound and bound.sentence is not None else 100.0
    axis.set_yticks(list(places), [row.name for row in rows])
    if best < 99.95:
        axis.axvline(best, color="black", lw=1, ls="--")
        axis.annotate(
            f"best binary tree {best:.1f}",
            (best, 0.5),
            (-4, 0),
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=8,
        )
    axis.set_xlim(0, max(10.0, *(1.18 * value for value in values), best * 1.02 * (best < 99.95)))
    axis.set_xlabel("F1 with the gold trees, %, mean over sentences")


def _against_baselines(axis: Any, comparison: Comparison, colours: dict[str, str]) -> None:
    models = comparison.of("model")
    kinds = list(models[0].likeness)
    height = 0.8 / len(models)
    bars = []
    for i, row in enumerate(models):
        places = [len(kinds) - j - (i + 0.5) * height + 0.4 for j in range(len(kinds))]
        shares = [row.likeness[kind].sentence for kind in kinds]
        values = [_percent(share) for share in shares]
        bars.append(axis.barh(places, values, color=colours[row.name], height=0.9 * height))
        for place, value, share in zip(places, values, shares, strict=True):
            axis.annotate(
                _told(share),
                (value, place),
                (3, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
    axis.set_yticks([len(kinds) - j for j in range(len(kinds))], kinds)
    axis.margins(x=0.15)
    axis.set_xlabel("F1 with the baseline's trees, %, mean over sentences")
    names = [row.name for row in models]
    legend(axis.figure, bars, names, loc="outside lower center", frameon=False, ncols=1)


def _accuracy(
    axis: Any, accuracies: Sequence[Accuracy], what: str, about: str, colours: dict[str, str]
) -> None:
    drawn = {
        found.name: [b for b in getattr(found, f"by_{what}") if b.examples >= FEWEST]
        for found in accuracies
    }
    every = {bucket[:2]: bucket.name for buckets in drawn.values() for bucket in buckets}
    order = sorted(every, key=lambda ends: ends[0])
    numbers = {name: number for number, name in enumerate(colours)}
    lines = []
    for i, (name, buckets) in enumerate(drawn.items()):
        # side by side, so that the intervals of several models do not hide each other
        shift = 0.12 * (i - (len(accuracies) - 1) / 2)
        places = [order.index(bucket[:2]) + shift for bucket in buckets]
        values = [_percent(bucket.correct / bucket.examples) for bucket in buckets]
        ends = [wilson(bucket.correct, bucket.examples) for bucket in buckets]
        spread = [
            [max(0.0, value - 100 * low) for value, (low, _) in zip(values, ends, strict=True)],
            [max(0.0, 100 * high - value) for value, (_, high) in zip(values, ends, strict=True)],
        ]
        line = axis.errorbar(
            places,
            values,
            yerr=spread,
            color=colours[name],
            marker=MARKERS[numbers[name] % len(MARKERS)],
            ls=DASHES[numbers[name] % len(DASHES)],
            lw=1.5,
            ms=5,
            capsize=2,
            elinewidth=0.8,
        )
        lines.append(line)
    axis.set_xticks(range(len(order)), [every[ends] for ends in order], rotation=45)
    axis.set_xlabel(f"{about}\n(bins of {FEWEST} examples or more)")
    axis.set_ylabel("accuracy, %, with 95 % interval")
    axis.grid(axis="y", alpha=0.3)
    if len(accuracies) > 1:
        legend(axis, lines, list(drawn), frameon=False, fontsize=8)
