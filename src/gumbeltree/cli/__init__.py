"""The command line. Commands import their dependencies when they run, which keeps --help fast."""

import sys

# the help text lists the commands in this order
# isort: off
from gumbeltree.cli import train, parse, predict, encode, evaluate  # noqa: F401
from gumbeltree.cli import data_get, data_make, data_parse, data_prepare  # noqa: F401
from gumbeltree.cli import draw, trees, index, neighbours, plot, serve, explore  # noqa: F401
from gumbeltree.cli import info, recipes, models, import_reference, demo, bench  # noqa: F401
from gumbeltree.cli import push, export  # noqa: F401

# isort: on
from gumbeltree.cli.app import app
from gumbeltree.threads import prepare_environment
from gumbeltree.training.stopping import InterruptedRunError

INTERRUPTED = 130
"""Exit status after Ctrl-C."""


def main() -> None:
    """Run the command line; report user errors with a message and status 1, not a traceback."""
    prepare_environment()
    try:
        app(prog_name="gumbeltree")
    except InterruptedRunError as error:
        sys.stderr.write(f"gumbeltree: {error}\n")
        sys.exit(error.status)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            sys.stderr.write("gumbeltree: interrupted\n")
        raise
    except ModuleNotFoundError as error:
        from gumbeltree.extras import TORCH_PACKAGES, torch_is_missing

        if error.name not in TORCH_PACKAGES:
            raise
        sys.stderr.write(f"gumbeltree: error: {torch_is_missing('this command')}\n")
        sys.exit(1)
    except (ValueError, TypeError, OSError, ImportError, NotImplementedError) as error:
        sys.stderr.write(f"gumbeltree: error: {error}\n")
        sys.exit(1)
