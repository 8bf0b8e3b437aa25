"""Convert settings of earlier format versions to the current one.

Version 1 kept the settings of encoders, leaves and cells in one table, and fixed trees were a
setting of the paper's encoder.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from gumbeltree.parts import ENCODERS
from gumbeltree.settings import settings_of

FORMAT_VERSION = 2
"""Version of model folders and of the settings of runs."""

ONLY_FIRST = ("leaf_init", "cell_init", "forget_offset")
"""Settings of encoders that exist only in version 1."""
FIRST = (
    *("leaf", "cell", "score", "estimator", "temperature", "attention", "impl", "trees"),
    *ONLY_FIRST,
)
"""Settings that every encoder had in version 1, used or not."""
FIRST_KINDS = ("gumbel_tree", "fixed_tree", "lstm", "bag")
"""Encoders with the settings of version 1."""

PLACES = {
    "leaf_init": "encoder.leaf.init",
    "cell_init": "encoder.cell.init",
    "forget_offset": "encoder.cell.forget_offset",
}
"""Current names of the settings in `ONLY_FIRST`."""


def current_recipe(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe in the current format."""
    model = recipe.get("model")
    return {**recipe, "model": current_model(model)} if isinstance(model, Mapping) else {**recipe}


def current_model(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a model in the current format."""
    encoder = model.get("encoder")
    if not isinstance(encoder, Mapping):
        return {**model}
    return {**model, "encoder": current_encoder(encoder)}


def current_encoder(encoder: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an encoder in the current format; idempotent."""
    now = dict(encoder)
    kind = now.get("kind", "gumbel_tree")
    if not isinstance(kind, str):
        return now
    changed = kind == "gumbel_tree" and "trees" in now
    if changed:
        trees = now.pop("trees")
        if trees != "learned":
            kind = now["kind"] = "fixed_tree"
            now["trees"] = trees
    first = {name: now.pop(name) for name in ONLY_FIRST if name in now}
    if not (first or changed) or kind not in ENCODERS:
        return now
    if "leaf_init" in first and kind == "lstm":
        now.setdefault("init", first["leaf_init"])
    elif "leaf_init" in first:
        _add(now, "leaf", "lstm", ("lstm", "bilstm"), {"init": first["leaf_init"]})
    cell = {"cell_init": "init", "forget_offset": "forget_offset"}
    given = {new: first[old] for old, new in cell.items() if old in first}
    if given:
        _add(now, "cell", "treelstm", ("treelstm",), given)
    if not changed and len(first) < len(ONLY_FIRST):
        return now
    # version 1 also wrote settings that the encoder did not use
    known = {field.name for field in dataclasses.fields(settings_of(ENCODERS, kind))}
    for name in [name for name in FIRST if name in now and name not in known]:
        if isinstance(now[name], list):
            raise ValueError(f"`encoder.{name}` must be a string or a number, got {now[name]!r}")
        del now[name]
    return now


def _add(
    encoder: dict[str, Any], part: str, usual: str, kinds: tuple[str, ...], more: dict[str, Any]
) -> None:
    """Add settings to a part if it is of a kind that uses them."""
    given = encoder.get(part, usual)
    table = {"kind": given} if isinstance(given, str) else given
    if isinstance(table, Mapping) and table.get("kind", usual) in kinds:
        encoder[part] = {"kind": usual, **more, **table}


def first_encoder(encoder: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an encoder in the format of version 1, to keep digests comparable.

    Args:
        encoder: complete settings in the current format.
    """
    # leaves can be parts of a parser, too
    now = _without(encoder, "biases", 2)
    kind = now.pop("kind")
    # version 1 did not know these settings
    for name, former in (("pooling", "root"), ("add_words", False)):
        if now.get(name) == former:
            del now[name]
    # a string names a part, a table also contains its settings
    leaf, cell, estimator = (
        now.pop(name) if isinstance(now.get(name), Mapping) else {}
        for name in ("leaf", "cell", "estimator")
    )
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
        # settings added after version 1
        **now,
        **{f"{name}.{key}": x for name, part, known in (
            ("leaf", leaf, ("kind", "init")), ("estimator", estimator, ("kind",)),
            ("cell", cell, ("kind", "init", "forget_offset")),
        ) for key, x in part.items() if key not in known},
    }  # fmt: skip


def _without(settings: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    """Return settings and those of their parts without one that has this value."""
    return {
        key: _without(x, name, value) if isinstance(x, Mapping) else x
        for key, x in settings.items()
        if (key, x) != (name, value)
    }


def current_setting(name: str, text: str, encoder: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the current names and values of a setting that `--set` accepted in version 1.

    Args:
        name: name of the setting.
        text: its value.
        encoder: current settings of the encoder. Settings that those of version 1 do not use are
            dropped; all others must know them.
    """
    prefix, _, last = name.rpartition(".")
    kind = encoder["kind"]
    if prefix not in ("", "encoder", "model.encoder") or last not in (*PLACES, "trees"):
        yield name, text
    elif last == "trees" and kind in ("gumbel_tree", "fixed_tree"):
        other = "gumbel_tree" if text.strip("\"' ") == "learned" else "fixed_tree"
        yield "encoder.kind", other
        if other == "fixed_tree":
            yield "encoder.trees", text
    elif last == "trees" and "trees" in encoder:
        yield name, text
    elif last == "leaf_init" and kind == "lstm":
        yield "encoder.init", text
    elif last in PLACES and _has(encoder, PLACES[last]):
        yield PLACES[last], text
    elif kind not in FIRST_KINDS:
        yield name, text


def _has(encoder: Mapping[str, Any], place: str) -> bool:
    """Return whether an encoder has a setting, given as "encoder.PART.SETTING"."""
    _, part, setting = place.split(".")
    table = encoder.get(part)
    return isinstance(table, Mapping) and setting in table
