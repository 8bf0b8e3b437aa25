"""Fill the tables of docs/trees.md from benchmarks/results/trees.json.

    python benchmarks/write_trees.py

Replaces the text between `<!-- trees: NAME -->` and `<!-- end -->`; everything else is written by
hand. Rows of trees.json list the values of its `columns`, one row per seed, baseline or model.
"""

import json
import re
from pathlib import Path
from typing import Any

from write_results import spread, table

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "trees.md"
RESULTS = ROOT / "benchmarks" / "results" / "trees.json"
BASELINES = ("left", "right", "balanced", "random")
SECTION = re.compile(r"(<!-- trees: ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def figure(column: str, *values: float | None) -> str:
    """Return the mean and deviation of one column over seeds, in percent except for depths."""
    known = [x if column == "depth" else 100 * x for x in values if x is not None]
    return spread(known, 1) if known else ""


def by_group(result: dict[str, Any], rows: dict[str, list[Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of all seeds by recipe, and single rows under their own name."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for name, values in rows.items():
        row = dict(zip(result["columns"], values, strict=True))
        groups.setdefault(name.partition("--seed")[0], []).append(row)
    return groups


def syntax(result: dict[str, Any], task: str, parses: str) -> str:
    """Return F1 with gold trees and the shape of the trees."""
    groups = by_group(result, result["data"][task]["syntax"][parses]["rows"])
    gold = groups.pop("gold")
    lines = []
    for name, rows in {**groups, "gold trees": gold}.items():
        label = f"`{name}`, {len(rows)} seeds" if len(rows) > 1 else name
        columns = ("f1", "corpus_f1", "depth", "left", "right")
        lines.append([label, *(figure(key, *(row[key] for row in rows)) for key in columns)])
    return table(["trees", "F1", "corpus F1", "depth", "left, %", "right, %"], lines)


def stability(result: dict[str, Any]) -> str:
    """Return the agreement of seeds, and of their trees with the baselines."""
    lines = []
    for data in result["data"].values():
        groups = by_group(result, data["syntax"]["binary"]["rows"])
        for name, agreement in data["self_f1"].items():
            seeds = groups[name] if name != "random" else []
            means = [
                sum(row[f"f1_{kind}"] for row in seeds) / max(len(seeds), 1) for kind in BASELINES
            ]
            lines.append(
                [
                    f"`{name}`" if seeds else f"random trees, {data['file']}",
                    figure("self-F1", agreement["sentence"]),
                    *(figure("F1", mean) if seeds else "" for mean in means),
                ]
            )
    return table(["seeds of", "self-F1", *(f"F1 with {kind}" for kind in BASELINES)], lines)


def tasks(result: dict[str, Any]) -> str:
    """Return the agreement with the packaged model of the other task."""
    lines = []
    for data in result["data"].values():
        other, agreement = data["other_task"], data["self_f1"]
        lines.append(
            [
                data["file"],
                f"`{other['recipe']}`",
                figure("F1", agreement[other["recipe"]]["sentence"]),
                f"`{other['other']}`",
                figure("F1", *other["each"]),
                figure("F1", agreement["random"]["sentence"]),
            ]
        )
    header = ["sentences", "recipe", "F1 between its seeds", "model of the other task"]
    return table([*header, "F1 of the seeds with it", "F1 of random trees"], lines)


def protocols(result: dict[str, Any]) -> str:
    """Return the F1 of the same trees under every protocol."""
    names = ["sst2-100d", "snli-100d", *BASELINES]
    f1 = result["columns"].index("f1")
    lines = [
        [data["file"], x["punctuation"], x["trivial_spans"]]
        + [figure("F1", x["rows"][name][f1]) for name in names]
        for data in result["packaged"].values()
        for x in data["protocols"]
    ]
    return table(["sentences", "punctuation", "trivial spans", *names], lines)


def accuracy(result: dict[str, Any], task: str) -> str:
    """Return accuracy by length and depth."""
    labels = {
        "by_length": "words",
        "by_depth": "depth of its tree",
        "by_gold_depth": "depth of the gold tree",
    }
    lines = [
        [label, name, f"{examples:,}", figure("accuracy", correct / examples)]
        for key, label in labels.items()
        for name, examples, correct in result["packaged"][task]["accuracy"][key]
    ]
    return table(["by", "bin", "examples", "accuracy, %"], lines)


SECTIONS = {
    "SST": lambda result: syntax(result, "sst2", "binary"),
    "SNLI binary": lambda result: syntax(result, "snli", "binary"),
    "SNLI full": lambda result: syntax(result, "snli", "full"),
    "protocols": protocols,
    "stability": stability,
    "tasks": tasks,
    "accuracy SST": lambda result: accuracy(result, "sst2"),
    "accuracy SNLI": lambda result: accuracy(result, "snli"),
}


def fill(page: str, result: dict[str, Any]) -> str:
    """Return the page with its tables replaced."""
    return SECTION.sub(lambda x: f"{x[1]}\n{SECTIONS[x[2]](result)}\n\n{x[3]}", page)


if __name__ == "__main__":
    figures = json.loads(RESULTS.read_text(encoding="utf-8"))
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), figures), encoding="utf-8")
