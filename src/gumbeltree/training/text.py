"""Train a model on labelled texts in memory, in one call."""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from gumbeltree.config import Recipe, assignments, load_recipe, with_settings, with_target
from gumbeltree.data.columns import examples_of
from gumbeltree.data.compile import needs_vectors, prepare
from gumbeltree.data.examples import Examples
from gumbeltree.model import SentenceModel, load
from gumbeltree.parts import HEADS
from gumbeltree.training.candidates import candidate_recipes, comparison, train_candidates
from gumbeltree.training.display import Display
from gumbeltree.training.folder import check_free
from gumbeltree.training.loop import train
from gumbeltree.training.stopping import InterruptedRunError


def train_text(
    texts: Iterable[str],
    labels: Iterable[Any],
    second: Iterable[str] | None = None,
    *,
    vectors: str | Path | None = None,
    target: str = "classes",
    encoder: str = "tree",
    dev: Sequence[Iterable[Any]] | None = None,
    test: Sequence[Iterable[Any]] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    settings: Iterable[str] | Mapping[str, Any] = (),
    seed: int = 0,
    device: str = "auto",
    quiet: bool = False,
) -> SentenceModel:
    """Train a model on labelled texts and return it.

    Columns can be lists, tuples, columns of data frames or of data sets, arrays or iterators. The
    settings are those of the recipe `text`, or `text-pair` for pairs of texts.

    Example:
        >>> import gumbeltree
        >>> texts = ["a gem .", "so dull .", "i loved it ."] * 10
        >>> labels = ["good", "bad", "good"] * 10
        >>> model = gumbeltree.train_text(texts, labels, settings=["epochs=1"], quiet=True)
        >>> model.predict(["i loved it ."])[0].label
        'good'
        >>> "test_accuracy" in model.provenance["metrics"]
        True

    Args:
        texts: the texts.
        labels: label of each text: a class, a number or a list of tags; see `target`.
        second: the second texts, for pairs.
        vectors: a GloVe text file, plain, .gz or .zip. None computes word vectors from `texts`.
        target: what to predict: classes, number or tags.
        encoder: tree, lstm, bag or another kind of encoder; auto trains these three and returns the
            best model on the development split.
        dev: texts and labels, and the second texts for pairs, of the development split, which
            selects the best model. By default, a tenth of the examples.
        test: the same for the test split, on which the best model is evaluated. By default, another
            tenth of the examples.
        out: run folder to keep. By default, nothing is left on the disk.
        resume: continue the run in `out`, if there is one.
        settings: changes to the recipe, such as {"epochs": 5} or ["epochs=5"]; see `with_settings`.
        seed: seed of the training.
        device: auto, cpu, cuda or cuda:N.
        quiet: show no progress.

    Returns:
        The best model on the development split, in evaluation mode on the CPU. Its metrics are in
        `model.provenance["metrics"]`.
    """
    if resume and out is None:
        raise ValueError("there is no run to resume without a run folder; pass `out`")
    name = "text" if second is None else "text-pair"
    changes = [*assignments(settings), f"training.seed={seed}"]

    def with_encoder(encoder: str) -> Recipe:
        return with_settings(with_target(load_recipe(name, encoder), target), changes)

    recipes = candidate_recipes(with_encoder) if encoder == "auto" else {}
    recipe = with_encoder("tree" if recipes else encoder)
    if vectors is None and needs_vectors(recipe):
        raise ValueError(
            "the settings do not train the word vectors, which would stay random; pass `vectors`, "
            "or the setting tuned=true"
        )
    if out is not None:
        # fail before reading the data, which can take minutes
        check_free(Path(out), resume)

    reading: dict[str, Any] = {
        "pretokenized": recipe.data.pretokenized,
        "tag_separator": getattr(recipe.model.head, "tag_separator", ""),
    }

    def examples(columns: Sequence[Iterable[Any]] | None, split: str) -> Examples | None:
        if columns is None:
            return None
        if isinstance(columns, str) or len(columns) != (2 if second is None else 3):
            wanted = "(texts, labels)" if second is None else "(texts, labels, second)"
            raise ValueError(f"`{split}` must be {wanted}; pass these columns as a tuple")
        try:
            return examples_of(*columns, **reading)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{split}: {error}") from error

    display = Display(quiet)
    prepared = prepare(
        recipe,
        examples_of(texts, labels, second, **reading),
        vectors,
        dev=examples(dev, "dev"),
        test=examples(test, "test"),
        say=display.say,
    )
    for line in prepared.lines():
        display.say(line)
    options: dict[str, Any] = {"recipe_name": name, "resume": resume, "device": device}
    with tempfile.TemporaryDirectory() if out is None else nullcontext(out) as folder:
        try:
            if recipes:
                result = train_candidates(recipes, prepared, folder, display=display, **options)
                if not quiet:
                    rows, best = result["candidates"], result["encoder"]
                    display.console.print(comparison(rows, best, recipe.model.head.kind))
            else:
                result = train(recipe, prepared, folder, display=display, **options)
        except InterruptedRunError as stop:
            if out is not None:
                raise
            raise KeyboardInterrupt("training stopped; pass `out` to be able to resume") from stop
        model = load(folder)
    measure = result["measure"]
    shown = HEADS[recipe.model.head.kind].metric(measure).shown
    scores = {split: result.get(f"{split}_{measure}") for split in ("dev", "test")}
    found = ", ".join(f"{split} {shown(x)}" for split, x in scores.items() if x is not None)
    display.say(f"best model, epoch {result['best_epoch']:.2f}: {measure} {found}")
    return model
