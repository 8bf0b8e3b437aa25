"""Pictures as PNG files: the same marks, drawn by matplotlib."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import singledispatch
from pathlib import Path
from typing import Any

from gumbeltree.analysis.figure.marks import INK, Disc, Label, Mark, PathMark, Scene, clean
from gumbeltree.plots import any_names, pyplot

PAPER, PEN = "#ffffff", "#1f2328"
SCALE = 2.0
"""Dots a pixel of the SVG."""
FONTS = (
    "DejaVu Sans",
    *("Noto Sans CJK JP", "Noto Sans CJK SC", "Hiragino Sans", "PingFang SC", "Yu Gothic"),
    *("Microsoft YaHei", "Malgun Gothic", "WenQuanYi Zen Hei", "Arial Unicode MS"),
)
"""The first is part of matplotlib; of the others those here are asked for what it lacks."""
MOST_DOTS = 5e7
"""Larger pictures get fewer dots a pixel; memory would run out."""


def save_png(scene: Scene, path: Path) -> None:
    """Write a picture as PNG, dark on white."""
    with canvas(scene, SCALE) as (figure, axes):
        for mark in scene.marks:
            artist(mark, axes)
        about = {"Title": clean(scene.title), "Description": clean(scene.description)}
        figure.savefig(path, format="png", facecolor=PAPER, metadata=about)


@contextmanager
def canvas(scene: Scene, scale: float) -> Iterator[tuple[Any, Any]]:
    """Give a figure and axes in which a point is a pixel of the scene."""
    plt = pyplot()
    width, height = math.ceil(scene.width), math.ceil(scene.height)
    scale = min(scale, math.sqrt(MOST_DOTS / (width * height)), 60_000 / max(width, height))
    from matplotlib.font_manager import get_font_names

    here = set(get_font_names())
    fonts = {"font.family": [name for name in FONTS if name in here]}
    # a user's own settings may turn on TeX or other fonts, for which nothing here is measured
    with plt.style.context(["default", fonts]), any_names():
        figure = plt.figure(figsize=(width / 72, height / 72), dpi=72 * scale, facecolor=PAPER)
        try:
            axes = figure.add_axes((0, 0, 1, 1))
            axes.set(xlim=(0, width), ylim=(height, 0))
            axes.set_axis_off()
            yield figure, axes
        finally:
            plt.close(figure)


@singledispatch
def artist(mark: Mark, axes: Any) -> Any:
    """Add a mark to the axes and return what was added."""
    raise TypeError(f"expected a mark, got {type(mark).__name__}")


@artist.register
def _(mark: PathMark, axes: Any) -> Any:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Curve

    codes, points = [], []
    for kind, places in mark.path:
        pairs = list(zip(places[::2], places[1::2], strict=True)) or [(0.0, 0.0)]
        points += pairs
        known = {"M": Curve.MOVETO, "L": Curve.LINETO, "Q": Curve.CURVE3, "Z": Curve.CLOSEPOLY}
        codes += [known[kind]] * len(pairs)
    patch = PathPatch(
        Curve(points, codes),
        edgecolor="none" if mark.stroke is None else _colour(mark.stroke),
        facecolor="none" if mark.fill is None else _colour(mark.fill),
        linewidth=0 if mark.stroke is None else mark.width,
        linestyle=(0, (3, 2)) if mark.dashed else "solid",
        joinstyle="round",
    )
    return axes.add_patch(patch)


@artist.register
def _(mark: Disc, axes: Any) -> Any:
    from matplotlib.patches import Circle

    return axes.add_patch(
        Circle(
            (mark.x, mark.y),
            mark.radius,
            facecolor=_colour(mark.fill),
            edgecolor=_colour("muted"),
            linewidth=1,
        )
    )


@artist.register
def _(mark: Label, axes: Any) -> Any:
    return axes.text(
        mark.x,
        mark.y,
        clean(mark.text),
        fontsize=mark.size,
        horizontalalignment={"start": "left", "middle": "center", "end": "right"}[mark.anchor],
        verticalalignment="baseline",
        rotation=-mark.turn,
        rotation_mode="anchor",
        color=_colour(mark.colour),
        fontweight="bold" if mark.bold else "normal",
        fontstyle="italic" if mark.italic else "normal",
        # a dollar sign in a text is no formula
        parse_math=False,
    )


def _colour(name: str) -> tuple[str, float]:
    return (PEN, INK[name]) if name in INK else (name, 1.0)
