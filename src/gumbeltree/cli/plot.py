"""The command `plot`: learning curves of runs."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gumbeltree.cli import streams
from gumbeltree.cli.app import app


class Axis(StrEnum):
    """What curves are drawn against."""

    steps = "steps"
    epochs = "epochs"
    time = "time"
    all = "all"


@app.command("plot")
def draw_curves(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="Folders of runs, folders of their seeds, or JSON records of runs.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", help="File for the picture, such as .png, .svg or .pdf.")
    ],
    x: Annotated[
        Axis, typer.Option("--x", help="steps, epochs, time, or all side by side.")
    ] = Axis.all,
    quiet: streams.Quiet = False,
) -> None:
    """Draw loss and development accuracy (or the head's own measure) against steps, epochs, time.

    Seeds of one experiment have one colour: thin lines for each, a thick one for their mean.
    Runs that are still going or were interrupted are drawn as far as they are.

    Examples, after training:

    gumbeltree plot runs/mine --out curves.png

    gumbeltree plot runs/snli-100d runs/snli-300d --x epochs --out curves.svg
    """
    from gumbeltree.analysis import curves

    streams.check_out(out)
    groups = curves.draw(runs, out, x.value)
    if quiet:
        return
    for each in groups:
        typer.echo(each.label, err=True)
    count = sum(len(each.runs) for each in groups)
    unfinished = sum(not run.finished for each in groups for run in each.runs)
    more = f", {unfinished} not finished" if unfinished else ""
    typer.echo(f"{out}: {count} {'run' if count == 1 else 'runs'}{more}", err=True)
