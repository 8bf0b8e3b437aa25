"""Learning curves of training runs: losses and the development measure over steps or time."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gumbeltree.plots import COLOURS, any_names, check_picture, pyplot, save_picture

Axis: TypeAlias = Literal["steps", "epochs", "time"]
AXES = {"steps": ("step", 1, "steps"), "epochs": ("epoch", 1, "epochs"),
        "time": ("seconds", 60, "minutes")}  # fmt: skip
"""For each axis: the key in metrics.jsonl, the divisor and the label."""

DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.2, 1.4)), (0, (6, 2, 1.2, 2)))
"""Line styles, so that curves can be told apart without colour."""

SHARE = re.compile(r"(accuracy|exact_match)$|(macro|micro)_|(f1|precision|recall):")
"""Names of measures that are drawn in per cent."""


@dataclass(frozen=True, eq=False)
class Run:
    """The evaluations of one run.

    Attributes:
        path: the run's folder.
        measure: the measure that selects the best model, such as accuracy.
        values: numbers by their key in metrics.jsonl, one per evaluation; NaN if undefined.
    """

    path: Path
    measure: str
    values: dict[str, NDArray[np.float64]]


@dataclass(frozen=True, eq=False)
class Curve:
    """One curve: a run, or several seeds of the same experiment."""

    label: str
    """Name in the legend."""
    runs: list[Run]
    """One run per seed."""


def find_runs(path: Path) -> list[Path]:
    """Return the folder itself if it is a run, or the runs `seed-0`, `seed-1`, ... in it."""
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; check the path")
    if (path / "metrics.jsonl").is_file():
        return [path]
    seeds = [file.parent for file in path.glob("seed-*/metrics.jsonl")]
    if not seeds:
        raise ValueError(
            f"{path} contains no metrics.jsonl; pass a folder written by `gumbeltree train`, after "
            "its first evaluation"
        )
    return sorted(seeds, key=lambda seed: (len(seed.name), seed.name))


def read_run(path: Path) -> Run:
    """Read the evaluations of a run, finished or not."""
    file = path / "metrics.jsonl"
    # a last line without a newline is still being written
    lines = file.read_bytes().split(b"\n")[:-1]
    if not lines:
        raise ValueError(f"{file} contains no evaluations yet; wait for the first one")
    keys, rows = ["step", "epoch", "seconds", "train_loss", "dev_loss"], []
    measure = ""
    for number, line in enumerate(lines, 1):
        try:
            evaluation = json.loads(line)
            if not measure:
                measure = _measure(evaluation)
                keys.append(f"dev_{measure}")
            # null, an undefined number, becomes NaN
            rows.append(np.array([evaluation[key] for key in keys], dtype=np.float64))
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise ValueError(
                f"{file}, line {number} is damaged: {line[:40]!r} ({error})"
            ) from error
    values = dict(zip(keys, np.array(rows).T, strict=True))
    return Run(path, measure, values)


def _measure(evaluation: dict[str, float]) -> str:
    """Return the name of the development measure in a line of metrics.jsonl."""
    names = [key.removeprefix("dev_") for key in evaluation if key.startswith("dev_")]
    # the metric that selected the best model comes with its best value
    chosen = [name for name in names if f"best_{name}" in evaluation]
    return next((name for name in [*chosen, *names] if chosen or name != "loss"), "accuracy")


def mean_curve(
    curves: Iterable[tuple[ArrayLike, ArrayLike]],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Interpolate curves (x, y) at all of their x values within their common range.

    Args:
        curves: x and y of each curve; points that are not finite are dropped.

    Returns:
        The x values `[n]` and the y values `[curves, n]`.
    """
    points = [np.array(curve, dtype=np.float64) for curve in curves]
    lines = [xy[:, np.isfinite(xy).all(axis=0)] for xy in points]
    if any(len(places) == 0 for places, _ in lines):
        return np.empty(0), np.empty((len(lines), 0))
    start, end = max(places[0] for places, _ in lines), min(places[-1] for places, _ in lines)
    every = np.unique(np.concatenate([places for places, _ in lines]))
    common = every[(start <= every) & (every <= end)]
    return common, np.array([np.interp(common, *line) for line in lines])


def draw(paths: Sequence[Path | str], out: Path | str, x: Axis = "epochs") -> list[Curve]:
    """Draw one curve per path to an image file.

    Several seeds are drawn as their mean, with a band from the lowest to the highest.

    Args:
        paths: folders of runs, or folders that contain the runs of several seeds.
        out: the image; its extension determines the format: .png, .svg or .pdf.
        x: horizontal axis.
    """
    if x not in AXES:
        raise ValueError(f"`x` must be one of {', '.join(AXES)}, got {x!r}")
    out = Path(out)
    check_picture(out)
    curves = []
    for path in map(Path, paths):
        runs = [read_run(folder) for folder in find_runs(path)]
        seeds = f" ({len(runs)} seeds)" if len(runs) > 1 else ""
        same_name = sum(Path(other).resolve().name == path.resolve().name for other in paths) > 1
        curves.append(Curve(f"{path if same_name else path.resolve().name}{seeds}", runs))
    measures = sorted({run.measure for curve in curves for run in curve.runs})
    if len(measures) != 1:
        raise ValueError(
            f"all runs must report the same measure, got {' and '.join(measures) or 'no runs'}"
        )
    _draw(curves, out, x, measures[0])
    return curves


def _draw(curves: Sequence[Curve], out: Path, x: Axis, measure: str) -> None:
    plt = pyplot()
    factor, unit = (100, ", %") if SHARE.match(measure) else (1, "")
    panels = (
        ("train_loss", "training loss", 1),
        ("dev_loss", "development loss", 1),
        (f"dev_{measure}", f"development {measure}{unit}", factor),
    )
    key, divisor, label = AXES[x]
    # keep text searchable, and do not parse names as math
    with plt.rc_context({"svg.fonttype": "none", "text.parse_math": False}), any_names():
        figure, axes = plt.subplots(1, 3, figsize=(12, 4), layout="constrained")
        for axis, (y, name, factor) in zip(axes, panels, strict=True):
            lines = []
            for i, curve in enumerate(curves):
                colour, dash = COLOURS[i % len(COLOURS)], DASHES[i % len(DASHES)]
                places, values = mean_curve((run.values[key], run.values[y]) for run in curve.runs)
                places, values = places / divisor, values * factor
                marker = "." if len(places) == 1 else ""
                lines += axis.plot(
                    places, values.mean(axis=0), color=colour, ls=dash, marker=marker
                )
                if len(curve.runs) > 1:
                    axis.fill_between(
                        places, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.2
                    )
            axis.set_xlabel(label)
            axis.set_ylabel(name)
            axis.grid(alpha=0.3)
            axis.spines[["top", "right"]].set_visible(False)
        names = [curve.label for curve in curves]
        figure.legend(lines, names, loc="outside lower center", ncols=2, frameon=False)
        save_picture(figure, out)
