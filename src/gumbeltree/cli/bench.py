"""The command `bench`: speed and memory on this machine."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gumbeltree.cli import completion
from gumbeltree.cli.app import app
from gumbeltree.cli.streams import Threads


@app.command()
def bench(
    device: Annotated[
        str,
        typer.Option(
            help="Device to benchmark: cpu or cuda.",
            autocompletion=completion.one_of("cpu", "cuda"),
        ),
    ] = "cpu",
    json_file: Annotated[
        Path | None, typer.Option("--json", help="JSON file for all figures.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Plot of growth with sentence length, .png, .svg or .pdf.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Use tiny sizes to check that the benchmark runs.")
    ] = False,
    threads: Threads = None,
) -> None:
    """Measure speed and memory; takes several minutes.

    On a CPU, `exact` is compared with `reference`. On a CUDA device, `fused` is measured: whole
    training steps, inference, growth with sentence length, and the encoding of a million sentences.
    Batches have the sentence lengths of SNLI. Correctness is checked first.

    Example: gumbeltree bench --device cuda --json cuda.json
    """
    from gumbeltree.bench.run import run

    run(device, json_file, plot, quick, Console(), Console(stderr=True))
