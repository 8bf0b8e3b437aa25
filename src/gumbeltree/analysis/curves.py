"""Learning curves: loss and measure on the development split against steps, epochs and time."""

import dataclasses
import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gumbeltree.atomic import replace_file
from gumbeltree.config import Recipe
from gumbeltree.migrate import current_recipe, first_encoder
from gumbeltree.plots import COLOURS, any_names, legend, pyplot
from gumbeltree.settings import from_dict

Axis: TypeAlias = Literal["steps", "epochs", "time", "all"]

DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.2, 1.4)), (0, (6, 2, 1.2, 2)))

KEYS = {"steps": "step", "epochs": "epoch", "time": "seconds"}
LOSSES = (("train_loss", "training loss", 1.0), ("dev_loss", "development loss", 1.0))
# what may differ between the seeds of one experiment
_NOT_COUNTED = (
    "description",
    "training.seed",
    "training.checkpoint_seconds",
    "training.epochs",
    "training.stop_after",
)


@dataclass(frozen=True, eq=False)
class Run:
    """The evaluations of one run, in their order.

    Attributes:
        path: its folder or its record.
        name: the folder's or the record's.
        recipe: name of the recipe.
        seed: of training, None if not known.
        settings: what decides the result, by dotted key, the seed left out.
        measure: of the head, by which its best model was chosen, such as accuracy.
        values: for each number of `KEYS`, the losses and `dev_` and the measure one value an
            evaluation; NaN for none.
        finished: whether the run came to its end.
    """

    path: Path
    name: str
    recipe: str
    seed: int | None
    settings: dict[str, Any]
    measure: str
    values: dict[str, NDArray[np.float64]]
    finished: bool


@dataclass(frozen=True, eq=False)
class Group:
    """Runs that differ in the seed alone."""

    label: str
    runs: list[Run]


def find_runs(path: Path | str) -> list[Path]:
    """Return the runs that a path stands for: itself, or the seeds in its folder.

    Raises:
        OSError: If nothing is there.
        ValueError: If it is no run and holds none.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(
            f"{path}: expected the folder of a run, got nothing there; check the path"
        )
    if not path.is_dir() or (path / "metrics.jsonl").is_file():
        return [path]
    inner = sorted(
        (each for each in path.iterdir() if (each / "metrics.jsonl").is_file()), key=_natural
    )
    seeds = [each for each in inner if each.name.startswith("seed-")]
    if (path / "settings.json").is_file():
        raise ValueError(
            f"{path}: expected a run with evaluations, got one without metrics.jsonl; wait for its "
            "first evaluation"
        )
    if not seeds:
        there = f"; it holds runs, such as {inner[0]}: name them" if inner else ""
        raise ValueError(
            f"{path}: expected the folder of a run of `gumbeltree train` with metrics.jsonl, or of "
            f"its seeds, got another folder; check the path{there}"
        )
    return seeds


def _natural(path: Path) -> tuple[int, str]:
    digits = path.name.rpartition("-")[2]
    return (int(digits) if digits.isdecimal() else 0, path.name)


def read_run(path: Path | str) -> Run:
    """Read a run's folder, or a JSON record of one.

    Raises:
        ValueError: If there is no evaluation, or a file is damaged.
    """
    path = Path(path)
    return _read_folder(path) if path.is_dir() else _read_record(path)


def _read_folder(path: Path) -> Run:
    metrics = path / "metrics.jsonl"
    lines: list[Mapping[str, Any]] = []
    raw = metrics.read_bytes()
    # what has no end yet is being written
    for number, line in enumerate(raw.split(b"\n")[:-1], 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"{metrics}, line {number}: expected a JSON object, got {line[:40]!r} ({error}); "
                "the file is damaged: leave the run out, or mend the line"
            ) from error
        lines.append(_checked(values, f"{metrics}, line {number}"))
    if not lines:
        raise ValueError(
            f"{metrics}: expected a line for each evaluation, got none; wait for the first one"
        )
    about: dict[str, Any] = {}
    if (path / "settings.json").is_file():
        about = _table(path / "settings.json")
    flat = _settings(about.get("recipe"))
    flat["data"] = about.get("data_digest")
    flat["init"] = about.get("init_digest")
    finished = (path / "result.json").is_file()
    # a folder named by its seed is told by the one above
    resolved = path.resolve()
    name = f"{resolved.parent.name}/{resolved.name}"
    name = name if resolved.name.startswith("seed-") else resolved.name
    return _run(path, name, about.get("recipe_name"), flat, lines, finished)


def _read_record(path: Path) -> Run:
    record = _table(path)
    lines = record.get("metrics")
    if not isinstance(lines, list) or "recipe_name" not in record:
        raise ValueError(
            f"{path}: expected a run's folder, or the record of a run with `recipe_name` and "
            "`metrics`, got another JSON file; check the path"
        )
    if not lines:
        raise ValueError(f"{path}: expected evaluations in `metrics`, got none; leave it out")
    data = record.get("data")
    flat = _settings(record.get("recipe"))
    flat["data"] = data.get("digest") if isinstance(data, dict) else None
    flat["init"] = None
    rows = [_checked(line, f"{path}, evaluation {n}") for n, line in enumerate(lines, 1)]
    return _run(path, path.stem, record["recipe_name"], flat, rows, True)


def _run(
    path: Path,
    name: str,
    recipe: object,
    flat: dict[str, Any],
    lines: Sequence[Mapping[str, Any]],
    finished: bool,
) -> Run:
    seed, measure = flat.get("training.seed"), measure_of(lines[0])
    return Run(
        path,
        name,
        recipe if isinstance(recipe, str) else name,
        seed if isinstance(seed, int) else None,
        {key: value for key, value in flat.items() if key not in _NOT_COUNTED},
        measure,
        {
            key: np.array([_number(line.get(key)) for line in lines])
            for key in (*KEYS.values(), *(panel[0] for panel in panels(measure)))
        },
        finished,
    )


def measure_of(line: Mapping[str, Any]) -> str:
    """Return the name of the head's measure in a line of metrics."""
    names = [key.removeprefix("dev_") for key in line if key.startswith("dev_")]
    return next((name for name in names if name != "loss"), "accuracy")


