"""`gumbeltree bench`: check, time, weigh, print a table, write JSON, draw growth."""

import json
import math
import platform
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from gumbeltree import __version__
from gumbeltree.bench import cuda
from gumbeltree.bench.cases import Step, growth_step, largest_error, snli_step, way_step
from gumbeltree.bench.memory import measure
from gumbeltree.code_version import code_version
from gumbeltree.plots import pyplot


class BenchSizes(NamedTuple):
    """How much is measured."""

    recipe: str = "snli-300d"
    pairs: int = 128
    batches: int = 5
    reference_runs: int = 5
    exact_runs: int = 20
    weighings: int = 3
    words: tuple[int, ...] = (64, 128, 256, 512, 1024)
    reference_words: int = 512
    width: int = 128
    way_words: tuple[int, ...] = (5, 10, 15, 20, 30, 40)
    ways: tuple[tuple[int, int], ...] = ((128, 300), (64, 100))
    """Sentences and width with which the two ways of the backward pass are compared."""


QUICK = BenchSizes("snli-100d", 4, 2, 2, 2, 1, (16, 64), 16, 8, (5,), ((4, 8),))


def run(
    device: str,
    json_file: Path | None,
    plot: Path | None,
    quick: bool,
    out: Console,
    progress: Console,
) -> None:
    """Measure everything and report it."""
    if device not in ("cpu", "cuda"):
        raise ValueError(f"`--device` must be cpu or cuda, got {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("no CUDA device is to be found here; pass --device cpu")
    if plot is not None:
        pyplot()
        if plot.suffix.lower() not in (".png", ".svg", ".pdf"):
            raise ValueError(f"`--plot` must end in .png, .svg or .pdf, got {plot}")
    for path in (plot, json_file):
        if path is not None and path.is_dir():
            raise IsADirectoryError(f"{path} is a folder; name a file")
    if device == "cuda":
        cuda.run(json_file, plot, quick, out, progress)
        return
    sizes = QUICK if quick else BenchSizes()
    with progress.status("checking that exact equals reference") as status:
        error = largest_error()
        if not error < 1e-10:
            raise ValueError(f"exact differs from reference by {error:.1e} in float64: not timed")
        cases = []
        for mode in ("inference", "training"):
            status.update(f"timing {mode} on SNLI's lengths")
            cases.append(snli_time(mode, sizes))
            status.update(f"weighing {mode} on SNLI's lengths")
            cases.append(snli_memory(mode, sizes))
        status.update("growth with sentence length")
        growth = measure_growth(sizes)
        status.update("the two ways of the backward pass")
        ways = measure_ways(sizes)
    report = {
        **environment(),
        "quick": quick,
        "correctness": {"float64_relative_error": error},
        "cases": cases,
        "growth": growth,
        "ways": ways,
    }
    show(report, out)
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if plot is not None:
        draw_growth(growth, plot)


def environment() -> dict[str, Any]:
    """Return machine, versions and code, so that a figure can be placed."""
    return {
        "machine": {"cpu": _cpu_name(), "threads": torch.get_num_threads()},
        "versions": {
            "gumbeltree": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "code": code_version(),
    }


def times(step: Step, runs: int) -> dict[str, float]:
    """Return median, p20 and p80 of a step in seconds, after one warm-up."""
    step()
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    if len(seconds) == 1:
        seconds *= 2
    cuts = statistics.quantiles(seconds, n=5, method="inclusive")
    return {"median": statistics.median(seconds), "p20": cuts[0], "p80": cuts[-1]}


def snli_time(mode: str, sizes: BenchSizes) -> dict[str, Any]:
    """Time one step of each implementation; ratio: how many times faster `exact` is."""
    case: dict[str, Any] = {"name": f"snli-{mode}", "unit": "seconds"}
    for impl in ("reference", "exact"):
        step = snli_step(impl, mode, sizes.recipe, sizes.pairs, sizes.batches)
        runs = sizes.reference_runs if impl == "reference" else sizes.exact_runs
        case[impl] = times(step, runs)
    case["ratio"] = case["reference"]["median"] / case["exact"]["median"]
    return case


def snli_memory(mode: str, sizes: BenchSizes) -> dict[str, Any]:
    """Weigh one step of each implementation; ratio: how many times less `exact` needs."""
    case: dict[str, Any] = {"name": f"snli-{mode}-memory", "unit": "bytes"}
    for impl in ("reference", "exact"):
        weights = [
            measure("snli", impl, mode, sizes.recipe, str(sizes.pairs))
            for _ in range(sizes.weighings)
        ]
        case[impl] = {"median": statistics.median(weights)}
    case["ratio"] = case["reference"]["median"] / case["exact"]["median"]
    return case


def measure_growth(sizes: BenchSizes) -> dict[str, Any]:
    """Time and weigh one sentence of growing length; fit exponents of `exact`."""
    rows = []
    for impl in ("reference", "exact"):
        for words in sizes.words:
            if impl == "reference" and words > sizes.reference_words:
                continue
            row: dict[str, Any] = {"impl": impl, "words": words}
            for mode in ("inference", "training"):
                row[mode] = times(growth_step(impl, mode, words, sizes.width), 5)
            row["bytes"] = measure("growth", impl, "training", str(words), str(sizes.width))
            rows.append(row)
    exact = [row for row in rows if row["impl"] == "exact"]
    length = [row["words"] for row in exact]
    return {
        "width": sizes.width,
        "rows": rows,
        "exponents": {
            "inference": exponent(length, [row["inference"]["median"] for row in exact]),
            "training": exponent(length, [row["training"]["median"] for row in exact]),
            "memory": exponent(length, [row["bytes"] for row in exact]),
        },
    }


def measure_ways(sizes: BenchSizes) -> list[dict[str, Any]]:
    """Time a step with the direct and the ledger way; ratio: how many times faster the ledger is.

    `exact.backward.LEDGER_FROM` is set where the ratio passes one.
    """
    rows = []
    for sentences, width in sizes.ways:
        for words in sizes.way_words:
            row: dict[str, Any] = {"sentences": sentences, "width": width, "words": words}
            for name, ledger in (("direct", False), ("ledger", True)):
                row[name] = times(way_step(ledger, words, sentences, width), 9)
            row["ratio"] = row["direct"]["median"] / row["ledger"]["median"]
            rows.append(row)
    return rows


def exponent(x: list[int], y: list[float]) -> float:
    """Return the slope of log y over log x by least squares: y grows as x to this power."""
    return statistics.linear_regression([math.log(v) for v in x], [math.log(v) for v in y]).slope


def show(report: dict[str, Any], out: Console) -> None:
    """Print the figures as tables."""
    machine, versions = report["machine"], report["versions"]
    out.print(
        f"{machine['cpu']}, {machine['threads']} threads, torch {versions['torch']}; exact equals "
        f"reference in float64 to {report['correctness']['float64_relative_error']:.0e}",
        highlight=False,
    )
    table = Table(
        title="128 pairs of SNLI lengths, 300D" if not report["quick"] else "quick, no figures"
    )
    for column in ("case", "reference", "exact", "ratio"):
        table.add_column(column, justify="left" if column == "case" else "right")
    for case in report["cases"]:
        scale, unit = (1e3, "ms") if case["unit"] == "seconds" else (2**-20, "MiB")
        values = [f"{case[impl]['median'] * scale:,.0f} {unit}" for impl in ("reference", "exact")]
        table.add_row(case["name"], *values, f"{case['ratio']:.1f}x")
    out.print(table)
    growth = report["growth"]
    table = Table(title=f"one sentence, {growth['width']}D")
    for column in ("words", "implementation", "inference", "training", "memory"):
        table.add_column(column, justify="right")
    for row in growth["rows"]:
        seconds = [f"{row[mode]['median'] * 1e3:,.0f} ms" for mode in ("inference", "training")]
        table.add_row(str(row["words"]), row["impl"], *seconds, f"{row['bytes'] / 2**20:,.1f} MiB")
    powers = growth["exponents"]
    table.add_section()
    table.add_row(
        "", "exact grows as", *(f"T^{powers[k]:.2f}" for k in ("inference", "training", "memory"))
    )
    out.print(table)
    table = Table(title="exact, forth and back: direct and ledger way")
    for column in ("sentences", "width", "words", "direct", "ledger", "ratio"):
        table.add_column(column, justify="right")
    for row in report["ways"]:
        shape = [str(row[name]) for name in ("sentences", "width", "words")]
        seconds = [f"{row[name]['median'] * 1e3:,.1f} ms" for name in ("direct", "ledger")]
        table.add_row(*shape, *seconds, f"{row['ratio']:.2f}x")
    out.print(table)


def draw_growth(growth: dict[str, Any], path: Path, machine: str = "CPU") -> None:
    """Draw time and memory over sentence length, both axes logarithmic."""
    plt = pyplot()
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
    fast = "exact" if any(row["impl"] == "exact" for row in growth["rows"]) else "fused"
    colours = {"reference": "#d55e00", fast: "#0072b2"}
    panels = {
        "inference": ("inference, ms", lambda row: row["inference"]["median"] * 1e3),
        "training": ("training step, ms", lambda row: row["training"]["median"] * 1e3),
        "memory": ("training memory, MiB", lambda row: row["bytes"] / 2**20),
    }
    for axis, (name, (title, value)) in zip(axes, panels.items(), strict=True):
        for impl, colour in colours.items():
            rows = [row for row in growth["rows"] if row["impl"] == impl]
            if not rows:
                continue
            label = impl
            if impl == fast:
                label = f"{fast}, T^{growth['exponents'][name]:.2f}"
            words = [row["words"] for row in rows]
            axis.plot(words, [value(row) for row in rows], "o-", color=colour, label=label)
        axis.set(title=title, xlabel="words T", xscale="log", yscale="log")
        axis.set_xticks(sorted({row["words"] for row in growth["rows"]}))
        axis.xaxis.set_major_formatter("{x:.0f}")
        # there may be one power of ten, or none
        axis.yaxis.set_major_locator(plt.LogLocator(subs=(1, 2, 5), numticks=99))
        axis.yaxis.set_major_formatter("{x:,g}")
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
    figure.suptitle(f"One sentence of T words, {growth['width']}D, {machine}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(x.split(":")[1].strip() for x in lines if x.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
