"""The application that the commands join, and what they share."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from gumbeltree import __version__

app = typer.Typer(
    help="Gumbel Tree-LSTM: sentence vectors over trees learned from plain text.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gumbeltree {__version__}")
        raise typer.Exit


@contextmanager
def tidy_end() -> Iterator[None]:
    """Let SIGTERM end the program as Ctrl-C does: what was begun is taken away first."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@app.callback()
def _main(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    # training saves and stops by itself, and where processes wait for each other a signal must end
    # them also inside of torch
    if context.invoked_subcommand != "train":
        context.with_resource(tidy_end())
