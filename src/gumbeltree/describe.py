"""Describe a recipe or a model: parts, sizes, parameters."""

import dataclasses
from pathlib import Path
from typing import Any

import torch

from gumbeltree.config import ModelConfig, load_recipe, recipe_names
from gumbeltree.packaged import about_packaged, packaged_folder, packaged_names
from gumbeltree.parts import ENCODERS, HEADS
from gumbeltree.registry import suggest
from gumbeltree.store import CONFIG, find_model, hub_hint, model_config, read_config


def describe(name: str) -> dict[str, Any]:
    """Return what is known of a recipe (by name or .toml path) or of a model.

    A name may be a recipe's and that of the packaged model trained by it: then the settings are
    those of the recipe, and the model is told of under "pretrained". A folder of that name comes
    before both.
    """
    folder = find_model(name)
    packaged = folder == packaged_folder(name)
    recipes = recipe_names()
    about: dict[str, Any] = {}
    if (folder / CONFIG).is_file() and not (packaged and name in recipes):
        config = model_config(folder)
        provenance = read_config(folder).get("provenance", {})
        about = {"model_folder": name, "provenance": provenance}
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
        both = f"; packaged models: {', '.join(models)}" if models else ""
        raise ValueError(
            f"{name!r} is neither a recipe nor a model folder (a folder with {CONFIG}); recipes: "
            f"{', '.join(recipes)}{both}.{suggest(name, recipes + models)}{hub_hint(Path(name))}"
        )
    if packaged:
        about["pretrained"] = about_packaged(name).as_dict()
    return {
        "parameters": count_parameters(config),
        **about,
        "model": dataclasses.asdict(config),
        **_implementation(config),
    }


def _implementation(config: ModelConfig) -> dict[str, Any]:
    """Return which implementation merges, and why, under its key; nothing without merges."""
    kind = ENCODERS[config.encoder.kind]
    if not hasattr(kind, "explain"):
        return {}
    # a small one, but where a model would be
    small = dataclasses.replace(config.encoder, embedding_dim=2, hidden_dim=2)
    with torch.random.fork_rng(devices=[]):
        choice = kind(small).explain(sample=True)
    return {"implementation": choice._asdict()}


def count_parameters(config: ModelConfig) -> dict[str, int]:
    """Count parameters by part, word vectors excluded as in the paper."""
    # shapes only: no memory, no random numbers
    with torch.device("meta"):
        encoder = ENCODERS[config.encoder.kind](config.encoder)
        head = HEADS[config.head.kind](config.head, encoder.vector_dim)
    parts = {"cell": "composition"}
    counts: dict[str, int] = {}
    for name, parameter in encoder.named_parameters():
        part = parts.get(name.split(".")[0], name.split(".")[0])
        counts[part] = counts.get(part, 0) + parameter.numel()
    order = ("leaf", "composition", "query")
    counts = {
        **{part: counts[part] for part in order if part in counts},
        **{part: count for part, count in counts.items() if part not in order},
        **head.count_parameters(),
    }
    return {**counts, "total": sum(counts.values())}
