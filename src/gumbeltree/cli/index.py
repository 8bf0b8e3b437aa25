"""The command `index`: sentences encoded once, to be searched."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from gumbeltree.cli import streams
from gumbeltree.cli.app import app


@app.command()
def index(
    model: streams.Model,
    input_file: streams.Input = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the index; it is made.")
    ] = None,
    unique: Annotated[
        bool, typer.Option("--unique/--all", help="Each distinct text once, or every one.")
    ] = True,
    faiss: Annotated[
        bool, typer.Option("--faiss", help="Add an approximate index; needs faiss, an extra.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Let an index of that name give way.")
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
    from gumbeltree.analysis.index.files import check_free
    from gumbeltree.model import load
    from gumbeltree.text.files import Report
    from gumbeltree.text.ids import TextCounts, counted

    if out is None:
        raise ValueError("an index goes to a folder, got no --out; pass such as --out texts.index")
    check_free(out, replace)
    loaded = load(model, streams.pick_device(device))
    counts, report = TextCounts(), Report()
    with streams.progress(quiet, to_terminal=False) as advance:

        def texts() -> Iterator[str]:
            any_text = False
            for chunk in streams.take_texts(None, input_file, report, False, skip_bad):
                for line in chunk:
                    yield line.texts[0]
                advance(len(chunk))
                any_text = True
            if report.bad and not any_text:
                lines = (
                    "the only line is bad"
                    if report.bad == 1
                    else f"all {report.bad:,} lines are bad"
                )
                raise ValueError(
                    f"expected at least one text for an index, got none: {lines}, at first "
                    f"{report.first_bad[0]}"
                )

        made = Index.build(
            out,
            loaded,
            texts(),
            name=_lasting(model),
            unique=unique,
            batch_size=batch_size,
            pretokenized=pretokenized,
            approximate=faiss,
            replace=replace,
            counts=counts,
        )
    if not quiet:
        typer.echo(f"{out}: {len(made):,} x {made.header.width}, float32", err=True)
        if made.header.repeated:
            typer.echo(f"{counted(made.header.repeated, 'repeated text')} left out", err=True)
    streams.summarize(counts, report, quiet)


def _lasting(name: str) -> str:
    """Return a model's name so that it means the same from another folder."""
    from gumbeltree.packaged import packaged_folder
    from gumbeltree.store import find_model

    if name.startswith("hub:") or (packaged_folder(name) is not None and not Path(name).is_dir()):
        return name
    return str(find_model(name).resolve())
