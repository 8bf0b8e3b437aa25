"""The command `demo`: train a small model and show its trees."""

from pathlib import Path
from typing import Annotated

import typer

from gumbeltree.cli import streams
from gumbeltree.cli.app import app


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Output folder.")] = Path("demo"),
    quick: Annotated[
        bool, typer.Option("--quick", help="A tiny model that learns nothing; to test the set-up.")
    ] = False,
    quiet: streams.Quiet = False,
) -> None:
    """Train on synthetic reviews, compare with two baselines and draw trees; takes 1-2 minutes.

    After Ctrl-C, run the command again to resume. A finished demonstration is shown again.

    Example: gumbeltree demo --out demo
    """
    from gumbeltree.demo import run

    run(out, quick, quiet)
