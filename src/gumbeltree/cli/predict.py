"""The command `predict`: classify sentences or pairs."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from gumbeltree.cli import streams
from gumbeltree.cli.app import app

if TYPE_CHECKING:
    from gumbeltree.nn.heads.head import Answer
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
    skip_bad: streams.SkipBad = False,
    quiet: streams.Quiet = False,
) -> None:
    """Print label, probability and text of each sentence or pair, separated by tabs.

    For a model of pairs, pass two arguments per pair, or lines with a tab between the two texts.

    Examples, after `gumbeltree demo`:

    gumbeltree predict demo/model "i love this very much ."

    gumbeltree predict demo/model --input texts.txt --json --out labels.jsonl
    """
    from gumbeltree.model import load
    from gumbeltree.text.files import Report
    from gumbeltree.text.ids import TextCounts

    streams.check_out(out)
    loaded = load(model, streams.pick_device(device))
    pair = loaded.head.sentences == 2
    counts, report = TextCounts(), Report()

    def lines() -> Iterator[Iterator[str]]:
        with streams.progress(quiet, streams.to_terminal(out)) as advance:
            for chunk in streams.take_texts(text, input_file, report, pair, skip_bad):
                predictions = loaded.predict(
                    [line.texts[0] for line in chunk],
                    [line.texts[1] for line in chunk] if pair else None,
                    batch_size,
                    pretokenized=pretokenized,
                    counts=counts,
                )
                yield map(_json_line if as_json else _text_line, chunk, predictions)
                advance(len(chunk))

    streams.write_blocks(out, lines())
    streams.summarize(counts, report, quiet)


def _text_line(line: "Line", answer: "Answer") -> str:
    return "\t".join(map(streams.one_line, [*answer.cells(), *line.texts]))


def _json_line(line: "Line", answer: "Answer") -> str:
    texts = dict(zip(("text", "text2"), line.texts, strict=False))
    return json.dumps({**answer.as_dict(), **texts}, ensure_ascii=False)