def panels(measure: str) -> tuple[tuple[str, str, float], ...]:
    """Return what is drawn, from above: its key, its name and a factor."""
    accuracy = measure == "accuracy"
    unit = ", %" if accuracy else ""
    return (*LOSSES, (f"dev_{measure}", f"development {measure}{unit}", 100.0 if accuracy else 1.0))


def _settings(recipe: object) -> dict[str, Any]:
    """Return a recipe's settings by dotted key; those of the encoder as any version says them."""
    if not isinstance(recipe, dict):
        return {}
    try:
        settings = dataclasses.asdict(from_dict(Recipe, current_recipe(recipe)))
    except (ValueError, TypeError):
        # of a part that is not known here
        return _flat(recipe)
    settings["model"]["encoder"] = first_encoder(settings["model"]["encoder"])
    return _flat(settings)


def _table(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected JSON, got a damaged file ({error})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(content).__name__}")
    return content


def _checked(values: object, place: str) -> Mapping[str, Any]:
    if not isinstance(values, dict):
        raise ValueError(f"{place}: expected a JSON object, got {type(values).__name__}")
    measure = f"dev_{measure_of(values)}"
    needed = [*KEYS.values(), measure]
    missing = [key for key in KEYS.values() if not isinstance(values.get(key), int | float)]
    if measure not in values or not isinstance(values[measure], int | float | None):
        # null is a measure that was no number
        missing.append(measure)
    if missing:
        raise ValueError(
            f"{place}: expected numbers {', '.join(needed)}, got none for {', '.join(missing)}; "
            "the file is damaged, or no run's"
        )
    return values


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        number = float(value)
    except OverflowError:
        return math.nan
    # what is larger than any float32 cannot be drawn, and is no result of training
    return number if abs(number) <= float(np.finfo(np.float32).max) else math.nan


