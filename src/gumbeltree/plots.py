"""Drawing with matplotlib, which is an extra."""

from typing import Any


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
