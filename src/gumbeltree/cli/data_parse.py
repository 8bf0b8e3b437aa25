"""The command `data parse`: add a model's trees to an SNLI file."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gumbeltree.cli import streams
from gumbeltree.cli.data_get import data as data_app

if TYPE_CHECKING:
    from gumbeltree.text.files import Report
    from gumbeltree.text_model import TextModel

SENTENCES = ("sentence1", "sentence2")
CHUNK = 1000
"""Number of pairs to parse at a time."""


@data_app.command()
def parse(
    model: streams.Model,
    file: Annotated[Path, typer.Argument(help="SNLI file in jsonl, plain or gzipped.")],
    out: Annotated[Path, typer.Option(help="File to write, jsonl.")],
    device: streams.Device = "auto",
    threads: streams.Threads = None,
    runtime: streams.Runtime = "auto",
    skip_bad: streams.SkipBad = False,
) -> None:
    """Write a copy of an SNLI file with the trees of a model as its binary parses.

    The copy replaces any parses of the file. Encoders that need gold trees can be trained with it.

    For example:

      gumbeltree data parse runs/parser snli_1.0_train.jsonl --out silver/snli_1.0_train.jsonl
    """
    from gumbeltree.runtimes import load_for_use
    from gumbeltree.text.files import Report

    streams.check_out(out)
    if out.suffix == ".gz":
        raise ValueError(f"data parse writes plain text, not {out}; omit .gz")
    loaded = load_for_use(model, device, runtime)
    loaded.check_builds_trees(model)
    report = Report()
    streams.write_lines(out, _parsed(loaded, file, report, skip_bad))
    typer.echo(f"{file}: {report}", err=True)


def _parsed(model: "TextModel", file: Path, report: "Report", skip_bad: bool) -> Iterator[str]:
    """Yield the lines of the copy."""
    from gumbeltree.tasks.checks import checked_object, checked_text
    from gumbeltree.text.files import BadLines, read_lines

    def pairs() -> Iterator[dict[str, Any]]:
        for number, line in read_lines(file, report, skip_bad):
            with BadLines(file, number, report, skip_bad):
                fields = checked_object(line)
                for name in SENTENCES:
                    checked_text(fields.get(name), name)
                yield fields

    source = pairs()
    while chunk := list(itertools.islice(source, CHUNK)):
        texts = list(dict.fromkeys(fields[name] for fields in chunk for name in SENTENCES))
        trees = dict(zip(texts, model.parse_many(texts), strict=True))
        for fields in chunk:
            parses = {f"{name}_binary_parse": str(trees[fields[name]]) for name in SENTENCES}
            yield json.dumps({**fields, **parses}, ensure_ascii=False)
        report.examples += len(chunk)
    if not report.examples:
        raise ValueError(f"{file} contains no usable pairs: {report}")
