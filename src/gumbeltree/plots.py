"""Helpers for plots with matplotlib, an optional dependency."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gumbeltree.atomic import replace_file
from gumbeltree.extras import install_command

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""The palette of Okabe and Ito without yellow, which is hard to see on white."""
PICTURES = (".png", ".svg", ".pdf")


def pyplot() -> Any:
    """Return matplotlib's pyplot with a non-interactive backend."""
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError(f"plots require matplotlib: {install_command('plots')}") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def check_picture(path: Path) -> None:
    """Raise unless matplotlib is installed and `path` ends in .png, .svg or .pdf."""
    pyplot()
    if path.suffix.lower() not in PICTURES:
        raise ValueError(f"{path} must end in {', '.join(PICTURES)}, which sets the image format")


def save_picture(figure: Any, path: Path) -> None:
    """Write a figure to a file and close it."""
    kind = path.suffix.removeprefix(".").lower()
    # omit matplotlib's version, which would make identical images differ
    metadata = {"Software": None} if kind == "png" else None
    replace_file(path, lambda part: figure.savefig(part, dpi=130, format=kind, metadata=metadata))
    pyplot().close(figure)


@contextmanager
def any_names() -> Iterator[None]:
    """Suppress matplotlib's warnings about characters missing from its font, drawn as boxes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"(?s)\s*Glyph .* missing from", UserWarning)
        yield
