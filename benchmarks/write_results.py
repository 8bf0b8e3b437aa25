"""Write the tables and pictures of docs/results.md from benchmarks/results/runs.jsonl.

    python benchmarks/write_results.py

`collect_runs.py` fills that file. The text between `<!-- results: NAME -->` and `<!-- end -->` is
replaced; the text around it is written by hand.
"""

import argparse
import dataclasses
import json
import re
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from collect_runs import RUNS, changes, packaged, read_runs, settings
from results_pictures import draw

from gumbeltree.atomic import replace_file
from gumbeltree.config import load_recipe, with_settings

DOCS = Path(__file__).parent.parent / "docs"
PUBLISHED = json.loads((RUNS.parent / "published.json").read_text(encoding="utf-8"))
PAPER: dict[str, dict[str, str]] = PUBLISHED["paper"]

ABLATIONS = {
    "leaf": (
        "snli-100d-affine pool=1",
        "snli-100d pool=1",
        "snli-100d-affine",
        "snli-100d",
        "snli-100d leaf=bilstm",
        "snli-300d-affine",
        "snli-300d",
        "snli-300d-tuned",
        "snli-300d embedding.dropout=0.2 cell_init=orthogonal leaf=bilstm head.dropout=0.2",
        "sst2 missing_vectors=parts",
        "sst2 missing_vectors=parts leaf=bilstm",
        "sst5-tuned",
        "sst5 missing_vectors=parts leaf=bilstm batch_norm=true",
    ),
    "trees": (
        "snli-300d",
        *(f"snli-300d trees={trees}" for trees in ("left", "right", "balanced", "random")),
    ),
    "anneal_rate": ("snli-300d", "snli-300d anneal_rate=0.0001"),
    "batch_size": ("snli-100d batch_size=16", "snli-100d batch_size=32", "snli-100d"),
}
"""Rows of each ablation by the name of the compared setting: a recipe and its `--set` values."""


class Group(NamedTuple):
    """Runs that differ only in the seed."""

    recipe: str
    set: tuple[str, ...]
    runs: list[dict[str, Any]]

    @property
    def name(self) -> str:
        return " ".join([self.recipe, *self.set])

    @property
    def exclusive(self) -> list[dict[str, Any]]:
        """Runs with comparable times."""
        return [run for run in self.runs if run["exclusive"]]

    def value(self, setting: str) -> Any:
        """Return the value of a setting, such as `leaf`."""
        recipe = dataclasses.asdict(with_settings(load_recipe(self.recipe), self.set))
        return next(v for key, v in settings(recipe).items() if key.endswith(f".{setting}"))


def group(runs: Iterable[dict[str, Any]]) -> list[Group]:
    """Gather the seeds of each experiment, the paper's models first."""
    groups: dict[tuple[str, tuple[str, ...]], Group] = {}
    for run in sorted(runs, key=lambda run: run["seed"]):
        key = run["recipe"], tuple(run["set"])
        groups.setdefault(key, Group(*key, [])).runs.append(run)
    for each in groups.values():
        if len({run["data"]["digest"] for run in each.runs}) > 1:
            raise ValueError(f"the runs of `{each.name}` used different data: no mean is possible")
    recipes = [*PAPER, *sorted({name for name, _ in groups} - set(PAPER))]
    return sorted(groups.values(), key=lambda each: (recipes.index(each.recipe), each.set))


# cells


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return the mean and, for several values, the sample standard deviation."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def accuracy(each: Group, split: str) -> str:
    """Return an accuracy in percent, empty if no run has it."""
    key = f"{split}_accuracy"
    values = [100 * run[key] for run in each.runs if key in run]
    part = "" if len(values) == len(each.runs) else f" ({len(values)} of {len(each.runs)})"
    return spread(values) + part if values else ""


def minutes(each: Group) -> str:
    """Return the mean minutes to the best evaluation, an upper bound if all runs were shared."""
    timed = each.exclusive or each.runs
    mean = statistics.fmean(run["best_seconds"] for run in timed) / 60
    bound = "" if each.exclusive else "≤ "
    return bound + (f"{mean:.1f}" if mean >= 1 else f"{mean:.2f}")


def commits(each: Group) -> str:
    """Return the commits of the runs, empty if none is recorded."""
    found = dict.fromkeys(
        f"`{code['commit'][:7]}`" + ("" if code["clean"] else " modified")
        if code["commit"]
        else f"source `{code['source'][:7]}`"
        for run in each.runs
        for code in run["code"]
    )
    if found and not all(run["code"] for run in each.runs):
        found["others not recorded"] = None
    return ", ".join(found)


def parameters(each: Group) -> str:
    """Return the number of trained parameters, plus that of tuned word vectors."""
    return " + ".join(f"{count:,}" for count in each.runs[0]["parameters"].values())


def label(recipe: str, changed: Iterable[str] = ()) -> str:
    return ", ".join(f"`{name}`" for name in (recipe, *changed))


