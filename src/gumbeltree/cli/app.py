"""The command line application, with which each command registers itself."""

import signal
from typing import Annotated

import typer

from gumbeltree import __version__
from gumbeltree.signals import exits

app = typer.Typer(
    help="Gumbel Tree-LSTM: sentence encoders that learn their own tree structure.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def _version(wanted: bool) -> None:
    if wanted:
        from gumbeltree.code_version import code_version, described

        typer.echo(f"gumbeltree {__version__} ({described(code_version())})")
        raise typer.Exit


@app.callback()
def _main(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    # training handles signals itself, to save a checkpoint
    if context.invoked_subcommand != "train":
        context.with_resource(exits({signal.SIGTERM: 128 + signal.SIGTERM}))
