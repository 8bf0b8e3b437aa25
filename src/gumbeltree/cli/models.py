"""The command `models`: list the packaged models."""

import json

import typer

from gumbeltree.cli.app import Json, app
from gumbeltree.cli.info import accuracy_of, data_of


@app.command()
def models(as_json: Json = False) -> None:
    """List the packaged models; commands that take a model accept their names.

    Example: gumbeltree models

    Example: gumbeltree parse sst2-100d --draw "i love this very much ."
    """
    from gumbeltree.cli.tables import print_list
    from gumbeltree.packaged import pretrained_models
    from gumbeltree.parts import HEADS

    listed = [model.as_dict() for model in pretrained_models()]
    if as_json:
        typer.echo(json.dumps(listed, indent=2, ensure_ascii=False))
        return
    if not listed:
        typer.echo(
            "This package contains no models; train one with a recipe from `gumbeltree recipes`"
        )
        return
    rows = []
    for about in listed:
        kind = "pairs" if HEADS.light_version(about["kind"]).sentences == 2 else "sentences"
        # a model without classes is named after its head
        labels = f"{kind}: {', '.join(about['labels']) or about['kind']}"
        size = f"{about['bytes'] / 1e6:.1f} MB"
        rows.append((about["name"], labels, data_of(about), accuracy_of(about), size))
    print_list(("model", "predicts", "trained on", "accuracy", "size"), rows)
