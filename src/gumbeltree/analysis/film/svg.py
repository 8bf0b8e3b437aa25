"""Films as SVG documents that move by themselves."""

from itertools import accumulate, groupby
from operator import itemgetter

from gumbeltree.analysis.figure.svg import STYLE, document, element, short
from gumbeltree.analysis.film.layout import Reel

_LESS_MOTION = (
    "@media(prefers-reduced-motion:reduce){.gt-stays{opacity:1!important}.gt-passes{display:none}}"
)


def film_svg(reel: Reel) -> str:
    """Return a film as SVG.

    What comes and goes has an animation of its own (SMIL). CSS keyframes would need names, and
    those of two films in one page would get in each other's way. Programs that know neither show
    the finished trees.
    """
    pictures = len(reel.seconds)
    body = [element(mark) for mark in reel.scene.marks]
    for (first, end), group in groupby(reel.timed, key=itemgetter(1)):
        inner = "".join(element(mark) for mark, _ in group)
        if (first, end) == (0, pictures):
            body.append(inner)
            continue
        stays = end == pictures
        body.append(
            f'<g class="gt-{"stays" if stays else "passes"}" opacity="{int(stays)}">'
            f"{_animation(first, end, reel.seconds)}{inner}</g>"
        )
    return document(reel.scene, body, STYLE + _LESS_MOTION)


def _animation(first: int, end: int, seconds: tuple[float, ...]) -> str:
    """Return what fades a group in and out once a round."""
    starts = [0.0, *accumulate(seconds)]
    whole = starts[-1]
    fade = min(0.2, min(seconds) / 4)
    points = [(0.0, 1)] if first == 0 else [(0.0, 0), (starts[first], 0), (starts[first] + fade, 1)]
    if end < len(seconds):
        # gone before the next one comes: two texts in one place cannot be read
        points += [(starts[end] - fade, 1), (starts[end], 0), (whole, 0)]
    else:
        points.append((whole, 1))
    times = ";".join(f"{time / whole:.5f}".rstrip("0").rstrip(".") for time, _ in points)
    values = ";".join(str(value) for _, value in points)
    return (
        f'<animate attributeName="opacity" dur="{short(whole)}s" repeatCount="indefinite" '
        f'values="{values}" keyTimes="{times}"/>'
    )
