"""`gumbeltree bench --device cpu`: `exact` against `reference`."""

import statistics
import time
from typing import Any, NamedTuple

from rich.console import Console
from rich.status import Status

from gumbeltree.bench.cases import Step, growth_step, largest_error, snli_step
from gumbeltree.bench.memory import measure as memory
from gumbeltree.bench.report import MODES, growth_report, print_growth, print_table, quantiles

IMPLS = ("reference", "exact")


class CpuSizes(NamedTuple):
    """Sizes and repetitions of the measurements."""

    recipe: str = "snli-300d"
    pairs: int = 128
    batches: int = 5
    reference_runs: int = 5
    exact_runs: int = 20
    memory_runs: int = 3
    words: tuple[int, ...] = (64, 128, 256, 512, 1024)
    reference_words: int = 512
    width: int = 128


QUICK = CpuSizes("snli-100d", 4, 2, 2, 2, 1, (16, 64), 16, 8)


def measure(quick: bool, status: Status) -> dict[str, Any]:
    """Check correctness, then measure time and memory.

    Raises:
        ValueError: If `exact` differs from `reference`.
    """
    sizes = QUICK if quick else CpuSizes()
    status.update("checking that exact matches reference")
    error = largest_error()
    if not error < 1e-10:
        raise ValueError(
            f"exact differs from reference by {error:.1e} in float64; benchmark aborted"
        )
    cases = []
    for mode in MODES:
        status.update(f"measuring {mode} with SNLI sentence lengths")
        cases += snli(mode, sizes)
    status.update("measuring growth with sentence length")
    return {
        "correctness": {"float64_relative_error": error},
        "cases": cases,
        "growth": growth(sizes),
    }


def times(step: Step, runs: int) -> dict[str, float]:
    """Time a step after one warm-up."""
    step()
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return quantiles(seconds)


def snli(mode: str, sizes: CpuSizes) -> list[dict[str, Any]]:
    """Measure time and memory of one step; `ratio` is `reference` over `exact`."""
    seconds, sizes_in_bytes = {}, {}
    for impl, runs in zip(IMPLS, (sizes.reference_runs, sizes.exact_runs), strict=True):
        step = snli_step(impl, mode, sizes.recipe, sizes.pairs, sizes.batches)
        seconds[impl] = times(step, runs)
        held = [
            memory("snli", impl, mode, sizes.recipe, sizes.pairs) for _ in range(sizes.memory_runs)
        ]
        sizes_in_bytes[impl] = {"median": float(statistics.median(held))}
    return [
        {
            "name": f"snli-{mode}{suffix}",
            "unit": unit,
            **medians,
            "ratio": medians["reference"]["median"] / medians["exact"]["median"],
        }
        for suffix, unit, medians in (
            ("", "seconds", seconds),
            ("-memory", "bytes", sizes_in_bytes),
        )
    ]


def growth(sizes: CpuSizes) -> dict[str, Any]:
    """Measure one sentence at increasing lengths."""
    rows = []
    for impl in IMPLS:
        for words in sizes.words:
            if impl == "reference" and words > sizes.reference_words:
                continue
            row: dict[str, Any] = {"impl": impl, "words": words}
            for mode in MODES:
                row[mode] = times(growth_step(impl, mode, words, sizes.width), 5)
            row["bytes"] = memory("growth", impl, "training", words, sizes.width)
            rows.append(row)
    return growth_report(sizes.width, rows, "exact")


def show(report: dict[str, Any], out: Console) -> None:
    """Print the figures as tables."""
    machine, versions = report["machine"], report["versions"]
    out.print(
        f"{machine['cpu']}, {machine['threads']} threads, torch {versions['torch']}; exact matches "
        f"reference in float64 within {report['correctness']['float64_relative_error']:.0e}",
        highlight=False,
    )
    rows = []
    for case in report["cases"]:
        scale, unit = (1e3, "ms") if case["unit"] == "seconds" else (2**-20, "MiB")
        values = [f"{case[impl]['median'] * scale:,.0f} {unit}" for impl in IMPLS]
        rows.append((case["name"], *values, f"{case['ratio']:.1f}x"))
    title = (
        "quick check, not a benchmark" if report["quick"] else "128 pairs with SNLI lengths, 300D"
    )
    print_table(out, title, ("case", *IMPLS, "ratio"), rows)
    print_growth(out, report["growth"])
