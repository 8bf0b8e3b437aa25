"""Settings as frozen dataclasses that check their values and reject unknown keys."""

import dataclasses
import math
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any

from gumbeltree.registry import Registry, UnknownNameError, found_at, suggest

KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}


def setting(
    default: Any, *, choices: Iterable[str] = (), low: float | None = None, high: float = math.inf
) -> Any:
    """Return a field with a default, and with `choices` or the limits `low` and `high`."""
    return field(default=default, metadata={"choices": choices, "low": low, "high": high})


def kind_of(name: str) -> Any:
    """Return the keyword-only field `kind` of a part's settings."""
    return field(default=name, kw_only=True)


def part(table: Registry, default: str) -> Any:
    """Return a field for a part, such as a cell, that has settings of its own.

    Its value is a settings object, a table with `kind` and other settings, or just the kind.

    Args:
        table: registry of the part.
        default: default kind of the part.
    """
    return field(
        default_factory=lambda: settings_of(table, default)(),
        metadata={"part": table, "default": default},
    )


@dataclass(frozen=True)
class Settings:
    """Base class of all settings: checks the values on construction."""

    def __post_init__(self) -> None:
        kinds = typing.get_type_hints(type(self))
        for f in dataclasses.fields(self):
            value = check(kinds[f.name], getattr(self, f.name), f.name, f.metadata)
            object.__setattr__(self, f.name, value)


@dataclass(frozen=True)
class PartConfig(Settings):
    """Settings of a part that has no setting except its kind."""

    kind: str = kind_of("")


def from_dict(cls: type[Any], data: Any, path: str = "") -> Any:
    """Build settings from a dict; errors name unknown keys and invalid values by dotted path."""
    if not isinstance(data, dict):
        raise ValueError(f"`{path or cls.__name__}` must be a table of settings, got {data!r}")
    kinds = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}
    values = {}
    for key, value in data.items():
        dotted = f"{path}.{key}" if path else str(key)
        if key not in fields:
            near = suggest(str(key), list(fields))
            raise ValueError(f"unknown key '{dotted}'; known: {', '.join(fields)}.{near}")
        if dataclasses.is_dataclass(kinds[key]) and "part" not in fields[key].metadata:
            values[key] = from_dict(typing.cast("type[Any]", kinds[key]), value, dotted)
        else:
            values[key] = check(kinds[key], value, dotted, fields[key].metadata)
    missing = [
        name
        for name, f in fields.items()
        if name not in values and f.default is f.default_factory is MISSING
    ]
    if missing:
        raise ValueError(f"`{path or cls.__name__}` is missing {', '.join(missing)}")
    return cls(**values)


def check(kind: Any, value: Any, path: str, limits: Mapping[str, Any]) -> Any:
    """Return `value` as type `kind`; raise if it is invalid for the setting at `path`."""
    if "part" in limits:
        return part_settings(limits["part"], limits["default"], value, path)
    if isinstance(kind, types.UnionType):
        members = typing.get_args(kind)
        if value is None and types.NoneType in members:
            return None
        wanted = dict if isinstance(value, Mapping) else None
        fitting = [x for x in members if typing.get_origin(x) is wanted and x is not types.NoneType]
        kind = (fitting or members)[0]
    if typing.get_origin(kind) is tuple:
        element = typing.get_args(kind)[0]
        if element is not str:
            if not isinstance(value, list | tuple) or not value:
                raise ValueError(f"`{path}` must be a list of numbers, got {value!r}")
            return tuple(check(element, x, f"{path}[{i}]", limits) for i, x in enumerate(value))
        if not isinstance(value, list | tuple) or not all(isinstance(x, str) for x in value):
            raise ValueError(f"`{path}` must be a list of strings, got {value!r}")
        if not value or len(set(value)) < len(value):
            raise ValueError(
                f"`{path}` must have at least one string, no duplicates, got {value!r}"
            )
        return tuple(value)
    if typing.get_origin(kind) is dict:
        if not isinstance(value, Mapping):
            raise ValueError(f"`{path}` must be a table of numbers, got {value!r}")
        return {str(key): check(float, x, f"{path}.{key}", {"low": 0, "high": math.inf})
                for key, x in value.items()}  # fmt: skip
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            value = float(value)
        except OverflowError:
            raise ValueError(f"`{path}` is too large: {str(value)[:20]}...") from None
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise ValueError(f"`{path}` must be {KINDS.get(kind, kind.__name__)}, got {value!r}")
    choices, low, high = (limits.get(name) for name in ("choices", "low", "high"))
    if choices and value not in choices:
        near = suggest(value, list(choices))
        raise ValueError(f"`{path}` must be one of {', '.join(choices)}, got {value!r}.{near}")
    if low is not None and not (low <= value <= high and math.isfinite(value)):
        bounds = f"at least {low}" if high == math.inf or value < low else f"in {low}..{high}"
        bounds = bounds if low > -math.inf and abs(value) != math.inf else "finite"
        raise ValueError(f"`{path}` must be {bounds}, got {value!r}")
    return value


def part_settings(table: Registry, default: str, value: Any, path: str) -> Any:
    """Return a part's settings, given as a settings object, a table or a kind."""
    if isinstance(value, Settings):
        kind = getattr(value, "kind", "")
        expected = settings_of(table, kind, path)
        if not isinstance(value, expected):
            raise TypeError(
                f"`{path}` of kind {kind!r} must be {expected.__name__}, got {type(value).__name__}"
            )
        return value
    if isinstance(value, str):
        value = {"kind": value}
    if not isinstance(value, Mapping):
        raise ValueError(
            f"`{path}` must be a kind of {table.kind} or a table of settings, got {value!r}"
        )
    kind = value.get("kind", default)
    if not isinstance(kind, str):
        raise ValueError(f"`{path}.kind` must be a string, got {kind!r}")
    return from_dict(settings_of(table, kind, path), {**value, "kind": kind}, path)


def settings_of(table: Registry, kind: str, path: str = "") -> type[Any]:
    """Return the class of a part's settings: its `Config`, or `PartConfig` if it has none."""
    try:
        # imports installed plugins, which add their settings as well
        table.check_known(kind)
        if kind in table.settings:
            config: type[Any] = found_at(table.settings[kind])
        else:
            config = getattr(table[kind], "Config", PartConfig)
    except UnknownNameError as error:
        raise UnknownNameError(f"`{path}.kind`: {error}" if path else str(error)) from None
    return config
