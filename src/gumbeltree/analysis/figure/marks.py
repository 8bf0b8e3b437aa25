"""What pictures are made of: marks at places, which the writers of SVG, PNG and GIF all draw.

Lengths are in pixels of the SVG, x to the right and y downwards.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Step: TypeAlias = tuple[str, tuple[float, ...]]
"""Part of a path: M x y moves, L x y draws a line, Q x y x y a curve, Z closes."""

Anchor: TypeAlias = Literal["start", "middle", "end"]

INK = {"ink": 1.0, "muted": 0.68, "faint": 0.38}
"""Opacity of the text colour by name; it is dark on light pages and light on dark ones."""

YELLOW, SKY, BLUE = "#f0e442", "#56b4e9", "#0072b2"
ORANGE, VERMILLION = "#e69f00", "#d55e00"
"""Of Okabe and Ito's set, which people with colour-blindness can tell apart."""
GREY = "#d0d0d0"
"""Of circles without a score; no colour of `ramp`."""

_RAMP = (YELLOW, SKY, BLUE)
_FORBIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\ufffe\uffff\U0001fffe\U0001ffff\ud800-\udfff\u202a-\u202e\u2066-\u2069]"
)
# parts of the font size, a little more than in DejaVu Sans, which is a wide one
_WIDTHS = {
    **dict.fromkeys("iljI.,:;'`|!()[]{}-ftr/\\ \u2019", 0.42),
    **dict.fromkeys("DGHNOQU", 0.8),
    **dict.fromkeys("mwMW@%&#+<>=~\u2212\u2026", 1.0),
}


@dataclass(frozen=True)
class PathMark:
    """A path.

    Attributes:
        path: its parts.
        stroke: colour of the line: a key of `INK` or #rrggbb, None for no line.
        fill: colour of the inside, None for none.
        width: of the line.
        dashed: whether the line is broken.
        title: what is shown when the mouse rests on it.
    """

    path: tuple[Step, ...]
    stroke: str | None = "faint"
    fill: str | None = None
    width: float = 1.4
    dashed: bool = False
    title: str = ""


@dataclass(frozen=True)
class Disc:
    """A circle with a thin line around it."""

    x: float
    y: float
    radius: float
    fill: str
    title: str = ""


@dataclass(frozen=True)
class Label:
    """One line of text.

    Attributes:
        x: where it is anchored.
        y: of its base line there.
        text: as it is, no markup.
        size: of the font.
        anchor: which end stands at `x`.
        colour: a key of `INK` or #rrggbb.
        bold: heavier.
        italic: slanted.
        turn: degrees clockwise around the anchor.
        title: what is shown when the mouse rests on it.
    """

    x: float
    y: float
    text: str
    size: float
    anchor: Anchor = "middle"
    colour: str = "ink"
    bold: bool = False
    italic: bool = False
    turn: float = 0
    title: str = ""


Mark: TypeAlias = PathMark | Disc | Label


@dataclass(frozen=True)
class Scene:
    """A picture: marks in the order in which they are drawn, and what it is in words."""

    width: float
    height: float
    title: str
    description: str
    marks: tuple[Mark, ...]


def box(x: float, y: float, width: float, height: float) -> tuple[Step, ...]:
    """Return the path of a rectangle."""
    right, bottom = x + width, y + height
    return (
        ("M", (x, y)),
        ("L", (right, y)),
        ("L", (right, bottom)),
        ("L", (x, bottom)),
        ("Z", ()),
    )


def clean(text: str) -> str:
    """Return a text with U+FFFD for what no picture can hold or what turns text around."""
    return _FORBIDDEN.sub("\ufffd", text)


def text_width(text: str, size: float) -> float:
    """Return the width of a text, roughly, in a wide font without serifs."""
    return size * sum(map(_width, text))


def _width(character: str) -> float:
    """Return the width of a character as a part of the font size."""
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0.0
    if unicodedata.east_asian_width(character) in "WF":
        return 1.0
    return _WIDTHS.get(character, 0.72 if character.isupper() else 0.64)


def shortened(text: str, size: float, room: float) -> str:
    """Return the text, or as much of its beginning as fits with an ellipsis."""
    if text_width(text, size) <= room:
        return text
    width, end = text_width("\u2026", size), 0
    for character in text:
        width += text_width(character, size)
        if width > room:
            break
        end += 1
    return text[: max(1, end)].rstrip() + "\u2026"


def ramp(share: float) -> str:
    """Return the colour of a share of 0 (light, yellow) to 1 (dark, blue).

    It gets darker all the way and never mixes red with green, so that it can be read with any
    colour vision and in print without colours.
    """
    place = min(max(share, 0.0), 1.0) * (len(_RAMP) - 1)
    i = min(int(place), len(_RAMP) - 2)
    low, high = channels(_RAMP[i]), channels(_RAMP[i + 1])
    mixed = (round(a + (b - a) * (place - i)) for a, b in zip(low, high, strict=True))
    return "#" + "".join(f"{value:02x}" for value in mixed)


def channels(colour: str) -> tuple[int, int, int]:
    """Return red, green and blue of #rrggbb, 0 to 255."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def luminance(colour: str) -> float:
    """Return the relative luminance of #rrggbb, 0 to 1, as WCAG 2 defines it."""
    linear = [
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in (channel / 255 for channel in channels(colour))
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def readable_on(colour: str) -> str:
    """Return black or white, whichever stands out more."""
    light = luminance(colour)
    return "#000000" if (light + 0.05) / 0.05 > 1.05 / (light + 0.05) else "#ffffff"


def joined(parts: Sequence[str]) -> str:
    """Return the parts that are not empty, with dots between."""
    return " \u00b7 ".join(part for part in parts if part)


def number(value: float) -> str:
    """Return a score for people: two digits after the point, a minus as long as a plus."""
    shown = f"{value:.2f}" if abs(value) < 1000 else f"{value:.3g}"
    return ("0.00" if shown == "-0.00" else shown).replace("-", "\u2212")


def percent(probability: float) -> str:
    """Return a probability for people; certainty only where it is certain."""
    if 0.9995 <= probability < 1:
        return "> 99.9 %"
    return f"{100 * probability:.1f} %"
