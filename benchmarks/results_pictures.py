"""The curves of docs/results.md, drawn from records of runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from published import PAPER
from run_groups import ABLATIONS, Group, alone, families, family_names, value_of

from gumbeltree.atomic import replace_file
from gumbeltree.plots import COLOURS, pyplot


def curve(each: Group) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return development accuracy over epochs: places, and the seeds' mean, lowest and highest.

    The places are all evaluations in the range that every seed has; between its own evaluations
    a seed counts with the straight line that joins them.
    """
    lines = [line(record, "epoch") for record in each.records]
    start, end = max(x[0] for x, _ in lines), min(x[-1] for x, _ in lines)
    places = np.array(sorted({p for x, _ in lines for p in x if start <= p <= end}))
    values = np.array([np.interp(places, x, y) for x, y in lines])
    return places, values.mean(0), values.min(0), values.max(0)


def line(record: dict[str, Any], axis: str) -> tuple[list[float], list[float]]:
    """Return a run's evaluations: where they stand on `axis`, and the development accuracy."""
    metrics = record["metrics"]
    return [x[axis] for x in metrics], [x["dev_accuracy"] for x in metrics]


def pictures(groups: Sequence[Group], folder: Path) -> None:
    """Draw everything that the page shows."""
    snli = [each for each in groups if each.task == "snli" and not each.overrides]
    if snli:
        draw([(each.recipe, each) for each in snli], folder / "convergence.png")
    for ablation in ABLATIONS:
        if not ablation.picture:
            continue
        found = families(groups, ablation)
        for name, family in zip(family_names(found), found, strict=True):
            lines = [(f"{ablation.column} {value_of(e, ablation)}", e) for e in family]
            draw(lines, folder / f"{ablation.picture}-{name}.png", f"{ablation.title}, {name}")


def draw(lines: Sequence[tuple[str, Group]], path: Path, title: str = "") -> None:
    """Draw development accuracy over epochs, one line for each label.

    Beside it over minutes, if there are at least two groups with times that can be compared. There
    each such run has a line of its own: the first also compiles kernels, so that a mean over seeds
    at one minute would be of runs that are not equally far.
    """
    plt = pyplot()
    timed = sum(bool(alone(each)) for _, each in lines) > 1
    size = (10 if timed else 7, 4.6)
    figure, axes = plt.subplots(
        1, 1 + timed, figsize=size, layout="constrained", sharey=True, squeeze=False
    )
    axes = axes[0]
    lowest, highest = [], []
    for i, (label, each) in enumerate(lines):
        # a recipe of our own is dashed, and so are more lines than colours
        dashed = each.recipe not in PAPER or i >= len(COLOURS)
        style = {"color": COLOURS[i % len(COLOURS)], "linestyle": "--" if dashed else "-"}
        places, mean, low, high = curve(each)
        if len(places):
            lowest += [100 * mean.min(), 100 * mean.max() - 12]
            highest.append(100 * high.max())
            count = len(each.records)
            about = f"{label} ({count} seed{'' if count == 1 else 's'})"
            band = {"color": style["color"], "alpha": 0.18, "lw": 0}
            axes[0].fill_between(places, 100 * low, 100 * high, **band)
            axes[0].plot(places, 100 * mean, label=about, linewidth=1.6, **style)
        if timed:
            for record in alone(each):
                seconds, accuracy = line(record, "seconds")
                axes[1].plot(
                    np.divide(seconds, 60), np.multiply(accuracy, 100), linewidth=0.9, **style
                )
    for axis, name in zip(axes, ("epochs", "minutes"), strict=False):
        axis.set_xlabel(name)
        axis.set_xlim(left=0)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("development accuracy, %")
    if lowest:
        # the steep start would press all the rest together
        bottom = max(min(lowest[::2]), min(lowest[1::2]))
        axes[0].set_ylim(bottom, max(highest) + 0.04 * (max(highest) - bottom) + 0.1)
    handles, labels = axes[0].get_legend_handles_labels()
    columns = min(len(labels), 4 if timed and len(labels) in (4, 7, 8) else 3)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    if title:
        figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    # the name of the drawing program is no part of the picture
    replace_file(
        path,
        lambda part: figure.savefig(part, dpi=130, format="png", metadata={"Software": None}),
    )
    plt.close(figure)
