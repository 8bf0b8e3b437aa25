"""Draw the plots of docs/math.md and print its table: `python benchmarks/math_figures.py`.

All counts and errors are measured here with the package itself.
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
# Okabe and Ito's colours, on light and on dark pages
STYLE = (
    "svg:root{color:#1f2328;--page:#fff;--blue:#0072b2;--orange:#d55e00;--green:#009e73}"
    "@media(prefers-color-scheme:dark){svg:root{color:#e6edf3;--page:#0d1117;--blue:#56b4e9;"
    "--orange:#e69f00}}"
)
INK, GREY = "currentColor", "#8b949e"
BLUE, ORANGE = "var(--blue)", "var(--orange)"
FONT = "'Helvetica Neue',Helvetica,Arial,'DejaVu Sans',system-ui,sans-serif"
LENGTHS = [3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 512, 1024]


def text(x: float, y: float, content: str, size: int = 12, anchor: str = "middle") -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" '
        f'fill="{INK}">{escape(content)}</text>'
    )


def line(
    points: Iterable[tuple[float, float]], colour: str, width: float = 1.5, dash: str = ""
) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{dashes}/>'
    )


class Plot:
    """An SVG plot with logarithmic axes that follows light and dark pages."""

    left, top, width, height = 74, 26, 380, 268

    def __init__(self, x: tuple[float, float], y: tuple[float, float]) -> None:
        self.x, self.y = x, y
        self.marks: list[str] = []

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the position of a point in pixels."""
        across = math.log(x / self.x[0]) / math.log(self.x[1] / self.x[0])
        up = math.log(y / self.y[0]) / math.log(self.y[1] / self.y[0])
        return self.left + self.width * across, self.top + self.height * (1 - up)

    def axes(self, xs: dict[float, str], ys: dict[float, str], x_name: str, y_name: str) -> None:
        """Draw the axes with ticks."""
        bottom = self.top + self.height
        for x, label in xs.items():
            across = self.at(x, self.y[0])[0]
            self.marks.append(line([(across, self.top), (across, bottom)], GREY, 0.35))
            self.marks.append(text(across, bottom + 18, label, 11))
        for y, label in ys.items():
            up = self.at(self.x[0], y)[1]
            self.marks.append(line([(self.left, up), (self.left + self.width, up)], GREY, 0.35))
            self.marks.append(text(self.left - 8, up + 4, label, 11, "end"))
        self.marks.append(text(self.left + self.width / 2, bottom + 40, x_name))
        self.marks.append(text(self.left - 62, self.top - 10, y_name, anchor="start"))

    def curve(
        self,
        points: Sequence[tuple[float, float]],
        colour: str,
        label: str,
        dash: str = "",
        lift: float = 0,
    ) -> None:
        """Draw a line with its label at the end."""
        placed = [self.at(x, y) for x, y in points]
        self.marks.append(line(placed, colour, 2, dash))
        x, y = placed[-1]
        self.marks.append(text(x + 9, y + 4 + lift, label, anchor="start"))

    def dots(self, points: Sequence[tuple[float, float]], colour: str) -> None:
        for x, y in points:
            across, up = self.at(x, y)
            self.marks.append(
                f'<circle cx="{across:g}" cy="{up:g}" r="2.5" fill="{colour}" '
                f'stroke="{colour}" stroke-width="2"/>'
            )

    def save(self, name: str, title: str, width: int, height: int = 350) -> None:
        marks = "\n".join(self.marks)
        (IMAGES / f"math-{name}.svg").write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" style="max-width:100%;height:auto">\n'
            f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n"
            f'<rect width="{width}" height="{height}" fill="var(--page)"/>\n'
            f'<g font-family="{FONT}" stroke-linejoin="round" stroke-linecap="round">\n'
            f"{marks}\n</g>\n</svg>\n",
            encoding="utf-8",
        )


def count_compositions(impl: str, words: int) -> int:
    """Count the compositions of one sentence of random words."""
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


def growth(limits: tuple[float, float], name: str) -> Plot:
    """Return a plot over sentence length."""
    plot = Plot((LENGTHS[0], LENGTHS[-1]), limits)
    plot.axes(
        {4: "4", 16: "16", 64: "64", 256: "256", 1024: "1,024"},
        {10: "10", 100: "100", 1000: "1,000", 1e4: "10,000", 1e5: "100,000", 1e6: "1,000,000"},
        "words T",
        name,
    )
    return plot


def draw_compositions() -> None:
    """Draw bounds and counts of compositions over sentence length."""
    plot = growth((2, 1e6), "compositions")
    plot.curve([(n, n * (n - 1) / 2) for n in LENGTHS], ORANGE, "the paper: T(T−1)/2")
    plot.curve([(n, 3 * n - 6) for n in LENGTHS], BLUE, "at most 3T−6", lift=-7)
    plot.curve([(n, 2 * n - 3) for n in LENGTHS], BLUE, "at least 2T−3", "3 4", lift=8)
    counts = [(n, count_compositions("exact", n)) for n in LENGTHS]
    assert all(2 * n - 3 <= count <= 3 * n - 6 for n, count in counts)
    plot.dots(counts, BLUE)
    paper = [(n, count_compositions("reference", n)) for n in LENGTHS if n <= 256]
    assert all(count == n * (n - 1) // 2 for n, count in paper)
    plot.dots(paper, ORANGE)
    plot.save("compositions", "Compositions of a sentence against its length", 610)


def ledger_operations(words: int, merges: Sequence[int]) -> int:
    """Count the vectors added and multiplied in the ledger's loop for one tree."""
    total = 0
    for t, k in enumerate(merges):
        sides = (k > 0) + (k < words - t - 2)
        # additions to the new node and its neighbours; two products for the new node, four each for
        # the merged candidate and those beside it
        total += 2 * sides + 6 + 4 * sides
    return total


def draw_work() -> None:
    """Draw the vector operations in the loop of both backward passes over sentence length."""
    plot = growth((10, 3e6), "vectors multiplied or added in the loop")
    generator = np.random.default_rng(0)
    plot.curve([(n, 2 * n * (n - 1)) for n in LENGTHS], ORANGE, "directly: 2T(T−1)")
    plot.curve([(n, 18 * n - 36) for n in LENGTHS], BLUE, "ledger, at most: 18T−36", lift=-6)
    counts = []
    for n in LENGTHS:
        merges = [int(generator.integers(n - 1 - t)) for t in range(n - 1)]
        counts.append((n, ledger_operations(n, merges)))
    assert all(count <= 18 * n - 36 for n, count in counts)
    plot.dots(counts, BLUE)
    plot.save("work", "Vector work of the backward pass against length", 640)


def float32_errors(words: int, temperature: float = 1.0) -> tuple[float, float]:
    """Return the largest gradient error in float32 of the direct form and of the ledger.

    Errors are relative to the largest entry of the direct form in float64, on the same tree.
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
    """Draw the error of the winner's score gradient in the textbook and the centred form."""
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
            # the value of both forms if the weights sum to one exactly
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
    plot.save("rounding", "Rounding of the winner's score gradient", 620)


def main() -> None:
    """Draw all plots and print the table."""
    draw_compositions()
    draw_work()
    draw_rounding()
    print("words, gradient error in float32: direct, ledger")
    for words in (8, 16, 32, 64, 128):
        print(words, *(f"{error:.1e}" for error in float32_errors(words)))


if __name__ == "__main__":
    main()
