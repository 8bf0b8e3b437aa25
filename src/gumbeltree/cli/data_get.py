"""Commands for data: get."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gumbeltree.cli.app import app

if TYPE_CHECKING:
    from gumbeltree.fetch import Progress, Say, Source

data = typer.Typer(help="Get data sets and word vectors.", no_args_is_help=True)
app.add_typer(data, name="data")


@data.command()
def get(
    name: Annotated[
        str | None, typer.Argument(help="snli, sst, glove.6B, glove.840B or listops.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option(help="Folder for the files, instead of the cache.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Fetch again what is there.")] = False,
    show: Annotated[
        bool, typer.Option("--list", help="Show what there is: size, source, licence.")
    ] = False,
) -> None:
    """Fetch a data set or word vectors, and print where it is.

    A download that was cut goes on where it stopped; run the same command again.

    GUMBELTREE_HOME: the cache folder, by default ~/.cache/gumbeltree.

    GUMBELTREE_MIRROR: a server to ask instead of the official ones.

    Example: gumbeltree data get sst
    """
    from gumbeltree import fetch

    if show:
        sources = fetch.SOURCES.values() if name is None else [fetch.find_source(name)]
        typer.echo("\n\n".join(_about(source, to) for source in sources))
        return
    if name is None:
        raise ValueError(
            f"expected a name, got none; pass one of {', '.join(fetch.SOURCES)}, or --list"
        )
    with _shown() as (say, progress):
        path = fetch.get(name, to, force, say, progress)
    typer.echo(path)


def _about(source: "Source", to: Path | None) -> str:
    folder = source.folder() if to is None else to
    size = "size not published" if source.size is None else f"{source.size / 1e6:,.1f} MB"
    state = f"in {source.path(folder)}" if source.is_there(folder) else "not here yet"
    return "\n".join(
        (
            f"{source.name}: {size}, {state}",
            f"  {source.description}",
            f"  source: {source.page}",
            f"  licence: {source.licence}",
            f"  cite: {source.citation}",
        )
    )


@contextmanager
def _shown() -> Iterator[tuple["Say", "Progress"]]:
    """Show what happens on standard error: bars on a terminal, else lines."""
    from rich import progress as bars
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_interactive:
        yield lambda text: typer.echo(text, err=True), _Tenths()
        return
    columns = (
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(),
        bars.DownloadColumn(),
        bars.TransferSpeedColumn(),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=console) as shown:
        tasks: dict[str, bars.TaskID] = {}

        def progress(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                # what is there already does not count for the rate
                tasks[name] = shown.add_task(name, total=total, completed=done)
            shown.update(tasks[name], completed=done, total=total)

        def say(text: str) -> None:
            console.print(text, markup=False, highlight=False, soft_wrap=True)

        yield say, progress


class _Tenths:
    """Prints a line for every tenth of a file."""

    def __init__(self) -> None:
        self.last = ("", 0)

    def __call__(self, name: str, done: int, total: int | None) -> None:
        if not total:
            return
        tenth = (name, 10 * done // total)
        if tenth != self.last and tenth[1]:
            typer.echo(f"{name}: {done:,} of {total:,} bytes", err=True)
        self.last = tenth
