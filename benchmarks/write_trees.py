"""Measure the trees of our models, and write the figures into docs/trees.md.

    python benchmarks/write_trees.py --sst FOLDER --snli FOLDER --runs FOLDER
                                     [--page docs/trees.md] [--json benchmarks/results/trees.json]
                                     [--images docs/images]
    python benchmarks/write_trees.py --tables

Trees of runs come from the merge orders in their folders (`dev_orders.npz`), which have no words:
these are found again in the development files. Trees of packaged models are parsed anew. The
sections of the page between `<!-- trees: NAME -->` and `<!-- end -->` are replaced; the text around
them is written by hand. `--tables` measures nothing and writes the sections from the JSON file.
"""

import argparse
import json
import re
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from collect_runs import RUNS, find_runs, read_run
from write_results import spread, table

import gumbeltree
from gumbeltree.analysis import gold, metrics
from gumbeltree.analysis.gold import Gold, GoldExample
from gumbeltree.analysis.metrics import plot as metrics_plot
from gumbeltree.analysis.metrics import report as metrics_report
from gumbeltree.analysis.metrics.report import Comparison, ParsedSentence
from gumbeltree.atomic import replace_file
from gumbeltree.cli.scores import find_file
from gumbeltree.config import load_recipe
from gumbeltree.model import SentenceModel
from gumbeltree.text.ids import TextReader, chunks

ROOT = Path(__file__).parent.parent
PACKAGED = {"sst2": "sst2-100d", "snli": "snli-100d"}
KINDS = [*metrics.BASELINES, "best binary tree"]


RECIPES = (
    *("snli-100d", "snli-100d-affine", "snli-300d", "snli-300d-affine", "snli-600d"),
    *("sst2", "sst2-100d"),
)
"""Whose trees the page is about; changed ones only where nothing but the temperature differs."""


def learned_groups(folder: Path) -> dict[str, list[tuple[int, str, Path]]]:
    """Return seed, task and merge orders of the runs in a folder, by experiment."""
    found: dict[str, list[tuple[int, str, Path]]] = {}
    for path in find_runs(folder):
        run, orders = read_run(path), path / "dev_orders.npz"
        changed = [change for change in run["set"] if not change.startswith("anneal_rate=")]
        if run["recipe"] in RECIPES and not changed and orders.is_file():
            name = "--".join([run["recipe"], *run["set"]])
            task = load_recipe(run["recipe"]).data.task
            found.setdefault(name, []).append((run["seed"], task, orders))
    return {name: sorted(runs) for name, runs in found.items() if len(runs) > 1}


def own_words(
    model: SentenceModel, examples: Sequence[GoldExample], pretokenized: bool
) -> list[tuple[str, list[str]]]:
    """Return each text once, in the order of the file, and the words that models read in it."""
    texts = list(dict.fromkeys(text for each in examples for text in each.example.texts))
    reader = TextReader(model.tokenizer, model.config.max_words, pretokenized)
    rows: list[tuple[str, list[str]]] = []
    for part in chunks([texts]):
        found = reader.read(texts[part], part.start, offsets=True)
        rows += [(text, each.words) for text, each in zip(texts[part], found, strict=True)]
    return rows


def with_words(
    path: Path, rows: Sequence[tuple[str, list[str]]], trees: dict[str, Gold]
) -> list[ParsedSentence]:
    """Return a run's trees of the sentences whose gold tree has the words that the model read."""
    _, found = metrics_report.read_orders(path)
    if [len(each.words) for each in found] != [len(words) for _, words in rows]:
        raise ValueError(f"{path}: expected merges of the sentences of the development file")
    return [
        ParsedSentence(tuple(words), each.spans)
        for (text, words), each in zip(rows, found, strict=True)
        if text in trees and trees[text].words == tuple(words)
    ]


def first_trees(examples: Iterable[GoldExample]) -> dict[str, Gold]:
    """Return the first gold tree of each text."""
    trees: dict[str, Gold] = {}
    for each in examples:
        for text, tree in zip(each.example.texts, each.trees, strict=True):
            if tree is not None:
                trees.setdefault(text, tree)
    return trees


