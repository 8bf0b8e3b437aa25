"""Rows of the plans that compare estimators: their names and the settings that matter.

Used by `gradient_variance.py`, `choose.py` and `write_estimators.py`.
"""

import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gumbeltree.config import Recipe, load_recipe, with_settings

PLAN = Path(__file__).parent / "plans" / "estimators.toml"
LOCAL = {
    "st_gumbel": "ST-Gumbel",
    "st": "straight-through",
    "gumbel_rao": "Gumbel-Rao",
    "gapped": "gapped straight-through",
    "reinmax": "ReinMax",
    "soft": "Gumbel-softmax",
}
SPIGOT = {"spigot": "SPIGOT", "ce": "SPIGOT-CE", "eg": "SPIGOT-EG"}
POLICIES = {"reinforce": "REINFORCE", "ppo": "PPO"}
BASELINES = {
    "none": "no baseline",
    "batch": "batch mean",
    "running": "running mean",
    "self_critical": "self-critical",
    "rloo": "leave-one-out",
    "nvil": "NVIL",
}
BESIDE = ("listops-random", "listops-gold")
"""Recipes without learned trees, which stand beside the estimators."""
NAMED = ("estimator", "variant", "baseline", "trees")
"""Settings that the name of an estimator contains."""


class Row(NamedTuple):
    """A recipe and the changes of `--set`."""

    recipe: str
    set: tuple[str, ...] = ()

    @property
    def settings(self) -> Recipe:
        """All settings of the row."""
        return with_settings(load_recipe(self.recipe), self.set)


def read_rows(path: Path = PLAN) -> list[Row]:
    """Return the rows of a plan with estimators; see `train_all.py`."""
    plan = tomllib.loads(path.read_text(encoding="utf-8"))
    rows = [(row["recipe"], tuple(row.get("set", ()))) for row in plan["row"]]
    return [Row(recipe, given) for recipe, given in rows if recipe != list(BESIDE)]


def title(encoder: Any) -> str:
    """Return the name of the estimator in the settings of an encoder, or that of its trees."""
    estimator = getattr(encoder, "estimator", None)
    if estimator is None:
        return f"{getattr(encoder, 'trees', encoder.kind)} trees"
    kind: str = estimator.kind
    if kind == "spigot":
        return SPIGOT[estimator.variant]
    if kind in POLICIES:
        return f"{POLICIES[kind]}, {BASELINES[estimator.baseline]}"
    if kind == "st" and estimator.forward_temperature != 1:
        return "decoupled straight-through"
    return LOCAL.get(kind, kind)


def needed(row: Row) -> tuple[str, ...]:
    """Return the changes without those that change nothing, such as defaults of an estimator."""
    base, wanted, kept = load_recipe(row.recipe), row.settings, list(row.set)
    for change in reversed(row.set):
        rest = [other for other in kept if other != change]
        try:
            if with_settings(base, rest) == wanted:
                kept = rest
        except ValueError:
            # the others depend on it
            continue
    return tuple(kept)


def label(row: Row, hidden: Iterable[str] = ()) -> str:
    """Return the name of the estimator, and its other settings except those in `hidden`."""
    others = [
        f"`{change}`"
        for change in needed(row)
        if change.partition("=")[0] not in NAMED and change not in hidden
    ]
    return ", ".join([title(row.settings.model.encoder), *others])


def same_estimator(row: Row, estimator: Any, temperature: float | None = None) -> bool:
    """Return whether a row has an estimator with these settings, and the temperature if given."""
    encoder = row.settings.model.encoder
    if getattr(encoder, "estimator", None) != estimator:
        return False
    return temperature is None or bool(encoder.temperature == temperature)


def in_order(rows: Sequence[Row], plan: Sequence[Row]) -> list[Row]:
    """Return rows in the order in which a plan lists their estimators; others come last."""
    names = list(dict.fromkeys(title(row.settings.model.encoder) for row in plan))

    def place(row: Row) -> tuple[int, tuple[str, ...]]:
        name = title(row.settings.model.encoder)
        return names.index(name) if name in names else len(names), row.set

    return sorted(rows, key=place)
