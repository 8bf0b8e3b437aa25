"""Train a recipe with several seeds and summarise the results."""

import dataclasses
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gumbeltree.atomic import replace_file
from gumbeltree.config import Recipe

SUMMARY = "summary.json"


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
    summary = summarize(results)
    text = json.dumps(summary, indent=2, ensure_ascii=False) + "\n"
    replace_file(out / SUMMARY, lambda path: path.write_text(text, encoding="utf-8"))
    return summary


def summarize(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return mean, sample standard deviation and individual scores of several runs."""
    summary: dict[str, Any] = {"recipe": results[0]["recipe"]}
    measure = results[0].get("measure", "accuracy")
    for name in (f"dev_{measure}", f"test_{measure}"):
        values = [result[name] for result in results if name in result]
        if values:
            summary[name] = {
                "mean": statistics.fmean(values),
                "deviation": statistics.stdev(values) if len(values) > 1 else None,
                "each": values,
            }
    summary["runs"] = list(results)
    return summary
