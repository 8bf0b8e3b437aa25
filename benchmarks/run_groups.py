"""Records of runs (`collect_runs.py`) read and put together: seeds of an experiment, ablations."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from collect_runs import NO_OVERRIDES, complete, stem
from published import PAPER


class Ablation(NamedTuple):
    """A setting whose values are compared with all others equal."""

    title: str
    key: str
    column: str
    default: Any
    """The value of records that know no such setting."""
    order: tuple[Any, ...]
    """Values in the order of the table; others follow."""
    picture: str = ""


ABLATIONS = (
    Ablation("Leaf LSTM", "model.encoder.leaf", "leaf", "lstm", ("affine", "lstm")),
    Ablation(
        "Choice of trees",
        "model.encoder.trees",
        "trees",
        "learned",
        ("learned", "left", "right", "balanced", "random"),
    ),
    Ablation("Temperature annealing", "training.anneal_rate", "anneal rate", 0.0, (0.0,)),
    Ablation("Batch size", "training.batch_size", "batch", 128, (16, 32, 128), "batch-size"),
)


class Group(NamedTuple):
    """Runs of one recipe with the same changes: the seeds are all that differs."""

    recipe: str
    overrides: dict[str, Any]
    records: list[dict[str, Any]]

    @property
    def settings(self) -> dict[str, Any]:
        """All settings but those that do not count, by dotted key."""
        found = complete(self.records[0]["recipe"])
        return {key: value for key, value in found.items() if key not in NO_OVERRIDES}

    @property
    def task(self) -> str:
        return str(self.settings["data.task"])

    @property
    def digest(self) -> str:
        return str(self.records[0]["data"]["digest"])

    @property
    def name(self) -> str:
        return stem(self.recipe, self.overrides)


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Read all records of a folder."""
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise ValueError(f"{folder}: expected records of runs, found none; see collect_runs.py")
    records: dict[str, tuple[Path, dict[str, Any]]] = {}
    for path in paths:
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            name = stem(record["recipe_name"], record["overrides"], record["seed"])
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path}: expected the record of a run, got {error!r}") from error
        if name in records:
            raise ValueError(f"{records[name][0]} and {path} are both {name}; keep one of them")
        records[name] = path, record
    return [record for _, record in records.values()]


def group(records: Iterable[dict[str, Any]]) -> list[Group]:
    """Put the seeds of each experiment together; published recipes come first, as in the paper."""
    found: dict[tuple[str, str], Group] = {}
    for record in sorted(records, key=lambda record: int(record["seed"])):
        key = (record["recipe_name"], json.dumps(record["overrides"], sort_keys=True))
        found.setdefault(key, Group(key[0], record["overrides"], [])).records.append(record)
    for each in found.values():
        kinds = {
            json.dumps([Group("", {}, [r]).settings, r["data"]["digest"]], sort_keys=True)
            for r in each.records
        }
        if len(kinds) > 1:
            raise ValueError(
                f"the records of {each.name} differ in more than the seed (settings or data); "
                "they cannot be averaged: keep those of one kind"
            )
    published = list(PAPER)

    def place(key: tuple[str, str]) -> tuple[int, str, str]:
        name = key[0]
        return (published.index(name) if name in PAPER else len(published), name, key[1])

    return [found[key] for key in sorted(found, key=place)]


def families(groups: Sequence[Group], ablation: Ablation) -> list[list[Group]]:
    """Return the groups that differ in one setting alone, where it has more than one value."""
    found: dict[str, list[Group]] = {}
    for each in groups:
        rest = {key: value for key, value in each.settings.items() if key != ablation.key}
        found.setdefault(json.dumps(rest, sort_keys=True), []).append(each)
    chosen = []
    for family in found.values():
        values = {json.dumps(value_of(each, ablation)) for each in family}
        if len(values) == 1 and not any(ablation.key in each.overrides for each in family):
            continue
        if len({each.digest for each in family}) > 1:
            names = ", ".join(each.name for each in family)
            raise ValueError(f"{names}: expected runs on the same data, to be compared")
        chosen.append(sorted(family, key=lambda each: _place(value_of(each, ablation), ablation)))
    return chosen


def value_of(each: Group, ablation: Ablation) -> Any:
    """Return the value of the compared setting."""
    return each.settings.get(ablation.key, ablation.default)


def _place(value: Any, ablation: Ablation) -> tuple[int, float, str]:
    known = ablation.order.index(value) if value in ablation.order else len(ablation.order)
    return known, value if isinstance(value, int | float) else 0.0, str(value)


def family_names(found: Sequence[Sequence[Group]]) -> list[str]:
    """Return a name for each family: that of its shortest member's recipe, numbered if taken."""
    names: list[str] = []
    for family in found:
        name = min((each.recipe for each in family), key=lambda recipe: (len(recipe), recipe))
        taken = sum(other == name or other.startswith(f"{name}.") for other in names)
        names.append(f"{name}.{taken + 1}" if taken else name)
    return names


def alone(each: Group) -> list[dict[str, Any]]:
    """Return the runs that had the machine to themselves, so that their times can be compared."""
    return [r for r in each.records if r.get("alone")]
