"""The command `neighbours`: find the sentences of an index that are most similar to others."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gumbeltree.cli import streams
from gumbeltree.cli.app import app

if TYPE_CHECKING:
    from gumbeltree.analysis.index import Index
    from gumbeltree.model import SentenceModel


@app.command()
def neighbours(
    folder: Annotated[
        Path, typer.Argument(metavar="INDEX", help="Folder written by `gumbeltree index`.")
    ],
    text: streams.Texts = None,
    input_file: streams.Input = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Number of neighbours per sentence.")] = 5,
    model: Annotated[
        str | None,
        typer.Option(help="The model that built the index, if it has moved since."),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object per line, with rows, scores and texts."),
    ] = False,
    pretokenized: streams.Pretokenized = False,
    batch_size: streams.BatchSize = 256,
    device: streams.Device = "auto",
    skip_bad: streams.SkipBad = False,
    quiet: streams.Quiet = False,
) -> None:
    """Print the most similar sentences of an index, with the cosine of their vectors.

    Examples, with an index made by `gumbeltree index`:

    gumbeltree neighbours texts.index "i love this very much ." -k 3

    gumbeltree neighbours texts.index --input queries.txt --json
    """
    from gumbeltree.analysis.index import Index
    from gumbeltree.text.files import Report
    from gumbeltree.text.ids import TextCounts

    index = Index.open(folder)
    loaded = _load(index, model, streams.pick_device(device))
    counts, report = TextCounts(), Report()

    def lines() -> Iterator[list[str]]:
        separator = ""
        with streams.progress(quiet, streams.to_terminal(None)) as advance:
            for chunk in streams.take_texts(text, input_file, report, False, skip_bad):
                queries = [line.texts[0] for line in chunk]
                vectors = loaded.encode(
                    queries, batch_size, pretokenized=pretokenized, counts=counts
                )
                rows, scores = index.search(vectors, k)
                for query, near, cosines in zip(queries, rows, scores, strict=True):
                    found = [
                        {"row": row, "score": score, "text": neighbour}
                        for row, score, neighbour in zip(
                            near.tolist(), cosines.tolist(), index.texts(near), strict=True
                        )
                    ]
                    if as_json:
                        result = {"text": query, "neighbours": found}
                        yield [json.dumps(result, ensure_ascii=False)]
                    else:
                        yield [separator + _table(query, found)]
                        separator = "\n"
                    advance(1)

    streams.write_blocks(None, lines())
    streams.summarize(counts, report, quiet)


def _load(index: "Index", name: str | None, device: str) -> "SentenceModel":
    """Load the model that built an index; `name` is where it is now, if it has moved."""
    from gumbeltree.model import load

    wanted = name or index.header.model
    if not wanted:
        raise ValueError(f"{index.path} does not name the model that built it; pass --model")
    try:
        loaded = load(wanted, device)
    except FileNotFoundError as error:
        if name:
            raise
        raise FileNotFoundError(
            f"{index.path} was built with the model {wanted}, which no longer exists; pass its "
            "new location with --model"
        ) from error
    index.check_model(loaded, wanted)
    return loaded


def _table(query: str, found: list[dict[str, Any]]) -> str:
    from gumbeltree.picture import clean

    # control characters in a text must not reach the terminal
    lines = [f"{near['score']:8.4f}  {clean(streams.one_line(near['text']))}" for near in found]
    return "\n".join([clean(streams.one_line(query)), *lines])
