"""Write the tables and the picture of docs/generalise.md from benchmarks/results.

    python benchmarks/write_generalise.py [--trees TREES.json...]

`collect_runs.py RUNS --out benchmarks/results/generalise.jsonl` fills that file with runs that
`train_all.py` has trained and evaluated. The runs of plans/logic_search.toml and
listops_ablation.toml are in the files of the same name. `--trees` adds outputs of `gumbeltree trees
runs/listops/seed-* --data FILE --limit N --json` to results/generalise_trees.json. The text between
`<!-- results: NAME -->` and `<!-- end -->` is replaced; the text around it is written by hand.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from itertools import combinations, cycle, islice
from pathlib import Path
from typing import Any

from collect_runs import RUNS, identify, read_runs
from train_all import read_plan
from write_results import (
    DOCS,
    PUBLISHED,
    Group,
    accuracy,
    commits,
    fill,
    group,
    label,
    spread,
    table,
)

from gumbeltree.atomic import replace_file
from gumbeltree.plots import COLOURS, pyplot, save_picture

TREES = RUNS.with_name("generalise_trees.json")
PLANS = Path(__file__).parent / "plans"
COLUMNS = {
    "listops": {
        "test_d20s": "test",
        "test-200-300": "200–300",
        "test-500-600": "500–600",
        "test-900-1000": "900–1000",
        "test-arguments-10": "10 args",
        "test-arguments-15": "15 args",
        "test-lra": "LRA",
    },
    "depth": {"test": "8–10 levels", "test-900-1000": "900–1000 tokens"},
    "logic": {"test-8": "8", "test-10": "10", "test-12": "12", "test": "split C"},
}
"""Names of the test files and headings of their columns, by table."""
CURVES = ("listops-policy", "listops-beams")
"""Recipes in the picture."""
DRAWN = ("beams", "beams, OneSoft", "CRvNN", "Ordered Memory", "Gumbel tree")
"""Published systems in the picture."""
RESTARTS = range(5, 20)
"""Seeds on split C that did not take part in the comparison of settings."""
STARTS = (1, 2, 3, 5)
"""Numbers of runs of which the best one on development pairs is kept."""
ABLATION = ("test-200-300", "test-900-1000")
"""Names of the files of plans/listops_ablation.toml, which are of another seed than the tests."""
FILES = ("generalise", "logic_search", "listops_ablation")
"""Files of runs."""
LENGTHS = ("test_d20s", "test-200-300", "test-500-600", "test-900-1000")
"""Files of these systems."""


def read_groups() -> dict[str, list[Group]]:
    """Return the recorded experiments, by the name of their file."""
    return {name: group(read_runs(RUNS.with_name(f"{name}.jsonl"))) for name in FILES}


def accuracies(each: Group, name: str) -> list[float]:
    """Return the accuracies of the seeds on a test file, in percent."""
    return [100 * run["tests"][name]["accuracy"] for run in each.runs if name in run["tests"]]


def cells(each: Group, names: Iterable[str]) -> list[str]:
    """Return mean and deviation over the seeds on each file, empty where it is another task's."""
    found = (accuracies(each, name) for name in names)
    return [spread(values) if values else "" for values in found]


def medians(each: Group, names: Iterable[str]) -> list[str]:
    """Return the median over the seeds on each file."""
    found = (accuracies(each, name) for name in names)
    return [f"{statistics.median(values):.2f}" if values else "" for values in found]


def in_order(groups: Iterable[Group], plan: str) -> list[Group]:
    """Return experiments in the order of a plan; others come last."""
    keys = [frozenset(run.row.split()) for run in read_plan(PLANS / plan, Path())]
    return sorted(groups, key=lambda each: [*keys, each.key].index(each.key))


def table_of(each: Group) -> str:
    """Return the table of an experiment: its task, or `depth` for the depth split of ListOps."""
    task = each.recipe.partition("-")[0]
    return "depth" if task == "listops" and "test" in each.runs[0]["tests"] else task


