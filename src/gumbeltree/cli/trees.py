"""The command `trees`: are a model's trees syntax, how much do models agree, what are they like."""

import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gumbeltree.cli import streams
from gumbeltree.cli.app import Json, app

if TYPE_CHECKING:
    from rich.console import Console

    from gumbeltree.analysis.gold import Gold, GoldExample
    from gumbeltree.analysis.metrics.report import Accuracy, Comparison
    from gumbeltree.model import SentenceModel
    from gumbeltree.nn.heads.class_evaluation import Bucket
    from gumbeltree.tasks.task import Task
    from gumbeltree.text.files import Report


NARROW, NARROWEST = 72, 46
"""Columns of a terminal below which tables have no lines, and those that they need then."""


class Parses(StrEnum):
    """Which gold trees of a file."""

    binary = "binary"
    full = "full"


class GoldFormat(StrEnum):
    """How a file of trees is written."""

    auto = "auto"
    labelled = "labelled"
    plain = "plain"


class Inputs:
    """Gold trees and labelled examples of the options."""

    def __init__(self) -> None:
        self.task: Task | None = None
        self.path: Path | None = None
        self.examples: list[GoldExample] = []
        self.trees: list[Gold] = []


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
        typer.Option(help="The folder of the task's files, or one file: gold trees and labels."),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="sst2, sst5, snli or listops; else as trained.")
    ] = None,
    gold: Annotated[
        Path | None,
        typer.Option(help="File of gold trees, one a line, instead of those of --data."),
    ] = None,
    gold_format: Annotated[
        GoldFormat,
        typer.Option(help="Of --gold: labelled (S (NP a) b), plain ( ( a b ) c ), or auto."),
    ] = GoldFormat.auto,
    split: Annotated[
        str | None, typer.Option(help="Which file of the folder: train, dev or test (default).")
    ] = None,
    parses: Annotated[
        Parses,
        typer.Option(
            help="binary trees of the file; full: constituents of any number of children (snli, "
            "listops)."
        ),
    ] = Parses.binary,
    keep_punctuation: Annotated[
        bool | None,
        typer.Option(
            "--keep-punctuation/--drop-punctuation",
            help="Whether punctuation stays in the trees. Default: dropped; kept for listops.",
        ),
    ] = None,
    keep_trivial: Annotated[
        bool,
        typer.Option(
            "--keep-trivial/--drop-trivial",
            help="Whether the spans that all trees have count: words and whole sentences.",
        ),
    ] = False,
    random_seeds: Annotated[
        int, typer.Option(min=1, help="Random trees of a sentence; their figures are averaged.")
    ] = 5,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Most examples, trees of --gold or of .npz files; the first."),
    ] = None,
    as_json: Json = False,
    plot: Annotated[
        Path | None, typer.Option(help="File for a picture, such as trees.png or trees.svg.")
    ] = None,
    device: streams.Device = "auto",
    skip_bad: streams.SkipBad = False,
    quiet: streams.Quiet = False,
) -> None:
    """Compare the trees of models with gold trees, with simple trees and with each other.

    The models parse the words of the gold trees. Where the data has labels that a model knows,
    accuracy by length and by depth is shown, too.

    Examples, with trees of your own and of a task:

    gumbeltree trees sst2-100d --data trees --split dev

    gumbeltree trees sst2-100d snli-100d --gold mine.txt --plot trees.png

    gumbeltree trees runs/a/seed-0/dev_orders.npz runs/a/seed-1/dev_orders.npz
    """
    from rich.console import Console

    from gumbeltree.analysis.curves import check_picture
    from gumbeltree.analysis.metrics import plot as metrics_plot
    from gumbeltree.analysis.metrics import report as metrics_report
    from gumbeltree.model import load
    from gumbeltree.text.files import Report

    if gold is None and gold_format != GoldFormat.auto:
        raise ValueError("--gold-format is about --gold, got none; leave it out")
    repeated = next((name for name in models if models.count(name) > 1), None)
    if repeated is not None:
        raise ValueError(f"expected each model once, got {repeated} again; leave it out")
    if plot is not None:
        streams.check_out(plot)
        check_picture(plot)
    places = [str(Path(name).resolve()) if Path(name).exists() else name for name in models]
    for place in set(places):
        if places.count(place) > 1:
            raise ValueError(f"{place} is given more than once; name each model once")
    shown = dict(zip(models, metrics_report.short_names(models), strict=True))
    saved = [name for name in models if name.lower().endswith(".npz")]
    report, inputs = Report(), Inputs()
    accuracies: list[Accuracy] = []
    notes: list[str] = []
    if saved:
        _check_saved(models, saved, data or gold or task or split or parses != Parses.binary)
        orders = metrics_report.same_sentences(map(Path, models))
        comparison = metrics_report.compare(
            {shown[name]: orders[str(Path(name))][:limit] for name in models},
            keep_punctuation=True,
            keep_trivial=keep_trivial,
            random_seeds=random_seeds,
        )
        if keep_punctuation is False:
            notes.append("the files hold no words, so punctuation is kept")
    else:
        with streams.progress(quiet, to_terminal=False) as advance:
            loaded = {name: load(name, streams.pick_device(device)) for name in models}
            for name, model in loaded.items():
                model.check_builds_trees(name)
            inputs = _read(
                loaded, data, task, split, gold, gold_format, parses, limit, report, skip_bad
            )
            if skip_bad:
                notes += _drop_long(inputs, min(m.config.max_words for m in loaded.values()))
            if keep_punctuation is None:
                # the brackets that close a list are structure, not punctuation
                listops = inputs.task is not None and inputs.task.name == "listops"
                keep_punctuation = listops and gold is None
            parsed = {
                shown[name]: metrics_report.parse_gold(model, inputs.trees, name, advance)
                for name, model in loaded.items()
            }
            comparison = metrics_report.compare(
                parsed, inputs.trees, keep_punctuation, keep_trivial, random_seeds
            )
            for name, model in loaded.items():
                if inputs.task is None:
                    break
                if reason := metrics_report.why_no_accuracy(model, inputs.task):
                    notes.append(f"no accuracy of {name}: {reason}")
                    continue
                accuracies.append(
                    metrics_report.accuracy(model, inputs.task, inputs.examples, shown[name])
                )
                advance(len(inputs.examples))
    if as_json:
        about: dict[str, Any] = {
            "models": models,
            "task": inputs.task.name if inputs.task else None,
            "file": str(inputs.path) if inputs.path else None,
            "gold": str(gold) if gold else None,
            "parses": parses.value if inputs.task and not gold else None,
            **comparison.as_dict(),
            "accuracy": [each.as_dict() for each in accuracies],
            "bad_lines": report.bad,
            "notes": notes,
        }
        typer.echo(json.dumps(about, indent=2, ensure_ascii=False))
    else:
        _print(Console(), comparison, accuracies)
    if plot is not None:
        metrics_plot.draw(plot, comparison, accuracies)
    if not quiet:
        if report.examples:
            files = " and ".join(str(path) for path in (inputs.path, gold) if path)
            typer.echo(f"{files}: {report}", err=True)
        for note in notes:
            typer.echo(note, err=True)
        if plot is not None:
            typer.echo(f"picture in {plot}", err=True)


def _check_saved(models: list[str], saved: list[str], other: object) -> None:
    if len(saved) < len(models):
        rest = next(name for name in models if name not in saved)
        raise ValueError(
            f"expected models or files of merges, got {saved[0]} and {rest}; pass one kind"
        )
    if other:
        raise ValueError(
            f"{saved[0]} holds merges of its run's own development sentences, without words; leave "
            "--data, --gold, --task, --split and --parses out"
        )


def _read(
    loaded: dict[str, "SentenceModel"],
    data: Path | None,
    task: str | None,
    split: str | None,
    gold: Path | None,
    gold_format: GoldFormat,
    parses: Parses,
    limit: int | None,
    report: "Report",
    skip_bad: bool,
) -> Inputs:
    """Read gold trees and labelled examples."""
    from gumbeltree.analysis import gold as reader
    from gumbeltree.cli import scores

    inputs = Inputs()
    if split not in (None, "train", "dev", "test"):
        raise ValueError(f"`--split` must be train, dev or test, got {split!r}")
    if data is None and gold is None:
        raise ValueError(
            "expected gold trees, got neither --data nor --gold; pass the folder of a task's files "
            "or a file of trees"
        )
    if data is None and (task or split or parses != Parses.binary):
        raise ValueError("--task, --split and --parses are about --data, got none; leave them out")
    if data is not None:
        inputs.task = reader.tree_task(task or _trained_on(loaded))
        inputs.path = scores.find_file(inputs.task, data, split)
        inputs.examples = reader.read_examples(
            inputs.task, inputs.path, parses.value, limit, report, skip_bad
        )
        if not inputs.examples:
            raise ValueError(
                f"{inputs.path}: expected examples, got none ({report}); look at the file"
            )
    if gold is not None:
        inputs.trees = reader.read_trees(gold, gold_format.value, limit, report, skip_bad)
        return inputs
    inputs.trees = reader.distinct(inputs.examples)
    if not inputs.trees:
        raise ValueError(
            f"{inputs.path}: expected gold trees with the texts, got none; pass a file that has "
            "them, or a file of trees with --gold"
        )
    return inputs


