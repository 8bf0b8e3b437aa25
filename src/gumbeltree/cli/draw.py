"""The command that draws what models do with a sentence."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gumbeltree.cli import streams
from gumbeltree.cli.app import app

if TYPE_CHECKING:
    from gumbeltree.analysis.trace import Trace


@app.command()
def draw(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL... TEXT",
            help="One model or more, as in `gumbeltree parse`; last the sentence, in quotes.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="File for the drawing, .svg or .png; else it is printed."),
    ] = None,
    film: Annotated[
        Path | None,
        typer.Option("--film", help="File for the merges one by one, .svg, .gif or .json."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Sample the merges with this seed; else the best are taken.")
    ] = None,
    temperature: Annotated[
        float, typer.Option(help="Of sampling and of the probabilities; 1 is as in training.")
    ] = 1.0,
    pretokenized: streams.Pretokenized = False,
    device: streams.Device = "auto",
    quiet: streams.Quiet = False,
) -> None:
    """Draw the trees that models build over a sentence, with the order and scores of the merges.

    Examples, the third for one of many possible trees:

    gumbeltree draw sst2-100d "i love this very much ."

    gumbeltree draw sst2-100d snli-100d "i love this very much ." --out trees.svg

    gumbeltree draw sst2-100d "i love this very much ." --seed 1 --film merges.gif
    """
    *models, text = arguments
    _check_arguments(models, text)

    from gumbeltree.analysis import figure
    from gumbeltree.analysis import film as films

    if out is not None and film is not None and out.resolve() == film.resolve():
        raise ValueError(f"--out and --film must be two files, got {out} twice; name another")
    for path, suffixes in ((out, figure.SUFFIXES), (film, films.SUFFIXES)):
        if path is not None:
            figure.check_suffix(path, suffixes)
            streams.check_out(path)

    from gumbeltree.analysis.trace import check_temperature, trace
    from gumbeltree.model import load

    check_temperature(temperature)
    place = streams.pick_device(device)
    traces = []
    for name in models:
        try:
            model = load(name, place)
        except (OSError, ValueError) as error:
            if len(models) == 1:
                raise
            hint = f"only the last argument, {text!r}, is the text; put all of it in quotes"
            raise type(error)(f"{str(error).rstrip('.')}; {hint}") from error
        try:
            found = trace(
                model, text, seed=seed, temperature=temperature, pretokenized=pretokenized
            )
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        traces.append((name, found))
        if found.cut and not quiet:
            count = len(found.tree)
            words = "1 word is" if count == 1 else f"{count:,} words are"
            typer.echo(f"{name}: the first {words} read, the rest of the text is not", err=True)
    shown = None
    if film is not None:
        # refused before a file is written
        shown = films.draw_film(traces)
        shown.check(film)
    if out is not None:
        figure.draw_trees(traces).save(out)
        _say(out, quiet)
    if film is not None and shown is not None:
        with streams.progress(quiet, False, "pictures", shown.pictures) as advance:
            shown.save(film, advance)
        _say(film, quiet)
    if out is None and film is None:
        width = shutil.get_terminal_size().columns
        blocks = []
        for i, (name, found) in enumerate(traces):
            blocks.append([*([""] if i else []), *printed(name, found, width)])
        streams.write_blocks(None, blocks)


def printed(name: str, trace: "Trace", width: int) -> Iterator[str]:
    """Give the lines for a terminal: model and class, drawing, merges with their scores."""
    from gumbeltree.analysis.figure.layout import remarks
    from gumbeltree.analysis.figure.marks import clean, joined
    from gumbeltree.tree import Tree

    # what would steer the terminal is not printed
    tree = Tree(map(clean, trace.tree.words), trace.tree.order)
    unknown = [word for word, lacking in zip(tree.words, trace.unknown, strict=True) if lacking]
    yield joined([clean(name), remarks(trace)])
    yield ""
    yield tree.draw(width)
    if trace.layers:
        yield ""
        yield "merge    score  probability  words" if trace.scored else "merge  words"
    for step, node in enumerate(trace.nodes[len(tree) :], 1):
        start, end = node.span
        words = " ".join(tree.words[start:end])
        room = max(20, width - 30)
        words = words if len(words) <= room else words[: room - 1] + "\u2026"
        scores = f"{node.score:7.3f}  {node.probability:11.3f}  " if trace.scored else ""
        yield f"{step:5}  {scores}{words}"
    if unknown:
        yield f"unknown to the model: {' '.join(unknown)}"


def _check_arguments(models: list[str], text: str) -> None:
    """Refuse what cannot be models and a text."""
    if not models:
        raise ValueError(
            f"expected a model and a text, got only {text!r}; write gumbeltree draw MODEL "
            '"the text in quotes"'
        )
    if not text.strip():
        raise ValueError("expected a text as the last argument, got an empty one; name a sentence")
    from gumbeltree.packaged import packaged_names

    # none of it is there, too, where a text is longer than a path may be
    places = [os.path.join(text, inner, "config.json") for inner in ("", "model")]
    model = text in packaged_names() or any(map(os.path.isfile, places))
    # a text may be the name of a folder by chance, not a path to one
    path = os.path.exists(text) and ("/" in text or text.endswith((".safetensors", ".npz")))
    if model or path:
        kind = "model" if model else "path"
        raise ValueError(
            f"expected a text as the last argument, got the {kind} {text}; add a sentence, in "
            "quotes"
        )


def _say(path: Path, quiet: bool) -> None:
    if not quiet:
        typer.echo(f"{path}: {path.stat().st_size:,} bytes", err=True)
