"""The command `import-reference`: convert a checkpoint of the authors' code."""

from pathlib import Path
from typing import Annotated

import typer

from gumbeltree.cli.app import app


@app.command("import-reference")
def import_reference_command(
    checkpoint: Annotated[Path, typer.Argument(help="State dict saved by the authors' code.")],
    vocabulary: Annotated[
        Path, typer.Argument(help="Word list of the checkpoint, one word per line.")
    ],
    out: Annotated[Path, typer.Option(help="Model folder to write.")],
    variant: Annotated[
        str,
        typer.Option(
            help="reference: divide scores by sqrt(D), as in the authors' latest code; paper: do "
            "not divide them, as in the released checkpoints."
        ),
    ] = "reference",
    lower: Annotated[bool, typer.Option("--lower", help="Convert texts to lower case.")] = False,
) -> None:
    """Convert a sentence-pair checkpoint of the authors' code to a model folder.

    Example: gumbeltree import-reference snli.pkl snli_vocab.txt --variant paper --out snli-300d
    """
    from gumbeltree.import_reference import import_reference

    model = import_reference(checkpoint, vocabulary, out, variant, lower)
    encoder = model.config.encoder
    typer.echo(
        f"{out}: {encoder.hidden_dim}D, leaf {encoder.leaf.kind}, "
        f"{model.embedding.num_embeddings:,} words, labels {', '.join(model.labels)}"
    )
