"""Write the tables and pictures of docs/results.md from benchmarks/results/runs.jsonl.

    python benchmarks/write_results.py

`collect_runs.py` fills that file. Published figures, and the systems that the paper compares itself
with, come from results/published.json. docs/peers.md says how many of them have been trained. The
text between `<!-- results: NAME -->` and `<!-- end -->` is replaced; the text around it is written
by hand.
"""

import argparse
import dataclasses
import json
import math
import re
import statistics
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from collect_runs import RUNS, changes, packaged, read_runs, settings
from peer_speed import systems
from results_pictures import Point, comparable, draw, draw_points
from scipy.special import stdtrit

from gumbeltree.atomic import replace_file
from gumbeltree.config import load_recipe, recipe_names, with_settings
from gumbeltree.describe import count_parameters

DOCS = Path(__file__).parent.parent / "docs"
PLAN = Path(__file__).parent / "plans" / "paper.toml"
"""Has the candidates for the tuned recipes."""
TIMES = RUNS.with_name("step_times.json")
"""Written by `step_times.py`."""
PUBLISHED = json.loads((RUNS.parent / "published.json").read_text(encoding="utf-8"))
PAPER: dict[str, dict[str, str]] = PUBLISHED["paper"]
TASKS = {"snli": "SNLI", "sst2": "SST-2", "sst5": "SST-5"}
BASES = ("snli-100d", "snli-300d", "sst2", "sst5")
"""Recipes that others are matched with."""
FIGURE_3 = (
    *("snli-100d", "snli-300d"),
    *("cyk-matched", "lstm-matched", "nse-matched", "spinn-pi-matched"),
)
SNLI_PAIRS = 549_367
"""Labelled training pairs of SNLI."""
OFFICIAL = "snli_1.0_test"
"""Name of SNLI's test file, on which runs with other parses are also evaluated."""
OFFICIAL_PARSES = "official parses of the test file"
FROM_FIVE = "two classes read from five"
COMPARISON = "comparison-"
"""Beginning of the names of pictures."""
CAPTION = "Bars show one standard deviation over seeds."
TIMED = "The lower panel has only recipes timed alone on\nthe GPU."
NONE = "No runs of other systems are recorded yet."

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
    def key(self) -> frozenset[str]:
        """Recipe and changes, in no order: plans list them in another one."""
        return frozenset((self.recipe, *self.set))

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


# systems


class Line(NamedTuple):
    """A recipe of a system and its runs."""

    about: dict[str, Any]
    """The system and its published figures; see published.json."""
    first: bool
    """Whether it is the first line of the system."""
    recipe: str = ""
    group: Group | None = None
    note: str = ""
    """What sets it apart from another line with the same recipe."""

    @property
    def other(self) -> bool:
        """Whether the system is not a Gumbel tree."""
        return "source" in self.about or "data" in self.about

    def published(self, key: str) -> str:
        """Return a published figure of the system, which only its first line has."""
        return self.about.get(key, "") if self.first else ""


def lines(task: str, plain: dict[str, Group]) -> Iterator[Line]:
    """Yield the systems of a task in the order of the paper, for each its own settings first."""
    for row in PUBLISHED["systems"]["snli" if task == "snli" else "sst"]:
        name = row.get("recipe", "").format(task)
        about = row | PAPER.get(name, {})
        if isinstance(about.get("test"), dict):
            about["test"] = about["test"].get(task, "")
        found = []
        for recipe in (name, f"{name}-matched"):
            each = plain.get(recipe)
            if recipe in recipe_names():
                found.append((recipe, each, ""))
            if official := each and with_accuracy(each, official_accuracy):
                found.append((recipe, official, OFFICIAL_PARSES))
        if task == "sst2" and (recipe := row.get("binary")):
            each = plain.get(recipe)
            both = each and with_accuracy(each, lambda run, x: run.get(f"{x}_binary_accuracy"))
            # after a recipe for two classes
            found.insert(name in recipe_names(), (recipe, both, FROM_FIVE))
        if not found and about.get("test"):
            found.append(("", None, ""))
        for number, line in enumerate(found):
            yield Line(about, not number, *line)


def official_accuracy(run: dict[str, Any], split: str) -> float | None:
    tests: dict[str, Any] = run.get("tests", {}) if split == "test" else {}
    return next((x["accuracy"] for name, x in tests.items() if name.startswith(OFFICIAL)), None)


def with_accuracy(each: Group, read: Callable[[dict[str, Any], str], float | None]) -> Group | None:
    """Return a group with other accuracies, read from each run; None if no run has them."""
    runs = []
    for run in each.runs:
        own = {key: x for key, x in run.items() if key not in ("dev_accuracy", "test_accuracy")}
        found = {f"{split}_accuracy": read(run, split) for split in ("dev", "test")}
        runs.append(own | {key: x for key, x in found.items() if x is not None})
    known = any(f"{split}_accuracy" in run for run in runs for split in ("dev", "test"))
    return each._replace(runs=runs) if known else None


