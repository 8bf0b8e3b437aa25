"""The command `encode`: sentence vectors."""

from pathlib import Path
from typing import Annotated

import typer

from gumbeltree.cli import streams
from gumbeltree.cli.app import app


@app.command()
def encode(
    model: streams.Model,
    text: streams.Texts = None,
    input_file: streams.Input = None,
    text_column: streams.TextColumn = None,
    out: Annotated[Path | None, typer.Option("--out", help="File for the vectors, .npy.")] = None,
    pretokenized: streams.Pretokenized = False,
    batch_size: streams.BatchSize = 256,
    device: streams.Device = "auto",
    threads: streams.Threads = None,
    plugin: streams.Plugin = None,
    runtime: streams.Runtime = "auto",
    skip_bad: streams.SkipBad = False,
    quiet: streams.Quiet = False,
) -> None:
    """Encode sentences and write their vectors to a file, one float32 row per sentence.

    Examples (after running `gumbeltree demo`):

    gumbeltree encode demo/model --input texts.txt --out vectors.npy

    python -c "import numpy; print(numpy.load('vectors.npy').shape)"
    """
    from gumbeltree.array_file import write_rows
    from gumbeltree.runtimes import load_for_use

    if out is None:
        raise ValueError("vectors are written to a file; pass its name, for example --out x.npy")
    if out.suffix != ".npy":
        raise ValueError(f"`--out` must be a .npy file, got {out}; rename it to {out.stem}.npy")
    streams.check_out(out)
    loaded = load_for_use(model, device, runtime)
    width = loaded.encoder.vector_dim
    columns = streams.columns_of(loaded, text_column)
    with streams.open_texts(
        text, input_file, out, pretokenized, batch_size, skip_bad, quiet, columns
    ) as source:
        vectors = (
            loaded.encode(streams.singles(chunk), **source.options) for chunk in source.chunks()
        )
        rows = write_rows(out, width, vectors)
        streams.say(f"{out}: {rows:,} x {width}, float32", quiet)
