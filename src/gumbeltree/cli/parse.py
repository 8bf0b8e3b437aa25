"""The command `parse`: print the tree of each sentence."""

import itertools
import json
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from gumbeltree.atomic import replace_file
from gumbeltree.cli import streams
from gumbeltree.cli.app import app

if TYPE_CHECKING:
    from gumbeltree.text.lines import Line
    from gumbeltree.tree import Tree

Parsed: TypeAlias = "list[tuple[Line, Tree]]"


class Format(StrEnum):
    """Output formats of `parse`."""

    brackets = "brackets"
    draw = "draw"
    json = "json"
    svg = "svg"


@app.command()
def parse(
    model: streams.Model,
    text: streams.Texts = None,
    input_file: streams.Input = None,
    form: Annotated[
        Format, typer.Option("--format", help="brackets, draw, json (one object per line) or svg.")
    ] = Format.brackets,
    draw: Annotated[bool, typer.Option("--draw", help="Short for --format draw.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="File for the trees; for the SVG images of several texts, a folder."
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
        raise ValueError(f"--draw and --format {form} exclude each other; pass one of them")
    form = Format.draw if draw else form
    folder = out if form == Format.svg and out is not None and out.suffix != ".svg" else None
    if folder is None:
        streams.check_out(out)
    loaded = load(model, streams.pick_device(device))
    loaded.check_builds_trees(model)
    counts, report = TextCounts(), Report()
    lines = streams.take_texts(text, input_file, report, False, skip_bad)
    if form == Format.svg and folder is None:
        lines = _single(lines)

    def parsed() -> Iterator[Parsed]:
        with streams.progress(quiet, streams.to_terminal(out)) as advance:
            for chunk in lines:
                texts = [line.texts[0] for line in chunk]
                trees = loaded.parse_many(
                    texts, batch_size, pretokenized=pretokenized, counts=counts
                )
                yield list(zip(chunk, trees, strict=True))
                advance(len(chunk))

    if folder is not None:
        _write_images(folder, parsed())
    else:
        streams.write_blocks(out, _formatted(parsed(), form))
    streams.summarize(counts, report, quiet)


def _formatted(chunks: Iterable[Parsed], form: Format) -> Iterator[list[str]]:
    """Yield the lines to print for each chunk of trees."""
    first = True
    for chunk in chunks:
        lines = []
        for line, tree in chunk:
            if form == Format.draw:
                # an empty line between drawings
                lines.append(tree.draw() if first else f"\n{tree.draw()}")
                first = False
            elif form == Format.json:
                fields = {
                    "text": line.texts[0],
                    "words": tree.words,
                    "order": tree.order,
                    "spans": tree.spans,
                    "brackets": str(tree),
                }
                lines.append(json.dumps(fields, ensure_ascii=False))
            else:
                lines.append(tree.svg() if form == Format.svg else str(tree))
        yield lines


def _single(chunks: Iterable[list["Line"]]) -> Iterator[list["Line"]]:
    """Yield the only text, or raise: an SVG document holds one tree."""
    lines: list[Line] = []
    for chunk in chunks:
        lines += chunk
        if len(lines) > 1:
            raise ValueError(
                "one SVG document holds one tree, but there are several texts; pass --out FOLDER "
                "to write one file per text (0001.svg, ...)"
            )
    if lines:
        yield lines


def _write_images(folder: Path, chunks: Iterable[Parsed]) -> None:
    """Write one SVG file per tree, named after the number of its line."""
    # read the first chunk before creating the folder: an error in it leaves nothing behind
    for chunk in itertools.chain(chunks, [[]]):
        folder.mkdir(parents=True, exist_ok=True)
        for line, tree in chunk:
            _write_image(folder / f"{line.number:04d}.svg", tree)


def _write_image(file: Path, tree: "Tree") -> None:
    text = tree.svg() + "\n"
    replace_file(file, lambda temporary: temporary.write_text(text, encoding="utf-8"))
