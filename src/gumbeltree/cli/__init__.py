"""The command line. Commands import what they need when they run, so that help is instant."""

import sys

# in the order in which the help lists them
from gumbeltree.cli import inspect, use  # noqa: F401
from gumbeltree.cli.app import app


def main() -> None:
    """Run the command line; errors of use end with a message and status 1, not a traceback."""
    try:
        app(prog_name="gumbeltree")
    except (ValueError, TypeError, OSError, ImportError, NotImplementedError) as error:
        sys.stderr.write(f"gumbeltree: error: {error}\n")
        sys.exit(1)
