"""The demonstration: train on made-up reviews beside two baselines, and look at the trees."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from gumbeltree.config import Recipe, load_recipe, with_settings
from gumbeltree.data.compile import prepare
from gumbeltree.data.prepared import Prepared
from gumbeltree.model import SentenceModel, load
from gumbeltree.nn.heads.class_evaluation import wilson
from gumbeltree.training.display import Display
from gumbeltree.training.loop import train

QUICK = ("generate=200", "epochs=2", "embedding_dim=8", "encoder.hidden_dim=8")
MODELS = {"gumbel_tree": "Gumbel Tree-LSTM", "lstm": "LSTM", "bag": "bag of words"}
TELLING = ("although", "doubt", "who")
"""Words of sentences worth a look: contrast, negation, a clause in passing."""


def run(out: Path, quick: bool = False, quiet: bool = False) -> None:
    """Train, compare, draw; leave the run of the tree model in `out`, with the others inside.

    Args:
        out: made if absent; a demonstration that is there already is shown again.
        quick: a tiny model that learns nothing, to see that everything works.
        quiet: show no progress.
    """
    # so small a model is no faster on two threads, and much slower beside other work
    torch.set_num_threads(1)
    recipe = with_settings(load_recipe("demo"), QUICK if quick else ())
    display = Display(quiet)
    prepared = prepare(recipe)
    counts = prepared.report["splits"]
    console = Console()
    console.print(
        f"{counts['train']['examples']:,} made-up reviews to learn from, "
        f"{counts['test']['examples']:,} held out; which words there are says little:",
        highlight=False,
        soft_wrap=True,
    )
    for text, label in _held_out(prepared)[:3]:
        console.print(f"  {label:8}  {text}", highlight=False, markup=False, soft_wrap=True)
    results = {}
    for kind, name in MODELS.items():
        display.title = f"{name}: "
        folder = out if kind == "gumbel_tree" else out / kind
        try:
            results[kind] = train(
                _with_kind(recipe, kind),
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
    _show_trees(model, prepared, console.print)
    picture = out / "tree.svg"
    longest = max((text for text, _ in _telling(prepared)), key=len)
    picture.write_text(model.parse(longest).svg(), encoding="utf-8")
    place = f"\nThe model is in {out / 'model'}, a picture in {picture}. Next:"
    console.print(place, highlight=False, markup=False, soft_wrap=True)
    saved = shlex.quote(str(out / "model"))
    for command in (
        f'gumbeltree predict {saved} "nobody says that the cake is dull ."',
        f'gumbeltree parse {saved} --draw "although the plot is dull , i loved it ."',
        f"gumbeltree info {saved}",
    ):
        console.print(f"  {command}", highlight=False, markup=False, soft_wrap=True)


def _with_kind(recipe: Recipe, kind: str) -> Recipe:
    return with_settings(recipe, [f"encoder.kind={kind}"])


def _held_out(prepared: Prepared) -> list[tuple[str, str]]:
    """Return the sentences of the test split and their labels."""
    words = {i: word for word, i in prepared.tokenizer.get_vocab().items()}
    split = prepared.splits["test"]
    texts = []
    for (sentence,), label in zip(split.sentences, split.labels, strict=True):
        ids = split.words[split.starts[sentence] : split.starts[sentence + 1]]
        texts.append((" ".join(words[int(i)] for i in ids), prepared.labels[label]))
    return texts


def _telling(prepared: Prepared) -> list[tuple[str, str]]:
    """Return a held-out sentence for each telling word that has one, not too long to draw."""
    held_out = [row for row in _held_out(prepared) if len(row[0].split()) <= 12]
    found = (next((r for r in held_out if word in r[0].split()), None) for word in TELLING)
    return [row for row in found if row is not None] or held_out[:1]


def _table(results: dict[str, dict[str, Any]], count: int) -> Table:
    table = Table(title="Accuracy on held-out reviews", title_justify="left")
    table.add_column("model")
    for column in ("accuracy", "95 % interval", "training"):
        table.add_column(column, justify="right")
    for kind, name in MODELS.items():
        accuracy, seconds = results[kind]["test_accuracy"], results[kind]["seconds"]
        low, high = wilson(round(accuracy * count), count)
        table.add_row(name, f"{accuracy:.1%}", f"{low:.1%} to {high:.1%}", f"{seconds:.0f} s")
    return table


def _show_trees(model: SentenceModel, prepared: Prepared, show: Callable[..., None]) -> None:
    show("How it merges the words of some of them, now without sampling:")
    rows = _telling(prepared)
    predictions = model.predict([text for text, _ in rows])
    for (text, label), prediction in zip(rows, predictions, strict=True):
        right = "right" if prediction.label == label else f"wrong: it is {label}"
        chance = prediction.probabilities[prediction.label]
        show(f"\n{prediction.label} ({chance:.0%}), {right}", highlight=False)
        show(model.parse(text).draw(width=100), highlight=False, markup=False, soft_wrap=True)
