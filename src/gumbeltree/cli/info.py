"""The command `info`: parts, sizes and parameters of a recipe or a model."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gumbeltree.cli.app import Json, app


@app.command()
def info(
    name: Annotated[
        str,
        typer.Argument(
            help="A recipe, a recipe's .toml file, a model folder, a name of `gumbeltree models`, "
            "or hub:ORG/NAME."
        ),
    ],
    as_json: Json = False,
) -> None:
    """Describe a recipe or a model: parts and parameters, word vectors not counted.

    Where a packaged model has the name of the recipe that it was trained by, both are shown: the
    settings of the recipe, and what the model reaches. A folder of that name comes before both.

    Example: gumbeltree info snli-300d
    """
    from gumbeltree.describe import describe

    about = describe(name)
    if as_json:
        typer.echo(json.dumps(about, indent=2, ensure_ascii=False))
        return
    table = Table(title=Text(about.get("description", name)), title_justify="left")
    table.add_column("part")
    table.add_column("parameters", justify="right")
    for part, count in about["parameters"].items():
        if part == "total":
            table.add_section()
        table.add_row(part.replace("_", " "), f"{count:,}")
    console = Console()
    console.print(table)
    encoder, head = about["model"]["encoder"], about["model"]["head"]
    choice = about.get("implementation")
    _list(
        console,
        {
            "words": f"{encoder['embedding_dim']}D, "
            + ("tuned" if about["model"]["embedding"]["tuned"] else "fixed"),
            "encoder": _settings(encoder, "embedding_dim", "impl"),
            "head": _settings(head),
            **({"merge": f"{choice['name']}: {choice['reason']}"} if choice else {}),
            **({"model": _trained(about["pretrained"])} if "pretrained" in about else {}),
        },
    )


def _settings(part: dict[str, Any], *left_out: str) -> str:
    """Return a part's kind and its settings, those of its own parts by their kinds."""
    shown = []
    for name, value in part.items():
        if name in (*left_out, "kind"):
            continue
        if isinstance(value, dict):
            value = value["kind"]
        elif isinstance(value, list | tuple):
            value = ", ".join(value)
        elif isinstance(value, float):
            value = f"{value:g}"
        shown.append(f"{name.replace('_', ' ')} {value}")
    return ", ".join([part["kind"], *shown])


def _trained(about: dict[str, Any]) -> str:
    """Return a line on the packaged model of a recipe."""
    size = f"{about['bytes'] / 1e6:.1f} MB"
    return f"packaged, trained on {data_of(about)}, accuracy {accuracy_of(about)}, {size}"


def _list(console: Console, lines: dict[str, Any]) -> None:
    for name, value in lines.items():
        console.print(f"{name:>6}  {value}", highlight=False, markup=False)


def data_of(about: dict[str, Any]) -> str:
    """Return what a packaged model was trained on."""
    if about["examples"] is None:
        return str(about["task"] or "not recorded")
    return f"{about['task']}, {about['examples']:,} examples"


def accuracy_of(about: dict[str, Any]) -> str:
    """Return the accuracies of a packaged model."""
    values = ((split, about[f"{split}_accuracy"]) for split in ("dev", "test"))
    return ", ".join(f"{split} {x:.2%}" for split, x in values if x is not None) or "not recorded"
