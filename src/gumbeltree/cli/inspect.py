"""Commands that look at recipes, models and speed."""

import json
from pathlib import Path
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
            **(
                {
                    "tree": f"{encoder['hidden_dim']}D, leaf {encoder['leaf']}, cell "
                    f"{encoder['cell']}, score {encoder['score']}, temperature "
                    f"{encoder['temperature']:g}"
                }
                if choice
                else {"encoder": f"{encoder['kind']}, {encoder['hidden_dim']}D, builds no tree"}
            ),
            "head": f"{head['kind']}, {head['hidden_layers']} x {head['hidden_dim']}, "
            f"labels {', '.join(head['labels'])}",
            **({"merge": f"{choice['name']}: {choice['reason']}"} if choice else {}),
            **({"model": _trained(about["pretrained"])} if "pretrained" in about else {}),
        },
    )


@app.command()
def recipes() -> None:
    """List the recipes: published models, and starting points for one's own data.

    Example: gumbeltree recipes
    """
    from gumbeltree.config import load_recipe, recipe_names

    table = Table(box=None)
    table.add_column("recipe")
    table.add_column("what it is")
    for name in recipe_names():
        table.add_row(name, Text(load_recipe(name).description))
    Console().print(table)


@app.command()
def models(as_json: Json = False) -> None:
    """List the trained models that come with the package; commands take them by name.

    Example: gumbeltree models

    Example: gumbeltree parse sst2-100d --draw "i love this very much ."
    """
    from gumbeltree.packaged import pretrained_models

    found = [model.as_dict() for model in pretrained_models()]
    if as_json:
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
        return
    if not found:
        typer.echo("No model comes with this copy of the package; train one: gumbeltree recipes")
        return
    table = Table(box=None)
    for column in ("model", "what it is", "trained on", "accuracy", "size"):
        table.add_column(column)
    for about in found:
        kind = "pairs" if about["kind"] == "pair" else "sentences"
        labels = Text(f"{kind}: {', '.join(about['labels'])}")
        table.add_row(
            about["name"], labels, _data(about), _accuracy(about), f"{about['bytes'] / 1e6:.1f} MB"
        )
    Console().print(table)


def _trained(about: dict[str, Any]) -> str:
    """Return a line on the packaged model of a recipe."""
    size = f"{about['bytes'] / 1e6:.1f} MB"
    return f"packaged, trained on {_data(about)}, accuracy {_accuracy(about)}, {size}"


def _data(about: dict[str, Any]) -> str:
    if about["examples"] is None:
        return str(about["task"] or "not recorded")
    return f"{about['task']}, {about['examples']:,} examples"


def _accuracy(about: dict[str, Any]) -> str:
    values = ((split, about[f"{split}_accuracy"]) for split in ("dev", "test"))
    return ", ".join(f"{split} {x:.2%}" for split, x in values if x is not None) or "not recorded"


def _list(console: Console, lines: dict[str, Any]) -> None:
    for name, value in lines.items():
        console.print(f"{name:>6}  {value}", highlight=False, markup=False)


@app.command("import-reference")
def import_reference_command(
    checkpoint: Annotated[Path, typer.Argument(help="State dict of the authors' code.")],
    vocabulary: Annotated[Path, typer.Argument(help="Its word list, one word a line.")],
    out: Annotated[Path, typer.Option(help="Model folder to write.")],
    variant: Annotated[
        str,
        typer.Option(
            help="reference: scores divided by sqrt(D), the last version; paper: not divided, as "
            "in the released checkpoints."
        ),
    ] = "reference",
    lower: Annotated[bool, typer.Option("--lower", help="Lower-case text before look-up.")] = False,
) -> None:
    """Convert a sentence-pair model of the authors' code into a model folder.

    Example: gumbeltree import-reference snli.pkl snli_vocab.txt --variant paper --out snli-300d
    """
    from gumbeltree.import_reference import import_reference

    model = import_reference(checkpoint, vocabulary, out, variant, lower)
    encoder = model.config.encoder
    typer.echo(
        f"{out}: {encoder.hidden_dim}D, leaf {encoder.leaf}, "
        f"{model.embedding.num_embeddings:,} words, labels {', '.join(model.labels)}"
    )


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the models and the picture.")] = Path(
        "demo"
    ),
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny sizes: shows that it works, learns nothing.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Train on made-up reviews, compare with two baselines, draw trees; a minute or two.

    Stopped by Ctrl-C it goes on where it was; run again it shows its results again.

    Example: gumbeltree demo --out demo
    """
    from gumbeltree.demo import run

    run(out, quick, quiet)


@app.command()
def bench(
    device: Annotated[str, typer.Option(help="Where to measure: cpu or cuda.")] = "cpu",
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write all figures to this file.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw growth with sentence length, PNG or SVG.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny sizes: shows that it works, measures nothing.")
    ] = False,
) -> None:
    """Measure speed and memory on SNLI's real sentence lengths; minutes.

    On a CPU `exact` against `reference`; on a CUDA device whole training steps, inference, growth
    with sentence length and encoding of a million sentences with `fused`. Correctness is checked
    first. Example: gumbeltree bench --device cuda --json cuda.json
    """
    from gumbeltree.bench.run import run

    run(device, json_file, plot, quick, Console(), Console(stderr=True))
