"""Train a recipe with several seeds and summarise the results."""

import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gumbeltree.atomic import replace_file
from gumbeltree.config import Recipe
from gumbeltree.parts import HEADS

if TYPE_CHECKING:
    from gumbeltree.nn.heads.head import Head

SUMMARY = "summary.json"
SPLITS = ("dev", "test")


def train_seeds(
    recipe: Recipe, seeds: Sequence[int], out: Path, train_one: Callable[[Recipe, Path], Any]
) -> dict[str, Any]:
    """Train once per seed in `out/seed-N`, write `out/summary.json` and return the summary.

    Args:
        recipe: recipe to train; its seed is replaced.
        seeds: seeds of the runs.
        out: folder of the runs and the summary.
        train_one: function that trains a recipe in a folder and returns the result.
    """
    results = []
    for seed in seeds:
        training = dataclasses.replace(recipe.training, seed=seed)
        one = dataclasses.replace(recipe, training=training)
        results.append(train_one(one, out / f"seed-{seed}"))
    summary = summarize(results, HEADS[recipe.model.head.kind])
    text = json.dumps(summary, indent=2, ensure_ascii=False) + "\n"
    replace_file(out / SUMMARY, lambda path: path.write_text(text, encoding="utf-8"))
    return summary


def summarize(results: Sequence[dict[str, Any]], head: "type[Head]") -> dict[str, Any]:
    """Return mean, sample standard deviation and individual scores of several runs.

    `best_seed` is the seed of the run with the best development score, by the measure of the head.
    """
    summary: dict[str, Any] = {"recipe": results[0]["recipe"]}
    score, lower = f"dev_{head.measure}", head.metric(head.measure).lower
    known = [x for x in results if score in x and not math.isnan(x[score])]
    if known:
        best = (min if lower else max)(known, key=lambda x: x[score])
        summary["best_seed"] = best["seed"]
    for name in (f"{split}_{x}" for x in shown_measures(results, head) for split in SPLITS):
        values = [result[name] for result in results if name in result]
        if values:
            summary[name] = {
                "mean": statistics.fmean(values),
                # `statistics.stdev` fails with NaN
                "deviation": float(np.std(values, ddof=1)) if len(values) > 1 else None,
                "each": values,
            }
    summary["runs"] = list(results)
    return summary


def shown_measures(results: Sequence[dict[str, Any]], head: "type[Head]") -> list[str]:
    """Return the measure that selected the models, then that of the head if it is another."""
    return list(dict.fromkeys([results[0].get("measure", "accuracy"), head.measure]))
