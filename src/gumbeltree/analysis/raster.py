"""Render scenes as PNG and GIF files with matplotlib."""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from gumbeltree.drawing import clean
from gumbeltree.picture import Scene
from gumbeltree.plots import any_names, pyplot

PAPER, PEN = "#ffffff", "#1f2328"
FONTS = (
    "DejaVu Sans",
    *("Noto Sans CJK JP", "Noto Sans CJK SC", "Hiragino Sans", "PingFang SC", "Yu Gothic"),
    *("Microsoft YaHei", "Malgun Gothic", "WenQuanYi Zen Hei", "Arial Unicode MS"),
)
"""The first ships with matplotlib; the others supply the characters it lacks, if installed."""
CARETS = {0x2400 + code: f"^{chr(0x40 + code)}" for code in range(32)} | {0x2421: "^?"}
"""Marks of control characters in letters, because none of these fonts has control pictures."""
MOST_DOTS = 5e7
"""Larger pictures are scaled down to save memory."""


def save(scene: Scene, file: Path) -> None:
    """Write a still scene as PNG or an animation as GIF, dark on white."""
    # a lower resolution keeps GIF files small
    scale = min(1.5, 1300 / scene.width) if scene.seconds else 2.0
    with _canvas(scene, scale) as (figure, axes):
        artists = [(_draw(mark.element, axes), mark.frames) for mark in scene.marks]
        if not scene.seconds:
            texts = {"Title": clean(scene.title), "Description": clean(scene.description)}
            figure.savefig(file, format="png", facecolor=PAPER, metadata=texts)
            return
        # a dependency of matplotlib
        from PIL import Image

        images = []
        for frame in range(len(scene.seconds)):
            for artist, frames in artists:
                artist.set_visible(frames is None or frames[0] <= frame < frames[1])
            figure.canvas.draw()
            images.append(Image.fromarray(np.array(figure.canvas.buffer_rgba())[:, :, :3]))
    # all frames share a palette, or they would flicker: the most frequent colours of the first and
    # last frame, without near-duplicates, which Pillow cannot tell apart
    both = Image.fromarray(np.vstack([np.asarray(images[0]), np.asarray(images[-1])]))
    distinct: dict[tuple[int, ...], tuple[int, ...]] = {}
    colours: Any = both.getcolors(2**24)
    for _, colour in sorted(colours, reverse=True):
        distinct.setdefault(tuple(channel // 8 for channel in colour), colour)
    palette = Image.new("P", (1, 1))
    palette.putpalette(np.array(list(distinct.values())[:256], np.uint8).tobytes())
    first, *others = (image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images)
    durations = [round(1000 * seconds) for seconds in scene.seconds]
    first.save(file, format="GIF", save_all=True, append_images=others, duration=durations, loop=0)


@contextmanager
def _canvas(scene: Scene, scale: float) -> Iterator[tuple[Any, Any]]:
    """Yield a matplotlib figure and axes whose units are the scene's pixels."""
    plt = pyplot()
    from matplotlib.font_manager import get_font_names

    width, height = math.ceil(scene.width), math.ceil(scene.height)
    scale = min(scale, math.sqrt(MOST_DOTS / (width * height)))
    installed = set(get_font_names())
    fonts = {"font.family": [name for name in FONTS if name in installed]}
    # ignore the user's matplotlib settings, which may enable TeX or other fonts
    with plt.style.context(["default", fonts]), any_names():
        figure = plt.figure(figsize=(width / 72, height / 72), dpi=72 * scale, facecolor=PAPER)
        try:
            axes = figure.add_axes((0, 0, 1, 1))
            axes.set(xlim=(0, width), ylim=(height, 0))
            axes.set_axis_off()
            yield figure, axes
        finally:
            plt.close(figure)


def _draw(element: Element, axes: Any) -> Any:
    """Add a mark of `gumbeltree.picture` to the axes and return its artist."""
    from matplotlib.patches import Circle, PathPatch
    from matplotlib.path import Path as Curve

    attributes = element.attrib
    if element.tag == "text":
        return axes.text(
            float(attributes["x"]),
            float(attributes["y"]),
            (element.text or "").translate(CARETS),
            fontsize=float(attributes["font-size"]),
            ha={"start": "left", "middle": "center", "end": "right"}[attributes["text-anchor"]],
            va="baseline",
            rotation=-90 if "transform" in attributes else 0,
            rotation_mode="anchor",
            color=_colour(element, "fill"),
            fontweight="bold" if "font-weight" in attributes else "normal",
            fontstyle=attributes.get("font-style", "normal"),
            # do not parse dollar signs as math
            parse_math=False,
        )
    style: dict[str, Any] = {
        "facecolor": _colour(element, "fill"),
        "edgecolor": _colour(element, "stroke"),
        "linewidth": float(attributes.get("stroke-width", 1)),
        "linestyle": "solid",
        "joinstyle": "round",
    }
    if "stroke-dasharray" in attributes:
        # matplotlib multiplies dashes by the width of the line
        dashes = map(float, attributes["stroke-dasharray"].split())
        style["linestyle"] = (0, tuple(length / style["linewidth"] for length in dashes))
    if element.tag == "circle":
        centre = float(attributes["cx"]), float(attributes["cy"])
        return axes.add_patch(Circle(centre, float(attributes["r"]), **style))
    kinds = {"M": Curve.MOVETO, "L": Curve.LINETO, "Q": Curve.CURVE3, "Z": Curve.CLOSEPOLY}
    points: list[list[float]] = []
    codes: list[int] = []
    for kind, numbers in re.findall("([MLQZ])([^MLQZ]*)", attributes["d"]):
        pairs = np.array(numbers.split() or [0, 0], float).reshape(-1, 2).tolist()
        points += pairs
        codes += [int(kinds[kind])] * len(pairs)
    return axes.add_patch(PathPatch(Curve(points, codes), **style))


def _colour(element: Element, attribute: str) -> Any:
    colour = element.get(attribute, "none")
    if colour == "currentColor":
        return PEN, float(element.get(f"{attribute}-opacity", "1"))
    return colour
