"""Tables of parts by name: a name becomes its class on first use, not on import."""

import difflib
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any


def suggest(name: str, known: list[str]) -> str:
    """Return " Did you mean 'x'?" for the nearest known name, or an empty string."""
    near = difflib.get_close_matches(name, known, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def own(part: object, name: str) -> Any:
    """Return what the class of a part says of itself in its own body, None where it says nothing.

    A subclass may do something else than its parent, so it does not inherit such a word.
    """
    return vars(type(part)).get(name)


class UnknownNameError(KeyError, ValueError):
    """A name that is not in a table."""

    def __str__(self) -> str:
        return str(self.args[0])


class Registry(Mapping[str, Any]):
    """Mapping from a published name to the object at "module:attribute".

    Args:
        kind: what these are, for messages.
        table: "module:attribute" by name.
        settings: likewise, the settings of some of them, so that they can be had without the part.
    """

    def __init__(
        self, kind: str, table: dict[str, str], settings: dict[str, str] | None = None
    ) -> None:
        self.kind = kind
        self.table = table
        self.settings = settings or {}

    def __getitem__(self, name: str) -> Any:
        if name not in self.table:
            known = sorted(self.table)
            raise UnknownNameError(
                f"unknown {self.kind} {name!r}; known: {', '.join(known)}.{suggest(name, known)}"
            )
        return found_at(self.table[name])

    def __contains__(self, name: object) -> bool:
        # a name is known before its class is imported
        return name in self.table

    def __iter__(self) -> Iterator[str]:
        return iter(self.table)

    def __len__(self) -> int:
        return len(self.table)


def found_at(place: str) -> Any:
    """Return the object at "module:attribute"."""
    module, attribute = place.split(":")
    return getattr(import_module(module), attribute)
