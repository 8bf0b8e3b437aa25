"""Write the figures of `gumbeltree bench` and `peer_speed.py` into the documentation.

    gumbeltree bench --device cpu --json benchmarks/results/cpu.json
    gumbeltree bench --device cuda --json benchmarks/results/cuda.json
    python benchmarks/peer_speed.py benchmarks/results/peers_cpu.json
    python benchmarks/peer_speed.py benchmarks/results/peers_cuda.json --device cuda
    python benchmarks/adadelta.py benchmarks/results/adadelta_cpu.json
    python benchmarks/adadelta.py benchmarks/results/adadelta_cuda.json --device cuda
    python benchmarks/write_speed.py

The text between `<!-- cuda -->` and `<!-- end of cuda -->` of README.md and between
`<!-- results: NAME -->` and `<!-- end -->` of docs/benchmarks.md and docs/peers.md is replaced.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from write_results import fill, table

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
MARKS = re.compile(r"(?<=<!-- cuda -->\n).*?(?=<!-- end of cuda -->)", re.DOTALL)
NAMES = {"tf32": "TF32", "32": "IEEE", "ieee": "IEEE", "bf16": "bfloat16"}


class Beside(NamedTuple):
    """The authors' code and `fused` in TF32, measured in turn on one H200."""

    label: str
    theirs: float
    ours: float
    their_bytes: float = 0.0


AUTHORS = {
    "training, random batches": Beside(
        "training step, random batches", 0.206, 0.00211, 3.83 * 2**30
    ),
    "inference, random batches": Beside("inference, random batches", 0.054, 0.00073),
    "training, random batches, 600D": Beside(
        "training step, 600D, random batches", 0.198, 0.00396, 7.59 * 2**30
    ),
}
"""By case of the benchmark, entered by hand; docs/benchmarks.md describes the measurement."""


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds < 0.01 else f"{seconds * 1e3:,.0f} ms"