def f1_rows(comparison: Comparison) -> dict[str, Any]:
    """Return what the page needs of a comparison, by name."""
    return {
        row.name: {
            "kind": row.kind,
            "f1": row.f1 and row.f1._asdict(),
            "shape": row.shape and row.shape._asdict(),
            "f1_with": {kind: found.sentence for kind, found in row.likeness.items()},
        }
        for row in comparison.rows
    }


def measure(sst: Path, snli: Path, runs: Path, images: Path) -> dict[str, Any]:
    """Measure everything; pictures are drawn on the way."""
    models = {name: gumbeltree.load(name) for name in PACKAGED.values()}
    groups = learned_groups(runs)
    result: dict[str, Any] = {
        "protocol": {"punctuation": "dropped", "trivial_spans": "dropped", "random_seeds": 5},
        "groups": {name: [seed for seed, _, _ in members] for name, members in groups.items()},
        "data": {},
    }
    for task, folder, split in (("sst2", sst, "dev"), ("snli", snli, "dev")):
        reader = gold.tree_task(task)
        path = find_file(reader, folder, split)
        result["data"][task] = measure_task(task, path, models, groups)
    test = find_file(gold.tree_task("sst2"), sst, "test")
    dev = find_file(gold.tree_task("snli"), snli, "dev")
    result["packaged"] = {
        "sst2": packaged("sst2", test, models, images / "trees-sst.png"),
        "snli": packaged("snli", dev, models, images / "trees-snli.png"),
    }
    return result


def measure_task(
    task: str,
    path: Path,
    models: dict[str, SentenceModel],
    groups: dict[str, list[tuple[int, str, Path]]],
) -> dict[str, Any]:
    """Measure the runs of one task on its development sentences."""
    reader = gold.tree_task(task)
    examples = gold.read_examples(reader, path)
    parses = {"binary": first_trees(examples)}
    if task == "snli":
        parses["full"] = first_trees(gold.read_examples(reader, path, "full"))
    rows = own_words(models[PACKAGED[task]], examples, reader.pretokenized)
    own = {name: members for name, members in groups.items() if members[0][1] == task}
    about: dict[str, Any] = {"file": path.name, "texts": len(rows), "syntax": {}}
    for kind, trees in parses.items():
        chosen = [trees[t] for t, words in rows if t in trees and trees[t].words == tuple(words)]
        parsed = {
            f"{name}--seed{seed}": with_words(orders, rows, trees)
            for name, members in own.items()
            for seed, _, orders in members
        }
        comparison = metrics_report.compare(parsed, chosen)
        about["syntax"][kind] = {"sentences": len(chosen), "rows": f1_rows(comparison)}
        if kind == "binary":
            about["stability"] = stability(own, parsed, comparison)
            about["across"] = across(task, models, own, parsed, chosen)
    return about


def stability(
    own: dict[str, list[tuple[int, str, Path]]],
    parsed: dict[str, list[ParsedSentence]],
    comparison: Comparison,
) -> dict[str, Any]:
    """Return the self-F1 of the seeds of each experiment, and of random trees."""
    found: dict[str, Any] = {}
    for name, members in own.items():
        trees = [brackets(parsed[f"{name}--seed{seed}"]) for seed, _, _ in members]
        agreement = metrics.self_f1(trees)
        found[name] = {
            "sentence": agreement.sentence,
            "corpus": agreement.corpus,
            "pairs": [each.sentence for _, _, each in agreement.pairs],
        }
    random = comparison.random_self_f1
    found["random"] = {"sentence": random and random.sentence, "corpus": random and random.corpus}
    return found


def across(
    task: str,
    models: dict[str, SentenceModel],
    own: dict[str, list[tuple[int, str, Path]]],
    parsed: dict[str, list[ParsedSentence]],
    chosen: Sequence[Gold],
) -> dict[str, Any]:
    """Return the F1 of the other task's packaged model with each seed of this task's recipe."""
    recipe = PACKAGED[task]
    (other,) = set(PACKAGED.values()) - {recipe}
    theirs = brackets(metrics_report.parse_gold(models[other], chosen, other))
    seeds = [f"{recipe}--seed{seed}" for seed, _, _ in own[recipe]]
    values = [metrics.f1(brackets(parsed[name]), theirs).sentence for name in seeds]
    return {"recipe": recipe, "other": other, "each": values, "sentence": metrics.mean(values)}


