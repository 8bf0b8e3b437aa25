"""Describe a recipe or a model: parts, settings, parameters."""

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


def _implementation(config: ModelConfig) -> dict[str, Any]:
    """Return the merge implementation and the reason for it; empty if the encoder has none."""
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
    # shapes only: allocates no memory and draws no random numbers
    with torch.device("meta"):
        encoder = ENCODERS[config.encoder.kind](config.encoder)
        head = HEADS[config.head.kind](config.head, encoder.vector_dim)
    # the usual parts in this order, then any others
    counts = dict.fromkeys(("leaf", "composition", "query"), 0)
    for name, parameter in encoder.named_parameters():
        part = name.partition(".")[0]
        part = "composition" if part == "cell" else part
        counts[part] = counts.get(part, 0) + parameter.numel()
    counts = {part: count for part, count in counts.items() if count} | head.count_parameters()
    return {**counts, "total": sum(counts.values())}
