"""The command `index`: encode sentences once, to search them later."""

from pathlib import Path
from typing import Annotated

import typer

from gumbeltree.cli import streams
from gumbeltree.cli.app import app


@app.command()
def index(
    model: streams.Model,
    out: Annotated[Path, typer.Option("--out", help="Folder to write the index to.")],
    input_file: streams.Input = None,
    text_column: streams.TextColumn = None,
    unique: Annotated[
        bool, typer.Option("--unique/--all", help="Skip repeated texts, or index all texts.")
    ] = True,
    replace: Annotated[
        bool, typer.Option("--replace", help="Overwrite an existing index.")
    ] = False,
    pretokenized: streams.Pretokenized = False,
    batch_size: streams.BatchSize = 256,
    device: streams.Device = "auto",
    threads: streams.Threads = None,
    plugin: streams.Plugin = None,
    runtime: streams.Runtime = "auto",
    skip_bad: streams.SkipBad = False,
    quiet: streams.Quiet = False,
) -> None:
    """Encode sentences and write an index for `gumbeltree neighbours`.

    Example (after running `gumbeltree demo`):

    gumbeltree index demo/model --input texts.txt --out texts.index
    """
    from gumbeltree.analysis.index import Index
    from gumbeltree.runtimes import load_for_use
    from gumbeltree.text.files import counted

    loaded = load_for_use(model, device, runtime)
    # a path must be valid from any working directory
    name = str(Path(model).resolve()) if Path(model).is_dir() else model
    inputs = (None, input_file, out, pretokenized, batch_size, skip_bad, quiet)
    with streams.open_texts(*inputs, loaded, text_column) as source:
        texts = (text for chunk in source.chunks() for text in streams.singles(chunk))
        built = Index.build(
            out, loaded, texts, name=name, unique=unique, replace=replace, **source.options
        )
        streams.say(f"{out}: {len(built):,} x {built.header.width}, float32", quiet)
        if built.header.repeated:
            streams.say(f"{counted(built.header.repeated, 'repeated text')} skipped", quiet)
