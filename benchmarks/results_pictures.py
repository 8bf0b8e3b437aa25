"""The curves of docs/results.md, drawn from records of runs."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from published import PAPER
from run_groups import ABLATIONS, Group, alone, families, family_names, many, value_of

from gumbeltree.atomic import replace_file
from gumbeltree.plots import COLOURS, pyplot


def curve(each: Group, axis: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return development accuracy over `axis`: places, and the seeds' mean, lowest and highest.

    The places are all evaluations in the range that every seed has; between its own evaluations
    a seed counts with the straight line that joins them.
    """
    lines = [
        ([x[axis] for x in r["metrics"]], [x["dev_accuracy"] for x in r["metrics"]])
        for r in each.records
    ]
    start, end = max(x[0] for x, _ in lines), min(x[-1] for x, _ in lines)
    places = np.array(sorted({p for x, _ in lines for p in x if start <= p <= end}))
    values = np.array([np.interp(places, x, y) for x, y in lines])
    return places, values.mean(0), values.min(0), values.max(0)


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

    Beside it over minutes, if there are at least two lines whose times can be compared.
    """
    plt = pyplot()
    panels = [("epoch", "epochs", 1)]
    if sum(alone(each) for _, each in lines) > 1:
        panels.append(("seconds", "minutes", 60))
    size = (10 if len(panels) > 1 else 7, 4.6)
    figure, axes = plt.subplots(
        1, len(panels), figsize=size, layout="constrained", sharey=True, squeeze=False
    )
    axes = axes[0]
    lowest, highest = [], []
    for axis, (key, name, scale) in zip(axes, panels, strict=True):
        for i, (label, each) in enumerate(lines):
            places, mean, low, high = curve(each, key)
            if not len(places) or (key == "seconds" and not alone(each)):
                continue
            lowest += [100 * mean.min(), 100 * mean.max() - 12]
            highest.append(100 * high.max())
            style = {"color": COLOURS[i % len(COLOURS)], "linewidth": 1.6}
            # a recipe of our own is dashed, and so are more lines than colours
            dashed = each.recipe not in PAPER or i >= len(COLOURS)
            about = f"{label} ({many(len(each.records), 'seed')})"
            x = places / scale
            axis.fill_between(x, 100 * low, 100 * high, color=style["color"], alpha=0.18, lw=0)
            axis.plot(x, 100 * mean, "--" if dashed else "-", label=about, **style)
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
    columns = min(len(labels), 4 if len(panels) > 1 and len(labels) in (4, 7, 8) else 3)
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
