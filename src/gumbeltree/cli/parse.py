"""The command `parse`: print the tree of each sentence."""

import itertools
import json
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gumbeltree.cli import streams
from gumbeltree.cli.app import app

if TYPE_CHECKING:
    from gumbeltree.text.lines import Line
    from gumbeltree.tree import Tree

Format = StrEnum("Format", ["brackets", "draw", "json", "svg"])


@app.command()
def parse(
    model: streams.Model,
    text: streams.Texts = None,
    input_file: streams.Input = None,
    text_column: streams.TextColumn = None,
    form: Annotated[
        Format,
        typer.Option(
            "--format", help="brackets, draw (text drawing), json (one object per line) or svg."
        ),
    ] = Format.brackets,
    draw: Annotated[bool, typer.Option("--draw", help="Short for --format draw.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="File for the trees, or folder for the SVG images of several texts."
        ),
    ] = None,
    pretokenized: streams.Pretokenized = False,
    batch_size: streams.BatchSize = 256,
    device: streams.Device = "auto",
    threads: streams.Threads = None,
    plugin: streams.Plugin = None,
    runtime: streams.Runtime = "auto",
    skip_bad: streams.SkipBad = False,
    quiet: streams.Quiet = False,
) -> None:
    """Print the tree of each sentence.

    Examples (after running `gumbeltree demo`):

    gumbeltree parse demo/model --draw "i love this very much ."

    gumbeltree parse demo/model --input texts.txt --format json --out trees.jsonl

    gumbeltree parse demo/model --format svg --out tree.svg "i love this very much ."
    """
    from gumbeltree.runtimes import load_for_use

    if draw and form not in (Format.brackets, Format.draw):
        raise ValueError(f"--draw and --format {form} cannot be combined; pass only one of them")
    form = Format.draw if draw else form
    folder = out if form == Format.svg and out is not None and out.suffix != ".svg" else None
    if folder is None:
        streams.check_out(out)
    loaded = load_for_use(model, device, runtime)
    loaded.check_builds_trees(model)
    columns = streams.columns_of(loaded, text_column)
    with streams.open_texts(
        text, input_file, out, pretokenized, batch_size, skip_bad, quiet, columns
    ) as source:
        chunks = source.chunks()
        if form == Format.svg and folder is None:
            chunks = _single(chunks)

        def parsed() -> Iterator[tuple["Line", "Tree"]]:
            for chunk in chunks:
                trees = loaded.parse_many(streams.singles(chunk), **source.options)
                yield from zip(chunk, trees, strict=True)

        if folder is not None:
            _write_images(folder, parsed())
        elif form == Format.draw:
            streams.write_lines(out, streams.separated(tree.draw() for _, tree in parsed()))
        else:
            streams.write_lines(out, (_line(line, tree, form) for line, tree in parsed()))


def _line(line: "Line", tree: "Tree", form: Format) -> str:
    if form == Format.json:
        fields = {
            "text": line.texts[0],
            "words": tree.words,
            "order": tree.order,
            "spans": tree.spans,
            "brackets": str(tree),
        }
        return json.dumps(fields, ensure_ascii=False)
    return tree.svg() if form == Format.svg else str(tree)


def _single(chunks: Iterator[list["Line"]]) -> Iterator[list["Line"]]:
    """Yield the only text; raise if there are several."""
    lines = list(itertools.islice(itertools.chain.from_iterable(chunks), 2))
    if len(lines) > 1:
        raise ValueError(
            "one SVG document holds one tree, but there are several texts; pass --out FOLDER to "
            "write one file per text (0001.svg, ...)"
        )
    yield lines


def _write_images(folder: Path, parsed: Iterator[tuple["Line", "Tree"]]) -> None:
    """Write one SVG file per tree, named after the number of its line."""
    # parse before creating the folder: an error in the first chunk leaves nothing behind
    first = list(itertools.islice(parsed, 1))
    folder.mkdir(parents=True, exist_ok=True)
    for line, tree in itertools.chain(first, parsed):
        streams.write_lines(folder / f"{line.number:04d}.svg", [tree.svg()])
