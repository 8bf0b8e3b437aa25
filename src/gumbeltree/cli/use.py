"""Commands that use a model: parse, predict, encode, evaluate."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gumbeltree.cli import streams, trees
from gumbeltree.cli.app import Json, app
from gumbeltree.cli.trees import Format

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gumbeltree.heads.head import Answer
    from gumbeltree.text.lines import Line


@app.command()
def parse(
    model: streams.Model,
    text: streams.Texts = None,
    input_file: streams.Input = None,
    form: Annotated[
        Format, typer.Option("--format", help="brackets, draw, json (one object a line) or svg.")
    ] = Format.brackets,
    draw: Annotated[bool, typer.Option("--draw", help="Short for --format draw.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="File for the trees; a folder for the SVG images of several texts."
        ),
    ] = None,
    pretokenized: streams.Pretokenized = False,
    batch_size: streams.BatchSize = 256,
    device: streams.Device = "auto",
    skip_bad: streams.SkipBad = False,
    quiet: streams.Quiet = False,
) -> None:
    """Print the tree of each sentence.

    Examples, after `gumbeltree demo`:

    gumbeltree parse demo/model --draw "i love this very much ."

    gumbeltree parse demo/model --input texts.txt --format json --out trees.jsonl

    gumbeltree parse demo/model --format svg --out tree.svg "i love this very much ."
    """
    from gumbeltree.store import load
    from gumbeltree.tasks.example import Report
    from gumbeltree.text.ids import TextCounts

    if draw and form not in (Format.brackets, Format.draw):
        raise ValueError(f"expected --draw or --format {form}, got both; leave one of them out")
    form = Format.draw if draw else form
    folder = out if form == Format.svg and out is not None and out.suffix != ".svg" else None
    if folder is None:
        streams.check_out(out)
    loaded = load(model, streams.pick_device(device))
    loaded.check_builds_trees(model)
    counts, report = TextCounts(), Report()
    lines = streams.take_texts(text, input_file, report, False, skip_bad)
    if form == Format.svg and folder is None:
        lines = trees.only_one(lines)

    def parsed() -> Iterator[trees.Parsed]:
        with streams.progress(quiet, streams.to_terminal(out)) as advance:
            for chunk in lines:
                found = loaded.parse_many(
                    [line.texts[0] for line in chunk],
                    batch_size,
                    pretokenized=pretokenized,
                    counts=counts,
                )
                yield list(zip(chunk, found, strict=True))
                advance(len(chunk))

    if folder is not None:
        trees.write_images(folder, parsed())
    else:
        streams.write_blocks(out, trees.written(parsed(), form))
    streams.summarize(counts, report, quiet)


@app.command()
def predict(
    model: streams.Model,
    text: streams.Texts = None,
    input_file: streams.Input = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line, with all probabilities.")
    ] = False,
    out: streams.Out = None,
    pretokenized: streams.Pretokenized = False,
    batch_size: streams.BatchSize = 256,
    device: streams.Device = "auto",
    skip_bad: streams.SkipBad = False,
    quiet: streams.Quiet = False,
) -> None:
    """Print the class of each sentence or pair: label, its probability and the text, tabs between.

    A model of pairs takes two texts a pair as arguments, or lines with a tab between the two.

    Examples, after `gumbeltree demo`:

    gumbeltree predict demo/model "i love this very much ."

    gumbeltree predict demo/model --input texts.txt --json --out labels.jsonl
    """
    from gumbeltree.store import load
    from gumbeltree.tasks.example import Report
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
                yield map(_answered_json if as_json else _answered, chunk, predictions)
                advance(len(chunk))

    streams.write_blocks(out, lines())
    streams.summarize(counts, report, quiet)


def _answered(line: "Line", answer: "Answer") -> str:
    return "\t".join(map(streams.one_line, [*answer.cells(), *line.texts]))


def _answered_json(line: "Line", answer: "Answer") -> str:
    texts = dict(zip(("text", "text2"), line.texts, strict=False))
    return json.dumps({**answer.as_dict(), **texts}, ensure_ascii=False)


@app.command()
def encode(
    model: streams.Model,
    text: streams.Texts = None,
    input_file: streams.Input = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="File for the vectors, .npy or .safetensors.")
    ] = None,
    pretokenized: streams.Pretokenized = False,
    batch_size: streams.BatchSize = 256,
    device: streams.Device = "auto",
    skip_bad: streams.SkipBad = False,
    quiet: streams.Quiet = False,
) -> None:
    """Write the vector of each sentence to a file, float32, a row a sentence in their order.

    Examples, after `gumbeltree demo`:

    gumbeltree encode demo/model --input texts.txt --out vectors.npy

    python -c "import numpy; print(numpy.load('vectors.npy').shape)"
    """
    from gumbeltree.array_file import write_rows, writer_for
    from gumbeltree.store import load
    from gumbeltree.tasks.example import Report
    from gumbeltree.text.ids import TextCounts

    if out is None:
        raise ValueError("vectors go to a file, got no --out; pass such as --out vectors.npy")
    writer_for(out)
    streams.check_out(out)
    loaded = load(model, streams.pick_device(device))
    counts, report = TextCounts(), Report()

    def blocks() -> Iterator["NDArray[np.float32]"]:
        with streams.progress(quiet, to_terminal=False) as advance:
            for chunk in streams.take_texts(text, input_file, report, False, skip_bad):
                yield loaded.encode(
                    [line.texts[0] for line in chunk],
                    batch_size,
                    pretokenized=pretokenized,
                    counts=counts,
                )
                advance(len(chunk))

    rows = write_rows(out, loaded.encoder.vector_dim, blocks())
    if not quiet:
        typer.echo(f"{out}: {rows:,} x {loaded.encoder.vector_dim}, float32", err=True)
    streams.summarize(counts, report, quiet)


@app.command()
def evaluate(
    model: streams.Model,
    data: Annotated[
        Path | None,
        typer.Option(
            help="The folder of the task's files, or one file; not needed for a model of generated "
            "data (demo, listops)."
        ),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Which file of the folder: train, dev or test (default).")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(help="snli, sst2, sst5, listops, sick, demo or table; else as trained."),
    ] = None,
    text: Annotated[str | None, typer.Option(help="Column of the text in a table.")] = None,
    text2: Annotated[str | None, typer.Option(help="Column of the second text.")] = None,
    label: Annotated[str | None, typer.Option(help="Column of the label.")] = None,
    as_json: Json = False,
    predictions: Annotated[
        Path | None,
        typer.Option(help="File for gold label, predicted label and text of each example, TSV."),
    ] = None,
    pretokenized: streams.Pretokenized = False,
    batch_words: Annotated[
        int, typer.Option(min=1, help="Most words read at once, padding included.")
    ] = 16_384,
    device: streams.Device = "auto",
    skip_bad: streams.SkipBad = False,
    quiet: streams.Quiet = False,
) -> None:
    """Compare a model with labelled data: accuracy, which labels it confuses, sentence lengths.

    Examples, for a model trained on SNLI and for one trained on a table of your own:

    gumbeltree evaluate runs/snli --data snli_1.0 --split dev

    gumbeltree evaluate runs/mine --data films.tsv --text review --label stars --json

    gumbeltree evaluate demo
    """
    from rich.console import Console

    from gumbeltree.cli import scores
    from gumbeltree.evaluate import evaluate as run
    from gumbeltree.evaluate import split_of
    from gumbeltree.store import load
    from gumbeltree.tasks.example import Report
    from gumbeltree.text.ids import TextCounts

    if split not in (None, "train", "dev", "test"):
        raise ValueError(f"`--split` must be train, dev or test, got {split!r}")
    streams.check_out(predictions)
    loaded = load(model, streams.pick_device(device))
    reader = scores.find_task(loaded, task, {"text": text, "text2": text2, "label": label})
    counts, report = TextCounts(), Report()
    with streams.progress(quiet, False) as advance:
        if data is None:
            split = split or "test"
            path, examples = scores.generated(loaded, reader, split, report)
        else:
            path = scores.find_file(reader, data, split)
            if data.is_dir():
                split = split or "test"
            examples = []
            # a single file is read as one to be evaluated on, whole
            for example in reader.read(path, split or "test", report, skip_bad):
                examples.append(example)
                advance(1)
        if not examples:
            raise ValueError(f"{path}: expected examples, got none ({report}); look at the file")
        ids = split_of(loaded, examples, pretokenized or reader.pretokenized, counts)
        evaluation = run(loaded, ids, batch_words)
    if predictions is not None:
        columns = ["text", "text2"][: len(examples[0].texts)]
        rows = (
            "\t".join(map(streams.one_line, (example.label, guess, *example.texts)))
            for example, guess in zip(examples, evaluation.answers(), strict=True)
        )
        streams.write_blocks(predictions, [["\t".join(["gold", "predicted", *columns])], rows])
    if as_json:
        about = {
            **{"model": model, "task": reader.name, "file": str(path), "split": split},
            **evaluation.as_dict(),
            **{"texts": dataclasses.asdict(counts), "bad_lines": report.bad},
        }
        typer.echo(json.dumps(about, indent=2, ensure_ascii=False))
    else:
        scores.print_scores(Console(), evaluation)
    if not quiet:
        typer.echo(f"{path}: {report}", err=True)
        typer.echo(str(counts), err=True)
