"""Drawing with matplotlib, which is an extra."""

import warnings
from collections.abc import Iterator, Sequence
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


def legend(owner: Any, handles: Sequence[Any], names: Sequence[str], **style: Any) -> None:
    """Give a figure or its axes a legend with any names, also those that begin with `_`.

    Args:
        owner: the figure or the axes.
        handles: what was drawn.
        names: of each of them.
        style: how matplotlib is to draw the legend.
    """
    # matplotlib leaves out names that begin with _ (before 3.10 also here): they come afterwards
    numbers = [str(i) for i in range(len(names))]
    drawn = owner.legend(handles, numbers, **style)
    for text, name in zip(drawn.get_texts(), names, strict=True):
        text.set_text(name)