def _drop_long(inputs: Inputs, most: int) -> list[str]:
    """Leave out the trees that are too long for a model; return what to say about it."""
    fitting = [tree for tree in inputs.trees if len(tree.words) <= most]
    dropped = len(inputs.trees) - len(fitting)
    if not fitting:
        raise ValueError(
            f"expected gold trees of at most {most} words, which is what the model reads, got "
            "longer ones alone; pass others"
        )
    inputs.trees = fitting
    return [f"trees of more than {most} words left out: {dropped:,}"] if dropped else []


def _trained_on(loaded: dict[str, "SentenceModel"]) -> str:
    """Return the task that all models were trained on, or raise."""
    found: dict[str | None, str] = {}
    for name, model in loaded.items():
        recipe = model.provenance.get("recipe")
        settings = recipe.get("data") if isinstance(recipe, dict) else None
        trained = settings.get("task") if isinstance(settings, dict) else None
        found.setdefault(trained if isinstance(trained, str) else None, name)
    if len(found) > 1 or None in found:
        known = ", ".join(f"{name} on {task or 'nothing known'}" for task, name in found.items())
        raise ValueError(
            f"expected models of one task, got {known}; say with --task what --data holds"
        )
    return str(next(iter(found)))


def _print(console: "Console", comparison: "Comparison", accuracies: Sequence["Accuracy"]) -> None:
    from rich.table import Table
    from rich.text import Text

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    narrow = console.width < NARROW
    # digits are never cut; what is wider than the terminal goes on in its next line
    console.width = max(console.width, NARROWEST)

    def new_grid() -> Table:
        grid = Table(box=None, padding=(0, 1, 0, 0)) if narrow else Table()
        grid.add_column("trees", overflow="fold", min_width=8)
        return grid

    kept = {True: "kept", False: "dropped"}
    count = comparison.sentences
    say(
        f"{count:,} {'sentence' if count == 1 else 'sentences'}; "
        f"punctuation {kept[comparison.keep_punctuation]}, "
        f"trivial spans {kept[comparison.keep_trivial]}; random: mean of "
        f"{comparison.random_seeds}. All in %, depth apart."
    )
    has_gold = bool(comparison.of("gold"))
    if not has_gold:
        kinds = list(comparison.of("model")[0].likeness)
        say("F1 with the trees of each baseline:")
        grid = new_grid()
        for kind in kinds:
            grid.add_column(kind, justify="right", no_wrap=True)
        for row in comparison.of("model"):
            shares = [_share(row.likeness[kind].sentence) for kind in kinds]
            grid.add_row(Text(row.name), *shares)
        console.print(grid)
        say("\nShape:")
    grid = new_grid()
    for name in (*(["F1", "corpus F1"] if has_gold else []), "depth", "left", "right", "both"):
        # a heading of two words may take two lines
        grid.add_column(name, justify="right", min_width=max(5, *map(len, name.split())))
    for row in comparison.rows:
        figures = [_share(row.f1 and row.f1.sentence), _share(row.f1 and row.f1.corpus)]
        figures = figures if has_gold else []
        shape = row.shape
        depth = "" if shape is None or shape.depth is None else f"{shape.depth:.2f}"
        shares = ["", "", ""] if shape is None else [_share(x) for x in shape[1:]]
        grid.add_row(Text(row.name), *figures, depth, *shares)
    console.print(grid)
    found = comparison.self_f1
    if found is not None:
        names = [row.name for row in comparison.of("model")]
        other = comparison.random_self_f1
        beside = f"; random trees with each other {_told(other.sentence)}" if other else ""
        say(f"\nF1 of the models with each other: {_told(found.sentence)}{beside}")
        if len(found.pairs) > 1:
            for i, j, each in found.pairs:
                say(f"  {names[i]}, {names[j]}: {_told(each.sentence)}")
    for title, key in (
        ("words, of the longer sentence of a pair", "by_length"),
        ("the depth of the model's tree, the deeper one of a pair", "by_depth"),
        ("the depth of the gold tree, the deeper one of a pair", "by_gold_depth"),
    ):
        bins = [(found.name, getattr(found, key)) for found in accuracies if getattr(found, key)]
        if bins:
            say(f"\nAccuracy by {title}, with examples:")
            console.print(_bins(bins))


def _bins(rows: Sequence[tuple[str, list["Bucket"]]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    grid = Table()
    every = {bucket[:2]: bucket.name for _, buckets in rows for bucket in buckets}
    order = sorted(every, key=lambda ends: ends[0])
    grid.add_column("")
    for name, _ in rows:
        grid.add_column(Text(name), justify="right")
    for ends in order:
        cells = []
        for _, buckets in rows:
            found = next((bucket for bucket in buckets if bucket[:2] == ends), None)
            cells.append(
                f"{_share(found.correct / found.examples)} of {found.examples:,}" if found else ""
            )
        grid.add_row(every[ends], *cells)
    return grid


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def _told(value: float | None) -> str:
    return _share(value) or "no spans to compare"
