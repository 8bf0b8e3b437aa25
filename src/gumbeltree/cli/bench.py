"""The command `bench`: speed and memory on this machine."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gumbeltree.cli.app import app


@app.command()
def bench(
    device: Annotated[str, typer.Option(help="Device to measure: cpu or cuda.")] = "cpu",
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write all figures to this file.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw growth with sentence length, PNG, SVG or PDF.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Use tiny sizes, to check that it runs.")
    ] = False,
) -> None:
    """Measure speed and memory on SNLI's sentence lengths; takes minutes.

    On a CPU, `exact` is compared with `reference`. On a CUDA device, whole training steps,
    inference, growth with sentence length and the encoding of a million sentences are measured with
    `fused`. Correctness is checked first. Example: gumbeltree bench --device cuda --json cuda.json
    """
    from gumbeltree.bench.run import run

    run(device, json_file, plot, quick, Console(), Console(stderr=True))
