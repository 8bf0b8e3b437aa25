"""The command `draw`: show the trees that models build over a sentence."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gumbeltree.cli import completion, streams
from gumbeltree.cli.app import app

if TYPE_CHECKING:
    from gumbeltree.analysis.trace import Trace


@app.command()
def draw(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL... TEXT",
            help="One or more models, as for `parse`, followed by the sentence in quotes.",
            autocompletion=completion.models,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="File for the figure, .svg or .png; by default, the trees are printed."
        ),
    ] = None,
    film: Annotated[
        Path | None,
        typer.Option("--film", help="File for an animation of the merges, .svg or .gif."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Sample the merges with this seed; by default, merge the best candidates."
        ),
    ] = None,
    temperature: Annotated[
        float,
        typer.Option(help="Temperature for sampling and for the probabilities; training uses 1."),
    ] = 1.0,
    tree: Annotated[
        str,
        typer.Option(
            help="Tree to follow instead of the model's own: left, right, balanced, or a "
            "bracketing of the words."
        ),
    ] = "model",
    pretokenized: streams.Pretokenized = False,
    device: streams.Device = "auto",
    threads: streams.Threads = None,
    plugin: streams.Plugin = None,
    runtime: streams.Runtime = "auto",
    quiet: streams.Quiet = False,
) -> None:
    """Draw the trees that models build for a sentence, with the order and leads of the merges.

    The lead of a merge is its score minus that of the runner-up. Near ties are marked.

    Examples (the third samples a tree):

    gumbeltree draw sst2-100d "i love this very much ."

    gumbeltree draw sst2-100d snli-100d "i love this very much ." --out trees.svg

    gumbeltree draw sst2-100d "i love this very much ." --seed 1 --film merges.gif
    """
    from gumbeltree.analysis.figure import MOVING, STILL, check_suffix, draw_trees
    from gumbeltree.analysis.film import draw_film
    from gumbeltree.analysis.trace import check_temperature, trace
    from gumbeltree.runtimes import load_for_use
    from gumbeltree.text.files import counted

    *models, text = arguments
    _check_arguments(models, text)
    if out is not None and film is not None and out.resolve() == film.resolve():
        raise ValueError(f"--out and --film both name {out}; pass two different files")
    for file, suffixes in ((out, STILL), (film, MOVING)):
        if file is not None:
            check_suffix(file, suffixes)
            streams.check_out(file)
    check_temperature(temperature)
    traces = []
    for name in models:
        try:
            model = load_for_use(name, device, runtime)
        except (OSError, ValueError) as error:
            if len(models) == 1:
                raise
            hint = f"only the last argument, {text!r}, is read as the text; put the text in quotes"
            raise type(error)(f"{str(error).rstrip('.')}; {hint}") from error
        try:
            found = trace(
                model,
                text,
                seed=seed,
                temperature=temperature,
                tree=tree,
                pretokenized=pretokenized,
            )
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        traces.append((name, found))
        if found.cut:
            words = counted(len(found.tree), "word")
            streams.say(f"{name}: text truncated to {words}", quiet)
    if out is None and film is None:
        # files and pipes get everything, whatever the width
        width = shutil.get_terminal_size().columns
        cut = sys.stdout is not None and sys.stdout.isatty()
        texts = ("\n".join(printed(name, found, width, cut)) for name, found in traces)
        streams.write_lines(None, streams.separated(texts))
    # render both before writing either, so that an error leaves no file behind
    figures = [(film, draw_film(traces))] if film is not None else []
    figures += [(out, draw_trees(traces))] if out is not None else []
    for file, figure in figures:
        figure.save(file)
        streams.say(f"{file}: {file.stat().st_size:,} bytes", quiet)


def printed(name: str, trace: "Trace", width: int, cut: bool) -> Iterator[str]:
    """Yield the lines to print: the model and the class, the drawing, the merges with leads.

    Args:
        name: The name of the model.
        trace: What to print.
        width: The number of columns.
        cut: Whether to shorten what is wider.
    """
    from gumbeltree.analysis.figure import heading, runner_up
    from gumbeltree.analysis.trace import NEAR_TIE
    from gumbeltree.drawing import clean, whole_width
    from gumbeltree.picture import clip

    tree = trace.tree
    yield heading(name, trace)
    yield ""
    ties = [step for step, layer in enumerate(trace.layers) if layer.near_tie]
    yield tree.draw(width if cut else max(width, whole_width(tree)), ties)
    if trace.layers:
        yield ""
        yield "merge    score     lead  words" if trace.scored else "merge  words"
    for step, (node, layer) in enumerate(zip(trace.nodes[len(tree) :], trace.layers, strict=True)):
        start, end = node.span
        phrases = [clean(" ".join(tree.words[start:end]))]
        mark = ""
        if layer.lead is not None and (layer.near_tie or layer.lead < 0):
            mark = "  ≈ " if layer.near_tie else "  against "
            phrases.append(clean(runner_up(trace, step)))
        if cut:
            room = max(40, width - 26) - len(mark)
            # the shorter one gets what it needs, up to half
            shorter = min(room // 2, *map(len, phrases)) if mark else 0
            phrases = [clip(phrase, room - shorter) for phrase in phrases]
        scores = ""
        if trace.scored:
            # as many digits as in the figures
            lead = "" if layer.lead is None else f"{layer.lead:z.2f}"
            scores = f"{node.score:z7.2f}  {lead:>7}  "
        yield f"{step + 1:5}  {scores}{mark.join(phrases)}"
    leads = [layer.lead for layer in trace.layers if layer.lead is not None]
    if leads:
        yield f"lead: score minus that of the runner-up; ≈ near tie, less than {NEAR_TIE} apart"
    if min(leads, default=0) < 0:
        yield "negative lead: against the scores, because the runner-up has the higher one"
    if any(trace.unknown):
        unknown = (w for w, lacking in zip(tree.words, trace.unknown, strict=True) if lacking)
        yield f"unknown to the model: {clean(' '.join(unknown))}"


def _check_arguments(models: list[str], text: str) -> None:
    """Raise if the arguments are not models followed by a text."""
    from gumbeltree.packaged import packaged_names

    if not models:
        raise ValueError(
            f"{text!r} is the only argument; pass a model and a text: gumbeltree draw MODEL "
            '"the text in quotes"'
        )
    if not text.strip():
        raise ValueError("the last argument must be the text, but it is empty")
    # a one-word text may also be the name of a folder
    if text in packaged_names() or ("/" in text and os.path.exists(text)):
        raise ValueError(
            f"the last argument must be the text, but {text} is a model or path; add the sentence "
            "in quotes"
        )
