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
        bool, typer.Option("--quick", help="Train tiny models for a quick check of the setup.")
    ] = False,
    threads: streams.Threads = None,
    quiet: streams.Quiet = False,
) -> None:
    """Train a model and two baselines on synthetic reviews and draw trees; takes 1-2 minutes.

    To resume after Ctrl-C, run the command again. If training has finished, it shows the results.

    Example: gumbeltree demo --out demo
    """
    from gumbeltree.demo import run

    run(out, quick, quiet)
