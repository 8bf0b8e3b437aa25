"""Settings as earlier versions wrote them, in today's form.

Version 1 had the settings of all encoders, leaves and cells in one table, and fixed trees were a
setting of the paper's encoder.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from gumbeltree.parts import ENCODERS
from gumbeltree.settings import settings_of

FORMAT_VERSION = 2
"""Of model folders and of the settings of runs."""

ONLY_FIRST = ("leaf_init", "cell_init", "forget_offset")
"""Settings of encoders that only version 1 has."""
FIRST = (
    *("leaf", "cell", "score", "estimator", "temperature", "attention", "impl", "trees"),
    *ONLY_FIRST,
)
"""Settings that each encoder had in version 1, used or not."""

PLACES = {
    "leaf_init": "encoder.leaf.init",
    "cell_init": "encoder.cell.init",
    "forget_offset": "encoder.cell.forget_offset",
}
"""Where they are today."""


def current_recipe(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe in today's form."""
    model = recipe.get("model")
    return {**recipe, "model": current_model(model)} if isinstance(model, Mapping) else {**recipe}


def current_model(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a model in today's form."""
    encoder = model.get("encoder")
    if not isinstance(encoder, Mapping):
        return {**model}
    return {**model, "encoder": current_encoder(encoder)}


def current_encoder(encoder: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an encoder in today's form; what is so already stays."""
    now = dict(encoder)
    kind = now.get("kind", "gumbel_tree")
    trees = now.get("trees", "learned")
    changed = kind == "gumbel_tree" and "trees" in now
    if changed:
        del now["trees"]
        if trees != "learned":
            kind = now["kind"] = "fixed_tree"
            now["trees"] = trees
    first = {name: now.pop(name) for name in ONLY_FIRST if name in now}
    if not (first or changed) or kind not in ENCODERS:
        return now
    if "leaf_init" in first and kind == "lstm":
        now["init"] = first["leaf_init"]
    elif "leaf_init" in first and now.get("leaf", "lstm") in ("lstm", "bilstm"):
        now["leaf"] = {"kind": now.get("leaf", "lstm"), "init": first["leaf_init"]}
    if first.keys() - {"leaf_init"} and now.get("cell", "treelstm") == "treelstm":
        names = {"cell_init": "init", "forget_offset": "forget_offset"}
        given = {new: first[old] for old, new in names.items() if old in first}
        now["cell"] = {"kind": "treelstm", **given}
    # what this encoder never read
    known = {field.name for field in dataclasses.fields(settings_of(ENCODERS, kind))}
    return {name: x for name, x in now.items() if name in known or name not in FIRST}


def first_encoder(encoder: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an encoder as version 1 had them: by it, digests and records compare.

    Args:
        encoder: in today's form, complete.
    """
    now = dict(encoder)
    kind = now.pop("kind")
    leaf, cell, estimator = (now.pop(name, {}) for name in ("leaf", "cell", "estimator"))
    leaf_init = now.pop("init") if kind == "lstm" else leaf.get("init", "orthogonal")
    return {
        "embedding_dim": now.pop("embedding_dim"),
        "hidden_dim": now.pop("hidden_dim"),
        "leaf": leaf.get("kind", "lstm"),
        "leaf_init": leaf_init,
        "cell": cell.get("kind", "treelstm"),
        "cell_init": cell.get("init", "he"),
        "forget_offset": cell.get("forget_offset", 1.0),
        "score": now.pop("score", "dot"),
        "estimator": estimator.get("kind", "st_gumbel"),
        "temperature": now.pop("temperature", 1.0),
        "attention": now.pop("attention", False),
        "impl": now.pop("impl", "auto"),
        "trees": now.pop("trees", "learned"),
        "kind": "gumbel_tree" if kind == "fixed_tree" else kind,
        # what that version did not know
        **now,
        **{f"{name}.{key}": x for name, part, known in (
            ("leaf", leaf, ("kind", "init")), ("estimator", estimator, ("kind",)),
            ("cell", cell, ("kind", "init", "forget_offset")),
        ) for key, x in part.items() if key not in known},
    }  # fmt: skip


def current_setting(name: str, text: str) -> Iterator[tuple[str, str]]:
    """Yield today's names and values for one that `--set` took in version 1."""
    prefix, _, last = name.rpartition(".")
    if prefix not in ("", "encoder", "model.encoder"):
        yield name, text
    elif last in PLACES:
        yield PLACES[last], text
    elif last == "trees":
        kind = "gumbel_tree" if text.strip("\"' ") == "learned" else "fixed_tree"
        yield "encoder.kind", kind
        if kind == "fixed_tree":
            yield "encoder.trees", text
    else:
        yield name, text
