"""The command `data get`: download data sets and word vectors."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gumbeltree.cli import completion
from gumbeltree.cli.app import app

if TYPE_CHECKING:
    from gumbeltree.fetch import Source

data = typer.Typer(help="Download and prepare data sets and word vectors.", no_args_is_help=True)
app.add_typer(data, name="data")


@data.command()
def get(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name: snli, sst, glove.6B, glove.840B or listops.",
            autocompletion=completion.downloads,
        ),
    ] = None,
    to: Annotated[Path | None, typer.Option(help="Folder to use instead of the cache.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Download existing files again.")] = False,
    show: Annotated[
        bool, typer.Option("--list", help="List what is available, with size, source and licence.")
    ] = False,
) -> None:
    """Download a data set or word vectors and print their path.

    To resume an interrupted download, run the same command again.

    The environment variable GUMBELTREE_HOME sets the cache folder (default: ~/.cache/gumbeltree).
    GUMBELTREE_MIRROR sets a server to use instead of the official ones.

    Example: gumbeltree data get sst
    """
    from rich import progress as bars
    from rich.console import Console

    from gumbeltree import fetch

    if show:
        sources = fetch.SOURCES.values() if name is None else [fetch.find_source(name)]
        typer.echo("\n\n".join(_describe(source, to) for source in sources))
        return
    if name is None:
        raise ValueError(f"pass one of {', '.join(fetch.SOURCES)}, or --list for details")
    console = Console(stderr=True)
    columns = (
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(),
        bars.DownloadColumn(),
        bars.TransferSpeedColumn(),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=console, disable=not console.is_interactive) as shown:
        tasks: dict[str, bars.TaskID] = {}

        def progress(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = shown.add_task(file)
            shown.update(tasks[file], completed=done, total=total)

        def say(text: str) -> None:
            console.print(text, markup=False, highlight=False, soft_wrap=True)

        path = fetch.get(name, to, force, say, progress)
    typer.echo(path)


def _describe(source: "Source", to: Path | None) -> str:
    folder = source.folder() if to is None else to
    size = "size unknown" if source.size is None else f"{source.size / 1e6:,.1f} MB"
    state = f"in {source.path(folder)}" if source.is_complete(folder) else "not downloaded"
    return (
        f"{source.name}: {size}, {state}\n"
        f"  {source.description}\n"
        f"  source: {source.page}\n"
        f"  licence: {source.licence}\n"
        f"  cite: {source.citation}"
    )
