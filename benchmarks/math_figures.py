"""Draw the figures of docs/math.md: `python benchmarks/math_figures.py`.

What is counted or measured in them is counted and measured here, with the package itself.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np
import torch

from gumbeltree import EncoderConfig, GumbelTreeEncoder
from gumbeltree.ops.merge.exact import backward as exact_backward

IMAGES = Path(__file__).parent.parent / "docs" / "images"
WORDS = ("i", "love", "this", "very", "much", ".")
# Okabe and Ito's colours, which colour-blind readers can tell apart: on light and on dark pages
STYLE = (
    "svg:root{color:#1f2328;--page:#fff;--blue:#0072b2;--orange:#d55e00;--green:#009e73}"
    "@media(prefers-color-scheme:dark){svg:root{color:#e6edf3;--page:#0d1117;--blue:#56b4e9;"
    "--orange:#e69f00}}"
)
INK, GREY = "currentColor", "#8b949e"
BLUE, ORANGE, GREEN = "var(--blue)", "var(--orange)", "var(--green)"
FONT = "'Helvetica Neue',Helvetica,Arial,'DejaVu Sans',system-ui,sans-serif"


# --- marks ---


def text(x: float, y: float, content: str, colour: str = INK, **more: object) -> str:
    """Return a text; `sub` behind an underscore, as in c_k-1."""
    size, anchor = more.get("size", 13), more.get("anchor", "middle")
    weight = f' font-weight="{more["weight"]}"' if "weight" in more else ""
    base, _, sub = content.partition("_")
    inner = escape(base)
    if sub:
        inner += f'<tspan dy="4" font-size="75%">{escape(sub)}</tspan>'
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}"{weight} '
        f'fill="{colour}">{inner}</text>'
    )


def line(
    points: Iterable[tuple[float, float]], colour: str, width: float = 1.5, dash: str = ""
) -> str:
    """Return a line through points."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{dashes}/>'
    )


def disc(
    x: float, y: float, colour: str, hollow: bool = False, dash: str = "", r: float = 9
) -> str:
    """Return a candidate."""
    fill = "var(--page)" if hollow else colour
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<circle cx="{x:g}" cy="{y:g}" r="{r:g}" fill="{fill}" '
        f'stroke="{colour}" stroke-width="2"{dashes}/>'
    )


def node(x: float, y: float, width: float, label: str, colour: str = INK, fill: float = 0) -> str:
    """Return a node of a layer."""
    return (
        f'<rect x="{x - width / 2:g}" y="{y - 16:g}" width="{width:g}" height="32" rx="8" '
        f'fill="{colour}" fill-opacity="{fill:g}" stroke="{colour}" '
        f'stroke-width="1.5"/>' + text(x, y + 5, label)
    )


def save(name: str, title: str, size: tuple[int, int], marks: Iterable[str]) -> None:
    """Write a picture that follows light and dark pages."""
    width, height = size
    (IMAGES / f"math-{name}.svg").write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" style="max-width:100%;height:auto">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n"
        f'<rect width="{width}" height="{height}" fill="var(--page)"/>\n'
        f'<g font-family="{FONT}" stroke-linejoin="round" stroke-linecap="round">\n'
        + "\n".join(marks)
        + "\n</g>\n</svg>\n",
        encoding="utf-8",
    )


# --- diagrams ---

GAP = 100  # between two words


def place(i: float) -> float:
    """Return where the i-th word stands."""
    return 120 + GAP * i


def draw_new() -> None:
    """Draw which candidates are new after a merge."""
    k, below, above = 2, 232, 96
    marks = [
        text(8, below + 5, "layer t", anchor="start", size=12),
        text(8, above + 5, "layer t+1", anchor="start", size=12),
    ]
    # the words that stay are copied straight up
    for i in range(6):
        if i not in (k, k + 1):
            marks.append(line([(place(i), below - 18), (place(i), above + 18)], GREY, 1, "2 4"))
    for i in range(5):
        x = place(i + 0.5)
        gone = i in (k - 1, k, k + 1)
        if not gone:
            marks.append(line([(x, below - 58), (x, above - 48)], BLUE, 1.5, "4 4"))
    middle = place(k + 0.5)
    marks.append(
        line(
            [(place(k), below - 18), (place(k), 160), (middle, 160), (middle, above + 18)],
            ORANGE,
            2,
        )
    )
    marks.append(line([(place(k + 1), below - 18), (place(k + 1), 160), (middle, 160)], ORANGE, 2))
    for i, word in enumerate(WORDS):
        marks.append(node(place(i), below, 74, word))
        if i not in (k, k + 1):
            marks.append(node(place(i), above, 74, word))
    marks.append(node(middle, above, 74 + GAP, f"{WORDS[k]} {WORDS[k + 1]}", ORANGE, 0.12))
    for i in range(5):
        x, colour = place(i + 0.5), BLUE
        label = f"c_{'k' if i == k else f'k{i - k:+d}'.replace('-', '−')}"
        if i in (k - 1, k, k + 1):
            colour = ORANGE if i == k else GREY
            marks.append(disc(x, below - 44, colour, hollow=i != k, dash="" if i == k else "3 3"))
        else:
            marks.append(disc(x, below - 44, BLUE))
            marks.append(disc(x, above - 36, BLUE))
        marks.append(text(x + 14, below - 38, label, anchor="start", size=12))
    for x, label in ((place(k - 0.25), "a"), (place(k + 1.25), "b")):
        marks.append(disc(x, above - 36, ORANGE))
        marks.append(text(x + 14, above - 31, label, anchor="start", size=12))
    marks += legend(
        282,
        [
            (ORANGE, False, "merged, and composed anew"),
            (BLUE, False, "kept: same children, same vector"),
            (GREY, True, "gone: a child was merged"),
        ],
    )
    save(
        "new",
        "After a merge only the two candidates beside the new node are new",
        (690, 300),
        marks,
    )


