"""Films as GIF files, their pictures drawn by matplotlib."""

from pathlib import Path

import numpy as np

from gumbeltree.analysis.figure_png import artist, canvas
from gumbeltree.analysis.film_layout import Reel

WIDEST = 1300.0
"""Dots of a picture from left to right; films are large files."""
_COLOURS = 96


def save_gif(reel: Reel, path: Path) -> None:
    """Write a film as GIF, one frame a picture, over and over."""
    scale = min(1.5, WIDEST / reel.scene.width)
    frames = []
    with canvas(reel.scene, scale) as (figure, axes):
        # part of every installation of matplotlib
        from PIL import Image

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
            frames.append(image.quantize(_COLOURS, dither=Image.Dither.NONE))
    frames[0].save(
        path,
        format="GIF",
        save_all=True,
        append_images=frames[1:],
        duration=[round(1000 * seconds) for seconds in reel.seconds],
        loop=0,
    )
