"""Write the figures of a CUDA device into README.md and docs/benchmarks.md.

`python benchmarks/write_speed.py` reads benchmarks/results/cuda.json, which `gumbeltree bench
--device cuda --json benchmarks/results/cuda.json --plot docs/images/growth-cuda.png` writes, and
replaces what stands between the lines `<!-- cuda -->` and `<!-- end of cuda -->` of both pages.
"""

import json
import re
from pathlib import Path
from typing import Any

from gumbeltree.bench.cuda_tables import AUTHORS

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "cuda.json"
MARKS = re.compile(r"(?<=<!-- cuda -->\n).*?(?=<!-- end of cuda -->)", re.DOTALL)
NAMES = {"tf32": "TF32", "32": "IEEE", "bf16": "bfloat16"}


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds < 0.01 else f"{seconds * 1e3:,.0f} ms"


def gibibytes(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"


def find(report: dict[str, Any], name: str, impl: str, precision: str) -> dict[str, Any]:
    (case,) = (
        case
        for case in report["cases"]
        if (case["name"], case["impl"], case["precision"]) == (name, impl, precision)
    )
    return case


def table(rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def where(report: dict[str, Any]) -> str:
    machine, versions = report["machine"], report["versions"]
    return f"{machine['gpu']}, torch {versions['torch'].split('+')[0]}"


def summary(report: dict[str, Any]) -> str:
    """Return what the README says."""
    rows = [["", "authors' code", "ours, TF32", ""]]
    for label, name in (
        ("training step, random batches", "training, random batches"),
        ("inference, random batches", "inference, random batches"),
        ("training step, 600D, random batches", "training, random batches, 600D"),
    ):
        x = AUTHORS[name]
        ratio = f"{x.theirs / x.ours:.0f}x"
        rows.append([label, milliseconds(x.theirs), milliseconds(x.ours), ratio])
    for label, name in (
        ("memory, training", "training, random batches"),
        ("memory, training, 600D", "training, random batches, 600D"),
    ):
        theirs = AUTHORS[name].their_bytes
        ours = find(report, name, "fused", "tf32")["bytes"]
        rows.append([label, gibibytes(theirs), gibibytes(ours), f"{theirs / ours:.1f}x less"])
    return table(rows)


def details(report: dict[str, Any]) -> str:
    """Return what the page on speed says."""
    correct = [["products", "values differ by", "merges equal"]]
    for precision, found in report["correctness"].items():
        name = {"ieee": "IEEE", "tf32": "TF32"}.get(precision, "bfloat16")
        error, same = found["relative_error"], 100 * found["same_merges"]
        correct.append([name, f"{error:.0e}", f"{same:.2f} %"])
    cases = [["case", "implementation", "products", "time", "20 % to 80 %", "memory"]]
    for case in report["cases"]:
        cases.append(
            [
                case["name"],
                f"`{case['impl']}`",
                NAMES[case["precision"]],
                milliseconds(case["median"]),
                f"{milliseconds(case['p20'])} to {milliseconds(case['p80'])}",
                gibibytes(case["bytes"]),
            ]
        )
    growth = [["words", "inference", "training", "memory"]]
    for row in report["growth"]["rows"]:
        times = [milliseconds(row[mode]["median"]) for mode in ("inference", "training")]
        growth.append([f"{row['words']:,}", *times, f"{row['bytes'] / 2**20:,.1f} MiB"])
    exponents, bulk = report["growth"]["exponents"], report["bulk"]
    powers = ", ".join(f"T^{power:.2f} ({name})" for name, power in exponents.items())
    parts = [
        f"Last recorded run: {where(report)}, Python {report['versions']['python']}.",
        "`fused` against `exact` on the same card, merges as they fall and values in one tree:",
        table(correct),
        "Time is wall time of a whole step, the mean over all batches of a pass, median of passes; "
        "memory is\nall that torch holds, graph pools and caches included:",
        table(cases),
        f"One sentence, {report['growth']['width']}D, the encoder alone, TF32: {powers}.",
        table(growth),
        "![growth with sentence length on a card](images/growth-cuda.png)",
        f"From strings to {bulk['width']}D vectors it encodes {bulk['rate']:,.0f} SNLI-like "
        f"sentences per second ({bulk['sentences']:,}\nin {bulk['seconds']:.1f} s, tokenisation "
        "included).",
        "Where a training step goes (TF32). Kernels of two streams run at a time, and those of the "
        "loops are\nstarted while the one before still runs, which they wait for: a moment counts "
        "for the kernel that began\nfirst of those that run. What is left of the step's time, "
        "nothing runs.",
    ]
    for line in report["roofline"]:
        groups = sorted(line["kernel_seconds"].items(), key=lambda x: -x[1])
        share, memory = line["share_of_tf32_peak"], line["share_of_memory_peak"]
        parts += [
            f"{line['name'].capitalize()}: {milliseconds(line['seconds'])}, "
            f"{line['flops'] / 1e9:.0f} GFLOP in products, "
            f"{line['flops_per_second'] / 1e12:.0f} TFLOP/s"
            + (f" ({100 * share:.0f} % of the card's TF32 peak)" if share else "")
            + f"; {line['bytes'] / 1e9:.1f} GB read and written by kernels, "
            f"{line['bytes_per_second'] / 1e12:.1f} TB/s"
            + (
                f" ({100 * memory:.0f} % of its memory's; much of it from the L2 cache)."
                if memory
                else "."
            ),
            table([["kernels", "µs a step"], *([g, f"{1e6 * s:,.0f}"] for g, s in groups)]),
        ]
    return "\n\n".join(parts)


def written(text: str, content: str) -> str:
    """Return a page with what stands between the marks replaced."""
    if len(MARKS.findall(text)) != 1:
        raise ValueError("expected one stretch between <!-- cuda --> and <!-- end of cuda -->")
    return MARKS.sub(lambda _: f"\n{content}\n\n", text)


def main() -> None:
    report = json.loads(RESULTS.read_text(encoding="utf-8"))
    for page, content in (("README.md", summary(report)), ("docs/benchmarks.md", details(report))):
        path = ROOT / page
        path.write_text(written(path.read_text("utf-8"), content), encoding="utf-8")


if __name__ == "__main__":
    main()
