"""A view for notebooks: step through the merges of a tree, and point at nodes to read about them.

The view is an iframe with its whole content in an attribute. It cannot reach the network or the
page around it: the sandbox gives it an origin of its own, and its policy allows nothing except its
style and one script, identified by its hash.
"""

import base64
import hashlib
import math
from collections.abc import Sequence
from html import escape

from gumbeltree.analysis.figure import draw_trees
from gumbeltree.analysis.film import MOST_WORDS, draw_film
from gumbeltree.analysis.trace import Trace
from gumbeltree.drawing import clean
from gumbeltree.picture import svg

CONTROLS = 92
"""The height of the slider and of the lines below the picture."""
_STYLE = (
    ":root{color-scheme:light dark;font:14px system-ui,sans-serif}body{margin:8px}"
    ".off{display:none}form{display:flex;gap:8px;align-items:center;max-width:40em}"
    "input{flex:1}button{min-width:32px;min-height:28px}p{min-height:1.3em;margin:6px 0}"
    "circle:hover{stroke-width:3;stroke-opacity:1}"
)
# arrow keys move the slider; the buttons are for touch
_SCRIPT = """
const slider = document.querySelector("input");
const [where, about] = document.querySelectorAll("p");
const timed = document.querySelectorAll("[data-first]");
const hint = about.textContent;
function show() {
  const step = Number(slider.value), last = Number(slider.max);
  for (const { dataset, classList } of timed) {
    classList.toggle("off", step < dataset.first || step >= dataset.end);
  }
  const text = step < last ? `Step ${step + 1} of ${last}` : "The finished tree";
  where.textContent = text;
  slider.setAttribute("aria-valuetext", text);
}
for (const button of document.querySelectorAll("button")) {
  button.addEventListener("click", () => {
    slider.value = Number(slider.value) + Number(button.value);
    show();
  });
}
slider.addEventListener("input", show);
document.addEventListener("pointerover", ({ target }) => {
  about.textContent = target.querySelector?.(":scope > title")?.textContent ?? hint;
});
show();
"""


def step_view(traces: Sequence[tuple[str, Trace]]) -> str:
    """Return the HTML of a view that steps through the merges of one or more trees.

    It opens with the finished trees. Fixed trees and those of more than 120 words have no steps.

    Args:
        traces: As in `gumbeltree.analysis.figure.draw_trees`.
    """
    stepped = all(trace.scored and len(trace.tree) <= MOST_WORDS for _, trace in traces)
    scene = (draw_film if stepped else draw_trees)(traces).scene
    last = len(scene.seconds) - 1

    def framed(elements: str, frames: tuple[int, int]) -> str:
        first, end = frames
        off = "" if end > last else ' class="off"'
        return f'<g data-first="{first}" data-end="{end}"{off}>{elements}</g>'

    digest = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    controls = (
        '<form><button type="button" value="-1" aria-label="Previous step">\u2039</button>'
        f'<input type="range" min="0" max="{last}" value="{last}" aria-label="Step">'
        '<button type="button" value="1" aria-label="Next step">\u203a</button></form>'
        '<p aria-live="polite"></p><p>Point at a circle to read about its merge.</p>'
        f"<script>{_SCRIPT}</script>"
    )
    page = (
        f'<!doctype html><meta charset="utf-8"><title>{escape(clean(scene.title))}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<style>{_STYLE}</style>{svg(scene, framed)}{controls if last > 0 else ''}"
    )
    return (
        f'<iframe sandbox="allow-scripts" title="{escape(clean(scene.title))}" '
        f'style="width:100%;border:0;height:{math.ceil(scene.height) + CONTROLS + 24}px" '
        f'srcdoc="{escape(page)}"></iframe>'
    )
