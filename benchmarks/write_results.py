"""Write docs/results.md and its pictures from the records of finished runs.

    python benchmarks/write_results.py [--runs benchmarks/results/runs] [--out docs/results.md]
                                       [--images docs/images]

`collect_runs.py` makes the records. All figures of ours come from them; by hand are only the
explanations and what `published.py` holds.
"""

import argparse
import os
import re
import shlex
import statistics
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from collect_runs import RUNS, difference, setting, stem
from published import OTHERS_SNLI, OTHERS_SST, PAPER, REFERENCE, SNLI_PAIRS, Published, Reference
from results_pictures import pictures
from run_groups import (
    ABLATIONS,
    SEEDS,
    Ablation,
    Group,
    alone,
    families,
    family_names,
    first_seeds,
    group,
    many,
    read_records,
    value_of,
)

from gumbeltree.atomic import replace_file

DOCS = Path(__file__).parent.parent / "docs"
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
    mean = statistics.fmean(r["best"]["seconds"] for r in each.records) / 60
    bound = "" if alone(each) else "≤ "
    return bound + (f"{mean:.1f}" if mean >= 1 else f"{mean:.2f}")


def machine(records: Iterable[dict[str, Any]]) -> str:
    """Return where the runs were made."""
    return ", ".join(sorted({r["result"].get("machine") or "not recorded" for r in records}))


def parameters(each: Group) -> str:
    """Return how many parameters are trained, tuned word vectors apart."""
    counts = each.records[0]["parameters"]
    vectors = counts.get("word_vectors")
    return f"{counts['trained']:,}" + (f" + {vectors:,}" if vectors else "")


# pieces of the page


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; columns that are empty in all rows are left out."""
    rows = list(rows)
    kept = [i for i in range(len(header)) if any(row[i] for row in rows)]
    lines = ["| " + " | ".join(row[i] for i in kept) + " |" for row in (header, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(kept), *lines[1:]])


def mark(each: Group) -> str:
    """Return the name of a row: the paper's model, or a recipe of ours."""
    if each.recipe in PAPER:
        return f"{PAPER[each.recipe].model} (`{each.recipe}`)"
    kind = "tuned" if "tuned" in each.recipe else "not in the paper"
    if "-reference" in each.recipe:
        kind = "the authors' last code"
    return f"`{each.recipe}`, {kind}"


def changes(overrides: dict[str, Any]) -> list[str]:
    """Return changed settings as `--set` takes them."""
    return [setting(key, value) for key, value in sorted(overrides.items())]


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


def shell(groups: Iterable[Group]) -> str:
    """Return the commands of the rows of a table, in their order."""
    return "\n".join(["```sh", *(line for each in groups for line in commands(each)), "```"])


def fill(text: str) -> str:
    """Wrap a paragraph, or a point of a list; code and links stay on one line."""
    indent = "  " if text.startswith("- ") else ""
    whole = re.sub(r"`[^`]*`|\[[^]]*\]", lambda match: match[0].replace(" ", "\0"), text)
    return textwrap.fill(
        whole, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    ).replace("\0", " ")


# sections


