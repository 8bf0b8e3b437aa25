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
from gumbeltree.plots import check_picture


@app.command()
def evaluate(
    model: streams.Model,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            help="Folder with the files of the task, or a file; optional for generated data (demo, "
            "listops). Repeat it to compare several files."
        ),
    ] = None,
    split: streams.Split = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="snli, snli_similarity, sst2, sst5, listops, logic, sick, sick_relatedness, demo "
            "or table; default: as in training.",
            autocompletion=completion.tasks,
        ),
    ] = None,
    text: Text = None,
    text2: Text2 = None,
    label: Label = None,
    sts: Annotated[
        Path | None,
        typer.Option(
            help="Folder or file with sentence similarities (columns sent1, sent2, score), to rank "
            "pairs by the cosine of their vectors instead of evaluating labels."
        ),
    ] = None,
    as_json: Json = False,
    predictions: Annotated[
        Path | None,
        typer.Option(
            help="File for the gold label, predicted label and text of each example: .csv, or "
            "separated by tabs."
        ),
    ] = None,
    confusion: Annotated[
        Path | None,
        typer.Option(help="File for the confusion matrix, .csv, or .png, .svg or .pdf."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Picture of the accuracy by length, .png, .svg or .pdf; with several files, one "
            "point per file. For listops and logic, also by levels or operations."
        ),
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
    by length; for ListOps also by levels, and for logic by operations. For numbers: Pearson and
    Spearman correlation and mean squared error. For tags: micro- and macro-averaged F1 and the
    scores of each tag.

    Examples for models trained on SNLI, on your own table, and on generated data:

    gumbeltree evaluate runs/snli --data snli_1.0 --split dev

    gumbeltree evaluate runs/mine --data films.tsv --text review --label stars --json

    gumbeltree evaluate demo

    gumbeltree evaluate snli-100d --sts sts

    gumbeltree evaluate runs/listops --data test.tsv --data test-200-300.tsv --plot lengths.png
    """
    from gumbeltree.cli import by_size, scores, tables
    from gumbeltree.cli.confusion import check_confusion, fitted, write_confusion
    from gumbeltree.data.compile import make_task, read_file
    from gumbeltree.evaluation import evaluate as run
    from gumbeltree.evaluation import split_of
    from gumbeltree.model import load
    from gumbeltree.text.ids import TextCounts

    if sts is not None:
        others = {"--data": data, "--split": split, "--task": task, "--predictions": predictions}
        others |= {"--text": text, "--text2": text2, "--label": label}
        others |= {"--confusion": confusion, "--plot": plot}
        if unused := [name for name, value in others.items() if value]:
            raise ValueError(f"--sts evaluates similarities; omit {unused[0]}")
        _evaluate_similarity(model, sts, device, skip_bad, as_json, quiet)
        return
    for file in (predictions, confusion, plot):
        streams.check_out(file)
    if confusion is not None:
        check_confusion(confusion)
    if plot is not None:
        check_picture(plot)
    several = data is not None and len(data) > 1
    if several and (predictions or confusion):
        option = "--predictions" if predictions else "--confusion"
        raise ValueError(f"{option} needs a single --data; evaluate the files one by one")
    loaded = load(model, pick_device(device))
    recipe = scores.recipe_of(loaded, task, {"text": text, "text2": text2, "label": label})
    reader = make_task(recipe)
    scores.check_fit(loaded, reader)
    if plot is not None and loaded.head.predicts != "classes":
        raise ValueError(f"--plot shows accuracy, but the model predicts {loaded.head.predicts}")
    results: list[by_size.Result] = []
    places: list[Path | None] = list(data) if data else [None]
    inputs = []
    # read all files first, so that a malformed one does not cost the results of the others
    for place in places:
        part = split
        if place is None:
            part = part or streams.SplitName.test
            path = Path(f"generated-{reader.name}")
            examples = scores.generated(loaded, recipe, reader, part)
        else:
            path = scores.find_file(reader, place, part)
            part = part or (streams.SplitName.test if place.is_dir() else None)
            # a single file is evaluated as a whole
            examples = read_file(reader, path, part or streams.SplitName.test, skip_bad)
        inputs.append((path, part, examples))
    with streams.progress(quiet) as advance:
        for path, part, examples in inputs:
            counts = TextCounts()
            ids = split_of(loaded, examples, pretokenized or reader.pretokenized, counts)
            evaluation = run(loaded, ids, words=batch_words)
            sizes = by_size.buckets(reader, examples, evaluation)
            words = float(ids.lengths.max(axis=1).mean())
            about = {
                **{"model": model, "task": reader.name, "file": str(path), "split": part},
                **{"mean_words": round(words, 2), **evaluation.as_dict()},
                **({f"by_{reader.size_name}": by_size.as_dicts(sizes)} if sizes else {}),
                **{"texts": dataclasses.asdict(counts), "bad_lines": examples.report.bad},
            }
            note = f"{path}: {examples.report}\n{counts}"
            results.append(by_size.Result(path, words, evaluation, sizes, about, note))
            advance(len(examples.rows))
    if predictions is not None:
        columns = ["text", "text2"][: loaded.head.sentences]
        rows = zip(examples.labels, evaluation.answers(), examples.texts(), strict=True)
        table = [("gold", "predicted", *columns)]
        table += [(gold, guess, *texts) for gold, guess, texts in rows]
        comma = predictions.suffix.lower() == ".csv"
        streams.write_lines(
            predictions,
            (
                streams.table_row(row, ",") if comma else "\t".join(map(streams.one_line, row))
                for row in table
            ),
        )
    if confusion is not None:
        write_confusion(confusion, evaluation)
    if plot is not None:
        by_size.draw(results, plot, reader.size_name)
    if as_json:
        found = [result.about for result in results]
        typer.echo(json.dumps(found if several else found[0], indent=2, ensure_ascii=False))
    elif several:
        shown = [by_size.comparison(results)]
        if any(result.sizes for result in results):
            shown.append(by_size.sizes_by_file(reader.size_name, results))
        tables.print_results(shown)
    else:
        shown = fitted(evaluation.tables(), evaluation, tables.console_width())
        if sizes:
            shown.append(by_size.table(reader.size_name, sizes))
        tables.print_results([evaluation.summary(), *shown])
    for result in results:
        streams.say(result.note, quiet)


def _evaluate_similarity(
    model: str, folder: Path, device: str, skip_bad: bool, as_json: bool, quiet: bool
) -> None:
    """Compare the cosines of sentence vectors with the similarities in a folder or file."""
    from gumbeltree.analysis.similarity import (
        english_mean,
        evaluate_similarity,
        find_pairs,
        similarity_table,
    )
    from gumbeltree.cli import tables
    from gumbeltree.runtimes import load_for_use

    paths = find_pairs(folder)
    loaded = load_for_use(model, device)
    results = []
    with streams.progress(quiet) as advance:
        for result in evaluate_similarity(loaded, paths, skip_bad=skip_bad):
            results.append(result)
            advance(result.pairs)
    if as_json:
        sets = [result._asdict() for result in results]
        about = {"model": model, "sets": sets, "english_mean": english_mean(results)}
        typer.echo(json.dumps(about, indent=2, ensure_ascii=False))
    else:
        tables.print_results([similarity_table(results)])