def brackets(trees: Iterable[ParsedSentence]) -> list[metrics.Bracketing]:
    """Return trees as they are compared by default."""
    return [metrics.bracketing(*tree) for tree in trees]


def packaged(
    task: str, path: Path, models: dict[str, SentenceModel], picture: Path
) -> dict[str, Any]:
    """Measure both packaged models on a file, under every protocol, and draw the default one."""
    reader = gold.tree_task(task)
    examples = gold.read_examples(reader, path)
    trees = gold.distinct(examples)
    parsed = {n: metrics_report.parse_gold(model, trees, n) for n, model in models.items()}
    about: dict[str, Any] = {"file": path.name, "sentences": len(trees), "protocols": []}
    name = PACKAGED[task]
    found = metrics_report.accuracy(models[name], reader, examples, name)
    about["accuracy"] = found.as_dict()
    for keep_punctuation in (False, True):
        for keep_trivial in (False, True):
            comparison = metrics_report.compare(parsed, trees, keep_punctuation, keep_trivial)
            about["protocols"].append(
                {
                    "punctuation": "kept" if keep_punctuation else "dropped",
                    "trivial_spans": "kept" if keep_trivial else "dropped",
                    "rows": f1_rows(comparison),
                }
            )
            if not keep_punctuation and not keep_trivial:
                metrics_plot.draw(picture, comparison, [found])
    return about


# the page


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def over_seeds(rows: dict[str, Any], name: str, seeds: Sequence[int], *keys: str) -> list[float]:
    """Return one figure of each seed, in percent unless it is a depth."""
    values = []
    for seed in seeds:
        value: Any = rows[f"{name}--seed{seed}"]
        for key in keys:
            value = value[key]
        values.append(value if keys[-1] == "depth" else 100 * value)
    return values


def syntax_section(result: dict[str, Any]) -> str:
    """Return the table of F1 with gold trees."""
    parts = []
    titles = {
        ("sst2", "binary"): "SST's trees",
        ("snli", "binary"): "SNLI's binary parses",
        ("snli", "full"): "SNLI's constituents, of any number of children",
    }
    for (task, kind), title in titles.items():
        about = result["data"][task]["syntax"][kind]
        rows, lines = about["rows"], []
        for name, seeds in result["groups"].items():
            if f"{name}--seed{seeds[0]}" not in rows:
                continue
            lines.append(
                (
                    f"`{name}`, {len(seeds)} seeds",
                    spread(over_seeds(rows, name, seeds, "f1", "sentence"), 1),
                    spread(over_seeds(rows, name, seeds, "f1", "corpus"), 1),
                    spread(over_seeds(rows, name, seeds, "shape", "depth"), 1),
                    spread(over_seeds(rows, name, seeds, "shape", "left"), 1),
                    spread(over_seeds(rows, name, seeds, "shape", "right"), 1),
                )
            )
        names = {"random": "random, mean of 5", "gold": "gold trees"}
        for name in (*KINDS, "gold"):
            f1, shape = rows[name]["f1"] or {}, rows[name]["shape"] or {}
            depth = shape.get("depth")
            lines.append(
                (
                    names.get(name, name),
                    percent(f1.get("sentence")),
                    percent(f1.get("corpus")),
                    "" if depth is None else f"{depth:.1f}",
                    percent(shape.get("left")),
                    percent(shape.get("right")),
                )
            )
        header = ("trees", "F1", "corpus F1", "depth", "left, %", "right, %")
        file = result["data"][task]["file"]
        parts += [f"{title} ({file}, {about['sentences']:,} sentences):", table(header, lines)]
    return "\n\n".join(parts)


def stability_section(result: dict[str, Any]) -> str:
    """Return the table of self-F1."""
    lines = []
    for task in result["data"]:
        about = result["data"][task]
        rows = about["syntax"]["binary"]["rows"]
        for name, found in about["stability"].items():
            if name == "random":
                lines.append(
                    (f"random trees, {about['file']}", percent(found["sentence"]), *4 * [""])
                )
                continue
            seeds = result["groups"][name]
            likeness = [
                f"{statistics.fmean(over_seeds(rows, name, seeds, 'f1_with', kind)):.1f}"
                for kind in metrics.BASELINES
            ]
            lines.append((f"`{name}`", percent(found["sentence"]), *likeness))
    header = ("seeds of", "self-F1", *(f"F1 with {kind}" for kind in metrics.BASELINES))
    return table(header, lines)


