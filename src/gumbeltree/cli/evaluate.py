"""The command `evaluate`: results of a model on labelled data."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from gumbeltree.cli import completion, streams
from gumbeltree.cli.app import Json, app
from gumbeltree.cli.train import Label, Text, Text2
from gumbeltree.device.pick import pick_device


@app.command()
def evaluate(
    model: streams.Model,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder with the files of the task, or one file; optional for generated data "
            "(demo, listops)."
        ),
    ] = None,
    split: streams.Split = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="snli, sst2, sst5, listops, logic, sick, sick_relatedness, demo or table; "
            "default: as in training.",
            autocompletion=completion.tasks,
        ),
    ] = None,
    text: Text = None,
    text2: Text2 = None,
    label: Label = None,
    as_json: Json = False,
    predictions: Annotated[
        Path | None,
        typer.Option(help="TSV file for the gold label, predicted label and text of each example."),
    ] = None,
    confusion: Annotated[
        Path | None,
        typer.Option(help="File for the confusion matrix, .csv, or .png, .svg or .pdf."),
    ] = None,
    pretokenized: streams.Pretokenized = False,
    batch_words: Annotated[
        int, typer.Option(min=1, help="Maximum number of words per batch, including padding.")
    ] = 16_384,
    device: streams.Device = "auto",
    threads: streams.Threads = None,
    plugin: streams.Plugin = None,
    skip_bad: streams.SkipBad = False,
    quiet: streams.Quiet = False,
) -> None:
    """Evaluate a model on labelled data.

    For classes: accuracy, precision, recall and F1 of each class, the confusion matrix and accuracy
    by length. For numbers: Pearson and Spearman correlation and mean squared error. For tags:
    micro- and macro-averaged F1 and the scores of each tag.

    Examples for models trained on SNLI, on your own table, and on generated data:

    gumbeltree evaluate runs/snli --data snli_1.0 --split dev

    gumbeltree evaluate runs/mine --data films.tsv --text review --label stars --json

    gumbeltree evaluate demo
    """
    from gumbeltree.cli import scores, tables
    from gumbeltree.cli.confusion import check_confusion, fitted, write_confusion
    from gumbeltree.data.compile import make_task, read_file
    from gumbeltree.evaluation import evaluate as run
    from gumbeltree.evaluation import split_of
    from gumbeltree.model import load
    from gumbeltree.text.ids import TextCounts

    streams.check_out(predictions)
    streams.check_out(confusion)
    if confusion is not None:
        check_confusion(confusion)
    loaded = load(model, pick_device(device))
    recipe = scores.recipe_of(loaded, task, {"text": text, "text2": text2, "label": label})
    reader = make_task(recipe)
    scores.check_fit(loaded, reader)
    counts = TextCounts()
    with streams.progress(quiet) as advance:
        if data is None:
            split = split or streams.SplitName.test
            path = Path(f"generated-{reader.name}")
            examples = scores.generated(loaded, recipe, reader, split)
        else:
            path = scores.find_file(reader, data, split)
            split = split or (streams.SplitName.test if data.is_dir() else None)
            # a single file is evaluated as a whole
            examples = read_file(reader, path, split or streams.SplitName.test, skip_bad)
        advance(len(examples.rows))
        ids = split_of(loaded, examples, pretokenized or reader.pretokenized, counts)
        evaluation = run(loaded, ids, words=batch_words)
    if predictions is not None:
        columns = ["text", "text2"][: loaded.head.sentences]
        rows = zip(examples.labels, evaluation.answers(), examples.texts(), strict=True)
        table = [("gold", "predicted", *columns)]
        table += [(gold, guess, *texts) for gold, guess, texts in rows]
        lines = ("\t".join(map(streams.one_line, row)) for row in table)
        streams.write_lines(predictions, lines)
    if confusion is not None:
        write_confusion(confusion, evaluation)
    if as_json:
        about = {
            **{"model": model, "task": reader.name, "file": str(path), "split": split},
            **evaluation.as_dict(),
            **{"texts": dataclasses.asdict(counts), "bad_lines": examples.report.bad},
        }
        typer.echo(json.dumps(about, indent=2, ensure_ascii=False))
    else:
        shown = fitted(evaluation.tables(), evaluation, tables.console_width())
        tables.print_results([evaluation.summary(), *shown])
    streams.say(f"{path}: {examples.report}\n{counts}", quiet)
