"""The command that trains."""

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from gumbeltree.cli.app import Json, app
from gumbeltree.parts import HEADS

if TYPE_CHECKING:
    from gumbeltree.config import Recipe
from gumbeltree.settings import Settings

Data = Annotated[
    Path | None,
    typer.Option(help="Folder with the data set's files, or one's own table (a training file)."),
]
Vectors = Annotated[Path | None, typer.Option(help="Word vectors: GloVe text, plain, .gz or .zip.")]
MoreVectors = Annotated[
    Path | None,
    typer.Option(help="Another such file, of any width, to borrow the words from that it lacks."),
]
Dev = Annotated[Path | None, typer.Option(help="Development file, if not in the folder.")]
Test = Annotated[Path | None, typer.Option(help="Test file, if not in the folder.")]
Text = Annotated[str | None, typer.Option(help="Column of the text in one's own table.")]
Text2 = Annotated[str | None, typer.Option(help="Column of the second text of pairs.")]
Label = Annotated[str | None, typer.Option(help="Column of the label.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting of the recipe, such as batch_size=64; as often as needed. "
        "`gumbeltree info RECIPE --json` shows them all.",
    ),
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Leave bad lines out and count them, go on.")
]
Pretokenized = Annotated[
    bool,
    typer.Option(
        "--pretokenized", help="Texts of the table are words separated by spaces: keep them so."
    ),
]


@app.command()
def train(
    recipe: Annotated[
        str, typer.Argument(help="Name of a recipe (see `gumbeltree recipes`), or a .toml file.")
    ],
    data: Data = None,
    vectors: Vectors = None,
    more_vectors: MoreVectors = None,
    prepared: Annotated[
        Path | None,
        typer.Option(help="What `data prepare` made, in place of --data and --vectors."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; default: runs/RECIPE.")
    ] = None,
    settings: Set = None,
    text: Text = None,
    text2: Text2 = None,
    label: Label = None,
    dev: Dev = None,
    test: Test = None,
    pretokenized: Pretokenized = False,
    skip_bad: SkipBad = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in the folder, if there is one.")
    ] = False,
    init: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Start from this trained model: its encoder, with its settings, and its words. A "
            "folder, a name of `gumbeltree models`, or hub:ORG/NAME.",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="First seed; default: the recipe's.")
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="Train so many times, with seeds that follow each other.")
    ] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    precision: Annotated[
        str | None, typer.Option(help="32, tf32, bf16 or 64; default: the recipe's.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show only the result.")] = False,
    as_json: Json = False,
) -> None:
    """Train a model by a recipe, and evaluate the best one.

    The folder of the run gets the best model (model/), the metrics of every evaluation
    (metrics.jsonl), the state to go on from (last.checkpoint) and the result (result.json).
    Ctrl-C saves and stops; the same command with --resume goes on.

    For example:

      gumbeltree train demo

      gumbeltree train sst2 --data sst --vectors glove.840B.300d.zip --out runs/sst2

      gumbeltree train text --data reviews.csv --text review --label stars

      gumbeltree train snli-300d --prepared snli.safetensors --seeds 3 --resume

      torchrun --nproc-per-node 2 -m gumbeltree train sst2 --prepared sst2.safetensors
    """
    from gumbeltree.config import load_recipe
    from gumbeltree.data.compile import prepare
    from gumbeltree.data.prepared import load_prepared
    from gumbeltree.training.display import Display
    from gumbeltree.training.folder import check_free
    from gumbeltree.training.loop import train as train_run
    from gumbeltree.training.seeds import train_seeds
    from gumbeltree.training.start import (
        check_device,
        known_words,
        leave_processes,
        start_from,
    )

    more = [] if precision is None else [f"training.precision='{precision}'"]
    more += [] if seed is None else [f"training.seed={seed}"]
    chosen = chosen_recipe(recipe, settings, text, text2, label, pretokenized, more)
    plain = load_recipe(recipe)
    check_device(device)
    name = Path(recipe).stem if recipe.endswith(".toml") else recipe
    where = Path("runs", name) if out is None else out
    first = os.environ.get("RANK", "0") == "0"
    if seeds == 1 and first:
        # before minutes of reading
        check_free(where, resume)
    display = Display(quiet=quiet or not first)
    start = None
    if init is not None:
        asked = chosen
        chosen, start = start_from(chosen, init)
        check_settled("--init", asked.model.encoder, plain.model.encoder, chosen.model.encoder)
        check_settled("--init", asked.data, plain.data, chosen.data)
    if prepared is not None:
        if data or vectors or more_vectors or dev or test:
            raise ValueError(
                "--prepared holds data and vectors already, got other files as well; pass one or "
                "the other"
            )
        compiled = load_prepared(prepared)
        check_settled("--prepared", chosen.data, plain.data, compiled.data)
        check_vectors(chosen, compiled.vectors is not None or start is not None)
    else:
        check_vectors(chosen, vectors is not None or start is not None)
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
        try:
            return train_run(
                one,
                compiled,
                folder,
                recipe_name=name,
                resume=resume,
                device=device,
                init=start,
                display=display,
            )
        finally:
            display.close()

    try:
        if seeds == 1:
            result = train_one(chosen, where)
        else:
            base = chosen.training.seed
            result = train_seeds(chosen, range(base, base + seeds), where, train_one)
    finally:
        leave_processes()
    if not first:
        return
    if as_json:
        typer.echo(json.dumps(result, indent=2, ensure_ascii=False))
        return
    show(result.get("runs", [result]), result, where, HEADS[chosen.model.head.kind].shown)