def task_section(result: dict[str, Any]) -> str:
    """Return the table of agreement across tasks."""
    lines = []
    for task in result["data"]:
        about = result["data"][task]
        found, stable = about["across"], about["stability"]
        lines.append(
            (
                f"{about['file']}",
                f"`{found['recipe']}`",
                percent(stable[found["recipe"]]["sentence"]),
                f"`{found['other']}`",
                spread([100 * value for value in found["each"]], 1),
                percent(stable["random"]["sentence"]),
            )
        )
    header = (
        *("sentences", "recipe", "F1 between its seeds", "model of the other task"),
        *("F1 of the seeds with it", "F1 of random trees"),
    )
    return table(header, lines)


def protocols_section(result: dict[str, Any]) -> str:
    """Return the same trees under every protocol."""
    lines = []
    names = [*PACKAGED.values(), *metrics.BASELINES]
    for task in PACKAGED:
        about = result["packaged"][task]
        for each in about["protocols"]:
            f1s = [percent(each["rows"][name]["f1"]["sentence"]) for name in names]
            lines.append((about["file"], each["punctuation"], each["trivial_spans"], *f1s))
    header = ("sentences", "punctuation", "trivial spans", *names)
    return table(header, lines)


def accuracy_section(result: dict[str, Any]) -> str:
    """Return accuracy by length and depth."""
    parts = []
    for task, name in PACKAGED.items():
        about = result["packaged"][task]
        found = about["accuracy"]
        lines = []
        for what, key in (("words", "by_length"), ("depth", "by_depth"), ("gold", "by_gold_depth")):
            said = {
                "words": "words",
                "depth": "depth of its tree",
                "gold": "depth of the gold tree",
            }
            for each in found[key]:
                last = "+" if each["longest"] is None else f"-{each['longest']}"
                lines.append(
                    (
                        said[what],
                        f"{each['shortest']}{last}",
                        f"{each['examples']:,}",
                        percent(each["accuracy"]),
                    )
                )
        parts += [
            f"`{name}` on {about['file']}, {found['examples']:,} examples, "
            f"{percent(found['accuracy'])} % correct:",
            table(("by", "bin", "examples", "accuracy, %"), lines),
        ]
    return "\n\n".join(parts)


SECTIONS = {
    "syntax": syntax_section,
    "stability": stability_section,
    "task": task_section,
    "protocols": protocols_section,
    "accuracy": accuracy_section,
}


def fill_page(text: str, result: dict[str, Any]) -> str:
    """Return the page with its sections replaced; raise where one is missing."""
    for name, make in SECTIONS.items():
        pattern = re.compile(rf"(<!-- trees: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        if len(pattern.findall(text)) != 1:
            raise ValueError(f"the page must have one section `<!-- trees: {name} -->`")
        section = make(result)
        text = pattern.sub(lambda found, s=section: f"{found[1]}\n{s}\n\n{found[2]}", text)
    return text


def rounded(value: Any) -> Any:
    """Return nested figures with six significant digits."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sst", type=Path, help="folder of SST's trees")
    parser.add_argument("--snli", type=Path, help="folder of SNLI")
    parser.add_argument("--runs", type=Path, help="folder of finished runs")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "trees.md")
    parser.add_argument("--json", type=Path, default=RUNS.parent / "trees.json")
    parser.add_argument("--images", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--tables", action="store_true", help="write the page from --json alone")
    arguments = parser.parse_args()
    try:
        if not arguments.tables:
            if None in (arguments.sst, arguments.snli, arguments.runs):
                raise ValueError("pass --sst, --snli and --runs to measure, or --tables")
            result = measure(arguments.sst, arguments.snli, arguments.runs, arguments.images)
            text = json.dumps(rounded(result), indent=1) + "\n"
            replace_file(arguments.json, lambda part: part.write_text(text, encoding="utf-8"))
        result = json.loads(arguments.json.read_text(encoding="utf-8"))
        page = fill_page(arguments.page.read_text(encoding="utf-8"), result)
        replace_file(arguments.page, lambda part: part.write_text(page, encoding="utf-8"))
    except (ImportError, OSError, ValueError) as error:
        sys.exit(f"write_trees: error: {error}")


if __name__ == "__main__":
    main()