def about_data(groups: Sequence[Group], runs: int) -> list[str]:
    """Say on what data, how often and on which machines the runs were made."""
    points = []
    snli = [each for each in groups if each.task == "snli"]
    for count, dev in sorted({_examples(each, "train", "dev") for each in snli}, reverse=True):
        share = f"{count:,} of the {SNLI_PAIRS:,} training pairs ({count / SNLI_PAIRS:.0%})"
        part = ""
        if count < SNLI_PAIRS:
            part = ", all that was at hand and no uniform sample"
        points.append(f"SNLI: {share.replace('%', ' %')}{part}, and {dev:,} development pairs.")
    if snli and not any(accuracy(each, "test") for each in snli):
        points.append(
            "SNLI's test set was not at hand: our figures are development accuracy, the best of "
            "all evaluations of a run, which is chosen on the same pairs and so a little high. The "
            "paper's are test accuracy after training on all pairs. The two are not like for like."
        )
    for task, name in (("sst2", "SST-2"), ("sst5", "SST-5")):
        several = {_examples(e, "train", "dev", "test") for e in groups if e.task == task}
        for train, dev, test in sorted(several, reverse=True):
            points.append(
                f"{name}: {train:,} labelled phrases for training, {dev:,} sentences for "
                f"development, {test:,} for test."
            )
    files: dict[str, list[str]] = {}
    for each in groups:
        found = each.records[0]["data"]["vectors"]
        if found:
            covered = f"{found['tokens'] / found['all_tokens']:.1%}".replace("%", " %")
            share = f"{covered} in {each.task}"
            borrowed, parts = found.get("borrowed"), found.get("parts")
            if borrowed or parts:
                tokens = found["tokens"] + sum(x["tokens"] for x in (borrowed, parts) if x)
                covered = f"{tokens / found['all_tokens']:.1%}".replace("%", " %")
                added = [f"those borrowed from {borrowed['file']}"] if borrowed else []
                added += ["those of words' parts"] if parts else []
                share += f" ({covered} with {' and '.join(added)}, where a recipe says so)"
            shares = files.setdefault(found["file"], [])
            shares += [x for x in [share] if x not in shares]
    for file, shares in sorted(files.items()):
        # said with what is added to it: not once more without
        shares = [x for x in shares if not any(y.startswith(f"{x} (") for y in shares)]
        points.append(f"Word vectors: {file}; of the running words it has {', '.join(shares)}.")
    records = [record for each in groups for record in each.records]
    seeds = sorted({len(each.records) for each in groups})
    often = " to ".join(str(n) for n in dict.fromkeys((seeds[0], seeds[-1])))
    points += [
        "The model of a run is chosen by development accuracy alone. Where there is a test split, "
        "it is looked at once, at the end.",
        f"{many(runs, 'run')}, {often} {'seed' if seeds[-1] == 1 else 'seeds'} a row; mean "
        "± sample standard deviation over seeds (n - 1), no deviation for a single one.",
        "Minutes run from the first step to the best development point, evaluations included, "
        "reading of the data excluded; the first run of a model on a machine also compiles its "
        f"kernels in them. Machine: {machine(records)}. Where several runs shared it "
        "at a time their minutes are upper bounds, marked ≤, and not to be compared with each "
        "other. The paper's hours were measured on an NVIDIA Titan Xp.",
        "Parameters are those that are trained, without word vectors as in the paper; where word "
        "vectors are tuned, theirs are added behind a plus.",
        "In the commands, `$snli`, `$sst`, `$glove6` and `$glove840` stand for the files as in "
        "[Reproduce the paper](reproduce.md).",
    ]
    return ["## What was run", "\n".join(fill(f"- {point}") for point in points)]


def _examples(each: Group, *splits: str) -> tuple[int, ...]:
    counts = each.records[0]["data"]["examples"]
    return tuple(int(counts.get(split, 0)) for split in splits)


def table_snli(groups: Sequence[Group]) -> list[str]:
    """Return Table 1."""
    rows = []
    for each in groups:
        paper = PAPER.get(each.recipe, Published("", 0.0))
        rows.append(
            (
                mark(each),
                f"{paper.accuracy}" if paper.model else "",
                accuracy(each, "test"),
                accuracy(each, "dev"),
                str(len(each.records)),
                paper.parameters,
                parameters(each),
                paper.hours,
                minutes(each),
                machine(each.records),
            )
        )
    header = (
        *("model", "paper, test", "ours, test", "ours, dev", "seeds", "paper, parameters"),
        *("ours, parameters", "paper, hours", "ours, minutes to the best point", "machine"),
    )
    others = [(x.model, f"{x.accuracy}", x.parameters, x.hours) for x in OTHERS_SNLI]
    return [
        "## Table 1: SNLI",
        *([table(header, rows), *tuned(groups), shell(groups)] if rows else [NONE]),
        "The other models of the paper's Table 1, with its figures:",
        table(("model", "test", "parameters", "hours"), others),
        fill(
            "\\* from the original papers, † estimated by the authors from the time of an epoch on "
            "their machine."
        ),
    ]


