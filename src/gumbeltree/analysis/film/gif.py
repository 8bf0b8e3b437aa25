"""Films as GIF files, their pictures drawn by matplotlib."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gumbeltree.analysis.figure.marks import channels, ramp
from gumbeltree.analysis.figure.png import PAPER, PEN, artist, canvas
from gumbeltree.analysis.film.layout import CHOICE, RUNNER_UP, Reel

WIDEST = 1300.0
"""Dots of a picture from left to right; films are large files."""


def save_gif(reel: Reel, path: Path, advance: Callable[[int], None] = lambda count: None) -> None:
    """Write a film as GIF, one frame a picture, over and over.

    Args:
        reel: the film.
        path: of the file.
        advance: is told how many frames more are drawn.
    """
    scale = min(1.5, WIDEST / reel.scene.width)
    frames = []
    with canvas(reel.scene, scale) as (figure, axes):
        # part of every installation of matplotlib
        from PIL import Image

        colours = Image.new("P", (1, 1))
        colours.putpalette(palette().tobytes())
        for mark in reel.scene.marks:
            artist(mark, axes)
        # drawn once, then shown and hidden
        timed = [(artist(mark, axes), during) for mark, during in reel.timed]
        for picture in range(len(reel.seconds)):
            for drawn, (first, end) in timed:
                drawn.set_visible(first <= picture < end)
            figure.canvas.draw()
            dots = np.asarray(figure.canvas.buffer_rgba())[:, :, :3]
            image = Image.fromarray(np.ascontiguousarray(dots))
            frames.append(image.quantize(palette=colours, dither=Image.Dither.NONE))
            advance(1)
    frames[0].save(
        path,
        format="GIF",
        save_all=True,
        append_images=frames[1:],
        duration=[round(1000 * seconds) for seconds in reel.seconds],
        loop=0,
    )


def palette() -> NDArray[np.uint8]:
    """Return the colours of all frames `[N, 3]`: those of the marks, and of their soft edges.

    The same for all, since colours that are chosen for each frame flicker, and few dots of a colour
    are not enough to be chosen.
    """
    scale = [ramp(i / 47) for i in range(48)]
    # numbers stand on circles in black or white
    on_circles = [(colour, ink) for colour in scale[::3] for ink in ("#000000", "#ffffff")]
    parts = [
        _between(PAPER, PEN, 40),
        *(_between(colour, PAPER, 10)[:-1] for colour in (CHOICE, RUNNER_UP)),
        np.array([channels(colour) for colour in scale], float),
        *(_between(colour, ink, 5)[1:-1] for colour, ink in on_circles),
    ]
    return np.concatenate(parts).astype(np.uint8)


def _between(first: str, last: str, count: int) -> NDArray[np.float64]:
    """Return `count` colours in equal steps, the two among them."""
    return np.linspace(channels(first), channels(last), count).round()