# cells


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return the mean and, for several values, the sample standard deviation."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def accuracies(each: Group, split: str) -> list[float]:
    """Return the accuracies of the runs that have them, in percent."""
    key = f"{split}_accuracy"
    return [100 * run[key] for run in each.runs if key in run]


def accuracy(each: Group, split: str) -> str:
    """Return an accuracy in percent, empty if no run has it."""
    values = accuracies(each, split)
    part = "" if len(values) == len(each.runs) else f" ({len(values)} of {len(each.runs)})"
    return spread(values) + part if values else ""


def minutes(each: Group) -> str:
    """Return the mean minutes to the best evaluation, an upper bound if all runs were shared."""
    mean = minutes_alone(each)
    bound = place = ""
    if mean is None:
        mean = statistics.fmean(run["best_seconds"] for run in each.runs) / 60
        bound = "≤ "
        place = " (CPU)" if all(run["machine"].startswith("CPU") for run in each.runs) else ""
    return bound + (f"{mean:.1f}" if mean >= 1 else f"{mean:.2f}") + place


def minutes_alone(each: Group) -> float | None:
    """Return the mean minutes to the best evaluation of runs alone on the GPU; None if unknown.

    For shared runs, they are the number of steps times the time of a step alone.
    """
    if each.exclusive:
        return statistics.fmean(run["best_seconds"] for run in each.exclusive) / 60
    step = step_times().get(each.key)
    if step is None or any("best_step" not in run for run in each.runs):
        return None
    return step * statistics.fmean(run["best_step"] for run in each.runs) / 60


def minutes_of_epoch(each: Group) -> float | None:
    """Return the minutes of an epoch alone on the GPU; None if unknown."""
    mean = minutes_alone(each)
    timed = each.exclusive or each.runs
    return mean and mean / statistics.fmean(run["best_epoch"] for run in timed)


@cache
def step_times() -> dict[frozenset[str], float]:
    """Return the seconds of a step alone, by recipe and changes."""
    rows = json.loads(TIMES.read_text(encoding="utf-8"))["rows"] if TIMES.exists() else {}
    return {frozenset(name.split()): row["seconds"] for name, row in rows.items()}


def commits(each: Group) -> str:
    """Return the commits of the runs, empty if none is recorded.

    Of several commits with the same source files, the first is named.
    """
    found: dict[str, str] = {}
    for code in (code for run in each.runs for code in run["code"]):
        if code["commit"]:
            name = f"`{code['commit'][:7]}`" + ("" if code["clean"] else " modified")
        else:
            name = f"source `{code['source'][:7]}`"
        found.setdefault(code.get("source") or name, name)
    if found and not all(run["code"] for run in each.runs):
        found["others"] = "others not recorded"
    return ", ".join(dict.fromkeys(found.values()))


def snli_share(each: Group) -> float:
    """Return the share of SNLI's training pairs; 1 for other tasks."""
    if load_recipe(each.recipe).data.task != "snli":
        return 1.0
    pairs: int = each.runs[0]["data"]["examples"]["train"]
    return pairs / SNLI_PAIRS


def silver(each: Group) -> bool:
    """Return whether the trees are those of our parser: only all of SNLI has parses."""
    reads = load_recipe(each.recipe).model.encoder.kind == "spinn"
    return reads and snli_share(each) < 1


def titled(each: Group) -> str:
    """Return the label of a recipe without changes, which names silver parses."""
    return label(each.recipe) + (" (silver parses)" if silver(each) else "")


def parameters(each: Group) -> str:
    """Return the number of trained parameters, plus that of tuned word vectors."""
    return " + ".join(f"{count:,}" for count in each.runs[0]["parameters"].values())


def data(line: Line) -> str:
    """Return where the data differs from that of the published figure."""
    each = line.group
    share = snli_share(each) if each else 1.0
    vectors = (each.runs[0]["data"].get("vectors") or {}).get("file", "") if each else ""
    cased = not load_recipe(line.recipe).data.lower if line.recipe else False
    notes = {
        f"{100 * share:.0f} % of SNLI": share < 0.995,
        "GloVe subset": "subset" in vectors and not cased,
        "cased words, mostly lower-case GloVe subset": "subset" in vectors and cased,
        "silver parses": each and silver(each),
        line.about.get("data", ""): True,
        line.note: True,
    }
    return ", ".join(note for note, applies in notes.items() if note and applies)