def legend(y: float, entries: Sequence[tuple[str, bool, str]]) -> list[str]:
    """Return marks with their meanings in a row."""
    marks, x = [], 18.0
    for colour, hollow, meaning in entries:
        marks.append(disc(x, y - 4, colour, hollow, "3 3" if hollow and colour == GREY else "", 6))
        marks.append(text(x + 13, y, meaning, anchor="start", size=12))
        x += 40 + 7.0 * len(meaning)
    return marks


def draw_mixing() -> None:
    """Draw what a little more of one weight does to the next layer's nodes."""
    i, y = 2, 84
    marks = []
    for j in range(5):
        x = 74 + 134 * j
        moves, colour, fill = f"r_{j}", INK, 0.0
        if j == i:
            moves, colour, fill = "p", ORANGE, 0.14
        elif j > i:
            moves, colour, fill = "r", BLUE, 0.12
        marks.append(text(x, 30, f"position {j}", size=12))
        if j < i:
            marks.append(node(x, y, 108, moves))
            marks.append(text(x, y + 44, "does not move", size=12))
            continue
        marks.append(node(x, y, 108, "", colour, fill))
        marks.append(text(x - 28, y + 5, f"r_{j}"))
        marks.append(text(x, y + 5, "→"))
        marks.append(text(x + 28, y + 5, f"{moves}_{j + (j > i)}"))
        marks.append(text(x, y + 44, f"along {'e' if j == i else 'd'}_{j}", size=13, weight=600))
    save("mixing", "What a little more of y at position 2 does", (690, 146), marks)


def draw_ledger() -> None:
    """Draw what undoing a merge touches."""
    words = 9
    k, y, gap = 3, 150, 74

    def at(j: float) -> float:
        return 54 + gap * j

    marks = []
    middle = at(k + 0.5)
    marks.append(line([(at(k), y - 18), (at(k), 96), (middle, 96), (middle, 62)], ORANGE, 2))
    marks.append(line([(at(k + 1), y - 18), (at(k + 1), 96), (middle, 96)], ORANGE, 2))
    marks.append(node(middle, 46, 44, "m", ORANGE, 0.16))
    names = {k - 1: "p", k: "n_k", k + 1: "n_k+1", k + 2: "s"}
    for j in range(words):
        touched = j in names
        colour = ORANGE if touched else INK
        marks.append(node(at(j), y, 48, names.get(j, ""), colour, 0.16 if touched else 0))
    for j in range(words - 1):
        away = j - k
        label = "c_k" + (f"{away:+d}".replace("-", "−") if away else "")
        if abs(away) <= 1:
            colour, hollow = ORANGE, False
        elif abs(away) == 2:
            colour, hollow = GREEN, False
        else:
            colour, hollow = GREY, True
        x = at(j + 0.5)
        marks.append(line([(at(j), y + 18), (x, y + 46), (at(j + 1), y + 18)], GREY, 1))
        marks.append(disc(x, y + 52, colour, hollow))
        marks.append(text(x, y + 82, label, size=12))
    marks += legend(
        270,
        [
            (ORANGE, False, "vectors touched, numbers taken anew"),
            (GREEN, False, "numbers moved by a number"),
            (GREY, True, "nothing to do"),
        ],
    )
    save("ledger", "Undoing a merge touches five vectors", (690, 290), marks)


# --- plots ---


