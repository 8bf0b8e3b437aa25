"""The command `encode`: sentence vectors."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gumbeltree.cli import streams
from gumbeltree.cli.app import app

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@app.command()
def encode(
    model: streams.Model,
    text: streams.Texts = None,
    input_file: streams.Input = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="File for the vectors, .npy or .safetensors.")
    ] = None,
    pretokenized: streams.Pretokenized = False,
    batch_size: streams.BatchSize = 256,
    device: streams.Device = "auto",
    skip_bad: streams.SkipBad = False,
    quiet: streams.Quiet = False,
) -> None:
    """Write sentence vectors to a file, one float32 row per sentence.

    Examples, after `gumbeltree demo`:

    gumbeltree encode demo/model --input texts.txt --out vectors.npy

    python -c "import numpy; print(numpy.load('vectors.npy').shape)"
    """
    from gumbeltree.array_file import write_rows, writer_for
    from gumbeltree.model import load
    from gumbeltree.text.files import Report
    from gumbeltree.text.ids import TextCounts

    if out is None:
        raise ValueError("pass a file for the vectors, such as --out vectors.npy")
    writer_for(out)
    streams.check_out(out)
    loaded = load(model, streams.pick_device(device))
    counts, report = TextCounts(), Report()

    def blocks() -> Iterator["NDArray[np.float32]"]:
        with streams.progress(quiet, to_terminal=False) as advance:
            for chunk in streams.take_texts(text, input_file, report, False, skip_bad):
                yield loaded.encode(
                    [line.texts[0] for line in chunk],
                    batch_size,
                    pretokenized=pretokenized,
                    counts=counts,
                )
                advance(len(chunk))

    rows = write_rows(out, loaded.encoder.vector_dim, blocks())
    if not quiet:
        typer.echo(f"{out}: {rows:,} x {loaded.encoder.vector_dim}, float32", err=True)
    streams.summarize(counts, report, quiet)