def gibibytes(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"


def summary(report: dict[str, Any]) -> str:
    """Return the table of the README: the authors' code beside ours."""
    cases = {(x["name"], x["impl"], x["precision"]): x for x in report["cases"]}
    times, memory = [], []
    for name, x in AUTHORS.items():
        ratio = f"{x.theirs / x.ours:.0f}x"
        times.append((x.label, milliseconds(x.theirs), milliseconds(x.ours), ratio))
        if x.their_bytes:
            ours = cases[name, "fused", "tf32"]["bytes"]
            label = "memory, " + name.replace(", random batches", "")
            less = f"{x.their_bytes / ours:.1f}x less"
            memory.append((label, gibibytes(x.their_bytes), gibibytes(ours), less))
    return table(("", "authors' code", "ours, TF32", ""), [*times, *memory])


def growth_table(growth: dict[str, Any]) -> str:
    """Return time and memory by sentence length, with the exponents of the last implementation."""
    rows = [
        (
            *(f"{x['words']:,}", f"`{x['impl']}`"),
            *(milliseconds(x[mode]["median"]) for mode in ("inference", "training")),
            f"{x['bytes'] / 2**20:,.1f} MiB",
        )
        for x in growth["rows"]
    ]
    powers = [f"T^{power:.2f}" for power in growth["exponents"].values()]
    header = ("words T", "implementation", "inference", "training", "memory")
    return table(header, [*rows, ("growth", rows[-1][1], *powers)])


def cpu_tables(report: dict[str, Any]) -> dict[str, str]:
    """Return the CPU's tables of docs/benchmarks.md by name."""
    impls, rows = ("reference", "exact"), []
    for x in report["cases"]:
        scale, unit = (1e3, "ms") if x["unit"] == "seconds" else (2**-20, "MiB")
        values = [f"{x[impl]['median'] * scale:,.0f} {unit}" for impl in impls]
        label = x["name"].removeprefix("snli-").replace("-memory", ", memory")
        rows.append((label, *values, f"{x['ratio']:.1f}x"))
    machine, versions = report["machine"], report["versions"]
    return {
        "cpu machine": table(
            ("CPU", "threads", "torch", "Python"),
            [
                (
                    *(machine["cpu"], str(machine["threads"])),
                    *(versions["torch"].split("+")[0], versions["python"]),
                )
            ],
        ),
        "cpu cases": table(("128 pairs, 300D", *(f"`{impl}`" for impl in impls), "ratio"), rows),
        "cpu growth": growth_table(report["growth"]),
    }


def cuda_tables(report: dict[str, Any]) -> dict[str, str]:
    """Return the GPU's tables of docs/benchmarks.md by name."""
    correctness = [
        (NAMES[precision], f"{x['relative_error']:.0e}", f"{100 * x['same_merges']:.2f} %")
        for precision, x in report["correctness"].items()
    ]
    cases = [
        (
            *(x["name"], f"`{x['impl']}`", NAMES[x["precision"]], milliseconds(x["median"])),
            f"{milliseconds(x['p20'])} to {milliseconds(x['p80'])}",
            gibibytes(x["bytes"]),
        )
        for x in report["cases"]
    ]
    machine, versions, bulk = report["machine"], report["versions"], report["bulk"]
    return {
        "machine": table(
            ("GPU", "torch", "Python"),
            [(machine["gpu"], versions["torch"].split("+")[0], versions["python"])],
        ),
        "correctness": table(("products", "values differ by", "merges equal"), correctness),
        "cases": table(
            ("case", "implementation", "products", "time", "20 % to 80 %", "memory"), cases
        ),
        "growth": growth_table(report["growth"]),
        "bulk": table(
            ("sentences", "vectors", "seconds", "sentences per second"),
            [
                (
                    *(f"{bulk['sentences']:,}", f"{bulk['width']}D"),
                    *(f"{bulk['seconds']:.1f}", f"{bulk['rate']:,.0f}"),
                )
            ],
        ),
    }


def peer_table(cpu: dict[str, Any], cuda: dict[str, Any]) -> str:
    """Return the steps of all systems, those of a base by their ratio on the GPU."""
    on_gpu = {row["recipe"]: row for row in cuda["rows"]}
    bases = list(dict.fromkeys(row["base"] for row in cpu["rows"]))

    def place(row: dict[str, Any]) -> tuple[float, ...]:
        gpu = on_gpu.get(row["recipe"])
        # the base comes first, systems that were not timed on the GPU last
        ratio = -1.0 if row["recipe"] == row["base"] else gpu["ratio"] if gpu else float("inf")
        return bases.index(row["base"]), ratio, row["ratio"]

    def cells(row: dict[str, Any] | None) -> tuple[str, str]:
        return (milliseconds(row["seconds"]), f"{row['ratio']:.2f}") if row else ("", "")

    def without_kernels(row: dict[str, Any] | None) -> str:
        if not row or "exact" not in row:
            return ""
        return f"{milliseconds(row['exact']['seconds'])} ({row['exact']['ratio']:.1f}x)"

    return table(
        ("recipe", "parameters", "CPU step", "ratio", "GPU step", "ratio", "without kernels"),
        [
            (
                *(f"`{row['recipe']}`", f"{row['parameters']:,}"),
                *(*cells(row), *cells(on_gpu.get(row["recipe"]))),
                without_kernels(on_gpu.get(row["recipe"])),
            )
            for row in sorted(cpu["rows"], key=place)
        ],
    )


def adadelta_table(names: Sequence[str]) -> str:
    """Return the times of both Adadeltas, of all devices with a record."""
    found = [RESULTS / f"{name}.json" for name in names]
    reports = [json.loads(x.read_text(encoding="utf-8")) for x in found if x.is_file()]
    rows = [
        (
            *(report["machine"].get("gpu", f"{report['machine']['threads']} CPU cores"),),
            *(f"{x['words']:,}", *(milliseconds(x["seconds"][y]) for y in ("torch", "ours"))),
            f"{x['ratio']:.1f}x",
        )
        for report in reports
        for x in report["rows"]
    ]
    return table(("", "word vectors", "torch's Adadelta", "by row", "ratio"), rows)


def pages() -> dict[Path, str]:
    """Return the pages with their figures replaced."""
    cpu, cuda, *of_peers = (
        json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("cpu", "cuda", "peers_cpu", "peers_cuda")
    )
    readme, page, peers = (ROOT / x for x in ("README.md", "docs/benchmarks.md", "docs/peers.md"))
    text = f"\n{summary(cuda)}\n\n"
    tables = cpu_tables(cpu) | cuda_tables(cuda)
    tables["adadelta"] = adadelta_table(("adadelta_cpu", "adadelta_cuda"))
    return {
        readme: MARKS.sub(lambda _: text, readme.read_text(encoding="utf-8")),
        page: fill(page.read_text(encoding="utf-8"), tables),
        peers: fill(peers.read_text(encoding="utf-8"), {"speed": peer_table(*of_peers)}),
    }


def main() -> None:
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
