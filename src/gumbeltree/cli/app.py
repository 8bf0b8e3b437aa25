"""The application that the commands join, and what they share."""

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


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass
