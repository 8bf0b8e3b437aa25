"""Write the tables of docs/results.md and its pictures from the records of finished runs.

    python benchmarks/write_results.py [--runs benchmarks/results/runs] [--page docs/results.md]
                                       [--images docs/images]

`collect_runs.py` makes the records. What stands between `<!-- results: NAME -->` and `<!-- end -->`
is replaced; the text around it is written by hand.
"""

import argparse
import re
import shlex
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from collect_runs import RUNS, difference, setting, stem
from published import OTHERS_SNLI, OTHERS_SST, PAPER, REFERENCE, Published
from results_pictures import pictures
from run_groups import (
    ABLATIONS,
    Ablation,
    Group,
    alone,
    families,
    group,
    read_records,
    value_of,
)

from gumbeltree.atomic import replace_file

DOCS = Path(__file__).parent.parent / "docs"
SECTION = re.compile(r"(?<=<!-- results: )([\w -]+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)
NONE = "No runs on record."

# figures


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return mean and sample deviation; of one value there is no deviation."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def accuracy(each: Group, split: str) -> str:
    """Return mean and deviation of an accuracy in percent; empty where there is none."""
    key = f"{split}_accuracy"
    values = [100 * r["result"][key] for r in each.records if key in r["result"]]
    if not values:
        return ""
    part = "" if len(values) == len(each.records) else f" ({len(values)} of {len(each.records)})"
    return spread(values) + part


def epochs(each: Group) -> str:
    """Return the mean of the epochs until the best point."""
    return f"{statistics.fmean(r['best']['epoch'] for r in each.records):.1f}"


def minutes(each: Group) -> str:
    """Return the mean of the minutes until the best point, marked where runs shared a machine."""
    timed = alone(each) or each.records
    mean = statistics.fmean(r["best"]["seconds"] for r in timed) / 60
    bound = "" if timed[0].get("alone") else "≤ "
    return bound + (f"{mean:.1f}" if mean >= 1 else f"{mean:.2f}")


def code(each: Group) -> str:
    """Return the commits of the runs, those with changes marked; empty where none is recorded."""
    found = dict.fromkeys(
        f"`{x['commit'][:7]}`" + ("" if x["clean"] else " modified")
        if x["commit"]
        else f"source `{x['source'][:7]}`"
        for r in each.records
        for x in r.get("code", [])
    )
    some = "" if all(r.get("code") for r in each.records) or not found else "others not recorded"
    return ", ".join([*found, *([some] if some else [])])


def parameters(each: Group) -> str:
    """Return how many parameters are trained, tuned word vectors apart."""
    counts = each.records[0]["parameters"]
    vectors = counts.get("word_vectors")
    return f"{counts['trained']:,}" + (f" + {vectors:,}" if vectors else "")


# pieces of a section


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; columns that are empty in all rows are left out."""
    rows = list(rows)
    kept = [i for i in range(len(header)) if any(row[i] for row in rows)]
    lines = ["| " + " | ".join(row[i] for i in kept) + " |" for row in (header, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(kept), *lines[1:]])


def changes(overrides: dict[str, Any]) -> list[str]:
    """Return changed settings as `--set` takes them."""
    return [setting(key, value) for key, value in sorted(overrides.items())]


def named(recipe: str, overrides: dict[str, Any]) -> str:
    """Return a recipe and its changes as code."""
    return ", ".join(f"`{name}`" for name in (recipe, *changes(overrides)))


def commands(each: Group) -> list[str]:
    """Return the commands that make the runs of a group, one for seeds that follow each other."""
    task, first = each.task, each.records[0]
    data = {"snli": "$snli", "sst2": "$sst", "sst5": "$sst", "demo": "", "listops": ""}
    where = data.get(task, "DATA")
    words = ["gumbeltree", "train", each.recipe]
    words += ["--data", where] if where else []
    known = {"6B": "$glove6", "840B": "$glove840"}
    vectors = first["data"]["vectors"]
    for option, source in (("--vectors", vectors), ("--more-vectors", vectors.get("borrowed", {}))):
        if file := source.get("file", ""):
            words += [option, next((known[k] for k in known if f".{k}." in file), "VECTORS")]
    for change in changes(each.overrides):
        words += ["--set", shlex.quote(change)]
    stretches: list[list[int]] = []
    for seed in (r["seed"] for r in each.records):
        if stretches and stretches[-1][-1] + 1 == seed:
            stretches[-1].append(seed)
        else:
            stretches.append([seed])
    lines = []
    for seeds in stretches:
        more = ["--seed", str(seeds[0])] if seeds[0] else []
        more += ["--seeds", str(len(seeds))] if len(seeds) > 1 else []
        folder = each.name if seeds[0] == 0 else stem(each.recipe, each.overrides, seeds[0])
        # the default is the recipe's name, where the unchanged runs are
        more += ["--out", shlex.quote(f"runs/{folder}")] if folder != each.recipe else []
        lines.append(" ".join([*words, *more]))
    return lines


def with_commands(
    header: Sequence[str], rows: Iterable[Sequence[str]], groups: Sequence[Group]
) -> str:
    """Return a table of groups and below it the commands of its rows, in their order."""
    if not groups:
        return NONE
    lines = [line for each in groups for line in commands(each)]
    return "\n".join([table(header, rows), "", "```sh", *lines, "```"])


# sections


def table_snli(groups: Sequence[Group]) -> str:
    """Return Table 1."""
    rows = []
    for each in groups:
        paper = PAPER.get(each.recipe, Published("", 0.0))
        rows.append(
            (
                f"`{each.recipe}`",
                f"{paper.accuracy}" if paper.model else "",
                accuracy(each, "test"),
                accuracy(each, "dev"),
                str(len(each.records)),
                paper.parameters,
                parameters(each),
                paper.hours,
                minutes(each),
                code(each),
            )
        )
    header = (
        *("recipe", "paper, test", "ours, test", "ours, dev", "seeds", "paper, parameters"),
        *("ours, parameters", "paper, hours", "ours, minutes", "code"),
    )
    return with_commands(header, rows, groups)


def table_sst(groups: Sequence[Group]) -> str:
    """Return Table 2."""
    rows = [
        (
            f"`{each.recipe}`",
            f"{PAPER[each.recipe].accuracy}" if each.recipe in PAPER else "",
            accuracy(each, "test"),
            accuracy(each, "dev"),
            str(len(each.records)),
            parameters(each),
            minutes(each),
            code(each),
        )
        for each in groups
    ]
    header = (
        *("recipe", "paper, test", "ours, test", "ours, dev", "seeds"),
        *("parameters", "minutes", "code"),
    )
    return with_commands(header, rows, groups)


def tuned(groups: Sequence[Group]) -> str:
    """Return how recipes differ from the published ones they are named after."""
    by_name = {each.recipe: each for each in groups}
    rows = []
    for each in groups:
        base = by_name.get(re.sub("-(tuned|reference).*", "", each.recipe))
        if base is not None and base is not each:
            own = difference(each.records[0]["recipe"], base.records[0]["recipe"])
            rows.append((f"`{each.recipe}`", named(base.recipe, own)))
    return table(("recipe", "is"), rows) if rows else NONE


def ablation_table(groups: Sequence[Group], ablation: Ablation) -> str:
    """Return the table of one ablation, with its commands."""
    found = [each for family in families(groups, ablation) for each in family]
    rows = []
    for each in found:
        rest = {key: value for key, value in each.overrides.items() if key != ablation.key}
        row = (named(each.recipe, rest), f"{value_of(each, ablation)}")
        rows.append((*row, *figures(each)))
    return with_commands(("recipe", ablation.column, *FIGURES), rows, found)


FIGURES = ("dev", "test", "seeds", "epochs", "minutes", "code")


def figures(each: Group) -> tuple[str, ...]:
    """Return what tables of changed recipes show of a group; see `FIGURES`."""
    return (
        accuracy(each, "dev"),
        accuracy(each, "test"),
        str(len(each.records)),
        epochs(each),
        minutes(each),
        code(each),
    )


def authors(groups: Sequence[Group]) -> str:
    """Return what the authors' code reached on the same files, beside ours."""
    ours = {each.recipe: each for each in groups if not each.overrides}
    rows = []
    for x in REFERENCE:
        found = [ours[name] for name in x.recipes if name in ours]
        rows.append(
            (
                x.model,
                x.split,
                spread(x.accuracies),
                str(len(x.accuracies)),
                x.note,
                "; ".join(f"`{each.recipe}` {accuracy(each, x.split)}" for each in found),
                "; ".join(str(len(each.records)) for each in found),
            )
        )
    header = ("data and model", "split", "authors' code", "runs", "note", "ours", "seeds")
    return table(header, rows)


def others(groups: Sequence[Group]) -> str:
    """Return the runs that have no place elsewhere, so that none is kept back."""
    rows = [(named(each.recipe, each.overrides), *figures(each)) for each in groups]
    return with_commands(("recipe and changes", *FIGURES), rows, groups)


def sections(groups: Sequence[Group]) -> dict[str, str]:
    """Return the generated parts of the page by name."""
    plain = [each for each in groups if not each.overrides]
    snli = [each for each in plain if each.task == "snli"]
    sst = sorted((e for e in plain if e.task in ("sst2", "sst5")), key=lambda e: e.task)
    shown = {each.name for each in (*snli, *sst)}
    for ablation in ABLATIONS:
        shown |= {each.name for family in families(groups, ablation) for each in family}
    published = [(x.model, f"{x.accuracy}", x.parameters, x.hours) for x in OTHERS_SNLI]
    return {
        "table 1": table_snli(snli),
        "table 1 published": table(("model", "test", "parameters", "hours"), published),
        "table 2": table_sst(sst),
        "table 2 published": table(("model", "SST-2, test", "SST-5, test"), OTHERS_SST),
        "tuned": tuned(plain),
        **{ablation.column: ablation_table(groups, ablation) for ablation in ABLATIONS},
        "authors": authors(groups),
        "others": others([each for each in groups if each.name not in shown]),
    }


def written(text: str, content: dict[str, str]) -> str:
    """Return a page with its generated parts replaced."""
    found = [name for name, _ in SECTION.findall(text)]
    if sorted(found) != sorted(content):
        raise ValueError(
            f"expected the sections {', '.join(sorted(content))}, each once, between "
            f"<!-- results: NAME --> and <!-- end -->, got {', '.join(sorted(found)) or 'none'}"
        )
    return SECTION.sub(lambda part: f"{part[1]}{part[2]}\n{content[part[1]]}\n\n", text)


def write(runs: Path, page: Path, images: Path) -> None:
    """Write tables and pictures."""
    groups = group(read_records(runs))
    text = written(page.read_text(encoding="utf-8"), sections(groups))
    pictures(groups, images)
    replace_file(page, lambda part: part.write_text(text, encoding="utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder of the records")
    parser.add_argument("--page", type=Path, default=DOCS / "results.md", help="the page")
    parser.add_argument("--images", type=Path, default=DOCS / "images", help="of the pictures")
    arguments = parser.parse_args()
    try:
        write(arguments.runs, arguments.page, arguments.images)
    except (ImportError, OSError, ValueError) as error:
        sys.exit(f"write_results: error: {error}")


if __name__ == "__main__":
    main()