class Plot:
    """Lines over two axes, either of them logarithmic."""

    left, top, width, height = 74, 26, 380, 268

    def __init__(self, x: tuple[float, float], y: tuple[float, float]) -> None:
        self.x, self.y = x, y
        self.marks: list[str] = []

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return where a point stands."""
        across = math.log(x / self.x[0]) / math.log(self.x[1] / self.x[0])
        up = math.log(y / self.y[0]) / math.log(self.y[1] / self.y[0])
        return self.left + self.width * across, self.top + self.height * (1 - up)

    def axes(self, xs: dict[float, str], ys: dict[float, str], x_name: str, y_name: str) -> None:
        """Draw the axes with ticks."""
        bottom = self.top + self.height
        for x, label in xs.items():
            across = self.at(x, self.y[0])[0]
            self.marks.append(line([(across, self.top), (across, bottom)], GREY, 0.35))
            self.marks.append(text(across, bottom + 18, label, size=11))
        for y, label in ys.items():
            up = self.at(self.x[0], y)[1]
            self.marks.append(line([(self.left, up), (self.left + self.width, up)], GREY, 0.35))
            self.marks.append(text(self.left - 8, up + 4, label, size=11, anchor="end"))
        self.marks.append(text(self.left + self.width / 2, bottom + 40, x_name, size=12))
        self.marks.append(text(self.left - 62, self.top - 10, y_name, size=12, anchor="start"))

    def curve(
        self,
        points: Sequence[tuple[float, float]],
        colour: str,
        label: str,
        dash: str = "",
        lift: float = 0,
    ) -> None:
        """Draw a line with its name at the end."""
        placed = [self.at(x, y) for x, y in points]
        self.marks.append(line(placed, colour, 2, dash))
        x, y = placed[-1]
        self.marks.append(text(x + 9, y + 4 + lift, label, size=12, anchor="start"))

    def dots(self, points: Sequence[tuple[float, float]], colour: str) -> None:
        """Draw points."""
        for x, y in points:
            across, up = self.at(x, y)
            self.marks.append(disc(across, up, colour, r=2.5))


def count_compositions(impl: str, words: int) -> int:
    """Return how often a cell was run for one sentence of random words."""
    torch.manual_seed(words)
    encoder = GumbelTreeEncoder(EncoderConfig(4, 4, leaf="affine", impl=impl))
    counted = 0
    name = "forward" if impl == "reference" else "activate"
    original: Callable[..., torch.Tensor] = getattr(encoder.cell, name)

    def counting(*arguments: torch.Tensor) -> torch.Tensor:
        nonlocal counted
        result = original(*arguments)
        counted += result.h[..., 0].numel()
        return result

    setattr(encoder.cell, name, counting)
    with torch.no_grad():
        encoder(torch.randn(1, words, 4), torch.tensor([words]), sample=True)
    return counted


LENGTHS = [3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 512, 1024]


def growth(limits: tuple[float, float], name: str) -> Plot:
    """Return a plot of something against the length of a sentence."""
    plot = Plot((LENGTHS[0], LENGTHS[-1]), limits)
    plot.axes(
        {4: "4", 16: "16", 64: "64", 256: "256", 1024: "1,024"},
        {10: "10", 100: "100", 1000: "1,000", 1e4: "10,000", 1e5: "100,000", 1e6: "1,000,000"},
        "words T",
        name,
    )
    return plot


def draw_compositions() -> None:
    """Draw compositions of a sentence against its length: bounds, and counted."""
    plot = growth((2, 1e6), "compositions")
    plot.curve([(n, n * (n - 1) / 2) for n in LENGTHS], ORANGE, "the paper: T(T−1)/2")
    plot.curve([(n, 3 * n - 6) for n in LENGTHS], BLUE, "at most 3T−6", lift=-7)
    plot.curve([(n, 2 * n - 3) for n in LENGTHS], BLUE, "at least 2T−3", "3 4", lift=8)
    found = [(n, count_compositions("exact", n)) for n in LENGTHS]
    assert all(2 * n - 3 <= count <= 3 * n - 6 for n, count in found)
    plot.dots(found, BLUE)
    paper = [(n, count_compositions("reference", n)) for n in LENGTHS if n <= 256]
    assert all(count == n * (n - 1) // 2 for n, count in paper)
    plot.dots(paper, ORANGE)
    save("compositions", "Compositions of a sentence against its length", (610, 350), plot.marks)


def ledger_operations(words: int, merges: Sequence[int]) -> int:
    """Return the vectors added and multiplied in the ledger's loop for one tree."""
    total = 0
    for t, k in enumerate(merges):
        sides = (k > 0) + (k < words - t - 2)
        # additions to the new node and its neighbours; two products for the new node, four each for
        # the merged candidate and those beside it
        total += 2 * sides + 6 + 4 * sides
    return total


