"""The command `predict`: classify sentences or pairs."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gumbeltree.cli import streams
from gumbeltree.cli.app import app

if TYPE_CHECKING:
    from gumbeltree.answers import Answer
    from gumbeltree.text.lines import Line


@app.command()
def predict(
    model: streams.Model,
    text: streams.Texts = None,
    input_file: streams.Input = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line, with all probabilities.")
    ] = False,
    out: streams.Out = None,
    pretokenized: streams.Pretokenized = False,
    batch_size: streams.BatchSize = 256,
    device: streams.Device = "auto",
    plugin: streams.Plugin = None,
    runtime: streams.Runtime = "auto",
    skip_bad: streams.SkipBad = False,
    quiet: streams.Quiet = False,
) -> None:
    """Print the label, its probability and the text of each sentence or pair, separated by tabs.

    For a model that classifies pairs, pass two arguments per pair, or lines with two texts
    separated by a tab.

    Examples (after running `gumbeltree demo`):

    gumbeltree predict demo/model "i love this very much ."

    gumbeltree predict demo/model --input texts.txt --json --out labels.jsonl
    """
    from gumbeltree.runtimes import load_for_use

    streams.check_out(out)
    loaded = load_for_use(model, device, runtime)
    pair = loaded.head.sentences == 2
    show = _json_line if as_json else _text_line
    with streams.open_texts(
        text, input_file, out, pretokenized, batch_size, skip_bad, quiet
    ) as source:

        def lines() -> Iterator[str]:
            for chunk in source.chunks(pair):
                texts: list[Any] = (
                    [line.texts for line in chunk] if pair else streams.singles(chunk)
                )
                yield from map(show, chunk, loaded.predict(texts, **source.options))

        streams.write_lines(out, lines())


def _text_line(line: "Line", answer: "Answer") -> str:
    return "\t".join(map(streams.one_line, [*answer.cells(), *line.texts]))


def _json_line(line: "Line", answer: "Answer") -> str:
    texts = dict(zip(("text", "text2"), line.texts, strict=False))
    return json.dumps({**answer.as_dict(), **texts}, ensure_ascii=False)
