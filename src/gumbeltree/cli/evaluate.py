"""The command `evaluate`: accuracy of a model on labelled data."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from gumbeltree.cli import streams
from gumbeltree.cli.app import Json, app


@app.command()
def evaluate(
    model: streams.Model,
    data: Annotated[
        Path | None,
        typer.Option(
            help="The folder of the task's files, or one file; optional for generated data (demo, "
            "listops)."
        ),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Split of the folder: train, dev or test (default).")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(help="snli, sst2, sst5, listops, sick, demo or table; default: as trained."),
    ] = None,
    text: Annotated[str | None, typer.Option(help="Text column of a table.")] = None,
    text2: Annotated[str | None, typer.Option(help="Column of the second text of pairs.")] = None,
    label: Annotated[str | None, typer.Option(help="Label column.")] = None,
    as_json: Json = False,
    predictions: Annotated[
        Path | None,
        typer.Option(help="TSV file for the gold label, predicted label and text of each example."),
    ] = None,
    pretokenized: streams.Pretokenized = False,
    batch_words: Annotated[
        int, typer.Option(min=1, help="Maximum number of words per batch, including padding.")
    ] = 16_384,
    device: streams.Device = "auto",
    skip_bad: streams.SkipBad = False,
    quiet: streams.Quiet = False,
) -> None:
    """Evaluate a model on labelled data: accuracy, confusion matrix, accuracy by length.

    Examples, for a model trained on SNLI, one trained on your own table, and one on generated data:

    gumbeltree evaluate runs/snli --data snli_1.0 --split dev

    gumbeltree evaluate runs/mine --data films.tsv --text review --label stars --json

    gumbeltree evaluate demo
    """
    from rich.console import Console

    from gumbeltree.cli import scores
    from gumbeltree.evaluate import evaluate as run
    from gumbeltree.evaluate import split_of
    from gumbeltree.model import load
    from gumbeltree.text.files import Report
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
            path, examples = scores.generated(loaded, reader, split)
            report.examples = len(examples)
        else:
            path = scores.find_file(reader, data, split)
            if data.is_dir():
                split = split or "test"
            examples = []
            # a single file is evaluated as a whole
            for example in reader.read(path, split or "test", report, skip_bad):
                examples.append(example)
                advance(1)
        if not examples:
            raise ValueError(f"{path} contains no usable examples: {report}")
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