def difference(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Return the difference of two means with Welch's 95 % interval, which needs two values each.

    The interval is d ± t s with s² = s₁²/n₁ + s₂²/n₂ and t the 97.5 % quantile of Student's
    distribution with s⁴ / ((s₁²/n₁)²/(n₁ − 1) + (s₂²/n₂)²/(n₂ − 1)) degrees of freedom.
    """
    if not ours or not theirs:
        return ""
    mean = statistics.fmean(ours) - statistics.fmean(theirs)
    text = f"{mean:+.2f}"
    if min(len(ours), len(theirs)) > 1:
        parts = [statistics.variance(x) / len(x) for x in (ours, theirs)]
        both = sum(parts)
        rest = sum(x**2 / (len(y) - 1) for x, y in zip(parts, (ours, theirs), strict=True))
        half = math.sqrt(both) * stdtrit(both**2 / rest, 0.975) if both else 0.0
        text += f" [{mean - half:+.2f}, {mean + half:+.2f}]"
    return text.replace("-", "−")


def label(recipe: str, changed: Iterable[str] = ()) -> str:
    return ", ".join(f"`{name}`" for name in (recipe, *changed))


# tables


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table without the columns that are empty in every row."""
    rows = list(rows)
    kept = [i for i in range(len(header)) if any(row[i] for row in rows)]
    lines = ["| " + " | ".join(row[i] for i in kept) + " |" for row in (header, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(kept), *lines[1:]])


def accuracy_table(found: Iterable[Line]) -> str:
    """Return Table 1 or 2: published accuracies and ours."""
    links = PUBLISHED["sources"]
    rows = []
    for line in found:
        source = line.published("source")
        system = line.published("system") + (f" ([{source}]({links[source]}))" if source else "")
        each = line.group
        if not (each or system):
            # further recipes of a system are listed once they have been trained
            continue
        ours = (accuracy(each, "dev"), accuracy(each, "test"), str(len(each.runs))) if each else ()
        rows.append(
            (
                *(system, line.published("test"), label(line.recipe) if line.recipe else ""),
                *(ours or ("", "", "")),
                data(line),
            )
        )
    return table(("system", "published", "recipe", "dev", "test", "seeds", "data"), rows)


def cost_table(found: Iterable[Line]) -> str:
    """Return parameters, times and commits, of the paper and ours."""
    header = ("recipe", "published parameters", "parameters", "paper, hours", "epochs", "minutes")
    rows = []
    for line in found:
        each = line.group
        if not line.recipe or line.note:
            continue
        name, times = label(line.recipe), ("", "", "")
        # those of the word vectors depend on the data
        size = f"{count_parameters(load_recipe(line.recipe).model)['total']:,}"
        if each:
            name, size, times = titled(each), parameters(each), figures(each)[-3:]
        theirs = line.published("parameters"), line.published("hours")
        rows.append((name, theirs[0], size, theirs[1], *times))
    return table((*header, "code"), rows) if rows else NONE


def difference_table(plain: dict[str, Group]) -> str:
    """Return the matched encoders minus the Gumbel tree that they are matched with."""
    rows = []
    for base in BASES:
        for recipe in systems(base)[1:] if base in plain else ():
            if ours := plain.get(recipe):
                cells = (
                    difference(accuracies(ours, split), accuracies(plain[base], split))
                    for split in ("dev", "test")
                )
                seeds = f"{len(ours.runs)}, {len(plain[base].runs)}"
                rows.append((titled(ours), label(base), *cells, seeds))
    return table(("recipe", "minus", "dev", "test", "seeds"), rows) if rows else NONE


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


def select_candidates(groups: Iterable[Group]) -> list[Group]:
    """Return candidates for the tuned recipes: by base, the highest development accuracy first."""
    by_name = {each.name: each for each in groups}
    found: dict[str, list[Group]] = {base: [] for base in BASES}
    for row in tomllib.loads(PLAN.read_text(encoding="utf-8"))["row"]:
        recipes = row["recipe"] if isinstance(row["recipe"], list) else [row["recipe"]]
        for recipe in recipes:
            wanted = with_settings(load_recipe(recipe), row.get("set", []))
            changed = changes(dataclasses.asdict(wanted), packaged(recipe))
            base, each = recipe.removesuffix("-tuned"), by_name.get(" ".join([recipe, *changed]))
            if base in found and each:
                found[base].append(each)
    for part in found.values():
        part.sort(key=lambda each: -statistics.fmean(accuracies(each, "dev")))
    return [each for part in found.values() for each in part]


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
    """Return the generated parts of docs/results.md by name."""
    plain = {each.recipe: each for each in groups if not each.set}
    by_task = {task: list(lines(task, plain)) for task in TASKS}
    ablations, candidates = select_ablations(groups), select_candidates(groups)
    shown = {each.name for part in (*ablations.values(), candidates) for each in part}
    shown |= {line.recipe for found in by_task.values() for line in found}
    others = [each for each in groups if each.name not in shown]

    def plain_table(part: Iterable[Group]) -> str:
        rows = [(label(each.recipe, each.set), *figures(each)) for each in part]
        return table(("recipe", *FIGURES), rows)

    parts = {f"accuracy {task}": accuracy_table(found) for task, found in by_task.items()}
    parts |= {f"cost {task}": cost_table(found) for task, found in by_task.items()}
    for task, name in TASKS.items():
        _, drawn = points(by_task[task])
        image = f"![accuracy on {name} over parameters](images/{COMPARISON}{task}.png)"
        caption = f"{CAPTION} {TIMED}" if comparable(drawn) else CAPTION
        parts[f"picture {task}"] = f"{image}\n\n{caption}" if drawn else NONE
    image = "![development accuracy on SNLI by encoder](images/convergence-systems.png)"
    return parts | {
        "differences": difference_table(plain),
        "figure 3": image if compared_curves(plain) else NONE,
        "tuned": tuned_table(plain),
        "candidates": plain_table(candidates),
        **{setting: ablation_table(setting, part) for setting, part in ablations.items()},
        "authors": authors_table(plain),
        "others": plain_table(others),
    }


def trained_sentence(groups: Sequence[Group]) -> str:
    """Return how many recipes of other systems have runs, for docs/peers.md."""
    plain = {each.recipe: each for each in groups if not each.set}
    found = [line for task in TASKS for line in lines(task, plain) if line.other and line.recipe]
    done = {line.recipe for line in found if line.group}
    return (
        "[Results](results.md#table-1-snli) lists the accuracies of these recipes beside the "
        f"published ones.\nSo far, {len(done)} of {len({line.recipe for line in found})} recipes "
        "have been trained."
    )


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


def points(found: Iterable[Line]) -> tuple[str, list[Point]]:
    """Return a split and a point per recipe; no points unless there are other systems, too."""
    drawn = [(line, line.group) for line in found if line.group and line.note != OFFICIAL_PARSES]
    split = "test" if all(accuracies(each, "test") for _, each in drawn) else "dev"
    if {line.other for line, _ in drawn} != {True, False}:
        return split, []
    return split, [
        Point(
            re.sub("-(sst[25]|matched)", "", line.recipe)
            + (" (silver)" if silver(each) else "")
            + (" (of five classes)" if line.note == FROM_FIVE else ""),
            "tree" if not line.other else "matched" if "-matched" in line.recipe else "authors",
            each.runs[0]["parameters"]["trained"],
            minutes_alone(each),
            accuracies(each, split),
        )
        for line, each in drawn
    ]


def compared_curves(plain: dict[str, Group]) -> dict[str, Group]:
    """Return the groups of Figure 3; none unless there are other systems, too."""
    drawn = [plain[x] for x in FIGURE_3 if x in plain and "curve" in plain[x].runs[0]]
    if all(each.recipe in PAPER for each in drawn):
        return {}
    return {x.recipe + (" (silver parses)" if silver(x) else ""): x for x in drawn}


def draw_curves(drawn: dict[str, Group], *given: Any, **options: Any) -> None:
    draw(drawn, *given, **options, paces={x: minutes_of_epoch(each) for x, each in drawn.items()})


def draw_pictures(groups: Sequence[Group], folder: Path) -> None:
    plain = {each.recipe: each for each in groups if not each.set}
    trees = {x: each for x, each in plain.items() if x[:5] == "snli-" and "curve" in each.runs[0]}
    draw_curves(trees, folder / "convergence.png", trees.keys() - PAPER.keys())
    batches = {f"batch {x.value('batch_size')}": x for x in select_ablations(groups)["batch_size"]}
    draw_curves(batches, folder / "batch-size-snli-100d.png", title="Batch size, snli-100d")
    if curves := compared_curves(plain):
        draw_curves(curves, folder / "convergence-systems.png", curves.keys() - PAPER.keys())
    for task, name in TASKS.items():
        split, drawn = points(lines(task, plain))
        if drawn:
            draw_points(drawn, folder / f"{COMPARISON}{task}.png", f"{name}, {split} accuracy, %")


def pages(groups: Sequence[Group], docs: Path = DOCS) -> dict[Path, str]:
    """Return the pages with their generated parts replaced."""
    content = {
        docs / "results.md": tables(groups),
        docs / "peers.md": {"trained": trained_sentence(groups)},
    }
    return {path: fill(path.read_text("utf-8"), parts) for path, parts in content.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=Path, default=RUNS, help="file of the collected runs")
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder of the pages")
    arguments = parser.parse_args()
    try:
        groups = group(read_runs(arguments.runs))
        found = pages(groups, arguments.docs)
        draw_pictures(groups, arguments.docs / "images")
        for page, text in found.items():
            replace_file(page, lambda part, text=text: part.write_text(text, encoding="utf-8"))
    except (ImportError, OSError, ValueError) as error:
        sys.exit(f"write_results: error: {error}")


if __name__ == "__main__":
    main()