def table_sst(groups: Sequence[Group]) -> list[str]:
    """Return Table 2."""
    rows = []
    for each in groups:
        rows.append(
            (
                mark(each) if each.recipe in PAPER else f"SST-{each.task[-1]}, {mark(each)}",
                f"{PAPER[each.recipe].accuracy}" if each.recipe in PAPER else "",
                accuracy(each, "test"),
                accuracy(each, "dev"),
                str(len(each.records)),
                parameters(each),
                minutes(each),
                machine(each.records),
            )
        )
    header = (
        *("model", "paper, test", "ours, test", "ours, dev", "seeds"),
        *("parameters", "minutes to the best point", "machine"),
    )
    return [
        "## Table 2: SST",
        *([table(header, rows), *tuned(groups), shell(groups)] if rows else [NONE]),
        "The other models of the paper's Table 2, with its figures:",
        table(("model", "SST-2, test", "SST-5, test"), OTHERS_SST),
    ]


def tuned(groups: Sequence[Group]) -> list[str]:
    """Say how tuned recipes differ from the published ones they are named after."""
    by_name = {each.recipe: each for each in groups}
    lines = []
    for each in groups:
        base = by_name.get(re.sub("-(tuned|reference).*", "", each.recipe))
        if base is not None and base is not each:
            own = difference(each.records[0]["recipe"], base.records[0]["recipe"])
            given = ", ".join(f"`{change}`" for change in changes(own)) or "nothing"
            lines.append(fill(f"`{each.recipe}` is `{base.recipe}` with {given}."))
    return ["\n\n".join(lines)] if lines else []


def convergence(groups: Sequence[Group], images: str) -> list[str]:
    """Return Figure 3."""
    about = (
        "The paper's Figure 3 has the validation accuracy of the first five epochs, trained on all "
        "pairs, and finds that the models converge faster than others in time as well as in "
        "iterations. Ours: the mean over seeds, as far as all seeds ran; the band reaches from the "
        "lowest to the highest seed. Over minutes stand those that had the machine to themselves, "
        "each seed by itself; those that begin late had kernels to compile."
    )
    picture = f"![development accuracy on SNLI over epochs and minutes]({images}/convergence.png)"
    return ["## Figure 3: convergence on SNLI", fill(about), picture if groups else NONE]


def ablation_section(groups: Sequence[Group], ablation: Ablation, images: str) -> list[str]:
    """Return the table of one ablation, with its commands and pictures."""
    found = families(groups, ablation)
    parts = [f"### {ablation.title}", fill(ablation.about)]
    if not found:
        return [*parts, NONE]
    rows = []
    for each in (each for family in found for each in family):
        rest = {key: value for key, value in each.overrides.items() if key != ablation.key}
        rows.append(
            (
                ", ".join(f"`{name}`" for name in (each.recipe, *changes(rest))),
                f"{value_of(each, ablation)}",
                accuracy(each, "dev"),
                accuracy(each, "test"),
                str(len(each.records)),
                epochs(each),
                minutes(each),
                machine(each.records),
            )
        )
    header = (
        *("recipe", ablation.column, "dev", "test", "seeds", "epochs to the best point"),
        *("minutes to the best point", "machine"),
    )
    parts += [table(header, rows), shell(each for family in found for each in family)]
    if ablation.picture:
        for name in family_names(found):
            about = f"convergence by {ablation.column}, {name}"
            parts.append(f"![{about}]({images}/{ablation.picture}-{name}.png)")
    return parts


