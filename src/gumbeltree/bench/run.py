"""Run `gumbeltree bench`: measure, print tables, write JSON and plot the growth."""

import json
from pathlib import Path

import torch
from rich.console import Console

from gumbeltree.bench import cpu, cuda
from gumbeltree.bench.report import draw_growth, environment
from gumbeltree.plots import check_picture


def run(
    device: str,
    json_file: Path | None,
    plot: Path | None,
    quick: bool,
    out: Console,
    progress: Console,
) -> None:
    """Run all measurements and report the results."""
    if device not in ("cpu", "cuda"):
        raise ValueError(f"`--device` must be cpu or cuda, got {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("this machine has no CUDA device; pass --device cpu")
    if plot is not None:
        check_picture(plot)
    for path in (plot, json_file):
        if path is not None and path.is_dir():
            raise IsADirectoryError(f"{path} is a folder; pass the name of a file in it")
    bench = cuda if device == "cuda" else cpu
    report = {**environment(), "quick": quick}
    name = "CPU"
    if device == "cuda":
        name = report["machine"]["gpu"] = torch.cuda.get_device_name()
    with progress.status("starting") as status:
        report |= bench.measure(quick, status)
    bench.show(report, out)
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if plot is not None:
        draw_growth(report["growth"], plot, name)
