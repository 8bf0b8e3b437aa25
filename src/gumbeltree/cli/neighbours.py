"""The command `neighbours`: the sentences of an index that are most alike."""

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
        Path, typer.Argument(metavar="INDEX", help="A folder made by `gumbeltree index`.")
    ],
    text: streams.Texts = None,
    input_file: streams.Input = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Neighbours of each sentence.")] = 5,
    model: Annotated[
        str | None,
        typer.Option(help="The model that made the index, if it is no longer where it was."),
    ] = None,
    approximate: Annotated[
        bool,
        typer.Option("--approximate", help="Search by what `index --faiss` made: may miss some."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line, with rows, scores and texts.")
    ] = False,
    pretokenized: streams.Pretokenized = False,
    batch_size: streams.BatchSize = 256,
    device: streams.Device = "auto",
    skip_bad: streams.SkipBad = False,
    quiet: streams.Quiet = False,
) -> None:
    """Print the sentences of an index that are most similar: cosine of the vectors and text.

    Examples, with an index made by `gumbeltree index`:

    gumbeltree neighbours texts.index "i love this very much ." -k 3

    gumbeltree neighbours texts.index --input queries.txt --json
    """
    from gumbeltree.analysis.index import Index
    from gumbeltree.text.files import Report
    from gumbeltree.text.ids import TextCounts

    opened = Index.open(folder)
    loaded = _load(opened, model, streams.pick_device(device))
    counts, report = TextCounts(), Report()

    def lines() -> Iterator[Iterator[str]]:
        is_first = True
        with streams.progress(quiet, streams.to_terminal(None)) as advance:
            for chunk in streams.take_texts(text, input_file, report, False, skip_bad):
                queries = [line.texts[0] for line in chunk]
                vectors = loaded.encode(
                    queries, batch_size, pretokenized=pretokenized, counts=counts
                )
                nearest = opened.search_each(vectors, k, approximate=approximate)
                # one query at a time: all that is found may not fit into memory
                for query, (rows, scores) in zip(queries, nearest, strict=True):
                    texts = opened.texts(rows.tolist())
                    found = [
                        {"row": row, "score": score, "text": neighbour}
                        for row, score, neighbour in zip(
                            rows.tolist(), scores.tolist(), texts, strict=True
                        )
                    ]
                    if as_json:
                        yield iter([_object(query, found)])
                    else:
                        # an empty line between two of them
                        yield iter(
                            [_table(query, found) if is_first else f"\n{_table(query, found)}"]
                        )
                    is_first = False
                    advance(1)

    streams.write_blocks(None, lines())
    streams.summarize(counts, report, quiet)


def _load(opened: "Index", name: str | None, device: str) -> "SentenceModel":
    """Return the model of an index, or the one that is named if it is the same."""
    from gumbeltree.model import load

    wanted = name or opened.header.model
    if not wanted:
        raise ValueError(f"{opened.path} does not say which model made it; pass --model")
    try:
        loaded = load(wanted, device)
    except FileNotFoundError as error:
        if name:
            raise
        raise FileNotFoundError(
            f"{opened.path} was made with the model {wanted}, which is not there; pass it with "
            "--model"
        ) from error
    opened.check_model(loaded, wanted)
    return loaded


def _object(query: str, found: list[dict[str, Any]]) -> str:
    return json.dumps({"text": query, "neighbours": found}, ensure_ascii=False)


def _table(query: str, found: list[dict[str, Any]]) -> str:
    from gumbeltree.picture import clean

    # what would steer the terminal is not printed
    rows = [f"{each['score']:8.4f}  {clean(streams.one_line(each['text']))}" for each in found]
    return "\n".join([clean(streams.one_line(query)), *rows])
