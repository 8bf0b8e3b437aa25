"""The command `data prepare`: compile data for training."""

from pathlib import Path
from typing import Annotated

import typer

from gumbeltree.cli.data_get import data as data_app
from gumbeltree.cli.streams import Plugin, Quiet, SkipBad
from gumbeltree.cli.train import (
    Data,
    Dev,
    Label,
    MoreVectors,
    Pretokenized,
    RecipeName,
    Set,
    Target,
    Test,
    Text,
    Text2,
    Vectors,
    chosen_recipe,
)


@data_app.command()
def prepare(
    recipe: RecipeName,
    out: Annotated[Path, typer.Option(help="File to write, for example snli.safetensors.")],
    data: Data = None,
    vectors: Vectors = None,
    more_vectors: MoreVectors = None,
    settings: Set = None,
    text: Text = None,
    text2: Text2 = None,
    label: Label = None,
    target: Target = None,
    dev: Dev = None,
    test: Test = None,
    pretokenized: Pretokenized = False,
    skip_bad: SkipBad = False,
    plugin: Plugin = None,
    quiet: Quiet = False,
) -> None:
    """Compile word ids, labels and the required word vectors into one file for training.

    `gumbeltree train RECIPE --prepared FILE` then needs neither the text nor the vector files.

    For example:

      gumbeltree data prepare snli-300d --data snli --vectors glove.840B.300d.zip
      --out snli.safetensors
    """
    from gumbeltree.data.compile import prepare as compile_data
    from gumbeltree.data.prepared import save_prepared
    from gumbeltree.training.display import Display

    display = Display(quiet)
    prepared = compile_data(
        chosen_recipe(recipe, settings, text, text2, label, pretokenized, target=target),
        data,
        vectors,
        dev=dev,
        test=test,
        more_vectors=more_vectors,
        skip_bad=skip_bad,
        say=display.say,
    )
    save_prepared(prepared, out)
    for line in prepared.lines():
        display.say(line)
    display.say(f"{out}: {out.stat().st_size / 1e6:,.1f} MB")