# tables


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table without the columns that are empty in every row."""
    rows = list(rows)
    kept = [i for i in range(len(header)) if any(row[i] for row in rows)]
    lines = ["| " + " | ".join(row[i] for i in kept) + " |" for row in (header, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(kept), *lines[1:]])


def main_table(groups: Iterable[Group]) -> str:
    """Return Table 1 or 2: our accuracies beside the paper's."""
    header = (
        *("recipe", "paper, test", "ours, test", "ours, dev", "seeds"),
        *("paper, parameters", "ours, parameters", "paper, hours", "ours, minutes", "code"),
    )
    rows = []
    for each in groups:
        paper = PAPER.get(each.recipe, {})
        ours = accuracy(each, "test"), accuracy(each, "dev"), str(len(each.runs))
        rows.append(
            (
                *(label(each.recipe), paper.get("test", ""), *ours),
                *(paper.get("parameters", ""), parameters(each)),
                *(paper.get("hours", ""), minutes(each), commits(each)),
            )
        )
    return table(header, rows)


def figures(each: Group) -> tuple[str, ...]:
    """Return the last cells of a row in all other tables."""
    epochs = statistics.fmean(run["best_epoch"] for run in each.runs)
    return (
        *(accuracy(each, "dev"), accuracy(each, "test"), str(len(each.runs))),
        *(f"{epochs:.1f}", minutes(each), commits(each)),
    )


FIGURES = ("dev", "test", "seeds", "epochs", "minutes", "code")


def ablation_table(setting: str, groups: Iterable[Group]) -> str:
    rows = []
    for each in groups:
        rest = [change for change in each.set if not change.startswith(f"{setting}=")]
        rows.append((label(each.recipe, rest), str(each.value(setting)), *figures(each)))
    return table(("recipe", setting, *FIGURES), rows)


def tuned_table(recipes: Iterable[str]) -> str:
    """Return the changes of each recipe from the one it is named after."""
    rows = []
    for recipe in recipes:
        base = re.sub("-(tuned|reference).*", "", recipe)
        if base != recipe:
            own = changes(packaged(recipe), packaged(base))
            rows.append((label(recipe), label(base, own)))
    return table(("recipe", "is"), rows)


def authors_table(plain: dict[str, Group]) -> str:
    """Return the accuracies of the authors' code beside ours on the same data."""
    rows = []
    for run in PUBLISHED["authors_code"]:
        ours = [plain[name] for name in run["ours"] if name in plain]
        rows.append(
            (
                *(run["model"], run["split"], spread(run["accuracies"])),
                *(str(len(run["accuracies"])), run["note"]),
                "; ".join(f"{label(each.recipe)} {accuracy(each, run['split'])}" for each in ours),
                "; ".join(str(len(each.runs)) for each in ours),
            )
        )
    return table(
        ("data and model", "split", "authors' code", "runs", "note", "ours", "seeds"), rows
    )


def tables(groups: Sequence[Group]) -> dict[str, str]:
    """Return the generated tables by name."""
    plain = {each.recipe: each for each in groups if not each.set}
    by_task: dict[str, list[Group]] = {}
    for each in plain.values():
        by_task.setdefault(load_recipe(each.recipe).data.task, []).append(each)
    snli = by_task.pop("snli", [])
    sst = [*by_task.pop("sst2", []), *by_task.pop("sst5", [])]
    ablations = select_ablations(groups)
    shown = {each.name for part in (snli, sst, *ablations.values()) for each in part}
    others = [each for each in groups if each.name not in shown]
    return {
        "table 1": main_table(snli),
        "table 2": main_table(sst),
        "tuned": tuned_table(plain),
        **{setting: ablation_table(setting, part) for setting, part in ablations.items()},
        "authors": authors_table(plain),
        "others": table(
            ("recipe", *FIGURES),
            [(label(each.recipe, each.set), *figures(each)) for each in others],
        ),
    }


def select_ablations(groups: Iterable[Group]) -> dict[str, list[Group]]:
    by_name = {each.name: each for each in groups}
    return {
        setting: [by_name[name] for name in names if name in by_name]
        for setting, names in ABLATIONS.items()
    }


def fill(page: str, content: dict[str, str]) -> str:
    """Return a page with its generated tables replaced."""
    for name, text in content.items():
        pattern = rf"(<!-- results: {name} -->\n).*?(<!-- end -->)"
        page, count = re.subn(
            pattern, lambda found, text=text: f"{found[1]}\n{text}\n\n{found[2]}", page, flags=re.S
        )
        if count != 1:
            raise ValueError(f"the page must have one `<!-- results: {name} -->`, got {count}")
    return page


def draw_pictures(groups: Sequence[Group], folder: Path) -> None:
    snli = [each for each in groups if not each.set and "curve" in each.runs[0]]
    dashed = {each.recipe for each in snli if each.recipe not in PAPER}
    draw({each.recipe: each for each in snli}, folder / "convergence.png", dashed)
    batches = {f"batch {x.value('batch_size')}": x for x in select_ablations(groups)["batch_size"]}
    draw(batches, folder / "batch-size-snli-100d.png", title="Batch size, snli-100d")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=Path, default=RUNS, help="file of the collected runs")
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder of the page")
    arguments = parser.parse_args()
    try:
        groups, page = group(read_runs(arguments.runs)), arguments.docs / "results.md"
        text = fill(page.read_text(encoding="utf-8"), tables(groups))
        draw_pictures(groups, arguments.docs / "images")
        replace_file(page, lambda part: part.write_text(text, encoding="utf-8"))
    except (ImportError, OSError, ValueError) as error:
        sys.exit(f"write_results: error: {error}")


if __name__ == "__main__":
    main()
