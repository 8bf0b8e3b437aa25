"""Drawing with matplotlib, which is an extra."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def any_names() -> Iterator[None]:
    """Let names be drawn whose letters matplotlib's font lacks; a box stands for each.

    Formats that keep text as text show them where they are looked at.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"(?s)\s*Glyph .* missing from", UserWarning)
        yield
