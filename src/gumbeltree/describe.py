"""Describe a recipe or a model: parts, settings, parameters."""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gumbeltree.config import ModelConfig, load_recipe, recipe_names
from gumbeltree.extras import has_torch
from gumbeltree.light.model import is_light
from gumbeltree.packaged import about_packaged, main_metric, packaged_folder, packaged_names
from gumbeltree.parts import ENCODERS, HEADS
from gumbeltree.registry import suggest
from gumbeltree.store import CONFIG, find_model, hub_hint, model_config, read_config

PART_NAMES = {
    "cell": "composition", "hidden": "mlp",
    "batch_norm_in": "batch_norm", "batch_norm_between": "batch_norm",
    "batch_norm_out": "batch_norm",
}  # fmt: skip
"""Names of parts in descriptions, where they differ from those of the weights."""
PUBLISHED = re.compile(r"\s*\(((?:Table \d+|published)\b[^)]*)\)")
"""A result of the paper in the description of a recipe."""
BUFFERS = ("running_mean", "running_var", "num_batches_tracked", "class_weights")
"""Names of stored numbers that are not trained."""


def describe(name: str) -> dict[str, Any]:
    """Describe a recipe (a name or a .toml path) or a model.

    If a recipe and the packaged model trained with it share the name, the settings are the
    recipe's and "pretrained" describes the model. A local folder of that name takes precedence.
    """
    folder = find_model(name)
    packaged = folder == packaged_folder(name)
    recipes = recipe_names()
    about: dict[str, Any] = {}
    if (folder / CONFIG).is_file() and not (packaged and name in recipes):
        config = model_config(folder)
        provenance = section(read_config(folder), "provenance")
        about = {
            "model_folder": name,
            "measured": measured(provenance),
            "provenance": provenance,
        }
    elif name.endswith(".toml") or name in recipes:
        recipe = load_recipe(name)
        config = recipe.model
        about = {
            "recipe": name,
            "description": recipe.description,
            "data": dataclasses.asdict(recipe.data),
            "training": dataclasses.asdict(recipe.training),
        }
    else:
        models = packaged_names()
        raise ValueError(
            f"{name!r} is neither a recipe nor a model folder (a folder with {CONFIG}); recipes: "
            f"{', '.join(recipes)}; packaged models: {', '.join(models)}."
            f"{suggest(name, recipes + models)}{hub_hint(Path(name))}"
        )
    if packaged:
        about["pretrained"] = about_packaged(name).as_dict()
    return {
        "parameters": count_parameters(config),
        **about,
        "model": dataclasses.asdict(config),
        **_implementation(config),
    }


def measured(provenance: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the model's own result on the test split, or else the dev split; None if unknown.

    Args:
        provenance: The origin of a model.

    Returns:
        "metric", "value" and "split"; "data", the task; "examples" of the split and "trained_on",
        the number of training examples, each None if not recorded.
    """
    metrics, splits = section(provenance, "metrics"), section(section(provenance, "data"), "splits")
    name = main_metric(metrics) or ""
    task = section(section(provenance, "recipe"), "data").get("task")
    for split in ("test", "dev"):
        value = metrics.get(f"{split}_{name}")
        # commands print the names, which may come from anyone
        if isinstance(value, float) and math.isfinite(value) and name.isprintable():
            return {
                "metric": name,
                "value": value,
                "split": split,
                "data": task if isinstance(task, str) and task.isprintable() else None,
                "examples": _examples(splits, split),
                "trained_on": _examples(splits, "train"),
            }
    return None


def without_published(description: str) -> str:
    """Remove published results from the description of a recipe, such as "(Table 1: 82.6 %)"."""
    return PUBLISHED.sub("", description)


def published(description: str) -> str:
    """Return the published results in the description of a recipe; empty if there are none."""
    found = PUBLISHED.search(description)
    return found[1] if found else ""


def section(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return a dictionary in a provenance, which may have any content; empty if there is none."""
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def _examples(splits: Mapping[str, Any], split: str) -> int | None:
    count = section(splits, split).get("examples")
    return count if isinstance(count, int) else None


def _implementation(config: ModelConfig) -> dict[str, Any]:
    """Return the merge implementation and the reason for it; empty if the encoder has none."""
    if not has_torch():
        return {}
    import torch

    kind = ENCODERS[config.encoder.kind]
    if not hasattr(kind, "explain"):
        return {}
    # the choice does not depend on the sizes
    small = dataclasses.replace(config.encoder, embedding_dim=2, hidden_dim=2)
    with torch.random.fork_rng(devices=[]):
        choice = kind(small).explain(sample=True)
    return {"implementation": choice._asdict()}


def count_parameters(config: ModelConfig) -> dict[str, int]:
    """Count parameters by part; as in the paper, word vectors are excluded."""
    # the usual parts in this order, then any others
    counts = dict.fromkeys(("leaf", "composition", "query", "mlp", "output", "batch_norm"), 0)
    for name, size in _sizes(config):
        part = name.partition(".")[0]
        part = PART_NAMES.get(part, part)
        counts[part] = counts.get(part, 0) + size
    counts = {part: count for part, count in counts.items() if count}
    return {**counts, "total": sum(counts.values())}


def _sizes(config: ModelConfig) -> Iterator[tuple[str, int]]:
    """Yield the name and the size of each parameter of the encoder and the head."""
    if is_light(config):
        encoder = ENCODERS.light_version(config.encoder.kind).shapes(config.encoder)
        head = HEADS.light_version(config.head.kind)
        shapes = {**encoder, **head.shapes(config.head, config.encoder.hidden_dim)}
        for name, shape in shapes.items():
            if not name.endswith(BUFFERS):
                yield name, math.prod(shape)
        return
    import torch

    # shapes only: allocates no memory and draws no random numbers
    with torch.device("meta"):
        module = ENCODERS[config.encoder.kind](config.encoder)
        for part in (module, HEADS[config.head.kind](config.head, module.vector_dim)):
            for name, parameter in part.named_parameters():
                yield name, parameter.numel()
