"""Registries that map names to objects, imported on first use."""

import difflib
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from gumbeltree import plugins
from gumbeltree.extras import has_torch, install_command, torch_is_missing


def suggest(name: str, known: list[str]) -> str:
    """Return " Did you mean 'x'?" for the nearest known name, or an empty string."""
    near = difflib.get_close_matches(name, known, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def own(part: object, name: str) -> Any:
    """Return a class attribute that the class of `part` defines itself, or None.

    Inherited attributes do not count, since a subclass may behave differently from its parent.
    """
    return vars(type(part)).get(name)


class UnknownNameError(KeyError, ValueError):
    """Raised for a name that is not in a registry."""

    def __str__(self) -> str:
        return str(self.args[0])


class NeedsTorchError(ImportError, ValueError):
    """Raised for a part without a NumPy version when torch is not used."""


class Registry(Mapping[str, Any]):
    """Mapping from a public name to the object at "module:attribute".

    Args:
        kind: what the names stand for, such as "encoder"; used in messages.
        table: "module:attribute" by name.
        settings: "module:attribute" of their settings, which can be imported separately.
        light: "module:attribute" of their NumPy versions, for those that have one.
    """

    def __init__(
        self,
        kind: str,
        table: dict[str, str],
        settings: dict[str, str] | None = None,
        light: dict[str, str] | None = None,
    ) -> None:
        self.kind = kind
        self.table = table
        self.settings = settings or {}
        self.light = light or {}
        plugins.watch(kind, table)

    def __getitem__(self, name: str) -> Any:
        self.check_known(name)
        try:
            return found_at(self.table[name])
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise NeedsTorchError(torch_is_missing(f"the {self.kind} {name!r}")) from None

    def light_version(self, name: str) -> Any:
        """Return the NumPy version of a part; raise if it has none."""
        self.check_known(name)
        if name not in self.light:
            fix = "use the torch runtime"
            if not has_torch():
                fix = f"install torch to use it: {install_command('torch')}"
            raise NeedsTorchError(
                f"the {self.kind} {name!r} is not available in the NumPy runtime; {fix}"
            )
        return found_at(self.light[name])

    def check_known(self, name: str) -> None:
        """Raise unless a part has this name; import installed plugins if it is not built in."""
        if name not in self.table:
            plugins.load_installed()
        if name not in self.table:
            known = sorted(self.table)
            raise UnknownNameError(
                f"unknown {self.kind} {name!r}; known: {', '.join(known)}.{suggest(name, known)}"
            )

    def __contains__(self, name: object) -> bool:
        # without importing the class
        return name in self.table

    def __iter__(self) -> Iterator[str]:
        return iter(self.table)

    def __len__(self) -> int:
        return len(self.table)


def found_at(place: str) -> Any:
    """Return the object at "module:attribute"."""
    module, attribute = place.split(":")
    return getattr(import_module(module), attribute)