def draw_work() -> None:
    """Draw vector work of the two ways backward, in the loop, against the length."""
    plot = growth((10, 3e6), "vectors multiplied or added in the loop")
    generator = np.random.default_rng(0)
    plot.curve([(n, 2 * n * (n - 1)) for n in LENGTHS], ORANGE, "directly: 2T(T−1)")
    plot.curve([(n, 18 * n - 36) for n in LENGTHS], BLUE, "ledger, at most: 18T−36", lift=-6)
    found = []
    for n in LENGTHS:
        merges = [int(generator.integers(n - 1 - t)) for t in range(n - 1)]
        found.append((n, ledger_operations(n, merges)))
    assert all(count <= 18 * n - 36 for n, count in found)
    plot.dots(found, BLUE)
    save("work", "Vector work of the backward pass against length", (640, 350), plot.marks)


def float32_errors(words: int, temperature: float = 1.0) -> tuple[float, float]:
    """Return the largest gradient error of the direct way and of the ledger in float32.

    Both against the direct way in float64, on the same tree, relative to the largest entry.
    """
    torch.manual_seed(words)
    config = EncoderConfig(32, 32, leaf="affine", impl="exact", temperature=temperature)
    encoder = GumbelTreeEncoder(config)
    inputs = torch.randn(4, words, 32)
    lengths, noise = torch.full((4,), words), torch.rand(4, words - 1, words - 1)
    noise = -(-noise.clamp(1e-6, 1 - 1e-6).log()).log()
    with torch.no_grad():
        order = encoder(inputs, lengths, noise=noise).order

    def gradients(dtype: torch.dtype, ledger: bool) -> list[torch.Tensor]:
        original = exact_backward.use_ledger
        exact_backward.use_ledger = lambda problem: ledger
        try:
            encoder.to(dtype).zero_grad()
            result = encoder(inputs.to(dtype), lengths, noise=noise.to(dtype), order=order)
            result.vector.sum().backward()
        finally:
            exact_backward.use_ledger = original
        return [p.grad.double().clone() for p in encoder.parameters() if p.grad is not None]

    exact = gradients(torch.float64, ledger=False)
    return tuple(
        max(
            float((a - b).abs().max() / b.abs().max())
            for a, b in zip(gradients(torch.float32, ledger), exact, strict=True)
        )
        for ledger in (False, True)
    )  # type: ignore[return-value]


def draw_rounding() -> None:
    """Draw the error of the winner's score gradient, textbook form and centred."""
    plot = Plot((1e-1, 1e-7), (1e-9, 10))
    plot.axes(
        {10.0**-e: f"10⁻{'⁰¹²³⁴⁵⁶⁷'[e]}" for e in range(1, 8)},
        {10.0**e: "1" if e == 0 else f"10⁻{'⁰¹²³⁴⁵⁶⁷⁸⁹'[-e]}" for e in range(-9, 1, 3)},
        "1 − y of the winner",
        "relative error of the winner's score gradient, float32",
    )
    generator = np.random.default_rng(0)
    rows: dict[str, list[tuple[float, float]]] = {"textbook": [], "centred": []}
    for exponent in np.linspace(1, 7, 25):
        rest = 10.0**-exponent
        errors: dict[str, list[float]] = {"textbook": [], "centred": []}
        for _ in range(200):
            others = generator.dirichlet(np.ones(7)) * rest
            y = np.concatenate([[1 - rest], others])
            dy = generator.normal(size=8)
            y32, dy32 = y.astype(np.float32), dy.astype(np.float32)
            y, dy = y32.astype(np.float64), dy32.astype(np.float64)
            u = dy - dy[0]
            # with weights that add up to one but for rounding, this is what both forms mean
            true = -y[0] * (y[1:] * u[1:]).sum()
            textbook = y32[0] * (dy32[0] - (y32 * dy32).sum(dtype=np.float32))
            u32 = dy32 - dy32[0]
            centred = y32[0] * (u32[0] - (y32 * u32).sum(dtype=np.float32))
            errors["textbook"].append(abs(float(textbook) - true) / abs(true))
            errors["centred"].append(abs(float(centred) - true) / abs(true))
        for name, values in errors.items():
            rows[name].append((rest, float(np.median(values))))
    plot.curve(rows["textbook"], ORANGE, "textbook form")
    plot.curve(rows["centred"], BLUE, "centred on the winner")
    save("rounding", "Rounding of the winner's score gradient", (620, 350), plot.marks)


def main() -> None:
    """Draw all figures, and print what was measured."""
    draw_new()
    draw_mixing()
    draw_ledger()
    draw_compositions()
    draw_work()
    draw_rounding()
    print("gradient error in float32, directly and with the ledger")
    for words in (8, 16, 32, 64, 128):
        print(words, *(f"{error:.1e}" for error in float32_errors(words)))


if __name__ == "__main__":
    main()
