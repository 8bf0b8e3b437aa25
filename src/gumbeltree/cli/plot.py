"""The command `plot`: learning curves of runs."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gumbeltree.cli import streams
from gumbeltree.cli.app import app


class Axis(StrEnum):
    """Horizontal axis of the curves."""

    steps = "steps"
    epochs = "epochs"
    time = "time"


@app.command("plot")
def draw_curves(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN", help="Run folders, or folders with the runs of several seeds."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Image file: .png, .svg or .pdf.")],
    x: Annotated[
        Axis, typer.Option("--x", help="Horizontal axis: steps, epochs, or time in minutes.")
    ] = Axis.epochs,
    quiet: streams.Quiet = False,
) -> None:
    """Draw learning curves, one per RUN: losses and development accuracy.

    Several seeds are drawn as their mean, with a band from the lowest to the highest value.
    Unfinished runs are drawn up to their last evaluation. If a head has a measure other than
    accuracy, that measure is drawn instead.

    Examples (after training):

    gumbeltree plot runs/mine --out curves.png

    gumbeltree plot runs/snli-100d runs/snli-300d --x time --out curves.svg
    """
    from gumbeltree.analysis import curves

    streams.check_out(out)
    drawn = curves.draw(runs, out, x.value)
    streams.say(f"{out}: {', '.join(curve.label for curve in drawn)}", quiet)
