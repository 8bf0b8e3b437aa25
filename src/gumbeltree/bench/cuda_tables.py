"""Tables of what `bench/cuda.py` measured."""

from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table


class Beside(NamedTuple):
    """The authors' code and ours, measured in turn in one run on one H200, with SNLI's lengths.

    Attributes:
        theirs: seconds of the authors' code.
        ours: seconds of `fused` with TF32 products.
        their_bytes: peak memory of the authors' code; 0 if not measured.
    """

    theirs: float
    ours: float
    their_bytes: float = 0.0


AUTHORS = {
    "training, random batches": Beside(0.206, 0.00211, 3.83 * 2**30),
    "inference, random batches": Beside(0.054, 0.00073),
    "training, random batches, 600D": Beside(0.198, 0.00396, 7.59 * 2**30),
}
"""By case. The authors' training step was timed before and after ours: 206 and 211 ms. Its time
depends on the host, which launches its many kernels: another one took 233, 64 and 240 ms."""


def show(report: dict[str, Any], out: Console) -> None:
    """Print tables."""
    machine, versions = report["machine"], report["versions"]
    out.print(f"{machine['gpu']}, torch {versions['torch']}", highlight=False)
    for precision, found in report["correctness"].items():
        out.print(
            f"  {precision}: fused against exact: values differ by {found['relative_error']:.0e}, "
            f"{100 * found['same_merges']:.2f} % of merges equal",
            highlight=False,
        )
    table = Table(title="128 pairs of SNLI lengths" if not report["quick"] else "quick, no figures")
    for column in (
        "case",
        "implementation",
        "precision",
        "time",
        "authors' code",
        "ratio",
        "memory",
    ):
        table.add_column(column, justify="left" if column == "case" else "right")
    comparable = "H200" in machine["gpu"] and not report["quick"]
    for case in report["cases"]:
        authors = AUTHORS.get(case["name"]) if comparable else None
        ratio = "" if authors is None else f"{authors.theirs / case['median']:.1f}x"
        theirs = "" if authors is None else f"{authors.theirs * 1e3:.0f} ms"
        values = [case["name"], case["impl"], case["precision"], f"{case['median'] * 1e3:.2f} ms"]
        table.add_row(*values, theirs, ratio, f"{case['bytes'] / 2**20:,.0f} MiB")
    out.print(table)
    for line in report["roofline"]:
        share = line["share_of_tf32_peak"]
        out.print(
            f"{line['name']}: {line['flops'] / 1e9:.1f} GFLOP in {line['seconds'] * 1e3:.2f} ms, "
            f"{line['flops_per_second'] / 1e12:.1f} TFLOP/s"
            + (f", {100 * share:.1f} % of the card's TF32 peak" if share else ""),
            highlight=False,
        )
        share = line["share_of_memory_peak"]
        out.print(
            f"  {line['bytes'] / 1e9:.2f} GB moved, {line['bytes_per_second'] / 1e12:.2f} TB/s"
            + (f", {100 * share:.0f} % of the card's memory peak" if share else ""),
            highlight=False,
        )
        for group, seconds in sorted(line["kernel_seconds"].items(), key=lambda x: -x[1]):
            out.print(f"  {seconds * 1e6:7.0f} us  {group}", highlight=False)
    table = Table(title=f"one sentence, {report['growth']['width']}D")
    for column in ("words", "inference", "training", "memory"):
        table.add_column(column, justify="right")
    for row in report["growth"]["rows"]:
        values = [f"{row[mode]['median'] * 1e3:,.2f} ms" for mode in ("inference", "training")]
        table.add_row(str(row["words"]), *values, f"{row['bytes'] / 2**20:,.1f} MiB")
    out.print(table)
    bulk = report["bulk"]
    out.print(
        f"{bulk['sentences']:,} sentences from strings to {bulk['width']}D vectors: "
        f"{bulk['seconds']:.1f} s, {bulk['rate']:,.0f} a second "
        f"(tokenising alone {bulk['tokenizing_alone_seconds']:.1f} s)",
        highlight=False,
    )
