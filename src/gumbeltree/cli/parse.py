"""The command `parse`: the tree of each sentence."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from gumbeltree.cli import streams, tree_formats
from gumbeltree.cli.app import app
from gumbeltree.cli.tree_formats import Format


@app.command()
def parse(
    model: streams.Model,
    text: streams.Texts = None,
    input_file: streams.Input = None,
    form: Annotated[
        Format, typer.Option("--format", help="brackets, draw, json (one object a line) or svg.")
    ] = Format.brackets,
    draw: Annotated[bool, typer.Option("--draw", help="Short for --format draw.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="File for the trees; a folder for the SVG images of several texts."
        ),
    ] = None,
    pretokenized: streams.Pretokenized = False,
    batch_size: streams.BatchSize = 256,
    device: streams.Device = "auto",
    skip_bad: streams.SkipBad = False,
    quiet: streams.Quiet = False,
) -> None:
    """Print the tree of each sentence.

    Examples, after `gumbeltree demo`:

    gumbeltree parse demo/model --draw "i love this very much ."

    gumbeltree parse demo/model --input texts.txt --format json --out trees.jsonl

    gumbeltree parse demo/model --format svg --out tree.svg "i love this very much ."
    """
    from gumbeltree.model import load
    from gumbeltree.text.files import Report
    from gumbeltree.text.ids import TextCounts

    if draw and form not in (Format.brackets, Format.draw):
        raise ValueError(f"expected --draw or --format {form}, got both; leave one of them out")
    form = Format.draw if draw else form
    folder = out if form == Format.svg and out is not None and out.suffix != ".svg" else None
    if folder is None:
        streams.check_out(out)
    loaded = load(model, streams.pick_device(device))
    loaded.check_builds_trees(model)
    counts, report = TextCounts(), Report()
    lines = streams.take_texts(text, input_file, report, False, skip_bad)
    if form == Format.svg and folder is None:
        lines = tree_formats.only_one(lines)

    def parsed() -> Iterator[tree_formats.Parsed]:
        with streams.progress(quiet, streams.to_terminal(out)) as advance:
            for chunk in lines:
                found = loaded.parse_many(
                    [line.texts[0] for line in chunk],
                    batch_size,
                    pretokenized=pretokenized,
                    counts=counts,
                )
                yield list(zip(chunk, found, strict=True))
                advance(len(chunk))

    if folder is not None:
        tree_formats.write_images(folder, parsed())
    else:
        streams.write_blocks(out, tree_formats.written(parsed(), form))
    streams.summarize(counts, report, quiet)
