"""Commands that use a model: parse."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from gumbeltree.cli.app import app


@app.command()
def parse(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    text: Annotated[
        list[str] | None,
        typer.Argument(help="Sentences; from standard input, one a line, if none is given."),
    ] = None,
    draw: Annotated[bool, typer.Option("--draw", help="Draw the trees.")] = False,
) -> None:
    """Print the tree of each sentence, words separated by white space.

    Example: gumbeltree parse demo/model --draw "i love this very much ."
    """
    from gumbeltree.store import load

    loaded = load(model)
    lines = text or _read_lines()
    for number, tree in enumerate(loaded.parse_many(lines)):
        if draw and number:
            typer.echo()
        typer.echo(tree.draw() if draw else str(tree))


def _read_lines() -> list[str]:
    """Return the lines of standard input; name the line that is no sentence."""
    lines = []
    for number, raw in enumerate(getattr(sys.stdin, "buffer", sys.stdin), start=1):
        try:
            # a byte order mark is no part of the first word
            encoding = "utf-8-sig" if number == 1 else "utf-8"
            line = (raw.decode(encoding) if isinstance(raw, bytes) else raw).rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"standard input, line {number}: expected UTF-8, {error}") from error
        if not line.strip():
            raise ValueError(
                f"standard input, line {number}: expected at least one word, got {line!r}; drop "
                "empty lines"
            )
        lines.append(line)
    return lines
