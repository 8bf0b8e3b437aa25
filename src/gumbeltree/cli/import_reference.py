"""The command `import-reference`: convert a checkpoint of the authors' code."""

from pathlib import Path
from typing import Annotated

import typer

from gumbeltree.cli.app import app


@app.command("import-reference")
def import_reference_command(
    checkpoint: Annotated[Path, typer.Argument(help="State dict of the authors' code.")],
    vocabulary: Annotated[Path, typer.Argument(help="Its word list, one word per line.")],
    out: Annotated[Path, typer.Option(help="Model folder to write.")],
    variant: Annotated[
        str,
        typer.Option(
            help="reference: scores divided by sqrt(D), as in the latest code; paper: not divided, "
            "as in the released checkpoints."
        ),
    ] = "reference",
    lower: Annotated[
        bool, typer.Option("--lower", help="Lower-case the input of the model.")
    ] = False,
) -> None:
    """Convert a sentence-pair model of the authors' code into a model folder.

    Example: gumbeltree import-reference snli.pkl snli_vocab.txt --variant paper --out snli-300d
    """
    from gumbeltree.import_reference import import_reference

    model = import_reference(checkpoint, vocabulary, out, variant, lower)
    encoder = model.config.encoder
    typer.echo(
        f"{out}: {encoder.hidden_dim}D, leaf {encoder.leaf.kind}, "
        f"{model.embedding.num_embeddings:,} words, labels {', '.join(model.labels)}"
    )
