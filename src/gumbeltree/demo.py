"""Run the demonstration: train on synthetic reviews, compare with two baselines, show trees."""

import functools
import shlex
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gumbeltree.config import load_recipe, with_settings
from gumbeltree.data.compile import prepare
from gumbeltree.data.prepared import Prepared
from gumbeltree.model import load
from gumbeltree.nn.heads.class_evaluation import wilson
from gumbeltree.training.display import Display
from gumbeltree.training.loop import train

QUICK = ("generate=200", "epochs=2", "embedding_dim=8", "encoder.hidden_dim=8")
MODELS = {"gumbel_tree": "Gumbel Tree-LSTM", "lstm": "LSTM", "bag": "bag of words"}
WORTH_DRAWING = ("although", "doubt", "who")
"""Words of sentences with interesting trees: contrast, negation, a relative clause."""


def run(out: Path, quick: bool = False, quiet: bool = False) -> None:
    """Train and compare models and draw trees; `out` is the tree model's run, baselines inside it.

    Args:
        out: Created if missing; a finished demonstration there is shown again.
        quick: Train a tiny model that learns nothing, to test the installation.
        quiet: Hide progress.
    """
    recipe = with_settings(load_recipe("demo"), QUICK if quick else ())
    display = Display(quiet)
    prepared = prepare(recipe)
    counts = prepared.report["splits"]
    console = Console()
    show = functools.partial(console.print, highlight=False, markup=False, soft_wrap=True)
    show(
        f"Training on {counts['train']['examples']:,} synthetic reviews, testing on "
        f"{counts['test']['examples']:,}. The words alone say little about the label:"
    )
    for text, label in _test_reviews(prepared)[:3]:
        show(f"  {label:8}  {text}")
    results = {}
    for kind, name in MODELS.items():
        display.title = f"{name}: "
        folder = out if kind == "gumbel_tree" else out / kind
        try:
            results[kind] = train(
                with_settings(recipe, [f"encoder.kind={kind}"]),
                prepared,
                folder,
                recipe_name="demo",
                resume=True,
                device="cpu",
                display=display,
            )
        finally:
            display.close()
    console.print(_table(results, counts["test"]["examples"]))
    model = load(out)
    reviews = _worth_drawing(prepared)
    show("The trees of some test reviews:")
    predictions = model.predict([text for text, _ in reviews])
    for (text, label), prediction in zip(reviews, predictions, strict=True):
        verdict = "correct" if prediction.label == label else f"wrong, should be {label}"
        probability = prediction.probabilities[prediction.label]
        show(f"\n{prediction.label} ({probability:.0%}), {verdict}")
        show(model.parse(text).draw(width=100))
    picture = out / "tree.svg"
    longest = max((text for text, _ in reviews), key=len)
    picture.write_text(model.parse(longest).svg(), encoding="utf-8")
    saved = shlex.quote(str(out / "model"))
    show(
        f"\nThe model is in {out / 'model'}, a picture of a tree in {picture}. Try next:\n"
        f'  gumbeltree predict {saved} "nobody says that the cake is dull ."\n'
        f'  gumbeltree parse {saved} --draw "although the plot is dull , i loved it ."\n'
        f"  gumbeltree info {saved}"
    )


def _test_reviews(prepared: Prepared) -> list[tuple[str, str]]:
    """Return text and label of each review in the test split."""
    words = {i: word for word, i in prepared.tokenizer.get_vocab().items()}
    split = prepared.splits["test"]
    texts = []
    for (sentence,), label in zip(split.sentences, split.labels, strict=True):
        ids = split.words[split.starts[sentence] : split.starts[sentence + 1]]
        texts.append((" ".join(words[int(i)] for i in ids), prepared.labels[label]))
    return texts


def _worth_drawing(prepared: Prepared) -> list[tuple[str, str]]:
    """Return a short test review for each word of `WORTH_DRAWING`, or any short one."""
    short = [row for row in _test_reviews(prepared) if len(row[0].split()) <= 12]
    first = (next((row for row in short if word in row[0].split()), None) for word in WORTH_DRAWING)
    return [row for row in first if row is not None] or short[:1]


def _table(results: dict[str, dict[str, Any]], count: int) -> Table:
    table = Table(title="Accuracy on test reviews", title_justify="left")
    table.add_column("model")
    for column in ("accuracy", "95 % interval", "training"):
        table.add_column(column, justify="right")
    for kind, name in MODELS.items():
        accuracy, seconds = results[kind]["test_accuracy"], results[kind]["seconds"]
        low, high = wilson(round(accuracy * count), count)
        table.add_row(name, f"{accuracy:.1%}", f"{low:.1%} to {high:.1%}", f"{seconds:.0f} s")
    return table