def ours(groups: Iterable[Group], task: str) -> str:
    """Return one row per experiment of a table."""
    names = COLUMNS[task]
    rows = []
    for each in in_order(groups, "generalise.toml"):
        seeds = str(len(each.runs))
        steps = f"{each.runs[0]['steps']:,}"
        rows.append([label(each.recipe, each.set), seeds, steps, *cells(each, names)])
        if len(each.runs) > 2:
            rows.append(["median", "", "", *medians(each, names)])
    return table(["recipe", "seeds", "steps", *names.values()], rows)


def published(task: str) -> str:
    """Return the published accuracies of a task."""
    about = PUBLISHED[task]
    rows = [[name, *(f"{x:g}" for x in values)] for name, values in about["rows"].items()]
    return table(["system", *COLUMNS[task].values()], rows)


def code(groups: Iterable[Group]) -> str:
    """Return the commits of all experiments."""
    rows = [[label(each.recipe, each.set), commits(each)] for each in groups]
    return table(["recipe", "commit"], rows)


def read_json(path: Path) -> dict[str, Any]:
    """Return the content of a file; empty if there is none."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def add_trees(paths: Iterable[Path], record: Path) -> dict[str, Any]:
    """Add outputs of `gumbeltree trees` to the recorded ones; return all by row and test file."""
    found, added = read_json(record), False
    for path in paths:
        about = json.loads(path.read_text(encoding="utf-8"))
        scores = [row["f1"]["sentence"] for row in about["rows"] if row["kind"] == "model"]
        for folder, score in zip(about["models"], scores, strict=True):
            asked = json.loads(Path(folder, "settings.json").read_text(encoding="utf-8"))
            recipe, changed = identify(asked["recipe_name"], asked["recipe"])
            files = found.setdefault(" ".join([recipe, *changed]), {})
            of_file = files.setdefault(Path(about["file"]).stem, {})
            if of_file.get("examples") != about["sentences"]:
                of_file |= {"examples": about["sentences"], "f1": {}}
            of_file["f1"][str(asked["recipe"]["training"]["seed"])] = score
            added = True
    if added:
        content = json.dumps(found, indent=1) + "\n"
        replace_file(record, lambda part: part.write_text(content, encoding="utf-8"))
    return found


def trees(found: dict[str, Any]) -> str:
    """Return the F1 with gold trees: a row per recipe, all seeds in a cell."""
    names = [name for name in COLUMNS["listops"] if all(name in x for x in found.values())]
    rows = []
    for recipe, files in found.items():
        seeds = (dict(sorted(files[name]["f1"].items())).values() for name in names)
        rows.append([f"`{recipe}`", *(", ".join(f"{100 * x:.2f}" for x in xs) for xs in seeds)])
    examples = {name: {files[name]["examples"] for files in found.values()} for name in names}
    if any(len(counts) > 1 for counts in examples.values()):
        raise ValueError(f"the F1 is that of different numbers of examples: {examples}")
    rows.append(["examples", *(str(*counts) for counts in examples.values())])
    return table(["recipe", *(COLUMNS["listops"][name] for name in names)], rows)


def draw(groups: Sequence[Group], path: Path) -> None:
    """Draw errors over length: the seeds of each of our experiments, and published systems."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(8.4, 3.8))
    words: dict[str, float] = {}
    for colour, each in zip(cycle(COLOURS), groups, strict=False):
        tests: dict[str, Any] = each.runs[0]["tests"]
        names = [x for x in tests if x == "test_d20s" or x.split("-")[1].isdigit()]
        words |= {name: tests[name]["mean_words"] for name in names}
        x = [words[name] for name in names]
        values = [[100 - x for x in accuracies(each, name)] for name in names]
        mean = [statistics.fmean(v) for v in values]
        axes.plot(x, mean, "o-", color=colour, label=f"{each.name}, seeds: {len(each.runs)}")
        if len(each.runs) > 1:
            low, high = [min(v) for v in values], [max(v) for v in values]
            axes.fill_between(x, low, high, color=colour, alpha=0.15)
    about = PUBLISHED["listops"]
    colours = islice(cycle(COLOURS), len(groups), None)
    for colour, name in zip(colours, DRAWN, strict=False):
        values = dict(zip(about["columns"], about["rows"][name], strict=True))
        x = [words[file] for file in LENGTHS]
        y = [100 - values[file] for file in LENGTHS]
        axes.plot(x, y, "x--", color=colour, label=f"{name}, published", linewidth=1)
    axes.axvspan(0, 100, color="0.92", zorder=0)
    axes.text(0.007, 0.02, "training\nlengths", fontsize=8, color="0.4", transform=axes.transAxes)
    axes.set(xlabel="tokens", ylabel="errors, %", xlim=(0, 1000), yscale="log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    axes.grid(alpha=0.3)
    figure.tight_layout()
    save_picture(figure, path)


def search(groups: Iterable[Group]) -> str:
    """Return one row per candidate of plans/logic_search.toml, whose test file is no test split."""
    rows = [[label(each.recipe, each.set), str(len(each.runs)), f"{each.runs[0]['steps']:,}",
             *(accuracy(each, split) for split in ("dev", "test"))]
            for each in in_order(groups, "logic_search.toml")]  # fmt: skip
    return table(["recipe", "seeds", "steps", "dev", "dev, held out"], rows)


def ablation(groups: Iterable[Group]) -> str:
    """Return one row per experiment of plans/listops_ablation.toml, with the settings it varies."""
    found = in_order(groups, "listops_ablation.toml")
    fixed = set.intersection(*(set(each.set) for each in found))
    rows = [[label(each.recipe, (x for x in each.set if x not in fixed)), str(len(each.runs)),
             accuracy(each, "dev"), *cells(each, ABLATION)] for each in found]  # fmt: skip
    headings = (COLUMNS["listops"][name] for name in ABLATION)
    return table(["recipe", "seeds", "dev", *headings], rows)


def restarts(groups: Iterable[Group]) -> str:
    """Return the accuracy on split C of the best of several seeds, over all ways to draw them."""
    by_seed = {run["seed"]: run for x in groups if "test" in x.runs[0]["tests"] for run in x.runs}
    runs = [by_seed[seed] for seed in RESTARTS]
    rows = []
    for count in STARTS:
        drawn = [*combinations(runs, count)]
        row = [str(count), f"{len(drawn):,}"]
        for score, sign in (("dev_accuracy", 1), ("dev_loss", -1)):
            best = [max(few, key=lambda run: sign * run[score]) for few in drawn]
            row.append(spread([100 * run["tests"]["test"]["accuracy"] for run in best]))
        rows.append(row)
    return table(["seeds", "choices", "highest dev accuracy", "lowest dev loss"], rows)


def tables(runs: dict[str, Sequence[Group]], found: dict[str, Any]) -> dict[str, str]:
    """Return all tables of the page, by name.

    Args:
        runs: experiments by the name of their file.
        found: the F1 of trees.
    """
    groups = runs["generalise"]
    content = {"trees": trees(found), "commits": code(groups)}
    content["logic search"] = search(runs["logic_search"])
    content["ablation"] = ablation(runs["listops_ablation"])
    content["restarts"] = restarts(x for x in groups if x.recipe == "logic-policy")
    for task in COLUMNS:
        content[task] = ours([x for x in groups if table_of(x) == task], task)
        if task in PUBLISHED:
            content[f"published {task}"] = published(task)
    return content


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trees", nargs="*", type=Path, default=[], metavar="TREES.json")
    given = parser.parse_args()
    page = DOCS / "generalise.md"
    try:
        runs = read_groups()
        found = add_trees(given.trees, TREES)
        text = fill(page.read_text(encoding="utf-8"), tables(runs, found))
        drawn = [x for name in CURVES for x in runs["generalise"] if x.name == name]
        draw(drawn, DOCS / "images" / "generalise.png")
        replace_file(page, lambda part: part.write_text(text, encoding="utf-8"))
    except (ImportError, OSError, ValueError) as error:
        sys.exit(f"write_generalise: error: {error}")


if __name__ == "__main__":
    main()
