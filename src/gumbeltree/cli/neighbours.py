"""The command `neighbours`: find the sentences of an index that are most similar to a query."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gumbeltree.cli import completion, streams
from gumbeltree.cli.app import app

if TYPE_CHECKING:
    from gumbeltree.analysis.index import Index
    from gumbeltree.text_model import TextModel


@app.command()
def neighbours(
    folder: Annotated[
        Path, typer.Argument(metavar="INDEX", help="Folder written by `gumbeltree index`.")
    ],
    text: streams.Texts = None,
    input_file: streams.Input = None,
    text_column: streams.TextColumn = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Number of neighbours per query.")] = 5,
    model: Annotated[
        str | None,
        typer.Option(
            help="New location of the model that built the index, if it has moved.",
            autocompletion=completion.models,
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object per line, with rows, scores and texts."),
    ] = False,
    pretokenized: streams.Pretokenized = False,
    batch_size: streams.BatchSize = 256,
    device: streams.Device = "auto",
    threads: streams.Threads = None,
    plugin: streams.Plugin = None,
    runtime: streams.Runtime = "auto",
    skip_bad: streams.SkipBad = False,
    quiet: streams.Quiet = False,
) -> None:
    """Print the sentences of an index that are most similar to each query, with their cosines.

    Examples (after writing texts.index with `gumbeltree index`):

    gumbeltree neighbours texts.index "i love this very much ." -k 3

    gumbeltree neighbours texts.index --input queries.txt --json
    """
    from gumbeltree.analysis.index import Index

    index = Index.open(folder)
    loaded = _load(index, model, device, runtime)
    show = _json_line if as_json else _table
    inputs = (text, input_file, None, pretokenized, batch_size, skip_bad, quiet)
    with streams.open_texts(*inputs, loaded, text_column) as source:

        def lines() -> Iterator[str]:
            for chunk in source.chunks():
                queries = streams.singles(chunk)
                found = index.search(loaded.encode(queries, **source.options), k)
                for query, rows, scores in zip(queries, *found, strict=True):
                    columns = (rows.tolist(), scores.tolist(), index.texts(rows))
                    yield show(query, *columns)

        streams.write_lines(None, lines() if as_json else streams.separated(lines()))


def _load(index: "Index", name: str | None, device: str, runtime: str) -> "TextModel":
    """Load the model that built an index; `name` is its new location, if it has moved."""
    from gumbeltree.runtimes import load_for_use

    wanted = name or index.header.model
    if not wanted:
        raise ValueError(f"{index.path} does not name the model that built it; pass --model")
    try:
        loaded = load_for_use(wanted, device, runtime)
    except FileNotFoundError as error:
        if name:
            raise
        raise FileNotFoundError(
            f"{index.path} was built with the model {wanted}, which no longer exists; pass its "
            "new location with --model"
        ) from error
    index.check_model(loaded, wanted)
    return loaded


def _json_line(query: str, rows: list[int], scores: list[float], texts: list[str]) -> str:
    near = [
        {"row": row, "score": score, "text": text}
        for row, score, text in zip(rows, scores, texts, strict=True)
    ]
    return json.dumps({"text": query, "neighbours": near}, ensure_ascii=False)


def _table(query: str, rows: list[int], scores: list[float], texts: list[str]) -> str:
    from gumbeltree.drawing import clean

    # control characters in a text must not reach the terminal
    cells = [clean(streams.one_line(text)) for text in (query, *texts)]
    lines = [f"{score:8.4f}  {cell}" for score, cell in zip(scores, cells[1:], strict=True)]
    return "\n".join([cells[0], *lines])
