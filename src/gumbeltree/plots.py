"""Drawing with matplotlib, which is an extra."""

from typing import Any

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Okabe and Ito's, without the yellow, which is faint on white."""


def pyplot() -> Any:
    """Return matplotlib's pyplot, for files; raise with the command that installs it."""
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError(
            "drawing plots needs matplotlib: pip install 'gumbeltree[plots]'"
        ) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