def _flat(data: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for key, value in data.items():
        rows |= _flat(value, f"{path}{key}.") if isinstance(value, dict) else {path + key: value}
    return rows


def group(runs: Sequence[Run]) -> list[Group]:
    """Put runs together that differ in the seed alone, and name them.

    A run by itself has its own name. Seeds have their recipe's name, with the settings in which
    groups of the same recipe differ.
    """
    found: dict[str, list[Run]] = {}
    for run in runs:
        # a run whose settings are not known is alone
        known = run.settings if run.seed is not None else {"path": str(run.path)}
        key = json.dumps([run.recipe, known], sort_keys=True, default=str)
        found.setdefault(key, []).append(run)
    groups = list(found.values())
    labels = []
    for members in groups:
        if len(members) == 1:
            labels.append(members[0].name)
            continue
        alike = [other for other in groups if other[0].recipe == members[0].recipe]
        what = f"{len(members)} seeds"
        if len({run.seed for run in members}) < len(members):
            what = f"{len(members)} runs"
        changes = _differences(members[0], [other[0] for other in alike])
        labels.append(", ".join([members[0].recipe, *changes]) + f" ({what})")
    for i, label in enumerate(labels):
        # runs of one name in different folders
        if labels.count(label) > 1:
            labels[i] = f"{label}, {groups[i][0].path}"
    return [Group(label, members) for label, members in zip(labels, groups, strict=True)]


def _differences(run: Run, others: Sequence[Run]) -> list[str]:
    keys = {key for other in others for key in other.settings}
    told = [
        key
        for key in sorted(keys)
        if len({json.dumps(other.settings.get(key), default=str) for other in others}) > 1
    ]
    ends = [key.rpartition(".")[2] for key in told]
    found = []
    for key, end in zip(told, ends, strict=True):
        value = str(run.settings.get(key))
        # of what was read six digits tell one from the other
        value = value[:6] if key in ("data", "init") else value
        found.append(f"{end if ends.count(end) == 1 else key}={value}")
    return found


def mean_curve(runs: Sequence[Run], x: str, y: str) -> tuple[Any, Any]:
    """Return places and the mean of several runs, in the range that all of them have.

    The places are all evaluations in it; between its own evaluations a run counts with the
    straight line that joins them.
    """
    lines = []
    for run in runs:
        known = np.isfinite(run.values[x]) & np.isfinite(run.values[y])
        lines.append((run.values[x][known], run.values[y][known]))
    if any(not len(places) for places, _ in lines):
        return np.empty(0), np.empty(0)
    start, end = max(p[0] for p, _ in lines), min(p[-1] for p, _ in lines)
    places = np.array(sorted({float(p) for each, _ in lines for p in each if start <= p <= end}))
    if not len(places):
        return np.empty(0), np.empty(0)
    return places, np.mean([np.interp(places, *line) for line in lines], axis=0)


def draw(runs: Sequence[Path | str | Run], out: Path | str, x: Axis = "all") -> list[Group]:
    """Draw the curves of runs to a file.

    Seeds of one experiment have one colour: thin lines for each, as far as it went, and a thick
    one for their mean, as far as all went. A dot is the best of a run on the development split, an
    open circle the end of a run that is not finished.

    Args:
        runs: folders of runs, folders of their seeds, records, or runs that were read.
        out: the file; its ending says the format, such as .png or .svg.
        x: steps, epochs, time, or all three side by side.

    Returns:
        What was drawn.
    """
    if x not in (*KEYS, "all"):
        raise ValueError(f"`x` must be {', '.join(KEYS)} or all, got {x!r}; pass one of them")
    out = Path(out)
    check_picture(out)
    read: list[Run] = []
    for given in runs:
        if isinstance(given, Run):
            read.append(given)
        else:
            read += [read_run(path) for path in find_runs(given)]
    if not read:
        raise ValueError("expected a run to draw, got none; pass the folder of one")
    places = [run.path.resolve() for run in read]
    repeated = next((path for path in places if places.count(path) > 1), None)
    if repeated is not None:
        raise ValueError(f"expected each run once, got {repeated} again; leave it out")
    measures = sorted({run.measure for run in read})
    if len(measures) > 1:
        raise ValueError(
            f"expected runs of one measure, got {' and '.join(measures)}; draw them apart"
        )
    groups = group(read)
    _draw(groups, out, list(KEYS) if x == "all" else [x], measures[0])
    return groups


def check_picture(path: Path) -> None:
    """Raise unless matplotlib is there and can write a file of this ending."""
    plt = pyplot()
    figure = plt.figure()
    # those that need no program beside matplotlib
    known = set(figure.canvas.get_supported_filetypes()) - {"pgf", "raw", "rgba"}
    plt.close(figure)
    if path.suffix.removeprefix(".").lower() not in known:
        raise ValueError(
            f"{path}: expected a picture's file name, ending in one of {', '.join(sorted(known))}, "
            f"got {path.suffix or 'no ending'}; name one such as {path.stem or 'curves'}.png"
        )


def _draw(groups: Sequence[Group], out: Path, columns: Sequence[str], measure: str) -> None:
    plt, rows = pyplot(), panels(measure)
    # text stays text, so that a picture can be searched
    # and names are names, not formulas
    with plt.rc_context({"svg.fonttype": "none", "text.parse_math": False}), any_names():
        figure, axes = plt.subplots(
            len(rows),
            len(columns),
            figsize=(1.6 + 4.2 * len(columns), 1.2 + 2.4 * len(rows)),
            layout="constrained",
            sharex="col",
            sharey="row",
            squeeze=False,
        )
        named: list[list[Any]] = []
        for row, (key, name, factor) in enumerate(rows):
            for column, kind in enumerate(columns):
                axis = axes[row][column]
                scale, unit = _unit(groups, kind)
                across, up = (KEYS[kind], scale), (key, factor)
                named.append([_lines(axis, each, i, across, up) for i, each in enumerate(groups)])
                axis.grid(alpha=0.3)
                axis.spines[["top", "right"]].set_visible(False)
                axis.set_xlim(left=0)
                if row == len(rows) - 1:
                    axis.set_xlabel(unit)
                if column == 0:
                    axis.set_ylabel(name)
            _limit(axes[row][0], groups, key, factor)
        marks = _marks(groups, measure)
        handles = [*named[0], *marks]
        labels = [*map(_label, groups), *(mark.get_label() for mark in marks)]
        # letters that fit beside each other below the panels
        room = 60 if len(columns) == 1 else 120
        longest = max(map(len, labels))
        ncols = max(1, min(3, room // (longest + 6)))
        labels = [textwrap.fill(label, room // ncols) for label in labels]
        figure.set_figheight(figure.get_figheight() + 0.14 * sum(x.count("\n") for x in labels))
        style = {"loc": "outside lower center", "ncols": ncols, "frameon": False}
        legend(figure, handles, labels, **style)
        kind = out.suffix.removeprefix(".").lower()
        metadata = {"Software": None} if kind == "png" else None
        out.parent.mkdir(parents=True, exist_ok=True)
        replace_file(
            out, lambda part: figure.savefig(part, dpi=130, format=kind, metadata=metadata)
        )
        plt.close(figure)


def _lines(
    axis: Any, each: Group, number: int, across: tuple[str, float], up: tuple[str, float]
) -> Any:
    """Draw one group into one panel; return the line that stands for it."""
    (x, scale), (y, factor) = across, up
    colour = COLOURS[number % len(COLOURS)]
    # every line has dashes of its own, so that colour alone tells nothing
    dash = DASHES[number % len(DASHES)]
    alone = len(each.runs) == 1
    for run in each.runs:
        places, values = run.values[x] / scale, factor * run.values[y]
        style: dict[str, Any] = {"lw": 1.6, "ls": dash} if alone else {"lw": 0.8, "alpha": 0.45}
        if len(places) == 1:
            # a line of one point would not be seen
            style |= {"marker": "."}
        (line,) = axis.plot(places, values, color=colour, **style)
        if "loss" not in y and np.isfinite(values).any():
            best = int(np.nanargmax(values))
            axis.plot(places[best], values[best], "o", color=colour, ms=5 if alone else 3.5)
        if not run.finished:
            known = np.flatnonzero(np.isfinite(values))
            if len(known):
                end = known[-1]
                axis.plot(places[end], values[end], "o", color=colour, ms=8, mfc="none")
    if not alone:
        places, values = mean_curve(each.runs, x, y)
        (line,) = axis.plot(places / scale, factor * values, color=colour, lw=2, ls=dash)
    return line


def _label(each: Group) -> str:
    unfinished = sum(not run.finished for run in each.runs)
    if not unfinished:
        return each.label
    return each.label + (
        ", not finished" if len(each.runs) == 1 else f", {unfinished} not finished"
    )


def _marks(groups: Sequence[Group], measure: str) -> list[Any]:
    """Return what the legend says of the marks."""
    from matplotlib.lines import Line2D

    style: dict[str, Any] = {"color": "#555555", "ls": "none", "marker": "o"}
    marks = [Line2D([], [], ms=5, label=f"best development {measure}", **style)]
    if any(not run.finished for each in groups for run in each.runs):
        marks.append(Line2D([], [], ms=8, mfc="none", label="where it is, not finished", **style))
    return marks


def _unit(groups: Sequence[Group], kind: str) -> tuple[float, str]:
    """Return by what the numbers of an axis are divided, and its name."""
    if kind != "time":
        return 1.0, kind
    seconds = [run.values["seconds"] for each in groups for run in each.runs]
    longest = max((float(np.nanmax(values, initial=0)) for values in seconds), default=0.0)
    if longest >= 2 * 3600:
        return 3600.0, "time, hours"
    return (60.0, "time, minutes") if longest >= 120 else (1.0, "time, seconds")


def _limit(axis: Any, groups: Sequence[Group], key: str, factor: float) -> None:
    """Keep a few extreme evaluations from pressing all the rest together."""
    values = np.concatenate([run.values[key] for each in groups for run in each.runs]) * factor
    values = values[np.isfinite(values)]
    if len(values) < 20:
        return
    # a measure rises steeply at first, which is not what runs are compared by
    low, high = np.percentile(values, [1 if "loss" in key else 8, 99])
    room = 0.15 * (high - low)
    if not room:
        return
    # where a run ended, and its best, are always in the picture
    kept = [_ends(factor * run.values[key], key) for each in groups for run in each.runs]
    needed = np.concatenate(kept)
    bottom = min(max(values.min(), low - room), *needed)
    top = max(min(values.max(), high + 3 * room), *needed)
    edge = 0.05 * (top - bottom)
    axis.set_ylim(bottom - edge, top + edge)


def _ends(values: NDArray[np.float64], key: str) -> NDArray[np.float64]:
    known = values[np.isfinite(values)]
    if not len(known):
        return known
    return np.array([known.min() if "loss" in key else known.max(), known[-1]])
