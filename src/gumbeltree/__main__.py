"""Entry point of the command `gumbeltree` and of `python -m gumbeltree`."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C ends it without a traceback, even while it is imported."""
    try:
        from gumbeltree.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
