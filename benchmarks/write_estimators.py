"""Write the tables of estimators in docs/generalise.md from benchmarks/results.

    python benchmarks/write_estimators.py [--trees TREES.json...]

The columns come from these files; a column whose file is missing is left out:

- estimators.jsonl: accuracies of runs of plans/estimators.toml and plans/estimators_text.toml,
  collected by `collect_runs.py`. Runs of `listops-random` and `listops-gold` are also taken from
  generalise.jsonl.
- estimators_trees.json: F1 with gold trees. `--trees` adds outputs of `gumbeltree trees
  runs/estimators/ROW/seed-* --data test_d20s.tsv --limit N --json`; the runs must still be there.
- gradient_variance.json: written by `gradient_variance.py`.
- estimators_cuda.json: written by `estimators.py`.
"""

import argparse
import dataclasses
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from collect_runs import RUNS, read_runs
from estimator_rows import BESIDE, Row, in_order, label, read_rows, same_estimator, title
from write_generalise import COLUMNS, add_trees, cells, read_json
from write_results import DOCS, Group, accuracy, fill, group, spread, table

from gumbeltree.atomic import replace_file
from gumbeltree.parts import ESTIMATORS
from gumbeltree.settings import part_settings

RESULTS = RUNS.parent
TREES = "estimators_trees.json"
RECIPE = "listops-gated"
FILES = ("test_d20s", "test-200-300", "test-900-1000")
TIMED = "cuda, random batches"
"""Measurement with sentences of SNLI in random order."""
COSTS = ("samples", "updates", "critic_dim")
"""Settings of estimators that change the time of a step."""
NONE = "No runs are recorded yet."
TEXT = {"sst2": "SST-2", "snli": "SNLI"}


def read_groups(results: Path) -> list[Group]:
    """Return the runs of all rows, by recipe and settings."""
    runs = read_runs(results / "estimators.jsonl")
    names = {run["recipe"] for run in runs}
    if runs:
        others = read_runs(results / "generalise.jsonl")
        runs += [x for x in others if x["recipe"] in BESIDE and x["recipe"] not in names]
    for run in runs:
        if run["recipe"].startswith("listops") and "tests" not in run:
            raise ValueError(
                f"seed {run['seed']} of {' '.join([run['recipe'], *run['set']])} has not been "
                "evaluated on test files; finish train_all.py and collect it again"
            )
    return group(runs)


def row_of(each: Group) -> Row:
    """Return the recipe and settings of a group."""
    return Row(each.recipe, each.set)


def ordered(groups: Sequence[Group]) -> list[Group]:
    """Return groups in the order of the plan."""
    by_row = {row_of(each): each for each in groups}
    return [by_row[row] for row in in_order(list(by_row), read_rows())]


def f1(row: Row, found: dict[str, Any], file: str = FILES[0]) -> str:
    """Return the F1 with gold trees in percent, over the seeds."""
    scores = found.get(" ".join([row.recipe, *row.set]), {}).get(file, {}).get("f1", {})
    return spread([100 * x for x in scores.values()]) if scores else ""


def measured(row: Row, found: dict[str, Any]) -> list[str]:
    """Return deviation and cosine of the score's gradient, and the passes of the encoder."""
    for each in found.get("rows", {}).values():
        estimator = part_settings(ESTIMATORS, "st_gumbel", each["estimator"], "estimator")
        if same_estimator(row, estimator, each["temperature"]):
            values = (each["score"][name] for name in ("ratio", "cosine"))
            shown = ["" if value is None else f"{value:.2f}" for value in values]
            return [*shown, f"{each['passes']:g}"]
    return ["", "", ""]


def time_of(row: Row, found: dict[str, Any]) -> str:
    """Return the time of a training step relative to that with ST-Gumbel.

    It depends on the estimator and the settings in `COSTS`, but not on others.
    """
    encoder = row.settings.model.encoder
    times = found.get("cases", {}).get(TIMED, {})
    listed = found.get("estimators", {}) if hasattr(encoder, "estimator") else {}
    for name, settings in listed.items():
        estimator = part_settings(ESTIMATORS, "st_gumbel", settings, "estimator")
        timed = dataclasses.replace(encoder, estimator=estimator)
        if title(timed) == title(encoder) and costs(timed) == costs(encoder):
            return f"{times[name]['ratio']:.2f}" if name in times else ""
    return ""


def costs(encoder: Any) -> list[Any]:
    """Return the settings of the estimator that determine its time."""
    return [getattr(encoder.estimator, name, None) for name in COSTS]


def listops(
    groups: Sequence[Group], trees: dict[str, Any], variance: dict[str, Any], times: dict[str, Any]
) -> str:
    """Return one row per estimator, then random and gold trees."""
    if times.get("quick"):
        raise ValueError("the times are those of --quick; run benchmarks/estimators.py without it")
    rows = []
    beside = [x for name in BESIDE for x in groups if x.recipe == name]
    for each in [*ordered([x for x in groups if x.recipe == RECIPE]), *beside]:
        row = row_of(each)
        rows.append(
            [
                *(label(row), str(len(each.runs)), *cells(each, FILES), f1(row, trees)),
                *(*measured(row, variance), time_of(row, times)),
            ]
        )
    files = (COLUMNS["listops"][name] for name in FILES)
    measures = ["F1", "deviation", "cosine", "passes", "time per step"]
    header = ["estimator", "seeds", *files, *measures]
    return table(header, rows) if rows else NONE


def text(groups: Sequence[Group]) -> str:
    """Return one row per estimator on sentences."""
    by_label: dict[str, dict[str, Group]] = {}
    for each in ordered([x for x in groups if x.recipe.startswith(tuple(TEXT))]):
        task = next(name for name in TEXT if each.recipe.startswith(name))
        of_row = by_label.setdefault(label(row_of(each)), {})
        if task in of_row:
            raise ValueError(
                f"{each.recipe} and {of_row[task].recipe} both have a row {label(row_of(each))}; "
                "keep the runs of one recipe per task"
            )
        of_row[task] = each
    rows = []
    for name, found in by_label.items():
        row = [name]
        for task in TEXT:
            own = found.get(task)
            splits = [accuracy(own, split) for split in ("dev", "test")] if own else ["", ""]
            row += [str(len(own.runs)) if own else "", *splits]
        rows.append(row)
    header = [f"{task}, {x}" for task in TEXT.values() for x in ("seeds", "dev", "test")]
    return table(["estimator", *header], rows) if rows else NONE


def tables(results: Path = RESULTS, paths: Iterable[Path] = ()) -> dict[str, str]:
    """Return both tables by name."""
    groups, trees = read_groups(results), add_trees(paths, results / TREES)
    others = (read_json(results / f"{x}.json") for x in ("gradient_variance", "estimators_cuda"))
    return {"estimators": listops(groups, trees, *others), "estimators on text": text(groups)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trees", nargs="*", type=Path, default=[], metavar="TREES.json")
    given = parser.parse_args()
    page = DOCS / "generalise.md"
    try:
        content = fill(page.read_text(encoding="utf-8"), tables(paths=given.trees))
        replace_file(page, lambda part: part.write_text(content, encoding="utf-8"))
    except (OSError, ValueError) as error:
        sys.exit(f"write_estimators: error: {error}")


if __name__ == "__main__":
    main()
