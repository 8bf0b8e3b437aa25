"""The command `trees`: compare a model's trees with gold trees, baselines and other models."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gumbeltree.cli import completion, streams
from gumbeltree.cli.app import Json, app
from gumbeltree.device.pick import pick_device

if TYPE_CHECKING:
    from gumbeltree.model import SentenceModel


class Parses(StrEnum):
    """Which gold trees of a file to use."""

    binary = "binary"
    full = "full"


@app.command("trees")
def show_trees(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL",
            help="Models, as for `parse`, or dev_orders.npz files of runs on the same data.",
            autocompletion=completion.models,
        ),
    ],
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder with the files of the task, or one file, with gold trees and labels."
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="sst2, sst5, snli, listops or logic. Default: the task of the models.",
            autocompletion=completion.one_of("sst2", "sst5", "snli", "listops", "logic"),
        ),
    ] = None,
    gold: Annotated[
        Path | None,
        typer.Option(
            help="File with one gold tree per line, (S (NP a) b) or ( ( a b ) c ), instead of the "
            "trees of --data."
        ),
    ] = None,
    split: streams.Split = None,
    parses: Annotated[
        Parses,
        typer.Option(
            help="binary: binary trees; full: constituents with any number of children (snli only)."
        ),
    ] = Parses.binary,
    keep_punctuation: Annotated[
        bool,
        typer.Option(
            "--keep-punctuation",
            help="Keep punctuation, which is always kept for listops and logic.",
        ),
    ] = False,
    keep_trivial: Annotated[
        bool,
        typer.Option("--keep-trivial", help="Count single words and whole sentences as spans."),
    ] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of examples or trees to read.")
    ] = None,
    as_json: Json = False,
    plot: Annotated[
        Path | None,
        typer.Option(help="File for a plot of the results, for example trees.png or trees.svg."),
    ] = None,
    device: streams.Device = "auto",
    threads: streams.Threads = None,
    plugin: streams.Plugin = None,
    skip_bad: streams.SkipBad = False,
    quiet: streams.Quiet = False,
) -> None:
    """Compare the trees of models with gold trees, with baselines and with each other.

    The models parse the words of the gold trees. If the data has labels that a model knows, the
    command also reports accuracy by sentence length and tree depth.

    Examples with the trees of a task, with your own trees, and with merges saved by training:

    gumbeltree trees sst2-100d --data trees --split dev

    gumbeltree trees sst2-100d snli-100d --gold mine.txt --plot trees.png

    gumbeltree trees runs/a/seed-0/dev_orders.npz runs/a/seed-1/dev_orders.npz
    """
    from gumbeltree.analysis import gold as gold_trees
    from gumbeltree.analysis.metrics import plot as metrics_plot
    from gumbeltree.analysis.metrics import report as metrics_report
    from gumbeltree.cli import scores, tables, tree_tables
    from gumbeltree.model import load
    from gumbeltree.plots import check_picture
    from gumbeltree.text.files import Report, counted

    _check_arguments(models, data, gold, task or split or parses != Parses.binary)
    if plot is not None:
        streams.check_out(plot)
        check_picture(plot)
    names = metrics_report.short_names(models)
    report, reader, file = Report(), None, None
    notes: list[str] = []
    accuracies = []
    if _is_npz(models[0]):
        runs = metrics_report.read_orders(models)
        parsed = {name: trees[:limit] for name, trees in zip(names, runs, strict=True)}
        comparison = metrics_report.compare(parsed, None, True, keep_trivial)
    else:
        with streams.progress(quiet) as advance:
            device = pick_device(device)
            loaded = {name: load(model, device) for name, model in zip(names, models, strict=True)}
            for name, model in loaded.items():
                if "order" in model.encoder.needs:
                    raise ValueError(
                        f"{name} follows the gold trees of the data, so there is nothing to "
                        "compare; pass models that build trees of their own"
                    )
            examples = []
            if data is not None:
                reader = gold_trees.tree_task(task or _trained_on(loaded.values()))
                file = scores.find_file(reader, data, split)
                examples = gold_trees.read_examples(
                    reader, file, parses.value, limit, report, skip_bad
                )
            if gold is not None:
                trees = gold_trees.read_trees(gold, limit, report, skip_bad)
            else:
                trees = gold_trees.distinct(examples)
            if gold is None and reader is not None and reader.name in ("listops", "logic"):
                # brackets are structure, not punctuation
                keep_punctuation = True
            longest = min(model.config.max_words for model in loaded.values())
            if skip_bad and (count := sum(len(tree.words) > longest for tree in trees)):
                trees = [tree for tree in trees if len(tree.words) <= longest]
                notes.append(f"{counted(count, 'tree')} with more than {longest} words skipped")
            if not trees:
                raise ValueError(
                    f"{gold or file} contains no gold trees of at most {longest} words, which is "
                    "the limit of the model; pass another file with --data or --gold"
                )
            parsed = {
                name: metrics_report.parse_gold(model, trees, name, advance)
                for name, model in loaded.items()
            }
            comparison = metrics_report.compare(parsed, trees, keep_punctuation, keep_trivial)
            for name, model in loaded.items():
                if reader is None:
                    break
                try:
                    scores.check_fit(model, reader)
                except ValueError as error:
                    notes.append(f"no accuracy for {name}: {error}")
                    continue
                accuracies.append(metrics_report.accuracy(model, reader, examples, name))
                advance(len(examples))
    if as_json:
        result = {
            "models": models,
            "task": reader.name if reader else None,
            "file": str(file) if file else None,
            "gold": str(gold) if gold else None,
            "parses": parses.value if reader and not gold else None,
            **asdict(comparison),
            "accuracy": [accuracy.as_dict() for accuracy in accuracies],
            "bad_lines": report.bad,
            "notes": notes,
        }
        typer.echo(json.dumps(result, indent=2, ensure_ascii=False))
    else:
        tables.print_results(tree_tables.results(comparison, accuracies))
    if plot is not None:
        metrics_plot.draw(plot, comparison, accuracies)
        notes.append(f"image written to {plot}")
    if report.examples:
        files = " and ".join(str(path) for path in (file, gold) if path)
        notes.insert(0, f"{files}: {report}")
    for note in notes:
        streams.say(note, quiet)


def _is_npz(name: str) -> bool:
    return name.lower().endswith(".npz")


def _check_arguments(
    models: list[str], data: Path | None, gold: Path | None, selects: object
) -> None:
    """Raise if arguments conflict; `selects` is true if an option that needs --data is set."""
    if data is None and selects:
        raise ValueError("--task, --split and --parses select trees of --data; pass --data")
    paths = [str(Path(name).resolve()) if Path(name).exists() else name for name in models]
    if repeated := [path for path in paths if paths.count(path) > 1]:
        raise ValueError(f"{repeated[0]} is given more than once; pass each model once")
    if any(map(_is_npz, models)):
        if data or gold or not all(map(_is_npz, models)):
            raise ValueError(
                "dev_orders.npz files contain trees without the words; do not combine them with "
                "models, --data or --gold"
            )
    elif data is None and gold is None:
        raise ValueError("no gold trees: pass files of a task with --data, or trees with --gold")


def _trained_on(models: Iterable["SentenceModel"]) -> str:
    """Return the task that all models were trained on."""
    tasks = {model.data_settings.get("task") for model in models}
    if len(tasks) > 1 or None in tasks:
        known = ", ".join(sorted(task or "an unknown task" for task in tasks))
        raise ValueError(f"the models were trained on {known}; pass the task of --data with --task")
    return str(tasks.pop())
