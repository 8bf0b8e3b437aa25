"""The command `encode`: sentence vectors."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gumbeltree.cli import streams
from gumbeltree.cli.app import app

SHARD_ROWS = 16_384
Engine = StrEnum("Engine", ["process", "ray"])


@app.command()
def encode(
    model: streams.Model,
    text: streams.Texts = None,
    input_file: streams.Input = None,
    text_column: streams.TextColumn = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="File for the vectors, .npy; with --engine ray, a folder."),
    ] = None,
    pretokenized: streams.Pretokenized = False,
    batch_size: streams.BatchSize = 256,
    device: streams.Device = "auto",
    threads: streams.Threads = None,
    plugin: streams.Plugin = None,
    runtime: streams.Runtime = "auto",
    skip_bad: streams.SkipBad = False,
    quiet: streams.Quiet = False,
    engine: Annotated[
        Engine, typer.Option(help="Encode in this process, or the file --input on a Ray cluster.")
    ] = Engine.process,
    ray_address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Running Ray cluster; default: $RAY_ADDRESS, or else a new one on this machine.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Number of Ray workers; default: one per CPU of the cluster."),
    ] = None,
    shard_rows: Annotated[
        int | None,
        typer.Option(min=1, help=f"Rows per file that --engine ray writes; default: {SHARD_ROWS}."),
    ] = None,
) -> None:
    """Encode sentences and write their vectors to a file, one float32 row per sentence.

    With --engine ray, the vectors are written to a folder of .npy files, which the same command
    completes if it was interrupted.

    Examples (after running `gumbeltree demo`):

    gumbeltree encode demo/model --input texts.txt --out vectors.npy

    python -c "import numpy; print(numpy.load('vectors.npy').shape)"
    """
    from gumbeltree.array_file import write_rows
    from gumbeltree.runtimes import load_for_use

    if out is None:
        raise ValueError("vectors are written to a file; pass its name, for example --out x.npy")
    if engine == Engine.ray:
        from gumbeltree.cli.encode_shards import encode_shards

        if text:
            raise ValueError("--engine ray encodes a file; pass it with --input")
        if device not in ("auto", "cpu") or threads is not None:
            raise ValueError(
                "a worker of --engine ray uses one CPU; omit --device and --threads, and pass the "
                "number of workers with --workers"
            )
        encode_shards(
            model,
            input_file,
            text_column,
            out,
            address=ray_address,
            workers=workers,
            shard_rows=shard_rows or SHARD_ROWS,
            runtime=runtime,
            plugins=plugin or [],
            batch_size=batch_size,
            pretokenized=pretokenized,
            skip_bad=skip_bad,
            quiet=quiet,
        )
        return
    if ray_address is not None or workers is not None or shard_rows is not None:
        raise ValueError("--ray-address, --workers and --shard-rows require --engine ray")
    if out.suffix != ".npy":
        raise ValueError(f"`--out` must be a .npy file, got {out}; rename it to {out.stem}.npy")
    streams.check_out(out)
    loaded = load_for_use(model, device, runtime)
    width = loaded.encoder.vector_dim
    inputs = (text, input_file, out, pretokenized, batch_size, skip_bad, quiet)
    with streams.open_texts(*inputs, loaded, text_column) as source:
        vectors = (
            loaded.encode(streams.singles(chunk), **source.options) for chunk in source.chunks()
        )
        rows = write_rows(out, width, vectors)
        streams.say(f"{out}: {rows:,} x {width}, float32", quiet)
