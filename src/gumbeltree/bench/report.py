"""Shared by the CPU and CUDA benchmarks: environment, summaries, tables and the plot."""

import math
import platform
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from gumbeltree import __version__
from gumbeltree.code_version import code_version
from gumbeltree.plots import pyplot, save_picture
from gumbeltree.threads import get_threads

MODES = ("inference", "training")


def environment() -> dict[str, Any]:
    """Return the machine, the package versions and the code version of a benchmark."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        cpu = next(x.split(":")[1].strip() for x in lines if x.startswith("model name"))
    except (OSError, StopIteration):
        cpu = platform.processor() or platform.machine()
    return {
        "machine": {"cpu": cpu, "threads": get_threads()},
        "versions": {
            "gumbeltree": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "code": code_version(),
    }


def quantiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return the median, 20th and 80th percentile."""
    cuts = statistics.quantiles(seconds, n=5, method="inclusive")
    return {"median": statistics.median(seconds), "p20": cuts[0], "p80": cuts[-1]}


def growth_report(width: int, rows: list[dict[str, Any]], impl: str) -> dict[str, Any]:
    """Return the rows of a growth measurement and the fitted exponents of `impl`."""
    own = [row for row in rows if row["impl"] == impl]
    values = {mode: [row[mode]["median"] for row in own] for mode in MODES}
    values["memory"] = [row["bytes"] for row in own]
    words = [math.log(row["words"]) for row in own]
    exponents = {
        name: statistics.linear_regression(words, [math.log(y) for y in ys]).slope
        for name, ys in values.items()
    }
    return {"width": width, "rows": rows, "exponents": exponents}


def format_time(seconds: float) -> str:
    """Format seconds as milliseconds."""
    return f"{seconds * 1e3:,.2f} ms" if seconds < 0.1 else f"{seconds * 1e3:,.0f} ms"


def format_size(size: float) -> str:
    """Format bytes as mebibytes."""
    return f"{size / 2**20:,.1f} MiB"


def print_table(
    out: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]
) -> None:
    """Print a table whose first column is left-aligned."""
    table = Table(title=title)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    out.print(table)


def print_growth(out: Console, growth: dict[str, Any]) -> None:
    """Print time and memory by sentence length, and the exponents."""
    rows = [
        (
            *(f"{row['words']:,}", row["impl"]),
            *(format_time(row[mode]["median"]) for mode in MODES),
            format_size(row["bytes"]),
        )
        for row in growth["rows"]
    ]
    impl = growth["rows"][-1]["impl"]
    rows.append(("growth", impl, *(f"T^{power:.2f}" for power in growth["exponents"].values())))
    columns = ("words T", "implementation", *MODES, "memory")
    print_table(out, f"one sentence, {growth['width']}D", columns, rows)


def draw_growth(growth: dict[str, Any], path: Path, machine: str) -> None:
    """Plot time and memory against sentence length, on logarithmic axes."""
    plt = pyplot()
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
    fast = growth["rows"][-1]["impl"]
    panels = {
        "inference": ("inference, ms", lambda row: row["inference"]["median"] * 1e3),
        "training": ("training step, ms", lambda row: row["training"]["median"] * 1e3),
        "memory": ("training memory, MiB", lambda row: row["bytes"] / 2**20),
    }
    for axis, (name, (title, value)) in zip(axes, panels.items(), strict=True):
        power = f"T^{growth['exponents'][name]:.2f}"
        for impl, label, colour in (
            ("reference", "reference", "#d55e00"),
            (fast, f"{fast}, {power}", "#0072b2"),
        ):
            rows = [row for row in growth["rows"] if row["impl"] == impl]
            if rows:
                x, y = [row["words"] for row in rows], [value(row) for row in rows]
                axis.plot(x, y, "o-", color=colour, label=label)
        axis.set(title=title, xlabel="words T", xscale="log", yscale="log")
        axis.set_xticks(sorted({row["words"] for row in growth["rows"]}))
        axis.xaxis.set_major_formatter("{x:.0f}")
        # powers of ten alone would leave some axes without ticks
        axis.yaxis.set_major_locator(plt.LogLocator(subs=(1, 2, 5), numticks=99))
        axis.yaxis.set_major_formatter("{x:,g}")
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
    figure.suptitle(f"One sentence of T words, {growth['width']}D, {machine}")
    path.parent.mkdir(parents=True, exist_ok=True)
    save_picture(figure, path)