def reference_section(groups: Sequence[Group]) -> list[str]:
    """Return what other code reached on the same files, beside ours.

    Args:
        groups: with all seeds there are.
    """
    plain = [each for each in groups if not each.overrides]
    ours = {each.recipe: each for each in first_seeds(plain)}
    more = {each.recipe: each for each in plain if len(each.records) > SEEDS}
    rows = [
        (
            x.model,
            x.split,
            f"{x.accuracy:.2f}",
            x.note,
            accuracy(ours[x.recipe], x.split) if x.recipe in ours else "",
            f"{accuracy(more[x.recipe], x.split)} ({len(more[x.recipe].records)})"
            if x.recipe in more
            else "",
        )
        for x in REFERENCE
    ]
    about = (
        "Measured once with the authors' model classes (their last version, our "
        "[`reference` variant](variants.md)) on the same files, one run each, so that a difference "
        "of data is no difference of models. Ours is the published recipe's row above; where what "
        "is printed and the authors' last code start differently and we trained both, the row of "
        "their code."
    )
    if any(x.recipe in more for x in REFERENCE):
        about += f" The last column has all seeds on record, where they are more than {SEEDS}."
    header = ("data and model", "split", "accuracy", "code", "ours", "ours, all seeds")
    commands = [more[x.recipe] for x in REFERENCE if x.recipe in more and x.ended is None]
    return [
        "## The authors' code on the same files",
        fill(about),
        table(header, rows),
        *([shell(commands)] if commands else []),
    ]


def same_epoch(groups: Sequence[Group]) -> list[str]:
    """Return how far our runs were where runs of the authors' code were cut.

    Args:
        groups: with all seeds there are.
    """
    rows, parts, many_seeds = [], [], []
    for x in REFERENCE:
        if x.ended is None:
            continue
        size = x.recipe.removesuffix("-reference")
        compared = [
            each
            for each in groups
            if each.recipe in (size, f"{size}-reference", f"{size}-tuned")
            and (not each.overrides or len(each.records) > SEEDS)
        ]
        for each in compared:
            ended = [r["result"]["dev_accuracy"] for r in each.records]
            rows.append(
                (
                    x.model,
                    f"{x.accuracy:.2f}",
                    f"{x.ended}",
                    ", ".join(f"`{name}`" for name in (each.recipe, *changes(each.overrides))),
                    str(len(each.records)),
                    spread([100 * until(r, x.ended) for r in each.records]),
                    accuracy(each, "dev"),
                    f"{100 * min(ended):.2f} to {100 * max(ended):.2f}",
                    epochs(each),
                )
            )
        parts += settled(x, compared)
        many_seeds += [each for each in compared if len(each.records) > SEEDS]
    about = (
        "Runs of that code were cut by time, still rising. How far our own were by then, the best "
        "evaluation up to that epoch, and in the end; over all seeds on record, in some rows more "
        f"than the {SEEDS} of the other tables:"
    )
    parts += [shell(many_seeds)] if many_seeds else []
    header = (
        *("data and model", "authors' code", "cut after epoch", "ours", "seeds", "dev until then"),
        *("dev in the end", "lowest and highest", "epochs to the best point"),
    )
    return [fill(about), table(header, rows), *parts] if rows else []


def until(record: dict[str, Any], epoch: float) -> float:
    """Return the best accuracy of a run up to an epoch."""
    return max(line["dev_accuracy"] for line in record["metrics"] if line["epoch"] <= epoch + 0.01)


