"""The command `predict`: classify sentences or pairs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gumbeltree.cli import streams
from gumbeltree.cli.app import app

if TYPE_CHECKING:
    from gumbeltree.answers import Answer
    from gumbeltree.text.lines import Line

ANSWER_COLUMNS = ("predicted", "probability")
TABLES = {".csv": ",", ".tsv": "\t"}
"""Separators of the tables that the command can write."""
OTHER_TABLES = (".json", ".parquet", ".xlsx", ".xls", ".gz")


@app.command()
def predict(
    model: streams.Model,
    text: streams.Texts = None,
    input_file: streams.Input = None,
    text_column: streams.TextColumn = None,
    text2_column: streams.Text2Column = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line, with all probabilities.")
    ] = False,
    out: streams.Out = None,
    pretokenized: streams.Pretokenized = False,
    batch_size: streams.BatchSize = 256,
    device: streams.Device = "auto",
    threads: streams.Threads = None,
    plugin: streams.Plugin = None,
    runtime: streams.Runtime = "auto",
    skip_bad: streams.SkipBad = False,
    quiet: streams.Quiet = False,
) -> None:
    """Print the label, its probability and the text of each sentence or pair, separated by tabs.

    Models that predict numbers print the number instead of label and probability; models that
    predict tags print all tags and their probabilities.

    For a model that classifies pairs, pass two arguments per pair, lines with two texts separated
    by a tab, or a table with two columns of texts. With --out FILE.csv or FILE.tsv, the file has
    all columns of the input, followed by `predicted` and `probability`.

    Examples (after running `gumbeltree demo`):

    gumbeltree predict demo/model "i love this very much ."

    gumbeltree predict demo/model --input texts.txt --json --out labels.jsonl

    gumbeltree predict demo/model --input reviews.csv --text review --out predicted.csv
    """
    from gumbeltree.runtimes import load_for_use

    streams.check_out(out)
    separator = TABLES.get(_suffix(out), "")
    if _suffix(out) in OTHER_TABLES or (as_json and separator):
        raise ValueError(
            f"predict cannot write {'JSON to ' if separator else ''}{out}; pass --out FILE.csv or "
            "FILE.tsv for a table, FILE.jsonl for JSON lines, or FILE.txt for plain lines"
        )
    loaded = load_for_use(model, device, runtime)
    pair = loaded.head.sentences == 2
    if text2_column is not None and not pair:
        raise ValueError("this model reads single sentences; omit --text2")
    show = _json_line if as_json or _suffix(out) == ".jsonl" else _text_line
    inputs = (text, input_file, out, pretokenized, batch_size, skip_bad, quiet)
    with streams.open_texts(*inputs, loaded, text_column, text2_column) as source:

        def answers() -> Iterator[tuple["Line", "Answer"]]:
            for chunk in source.chunks(pair):
                texts: list[Any] = (
                    [line.texts for line in chunk] if pair else streams.singles(chunk)
                )
                yield from zip(chunk, loaded.predict(texts, **source.options), strict=True)

        if separator:
            streams.write_lines(out, _table(source, answers(), separator))
        else:
            streams.write_lines(out, (show(line, answer) for line, answer in answers()))


def _suffix(path: Path | None) -> str:
    return "" if path is None else path.suffix.lower()


def _table(
    source: streams.TextSource, answers: Iterator[tuple["Line", "Answer"]], separator: str
) -> Iterator[str]:
    """Yield the rows of a table: all columns of the input, then those of the answers."""
    count = 0
    for count, (line, answer) in enumerate(answers, 1):
        if count == 1:
            yield streams.table_row(_header(source, len(answer.cells())), separator)
        yield streams.table_row([*(line.cells or line.texts), *answer.cells()], separator)
    if not count:
        yield streams.table_row(_header(source, len(ANSWER_COLUMNS)), separator)


def _header(source: streams.TextSource, count: int) -> list[str]:
    header = list(source.header)
    for name in ANSWER_COLUMNS[:count]:
        # an input that has predictions already keeps them
        while name in header:
            name = f"new_{name}"
        header.append(name)
    return header


def _text_line(line: "Line", answer: "Answer") -> str:
    return "\t".join(map(streams.one_line, [*answer.cells(), *line.texts]))


def _json_line(line: "Line", answer: "Answer") -> str:
    texts = dict(zip(("text", "text2"), line.texts, strict=False))
    return json.dumps({**answer.as_dict(), **texts}, ensure_ascii=False)
