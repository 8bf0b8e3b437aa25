"""Pictures as SVG documents of their own."""

import math
from collections.abc import Iterable
from functools import singledispatch
from xml.sax.saxutils import escape

from gumbeltree.analysis.figure.marks import INK, Disc, Label, Mark, PathMark, Scene, clean

STYLE = (
    # these match only where the picture is a document of its own; within a page it takes the
    # page's own colours
    "svg:root{color:#1f2328}svg:root>.gt-page{fill:#fff}"
    "@media(prefers-color-scheme:dark)"
    "{svg:root{color:#e6edf3}svg:root>.gt-page{fill:#0d1117}}"
)
FONT = "'Helvetica Neue',Helvetica,Arial,'DejaVu Sans',system-ui,sans-serif"


def document(scene: Scene, body: Iterable[str], style: str = STYLE) -> str:
    """Return an SVG document of a scene's size and texts with other contents."""
    width, height = short(math.ceil(scene.width)), short(math.ceil(scene.height))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" '
            f'height="{height}" viewBox="0 0 {width} {height}" '
            'style="max-width:100%;height:auto">',
            f"<title>{xml(scene.title)}</title>",
            f"<desc>{xml(scene.description)}</desc>",
            f"<style>{style}</style>",
            f'<rect class="gt-page" width="{width}" height="{height}" fill="none"/>',
            f'<g font-family="{FONT}" stroke-linejoin="round">',
            *body,
            "</g>",
            "</svg>",
        ]
    )


def svg(scene: Scene) -> str:
    """Return a picture as SVG."""
    return document(scene, map(element, scene.marks))


@singledispatch
def element(mark: Mark) -> str:
    """Return a mark as an SVG element."""
    raise TypeError(f"expected a mark, got {type(mark).__name__}")


@element.register
def _(mark: PathMark) -> str:
    steps = "".join(f"{kind}{' '.join(map(short, places))}" for kind, places in mark.path)
    line = ""
    if mark.stroke is not None:
        line = paint("stroke", mark.stroke) + f' stroke-width="{short(mark.width)}"'
        line += ' stroke-dasharray="4 3"' if mark.dashed else ""
    inside = ' fill="none"' if mark.fill is None else paint("fill", mark.fill)
    return _titled("path", f' d="{steps}"{inside}{line}', mark.title)


@element.register
def _(mark: Disc) -> str:
    where = f' cx="{short(mark.x)}" cy="{short(mark.y)}" r="{short(mark.radius)}"'
    return _titled(
        "circle", where + paint("fill", mark.fill) + paint("stroke", "muted"), mark.title
    )


@element.register
def _(mark: Label) -> str:
    attributes = f' x="{short(mark.x)}" y="{short(mark.y)}" font-size="{short(mark.size)}"'
    if mark.anchor != "start":
        attributes += f' text-anchor="{mark.anchor}"'
    attributes += paint("fill", mark.colour)
    attributes += ' font-weight="600"' if mark.bold else ""
    attributes += ' font-style="italic"' if mark.italic else ""
    if mark.turn:
        attributes += f' transform="rotate({short(mark.turn)} {short(mark.x)} {short(mark.y)})"'
    return _titled("text", attributes, mark.title, xml(mark.text))


def paint(attribute: str, colour: str) -> str:
    """Return the attributes that give something a colour."""
    if colour not in INK:
        return f' {attribute}="{colour}"'
    opacity = INK[colour]
    shade = "" if opacity == 1 else f' {attribute}-opacity="{short(opacity)}"'
    return f' {attribute}="currentColor"{shade}'


def short(value: float) -> str:
    """Return a number without digits that nobody sees."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def xml(text: str) -> str:
    """Return text that is safe within an element."""
    return escape(clean(text))


def _titled(name: str, attributes: str, title: str, content: str = "") -> str:
    inner = (f"<title>{xml(title)}</title>" if title else "") + content
    return f"<{name}{attributes}>{inner}</{name}>" if inner else f"<{name}{attributes}/>"
