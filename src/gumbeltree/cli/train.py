"""The command `train`: train and evaluate a model."""

import dataclasses
import json
import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text as RichText

from gumbeltree.cli import completion
from gumbeltree.cli.app import Json, app
from gumbeltree.cli.streams import Device, Plugin, Quiet, SkipBad, Threads
from gumbeltree.device.pick import pick_device
from gumbeltree.parts import HEADS
from gumbeltree.settings import Settings

if TYPE_CHECKING:
    from gumbeltree.config import Recipe
    from gumbeltree.nn.heads.head import Head

RecipeName = Annotated[
    str,
    typer.Argument(
        help="Name of a recipe (see `gumbeltree recipes`), or a .toml file.",
        autocompletion=completion.recipes,
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(help="Folder with the files of the data set, or your own training file."),
]
Vectors = Annotated[
    Path | None, typer.Option(help="Word vectors in GloVe text format, plain, .gz or .zip.")
]
MoreVectors = Annotated[
    Path | None,
    typer.Option(help="Second vector file, of any width, for words without a vector in --vectors."),
]
Dev = Annotated[
    Path | None, typer.Option(help="Development file, if it is not in the --data folder.")
]
Test = Annotated[Path | None, typer.Option(help="Test file, if it is not in the --data folder.")]
Text = Annotated[str | None, typer.Option(help="Column of the texts in your own file.")]
Text2 = Annotated[str | None, typer.Option(help="Column of the second texts, for pairs.")]
Label = Annotated[str | None, typer.Option(help="Column of the labels.")]
Encoder = Annotated[
    str | None,
    typer.Option(
        help="Encoder: tree, lstm, bag, or auto to train these three and keep the best on the "
        "development split; default: that of the recipe.",
        autocompletion=completion.one_of("tree", "lstm", "bag", "auto"),
    ),
]


class TargetName(StrEnum):
    """What the labels of a table are."""

    classes = "classes"
    number = "number"
    tags = "tags"


Target = Annotated[
    TargetName | None,
    typer.Option(
        help="What the label column contains: one of several classes (the default), a number to "
        "predict, or any number of tags, such as plot|music."
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting of the recipe, for example batch_size=64. Can be repeated. "
        "`gumbeltree info RECIPE --json` lists all settings.",
    ),
]


class LoggerName(StrEnum):
    """Where to log the metrics of a run."""

    tensorboard = "tensorboard"
    mlflow = "mlflow"
    wandb = "wandb"


Loggers = Annotated[
    list[LoggerName] | None,
    typer.Option(
        "--logger",
        help="Log metrics to an experiment tracker. Can be repeated. TensorBoard is always used if "
        "it is installed.",
    ),
]
Pretokenized = Annotated[
    bool,
    typer.Option("--pretokenized", help="Split the texts of your own file at white space only."),
]


@app.command(context_settings={"allow_extra_args": True})
def train(
    context: typer.Context,
    recipe: RecipeName,
    data: Data = None,
    vectors: Vectors = None,
    more_vectors: MoreVectors = None,
    prepared: Annotated[
        Path | None,
        typer.Option(help="File written by `data prepare`, instead of --data and --vectors."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default: runs/RECIPE.")] = None,
    settings: Set = None,
    text: Text = None,
    text2: Text2 = None,
    label: Label = None,
    encoder: Encoder = None,
    target: Target = None,
    dev: Dev = None,
    test: Test = None,
    pretokenized: Pretokenized = False,
    skip_bad: SkipBad = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in the run folder, if there is one.")
    ] = False,
    init: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Start from the encoder and word vectors of this trained model: a folder, a name "
            "from `gumbeltree models`, or hub:ORG/NAME.",
            autocompletion=completion.models,
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="First seed; default: that of the recipe.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of runs, with consecutive seeds.")] = 1,
    device: Device = "auto",
    threads: Threads = None,
    plugin: Plugin = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="32, tf32, bf16 or 64; default: that of the recipe.",
            autocompletion=completion.one_of("32", "tf32", "bf16", "64"),
        ),
    ] = None,
    logger: Loggers = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train a model with a recipe, keep the best one and evaluate it.

    The run folder contains the best model (model/), the metrics of every evaluation
    (metrics.jsonl), the last checkpoint (last.checkpoint) and the result (result.json). Ctrl-C
    saves a checkpoint and stops; repeat the command with --resume to continue.

    For example:

      gumbeltree train demo

      gumbeltree train sst2 --data sst --vectors glove.840B.300d.zip --out runs/sst2

      gumbeltree train text --data reviews.csv --text review --label stars

      gumbeltree train text --data reviews.csv --text review --label stars --encoder auto

      gumbeltree train text --data reviews.csv --text review --label score --target number

      gumbeltree train snli-300d --prepared snli.safetensors --seeds 3 --resume

      torchrun --nproc-per-node 2 -m gumbeltree train sst2 --prepared sst2.safetensors
    """
    if context.args:
        extra = context.args[0]
        option = "--set" if "=" in extra else "--data"
        raise ValueError(f"unexpected argument {extra!r}; did you mean {option} {extra}?")
    # fail before importing torch, which can take seconds
    for path in (data, vectors, more_vectors, dev, test):
        if prepared is None and path is not None and not path.exists():
            raise FileNotFoundError(f"{path} does not exist; check the path")
    from gumbeltree.config import load_recipe
    from gumbeltree.training.folder import check_free

    loggers = [name.value for name in logger or ()]
    if loggers:
        from gumbeltree.training.loggers import check_loggers

        check_loggers(loggers)
    settings = list(settings or ())
    settings += [] if precision is None else [f"training.precision='{precision}'"]
    settings += [] if seed is None else [f"training.seed={seed}"]

    def with_encoder(encoder: str | None) -> "Recipe":
        return chosen_recipe(recipe, settings, text, text2, label, pretokenized, encoder, target)

    auto = encoder == "auto"
    recipes = {}
    if auto:
        from gumbeltree.training.candidates import candidate_recipes

        recipes = candidate_recipes(with_encoder)
    # the candidates share their data
    encoder = "tree" if auto else encoder
    chosen, plain = with_encoder(encoder), load_recipe(recipe, encoder)
    if auto and seeds > 1:
        raise ValueError("--encoder auto compares encoders with one seed; omit --seeds")
    if encoder is not None and init is not None:
        raise ValueError(f"--init {init} fixes the encoder; omit --encoder")
    name = Path(recipe).stem if recipe.endswith(".toml") else recipe
    folder = Path("runs", name) if out is None else out
    first = os.environ.get("RANK", "0") == "0"
    if seeds == 1 and first:
        check_free(folder, resume)
    if prepared is None and data is not None:
        check_header(chosen, data)
    from gumbeltree.data.compile import needs_vectors, prepare
    from gumbeltree.data.prepared import load_prepared
    from gumbeltree.training.candidates import comparison, train_candidates
    from gumbeltree.training.display import Display
    from gumbeltree.training.loop import train as train_run
    from gumbeltree.training.policy import check_policy
    from gumbeltree.training.seeds import train_seeds
    from gumbeltree.training.start import known_words, leave_processes, start_from

    pick_device(device)
    display = Display(quiet=quiet or not first)
    start = None
    if init is not None:
        asked = chosen
        chosen, start = start_from(chosen, init)
        check_unchanged("--init", asked.model.encoder, plain.model.encoder, chosen.model.encoder)
        check_unchanged("--init", asked.data, plain.data, chosen.data)
    # reading the data can take minutes
    check_policy(chosen.model, chosen.training)
    if prepared is not None:
        if data or vectors or more_vectors or dev or test:
            raise ValueError(
                "--prepared already contains data and vectors; omit --data, --vectors, "
                "--more-vectors, --dev and --test"
            )
        compiled = load_prepared(prepared)
        check_unchanged("--prepared", chosen.data, plain.data, compiled.data)
        vectors = prepared if compiled.vectors is not None else None
    if vectors is None and start is None and needs_vectors(chosen):
        raise ValueError(
            "this recipe does not train the word vectors, which would stay random; pass --vectors, "
            "or --set tuned=true"
        )
    if prepared is None:
        compiled = prepare(
            chosen,
            data,
            vectors,
            dev=dev,
            test=test,
            more_vectors=more_vectors,
            skip_bad=skip_bad,
            more_words=() if start is None else known_words(start),
            say=display.say,
        )
    for line in compiled.lines():
        display.say(line)

    def train_one(one: "Recipe", folder: Path) -> dict[str, Any]:
        display.title = f"seed {one.training.seed}: " if seeds > 1 else ""
        return train_run(
            one,
            compiled,
            folder,
            recipe_name=name,
            resume=resume,
            device=device,
            init=start,
            display=display,
            loggers=loggers,
        )

    try:
        if auto:
            result = train_candidates(
                recipes,
                compiled,
                folder,
                recipe_name=name,
                resume=resume,
                device=device,
                display=display,
                loggers=loggers,
            )
        elif seeds == 1:
            result = train_one(chosen, folder)
        else:
            base = chosen.training.seed
            result = train_seeds(chosen, range(base, base + seeds), folder, train_one)
    finally:
        leave_processes()
    if first and as_json:
        typer.echo(json.dumps(result, indent=2, ensure_ascii=False))
    elif first:
        if auto:
            rows, best = result["candidates"], result["encoder"]
            Console().print(comparison(rows, best, chosen.model.head.kind))
        show(result, folder, HEADS[chosen.model.head.kind])


def chosen_recipe(
    name: str,
    settings: list[str] | None,
    text: str | None,
    text2: str | None,
    label: str | None,
    pretokenized: bool,
    encoder: str | None = None,
    target: str | None = None,
) -> "Recipe":
    """Return a recipe with the changes from the command line."""
    from gumbeltree.config import load_recipe, with_settings, with_target

    options = {"text": text, "text2": text2, "label": label, "pretokenized": pretokenized or None}
    changes: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
    recipe = load_recipe(name, encoder)
    asked = [*changes, *(["target"] if target else [])]
    if asked and recipe.data.task != "table":
        raise ValueError(
            f"--{asked[0]} is for your own files, but recipe {name} reads the data set "
            f"{recipe.data.task}; use the recipe text or text-pair"
        )
    if text2 is not None and HEADS[recipe.model.head.kind].sentences == 1:
        raise ValueError(f"recipe {name} takes single texts; for --text2 use the recipe text-pair")
    recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, **changes))
    recipe = with_settings(with_target(recipe, target) if target else recipe, settings or [])
    if recipe.training.best_by:
        # fail before reading the data, which can take minutes
        HEADS[recipe.model.head.kind].metric(recipe.training.best_by)
    return recipe


def check_header(recipe: "Recipe", path: Path) -> None:
    """Raise if a file of the user lacks a column of the recipe."""
    from gumbeltree.tasks.table_file import TableFile
    from gumbeltree.text.files import Report

    data = recipe.data
    names = {role: getattr(data, role) for role in ("text", "text2", "label")}
    columns = {role: name for role, name in names.items() if name}
    if data.task == "table" and columns and path.is_file():
        table = TableFile(path, columns, data.separator, data.quotes)
        # other errors are reported when the whole file is read
        next(table.rows(Report(), skip_bad=True), None)


def check_unchanged(option: str, asked: Settings, plain: Settings, actual: Settings) -> None:
    """Raise if the command line changes a setting that another option fixes.

    Args:
        option: the option that fixes the settings.
        asked: settings as changed on the command line.
        plain: settings of the recipe.
        actual: settings that the option fixes.
    """
    for field in dataclasses.fields(asked):
        value, fixed = getattr(asked, field.name), getattr(actual, field.name, None)
        if value not in (getattr(plain, field.name, None), fixed):
            raise ValueError(
                f"{option} fixes {field.name} = {fixed!r}, which cannot be changed to {value!r}; "
                f"omit that setting, or pass another {option}"
            )


def show(result: dict[str, Any], folder: Path, head: "type[Head]") -> None:
    """Print the result of one run, or of several seeds.

    Args:
        result: see `training.loop.train` and `training.seeds.summarize`.
        folder: folder of the run or runs.
        head: head of the model, which names and formats the metrics.
    """
    from gumbeltree.training.seeds import SPLITS, shown_measures

    runs = result.get("runs", [result])
    measures = shown_measures(runs, head)
    if len(runs) == 1:
        # the others follow below the table
        measures = measures[:1]
    names = [(f"{split}_{measure}", head.metric(measure).shown)
             for measure in measures for split in SPLITS]  # fmt: skip
    table = Table()
    columns = (name.replace("_", " ", 1) for name, _ in names)
    for column in ("seed", *columns, "best epoch", "steps", "time"):
        # a label in the name of a metric can look like markup
        table.add_column(RichText(column), justify="right")
    for run in runs:
        minutes, seconds = divmod(round(run["seconds"]), 60)
        table.add_row(
            str(run["seed"]),
            *(score(run[name]) if name in run else "" for name, score in names),
            f"{run['best_epoch']:.1f}",
            f"{run['steps']:,}",
            f"{minutes}:{seconds:02d}",
        )
    if len(runs) > 1:
        table.add_section()
        means = [
            f"{score(result[name]['mean'])} ± {score(result[name]['deviation'])}"
            if name in result
            else ""
            for name, score in names
        ]
        table.add_row("mean", *means)
    console = Console()
    console.print(table)
    others = [name for name in (head.measure, *head.metrics) if name not in measures]
    for split in SPLITS:
        known = [name for name in others if f"{split}_{name}" in result]
        if known:
            shown = (head.metric(name).shown(result[f"{split}_{name}"]) for name in known)
            line = ", ".join(map(" ".join, zip(known, shown, strict=True)))
            console.print(f"{split}: {line}", highlight=False, markup=False, soft_wrap=True)
    best = ""
    if len(runs) > 1:
        seed = result.get("best_seed", runs[0]["seed"])
        best = f"Seed {seed} has the best dev {head.measure}. " if "best_seed" in result else ""
        folder = folder / f"seed-{seed}"
    place = f"{best}The model is in {folder / 'model'}."
    console.print(place, highlight=False, markup=False, soft_wrap=True)
