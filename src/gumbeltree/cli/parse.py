"""The command `parse`: print the tree of each sentence."""

import itertools
import json
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gumbeltree.cli import streams
from gumbeltree.cli.app import app

if TYPE_CHECKING:
    from gumbeltree.text.lines import Line
    from gumbeltree.text_model import ProbableTree
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
    beams: Annotated[
        int | None,
        typer.Option(
            "--beams",
            metavar="K",
            help="Print the K most probable trees of each sentence, K from 1 to 100, with their "
            "probabilities.",
        ),
    ] = None,
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

    With `--beams`, one line per tree has its probability among the trees found, the log-probability
    of its merges, and its brackets, tab-separated; an empty line separates the sentences.

    Examples (after running `gumbeltree demo`):

    gumbeltree parse demo/model --draw "i love this very much ."

    gumbeltree parse demo/model --input texts.txt --format json --out trees.jsonl

    gumbeltree parse demo/model --format svg --out tree.svg "i love this very much ."

    gumbeltree parse demo/model --beams 5 "i love this very much ."
    """
    from gumbeltree.runtimes import load_for_use

    if draw and form not in (Format.brackets, Format.draw):
        raise ValueError(f"--draw and --format {form} cannot be combined; pass only one of them")
    form = Format.draw if draw else form
    if beams is not None and form == Format.svg:
        raise ValueError(
            "--beams and --format svg cannot be combined, since an SVG image shows one tree; use "
            "--format draw"
        )
    folder = out if form == Format.svg and out is not None and out.suffix != ".svg" else None
    if folder is None:
        streams.check_out(out)
    loaded = load_for_use(model, device, runtime)
    loaded.check_builds_trees(model)
    if beams is not None:
        loaded.check_has_beams(beams, model)
    inputs = (text, input_file, out, pretokenized, batch_size, skip_bad, quiet)
    with streams.open_texts(*inputs, loaded, text_column) as source:
        chunks = source.chunks()
        if beams is not None:
            found = (
                _beam_lines(line, best, form)
                for chunk in chunks
                for line, best in zip(
                    chunk,
                    loaded.best_trees(streams.singles(chunk), beams, **source.options),
                    strict=True,
                )
            )
            streams.write_lines(out, found if form == Format.json else streams.separated(found))
            return
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
        fields = {"text": line.texts[0], "words": tree.words, **_fields(tree)}
        return json.dumps(fields, ensure_ascii=False)
    return tree.svg() if form == Format.svg else str(tree)


def _beam_lines(line: "Line", best: "list[ProbableTree]", form: Format) -> str:
    """Return the most probable trees of a sentence, one after the other."""
    if form == Format.json:
        trees = [
            {"probability": share, "log_prob": log_prob, **_fields(tree)}
            for tree, share, log_prob in best
        ]
        fields = {"text": line.texts[0], "words": best[0].tree.words, "beams": trees}
        return json.dumps(fields, ensure_ascii=False)
    if form == Format.draw:
        return "\n".join(
            f"{share:.4f} (log-probability {log_prob:.4f})\n{tree.draw()}"
            for tree, share, log_prob in best
        )
    return "\n".join(f"{share:.4f}\t{log_prob:.4f}\t{tree}" for tree, share, log_prob in best)


def _fields(tree: "Tree") -> dict[str, Any]:
    return {"order": tree.order, "spans": tree.spans, "brackets": str(tree)}


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
