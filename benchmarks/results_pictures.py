"""Draw development accuracy over training, the curves of docs/results.md."""

import itertools
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gumbeltree.analysis.curves import mean_curve
from gumbeltree.atomic import replace_file
from gumbeltree.plots import COLOURS, pyplot


def draw(
    groups: Mapping[str, Any], path: Path, dashed: Collection[str] = (), title: str = ""
) -> None:
    """Draw the mean and range of each group over epochs, and its exclusive runs over minutes.

    The right panel appears if at least two groups have comparable times. It has one line per run:
    some include kernel compilation, so a mean over time would mix different stages.
    """
    plt = pyplot()
    timed = sum(bool(each.exclusive) for each in groups.values()) > 1
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
        for run in each.exclusive if timed else ():
            seconds, accuracy = run["curve"]["seconds"], run["curve"]["dev_accuracy"]
            right.plot(np.divide(seconds, 60), np.multiply(accuracy, 100), linewidth=0.9, **style)
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
    columns = max(1, min(len(labels), 4 if timed and len(labels) in (4, 7, 8) else 3))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    if title:
        figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    # omit matplotlib's version, so that identical pictures give identical files
    replace_file(
        path,
        lambda part: figure.savefig(part, dpi=130, format="png", metadata={"Software": None}),
    )
    plt.close(figure)
