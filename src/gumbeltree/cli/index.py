"""The command `index`: encode sentences once, to search them later."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from gumbeltree.cli import streams
from gumbeltree.cli.app import app


@app.command()
def index(
    model: streams.Model,
    out: Annotated[Path, typer.Option("--out", help="Folder to create for the index.")],
    input_file: streams.Input = None,
    unique: Annotated[
        bool, typer.Option("--unique/--all", help="Skip repeated texts, or index all of them.")
    ] = True,
    replace: Annotated[
        bool, typer.Option("--replace", help="Overwrite an existing index.")
    ] = False,
    pretokenized: streams.Pretokenized = False,
    batch_size: streams.BatchSize = 256,
    device: streams.Device = "auto",
    skip_bad: streams.SkipBad = False,
    quiet: streams.Quiet = False,
) -> None:
    """Encode sentences into an index, for `gumbeltree neighbours`.

    Example, after `gumbeltree demo`:

    gumbeltree index demo/model --input texts.txt --out texts.index
    """
    from gumbeltree.analysis.index import Index
    from gumbeltree.model import load
    from gumbeltree.text.files import Report, counted
    from gumbeltree.text.ids import TextCounts

    loaded = load(model, streams.pick_device(device))
    counts, report = TextCounts(), Report()
    with streams.progress(quiet, to_terminal=False) as advance:

        def texts() -> Iterator[str]:
            chunk = None
            for chunk in streams.take_texts(None, input_file, report, False, skip_bad):
                yield from (line.texts[0] for line in chunk)
                advance(len(chunk))
            if report.bad and chunk is None:
                raise ValueError(
                    f"there are no texts to index: {counted(report.bad, 'bad line')} skipped, the "
                    f"first being {report.first_bad[0]}"
                )

        built = Index.build(
            out,
            loaded,
            texts(),
            name=_absolute_name(model),
            unique=unique,
            batch_size=batch_size,
            pretokenized=pretokenized,
            replace=replace,
            counts=counts,
        )
    if not quiet:
        typer.echo(f"{out}: {len(built):,} x {built.header.width}, float32", err=True)
        if built.header.repeated:
            typer.echo(f"{counted(built.header.repeated, 'repeated text')} skipped", err=True)
    streams.summarize(counts, report, quiet)


def _absolute_name(name: str) -> str:
    """Return a model's name in a form that is valid from any working directory."""
    from gumbeltree.packaged import packaged_folder
    from gumbeltree.store import find_model

    if name.startswith("hub:") or (packaged_folder(name) is not None and not Path(name).is_dir()):
        return name
    return str(find_model(name).resolve())
