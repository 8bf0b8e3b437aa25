"""The command `info`: describe a recipe or a model."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gumbeltree.cli import completion, streams
from gumbeltree.cli.app import Json, app


@app.command()
def info(
    name: Annotated[
        str,
        typer.Argument(
            help="A recipe, a .toml file, a model folder, a packaged model or hub:ORG/NAME.",
            autocompletion=completion.recipes_and_models,
        ),
    ],
    as_json: Json = False,
    plugin: streams.Plugin = None,
) -> None:
    """Show the settings of a recipe or model, and its number of parameters without word vectors.

    A packaged model has the same name as its recipe. For such a name, the output shows the settings
    of the recipe and the results of the model. A local folder of the same name takes precedence.

    Example: gumbeltree info snli-300d
    """
    from gumbeltree.describe import describe, published, without_published

    about = describe(name)
    if as_json:
        typer.echo(json.dumps(about, indent=2, ensure_ascii=False))
        return
    title = about.get("description", name)
    if paper := published(title) if "pretrained" in about else "":
        # the model's own result is another one
        title = without_published(title)
    table = Table(title=Text(title), title_justify="left")
    table.add_column("part")
    table.add_column("parameters", justify="right")
    for part, count in about["parameters"].items():
        if part == "total":
            table.add_section()
        table.add_row(part.replace("_", " "), f"{count:,}")
    console = Console()
    console.print(table)
    model = about["model"]
    tuned = "tuned" if model["embedding"]["tuned"] else "fixed"
    lines = {
        "words": f"{model['encoder']['embedding_dim']}D, {tuned}",
        "encoder": _settings(model["encoder"], "embedding_dim", "impl"),
        "head": _settings(model["head"]),
    }
    if choice := about.get("implementation"):
        lines["merge"] = f"{choice['name']}: {choice['reason']}"
    if packaged := about.get("pretrained"):
        lines["model"] = (
            f"packaged, trained on {data_of(packaged)}, accuracy {accuracy_of(packaged)}, "
            f"{packaged['bytes'] / 1e6:.1f} MB"
        )
    if paper:
        lines["paper"] = f"{paper}, the authors' result, not that of this model"
    if found := about.get("measured"):
        lines["result"] = result_of(found)
    for label, text in lines.items():
        console.print(f"{label:>7}  {text}", highlight=False, markup=False)


def _settings(part: dict[str, Any], *omit: str) -> str:
    """Return a part's kind and settings; nested parts appear as their kinds."""
    shown = []
    for name, value in part.items():
        if name in (*omit, "kind") or value is None:
            continue
        shown.append(f"{name.replace('_', ' ')} {_shown(value)}")
    return ", ".join([part["kind"], *shown])


def _shown(value: Any) -> str:
    """Return the value of a setting in words."""
    if isinstance(value, dict):
        entries = (f"{key} {_shown(x)}" for key, x in value.items() if x is not None)
        return value.get("kind") or " ".join(entries)
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def result_of(found: dict[str, Any]) -> str:
    """Return the result of a model folder in words; see `gumbeltree.describe.measured`."""
    digits = ".2%" if found["metric"].endswith(("accuracy", "f1")) else ".4f"
    text = f"{found['metric']} {found['value']:{digits}}, {found['split']} split"
    if found["data"]:
        text += f" of {found['data']}"
    if found["examples"] is not None:
        text += f" ({found['examples']:,} examples)"
    if found["trained_on"] is not None:
        text += f", trained on {found['trained_on']:,} examples"
    return text


def data_of(about: dict[str, Any]) -> str:
    """Return the training data of a packaged model."""
    if about["examples"] is None:
        return str(about["task"] or "not recorded")
    return f"{about['task']}, {about['examples']:,} examples"


def accuracy_of(about: dict[str, Any]) -> str:
    """Return the accuracies of a packaged model, and of what, unless they are of classes."""
    values = ((split, about[f"{split}_value"]) for split in ("dev", "test"))
    found = ", ".join(f"{split} {x:.2%}" for split, x in values if x is not None) or "not recorded"
    return found if about["measure"] in (None, "accuracy") else f"{found} ({about['measure']})"
