"""The command `export`: a model as an ONNX file."""

from pathlib import Path
from typing import Annotated

import typer

from gumbeltree.cli import streams
from gumbeltree.cli.app import app


@app.command()
def export(
    model: streams.Model,
    out: Annotated[Path, typer.Option("--out", help="File to write, .onnx.")],
    plugin: streams.Plugin = None,
    quiet: streams.Quiet = False,
) -> None:
    """Export a model to ONNX, for programs that run it without gumbeltree.

    Example: gumbeltree export sst2-100d --out model.onnx
    """
    from gumbeltree import onnx
    from gumbeltree.light.model import load
    from gumbeltree.store import find_model, model_config

    if out.suffix != ".onnx":
        raise ValueError(f"`--out` must be an .onnx file, got {out}; rename it to {out.stem}.onnx")
    streams.check_out(out)
    folder = find_model(model)
    # name a part that cannot be exported even if it has no NumPy version, either
    onnx.check_exportable(model_config(folder))
    onnx.export(load(folder), out)
    streams.say(f"{out}: {out.stat().st_size:,} bytes, ONNX opset {onnx.OPSET}", quiet)