def settled(x: Reference, compared: Sequence[Group]) -> list[str]:
    """Say which settings of ours a run of the authors' code agrees with; nothing if unasked."""

    def regular(each: Group) -> bool:
        """Return whether the classifier and the words have dropout, and there are batch norms."""
        found = each.settings
        dropped = found["model.head.dropout"] > 0 and found["model.embedding.dropout"] > 0
        return bool(dropped and found["model.head.batch_norm"])

    tried = [each for each in compared if len(each.records) > SEEDS]
    without = [r for each in tried if not regular(each) for r in each.records]
    with_both = [r for each in tried if regular(each) for r in each.records]
    if not (without and with_both and x.ended):
        return []

    def figures(records: Sequence[dict[str, Any]]) -> str:
        then = statistics.fmean(100 * until(r, x.ended or 0) for r in records)
        end = statistics.fmean(100 * r["result"]["dev_accuracy"] for r in records)
        reached = sum(100 * r["result"]["dev_accuracy"] >= x.accuracy for r in records)
        return (
            f"{len(records)} runs are at {then:.2f} by then and at {end:.2f} in the end, "
            f"{reached} of them at {x.accuracy:.2f} or above"
        )

    text = (
        f"{x.model}: with neither dropout nor batch normalisation, as printed, our "
        f"{figures(without)}. With both, as printed for 300D, {figures(with_both)}. Being at "
        f"{x.accuracy:.2f} after {x.ended} epochs and still rising is what runs of the second kind "
        "are like. Which settings the run of the authors' code had is not on record; if it was of "
        "that kind, the published recipe has no run of theirs to stand beside."
    )
    return [fill(text)]


def others(groups: Sequence[Group]) -> list[str]:
    """Return the runs that have no place above, so that none is kept back; nothing if all have."""
    if not groups:
        return []
    rows = [
        (
            ", ".join(f"`{name}`" for name in (each.recipe, *changes(each.overrides))),
            accuracy(each, "dev"),
            accuracy(each, "test"),
            str(len(each.records)),
            epochs(each),
            minutes(each),
            machine(each.records),
        )
        for each in groups
    ]
    header = (
        *("recipe and changes", "dev", "test", "seeds", "epochs to the best point"),
        *("minutes to the best point", "machine"),
    )
    return ["## Other runs", table(header, rows), shell(groups)]


def page(every: Sequence[Group], runs: str, images: str) -> str:
    """Return the whole page.

    Args:
        every: all runs on record.
        runs: where the page finds the records.
        images: where it finds its pictures.
    """
    groups = first_seeds(every)
    plain = [each for each in groups if not each.overrides]
    snli = [each for each in plain if each.task == "snli"]
    sst = sorted((e for e in plain if e.task in ("sst2", "sst5")), key=lambda e: e.task)
    shown = {each.name for each in (*snli, *sst)}
    for ablation in ABLATIONS:
        shown |= {each.name for family in families(groups, ablation) for each in family}
    intro = (
        "What training by the recipes reached, beside the paper's figures. Made by `python "
        f"benchmarks/write_results.py` from the [records]({runs}) of finished runs, which `python "
        "benchmarks/collect_runs.py` makes; accuracies are in percent."
    )
    parts = [
        "# Results",
        fill(intro),
        *about_data(groups, sum(len(each.records) for each in every)),
        *table_snli(snli),
        *table_sst(sst),
        *convergence(snli, images),
        "## Ablations",
        *(part for a in ABLATIONS for part in ablation_section(groups, a, images)),
        *reference_section(every),
        *same_epoch(every),
        *others([each for each in groups if each.name not in shown]),
    ]
    return "\n\n".join(parts) + "\n"


def write(runs: Path, out: Path, images: Path) -> None:
    """Write page and pictures."""
    groups = group(read_records(runs))
    links = [Path(os.path.relpath(path, out.parent)).as_posix() for path in (runs, images)]
    text = page(groups, *links)
    out.parent.mkdir(parents=True, exist_ok=True)
    pictures(first_seeds(groups), images)
    replace_file(out, lambda part: part.write_text(text, encoding="utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder of the records")
    parser.add_argument("--out", type=Path, default=DOCS / "results.md", help="the page")
    parser.add_argument("--images", type=Path, default=DOCS / "images", help="of the pictures")
    arguments = parser.parse_args()
    try:
        write(arguments.runs, arguments.out, arguments.images)
    except (ImportError, OSError, ValueError) as error:
        sys.exit(f"write_results: error: {error}")


if __name__ == "__main__":
    main()
