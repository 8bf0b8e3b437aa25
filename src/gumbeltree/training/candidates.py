"""Train several encoders on the same data, one after the other, and keep the best."""

import dataclasses
import functools
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_fabric.loggers.logger import Logger
from rich.table import Table

from gumbeltree.atomic import replace_file
from gumbeltree.config import CANDIDATES, Recipe
from gumbeltree.data.compile import with_labels
from gumbeltree.data.prepared import Prepared, check_fit
from gumbeltree.data.split import Split
from gumbeltree.describe import count_parameters
from gumbeltree.device.pick import pick_device
from gumbeltree.evaluation import Evaluator
from gumbeltree.migrate import FORMAT_VERSION
from gumbeltree.model import SentenceModel, load
from gumbeltree.parts import HEADS
from gumbeltree.store import CONFIG, TOKENIZER, WEIGHTS, model_config
from gumbeltree.training.display import Display
from gumbeltree.training.folder import MODEL, RESULT, SETTINGS, RunFolder, saving
from gumbeltree.training.loop import train

RATE_SECONDS = 0.5
"""Minimum duration of the measurement of a model's speed."""


def candidate_recipes(make: Callable[[str], Recipe]) -> dict[str, Recipe]:
    """Return the recipe of each candidate by name.

    Args:
        make: returns the recipe of an encoder in `CANDIDATES`.
    """
    recipes: dict[str, Recipe] = {}
    for name in CANDIDATES:
        try:
            recipes[name] = make(name)
        except ValueError as error:
            raise ValueError(
                f"the encoder auto applies all settings to each of {', '.join(CANDIDATES)}, but "
                f"one does not fit {name}: {error}"
            ) from error
        if recipes[name].data != recipes[CANDIDATES[0]].data:
            raise ValueError(
                "the candidates are trained on the same data, but the recipe changes `data` for "
                f"{name}; remove these settings from its table `encoders`"
            )
    return recipes


def train_candidates(
    recipes: Mapping[str, Recipe],
    prepared: Prepared,
    out: str | Path,
    *,
    recipe_name: str = "",
    resume: bool = False,
    device: str = "auto",
    quiet: bool = False,
    display: Display | None = None,
    loggers: Sequence[Logger | str] = (),
) -> dict[str, Any]:
    """Train each candidate, keep the best one on the development split, and return its results.

    Each candidate is an ordinary run in a folder inside `out`. Only the best one is evaluated on
    the test split. Of equally good candidates, the first one is kept.

    Args:
        recipes: recipe of each candidate by name; they differ in the model and in training only.
        prepared: the data, as `gumbeltree.prepare` returns it for any of the recipes.
        out: folder of the runs, of the best model (model/) and of its results (result.json).
        recipe_name: recorded with the results.
        resume: continue the runs in `out`, if there are any.
        device: auto, cpu, cuda or cuda:N.
        quiet: show no progress.
        display: shows progress instead of a new display.
        loggers: see `train`.

    Returns:
        The content of result.json: the results of the best run, as `train` returns them, its name
        (encoder), and a comparison of all runs (candidates).
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError(
            "candidates are compared in a single process; start the command without torchrun, or "
            "choose one encoder"
        )
    for recipe in recipes.values():
        # fail before the first candidate is trained, not after it
        check_fit(prepared, with_labels(recipe, prepared))
    display = display or Display(quiet)
    settings = _settings(recipes, prepared, recipe_name)
    with RunFolder(out, settings, resume) as folder:
        if folder.read(SETTINGS) != folder.settings:
            # a resumed run can have new settings
            folder.write(SETTINGS, folder.settings)

        def run(name: str, test: bool) -> dict[str, Any]:
            display.title = f"{name}: "
            result = train(
                recipes[name],
                prepared,
                folder.path / name,
                recipe_name=recipe_name,
                # a candidate that was chosen is completed by its test results
                resume=resume or test,
                device=device,
                display=display,
                test=test,
                loggers=loggers,
            )
            display.title = ""
            return result

        results = {name: run(name, test=False) for name in recipes}
        rows = [_row(name, folder.path / name, result) for name, result in results.items()]
        if folder.has(RESULT):
            known = folder.read(RESULT)
            if rows == [{**row, "sentences_per_second": None} for row in known["candidates"]]:
                return known
        kind = next(iter(recipes.values())).model.head.kind
        choose = min if HEADS[kind].metric(rows[0]["measure"]).lower else max
        best = choose(rows, key=lambda row: row["value"])["encoder"]
        for row in rows:
            model = load(folder.path / row["encoder"], pick_device(device))
            row["sentences_per_second"] = round(_rate(model, prepared.splits["dev"]))
        result = {**run(best, test=True), "encoder": best, "candidates": rows}
        _copy_model(folder.path / best / MODEL, folder.path / MODEL)
        folder.write(RESULT, result)
    return result


def _settings(recipes: Mapping[str, Recipe], prepared: Prepared, name: str) -> dict[str, Any]:
    """Return settings that identify the folder; each run inside compares its own."""
    last = dataclasses.replace(
        with_labels(list(recipes.values())[-1], prepared), data=prepared.data
    )
    settings = {
        "format_version": FORMAT_VERSION,
        "recipe_name": name,
        "recipe": dataclasses.asdict(last),
        "data_digest": prepared.fingerprint(),
        "encoder": "auto",
    }
    # JSON turns tuples into lists
    plain: dict[str, Any] = json.loads(json.dumps(settings))
    return plain


def _row(name: str, folder: Path, result: dict[str, Any]) -> dict[str, Any]:
    """Return the comparison of one run with others, before its speed is measured."""
    measure = result.get("measure", "accuracy")
    return {
        "encoder": name,
        "measure": measure,
        "value": result[f"dev_{measure}"],
        "parameters": count_parameters(model_config(folder / MODEL))["total"],
        "bytes": (folder / MODEL / WEIGHTS).stat().st_size,
        "seconds": result["seconds"],
        "sentences_per_second": None,
    }


def _rate(model: SentenceModel, split: Split) -> float:
    """Return how many sentences of a split a model evaluates per second."""
    evaluator = Evaluator(model, split)
    # the first calls prepare kernels and capture graphs
    evaluator()
    evaluator()
    start, rounds = time.perf_counter(), 0
    while (seconds := time.perf_counter() - start) < RATE_SECONDS or not rounds:
        evaluator()
        rounds += 1
    return rounds * split.sentences.size / seconds


def _copy_model(source: Path, target: Path) -> None:
    """Replace the files of a model folder by those of another one; the settings come last."""
    target.mkdir(exist_ok=True)
    for name in (WEIGHTS, TOKENIZER, CONFIG):
        with saving(target / name):
            replace_file(target / name, functools.partial(shutil.copyfile, source / name))


def comparison(rows: Iterable[Mapping[str, Any]], best: str, head: str) -> Table:
    """Return a table of the candidates.

    Args:
        rows: `candidates` of the results of `train_candidates`.
        best: name of the best candidate, which is marked.
        head: kind of the head, which formats the metric.
    """
    rows = list(rows)
    table = Table()
    table.add_column("encoder")
    columns = (f"dev {rows[0]['measure']}", "parameters", "size", "training", "sentences/s")
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        minutes, seconds = divmod(round(row["seconds"]), 60)
        table.add_row(
            f"{row['encoder']} *" if row["encoder"] == best else row["encoder"],
            HEADS[head].metric(row["measure"]).shown(row["value"]),
            f"{row['parameters']:,}",
            f"{row['bytes'] / 1e6:,.1f} MB",
            f"{minutes}:{seconds:02d}",
            f"{row['sentences_per_second']:,}",
        )
    return table
