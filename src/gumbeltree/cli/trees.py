"""The command `trees`: compare a model's trees with gold trees, baselines and other models."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gumbeltree.cli import streams
from gumbeltree.cli.app import Json, app

if TYPE_CHECKING:
    from gumbeltree.analysis.gold import Gold, GoldExample
    from gumbeltree.model import SentenceModel
    from gumbeltree.tasks.task import Task
    from gumbeltree.text.files import Report


class Parses(StrEnum):
    """Which gold trees of a file to use."""

    binary = "binary"
    full = "full"


@dataclass
class Inputs:
    """Gold trees, and the labelled examples of --data."""

    trees: list["Gold"] = field(default_factory=list)
    task: "Task | None" = None
    file: Path | None = None
    examples: list["GoldExample"] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@app.command("trees")
def show_trees(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL",
            help="Models as for `parse`, or dev_orders.npz files of runs on the same data.",
        ),
    ],
    data: Annotated[
        Path | None,
        typer.Option(help="Folder with the task's files, or one file: gold trees and labels."),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(help="sst2, sst5, snli or listops. Default: the task of the models."),
    ] = None,
    gold: Annotated[
        Path | None,
        typer.Option(
            help="File with one gold tree per line, (S (NP a) b) or ( ( a b ) c ), instead of the "
            "trees of --data."
        ),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="File of the folder: train, dev or test (default).")
    ] = None,
    parses: Annotated[
        Parses,
        typer.Option(
            help="Binary trees, or for snli full constituents with any number of children."
        ),
    ] = Parses.binary,
    keep_punctuation: Annotated[
        bool,
        typer.Option("--keep-punctuation", help="Keep punctuation; always kept for listops."),
    ] = False,
    keep_trivial: Annotated[
        bool,
        typer.Option("--keep-trivial", help="Count single words and whole sentences as spans."),
    ] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Use only the first examples or trees.")
    ] = None,
    as_json: Json = False,
    plot: Annotated[
        Path | None, typer.Option(help="Image file to write, for example trees.png or trees.svg.")
    ] = None,
    device: streams.Device = "auto",
    skip_bad: streams.SkipBad = False,
    quiet: streams.Quiet = False,
) -> None:
    """Compare the trees of models with gold trees, with baselines and with each other.

    The models parse the words of the gold trees. If the data has labels that a model knows, the
    command also reports accuracy by sentence length and tree depth.

    Examples, with the trees of a task, with your own, and with the merges saved by training:

    gumbeltree trees sst2-100d --data trees --split dev

    gumbeltree trees sst2-100d snli-100d --gold mine.txt --plot trees.png

    gumbeltree trees runs/a/seed-0/dev_orders.npz runs/a/seed-1/dev_orders.npz
    """
    from rich.console import Console

    from gumbeltree.analysis.metrics import plot as metrics_plot
    from gumbeltree.analysis.metrics import report as metrics_report
    from gumbeltree.cli import scores, tree_tables
    from gumbeltree.model import load
    from gumbeltree.plots import check_picture
    from gumbeltree.text.files import Report

    if data is None and (task or split or parses != Parses.binary):
        raise ValueError("--task, --split and --parses select trees of --data; pass --data")
    paths = [str(Path(name).resolve()) if Path(name).exists() else name for name in models]
    repeated = next((path for path in paths if paths.count(path) > 1), None)
    if repeated is not None:
        raise ValueError(f"{repeated} is given more than once; pass each model once")
    if plot is not None:
        streams.check_out(plot)
        check_picture(plot)
    names = metrics_report.short_names(models)
    report, inputs = Report(), Inputs()
    accuracies = []
    if any(name.lower().endswith(".npz") for name in models):
        if data or gold or not all(name.lower().endswith(".npz") for name in models):
            raise ValueError(
                "dev_orders.npz files contain trees of sentences without the words; pass them "
                "without models, --data and --gold"
            )
        runs = metrics_report.read_orders(models)
        parsed = {name: trees[:limit] for name, trees in zip(names, runs, strict=True)}
        comparison = metrics_report.compare(parsed, None, True, keep_trivial)
    else:
        with streams.progress(quiet, to_terminal=False) as advance:
            loaded = {
                name: load(model, streams.pick_device(device))
                for name, model in zip(names, models, strict=True)
            }
            inputs = _read(loaded, data, task, split, parses, gold, limit, report, skip_bad)
            parsed = {
                name: metrics_report.parse_gold(model, inputs.trees, name, advance)
                for name, model in loaded.items()
            }
            if gold is None and inputs.task is not None and inputs.task.name == "listops":
                # closing brackets are structure, not punctuation
                keep_punctuation = True
            comparison = metrics_report.compare(
                parsed, inputs.trees, keep_punctuation, keep_trivial
            )
            for name, model in loaded.items():
                if inputs.task is None:
                    break
                try:
                    scores.check_fit(model, inputs.task)
                except ValueError as error:
                    inputs.notes.append(f"no accuracy for {name}: {error}")
                    continue
                accuracies.append(
                    metrics_report.accuracy(model, inputs.task, inputs.examples, name)
                )
                advance(len(inputs.examples))
    if as_json:
        result = {
            "models": models,
            "task": inputs.task.name if inputs.task else None,
            "file": str(inputs.file) if inputs.file else None,
            "gold": str(gold) if gold else None,
            "parses": parses.value if inputs.task and not gold else None,
            **asdict(comparison),
            "accuracy": [accuracy.as_dict() for accuracy in accuracies],
            "bad_lines": report.bad,
            "notes": inputs.notes,
        }
        typer.echo(json.dumps(result, indent=2, ensure_ascii=False))
    else:
        tree_tables.show(Console(), comparison, accuracies)
    if plot is not None:
        metrics_plot.draw(plot, comparison, accuracies)
        inputs.notes.append(f"image written to {plot}")
    if not quiet:
        if report.examples:
            files = " and ".join(str(path) for path in (inputs.file, gold) if path)
            typer.echo(f"{files}: {report}", err=True)
        for note in inputs.notes:
            typer.echo(note, err=True)


def _read(
    models: Mapping[str, "SentenceModel"],
    data: Path | None,
    task: str | None,
    split: str | None,
    parses: Parses,
    gold: Path | None,
    limit: int | None,
    report: "Report",
    skip_bad: bool,
) -> Inputs:
    """Read gold trees and labelled examples; with `skip_bad`, skip trees that are too long."""
    from gumbeltree.analysis import gold as reader
    from gumbeltree.cli import scores

    if data is None and gold is None:
        raise ValueError("no gold trees: pass files of a task with --data, or trees with --gold")
    inputs = Inputs()
    if data is not None:
        inputs.task = reader.tree_task(task or _trained_on(models))
        inputs.file = scores.find_file(inputs.task, data, split)
        inputs.examples = reader.read_examples(
            inputs.task, inputs.file, parses.value, limit, report, skip_bad
        )
        if not inputs.examples:
            raise ValueError(f"{inputs.file} contains no usable examples: {report}")
        inputs.trees = reader.distinct(inputs.examples)
    if gold is not None:
        inputs.trees = reader.read_trees(gold, limit, report, skip_bad)
    longest = min(model.config.max_words for model in models.values())
    if skip_bad and (count := sum(len(tree.words) > longest for tree in inputs.trees)):
        inputs.trees = [tree for tree in inputs.trees if len(tree.words) <= longest]
        inputs.notes.append(f"{count:,} trees of more than {longest} words skipped")
    if not inputs.trees:
        raise ValueError(
            f"{gold or inputs.file} contains no gold trees of at most {longest} words, which is "
            "the limit of the model; pass another file with --data or --gold"
        )
    return inputs


def _trained_on(models: Mapping[str, "SentenceModel"]) -> str:
    """Return the task that all models were trained on."""
    tasks = {
        model.provenance.get("recipe", {}).get("data", {}).get("task") for model in models.values()
    }
    if len(tasks) > 1 or None in tasks:
        known = ", ".join(sorted(task or "an unknown task" for task in tasks))
        raise ValueError(f"the models were trained on {known}; pass --task for the task of --data")
    return str(tasks.pop())
