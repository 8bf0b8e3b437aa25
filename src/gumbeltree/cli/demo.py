"""The command `demo`: a model, its baselines and its trees in a minute or two."""

from pathlib import Path
from typing import Annotated

import typer

from gumbeltree.cli.app import app


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