def chosen_recipe(
    name: str,
    settings: list[str] | None,
    text: str | None,
    text2: str | None,
    label: str | None,
    pretokenized: bool,
    more: list[str] | None = None,
) -> "Recipe":
    """Return a recipe with the changes that were asked for."""
    from gumbeltree.config import load_recipe, with_settings

    columns = {"text": text, "text2": text2, "label": label}
    given: dict[str, Any] = {key: value for key, value in columns.items() if value is not None}
    recipe = load_recipe(name)
    if (given or pretokenized) and recipe.data.task != "table":
        raise ValueError(
            f"--text, --text2, --label and --pretokenized are for one's own tables (recipes text "
            f"and text-pair), got recipe {name}; leave them out"
        )
    if text2 is not None and HEADS[recipe.model.head.kind].sentences == 1:
        raise ValueError(f"recipe {name} takes single texts; with --text2 take text-pair")
    if pretokenized:
        given["pretokenized"] = True
    recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, **given))
    return with_settings(recipe, [*(settings or []), *(more or [])])


def check_vectors(recipe: "Recipe", known: bool) -> None:
    """Raise if word vectors would stay what chance made them."""
    if not known and not recipe.model.embedding.tuned:
        raise ValueError(
            "the recipe keeps word vectors as they are, and there are none but random ones; pass "
            "--vectors, or --set tuned=true"
        )


def check_settled(option: str, asked: "Settings", plain: "Settings", actual: "Settings") -> None:
    """Raise if a setting was changed from the recipe's that an option settles otherwise.

    Args:
        option: the option.
        asked: the settings as changed on the command line.
        plain: those of the recipe.
        actual: those that will count.
    """
    for name in (field.name for field in dataclasses.fields(asked)):
        value, settled = getattr(asked, name), getattr(actual, name, None)
        if value not in (getattr(plain, name, None), settled):
            raise ValueError(
                f"{option} comes with {name} = {settled!r}, got {value!r} for it as well; leave "
                "that out, or make the other anew"
            )


def show(
    runs: list[dict[str, Any]],
    result: dict[str, Any],
    where: Path,
    shown: Callable[[float], str],
) -> None:
    """Print what training reached; `shown` is how the head writes its measure."""
    measure = runs[0].get("measure", "accuracy")
    names = [f"dev_{measure}", f"test_{measure}"]
    table = Table()
    for column in ("seed", "dev", "test", "best epoch", "steps", "time"):
        table.add_column(column, justify="right")
    for run in runs:
        minutes, seconds = divmod(round(run["seconds"]), 60)
        table.add_row(
            str(run["seed"]),
            *(shown(run[name]) if name in run else "" for name in names),
            f"{run['best_epoch']:.1f}",
            f"{run['steps']:,}",
            f"{minutes}:{seconds:02d}",
        )
    if len(runs) > 1:
        table.add_section()
        columns = [result.get(name) for name in names]
        both = [f"{shown(x['mean'])} ± {shown(x['deviation'])}" if x else "" for x in columns]
        table.add_row("mean", *both, "", "", "")
    console = Console()
    console.print(table)
    folder = where if len(runs) == 1 else where / f"seed-{runs[0]['seed']}"
    place = f"The model is in {folder / 'model'}."
    console.print(place, highlight=False, markup=False, soft_wrap=True)
