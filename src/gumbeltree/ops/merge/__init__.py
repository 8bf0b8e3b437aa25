"""The merge: leaf states in, trees out.

`choose` says which implementation merges and why; `IMPLEMENTATIONS` lists them, fastest first.
"""

import logging
from types import ModuleType
from typing import Any, NamedTuple

from torch import nn

from gumbeltree.ops.merge import exact, fused, reference
from gumbeltree.registry import UnknownNameError, suggest

IMPLEMENTATIONS: dict[str, ModuleType] = {
    "fused": fused,
    "exact": exact,
    "reference": reference,
}

logger = logging.getLogger(__name__)
_logged: set[str] = set()


class Choice(NamedTuple):
    """Which implementation runs, and why."""

    name: str
    reason: str


def choose(impl: str, cell: nn.Module, estimator: Any, sample: bool) -> Choice:
    """Return the implementation for a case; raise if the one asked for cannot run it."""
    names = ["auto", *IMPLEMENTATIONS]
    if impl not in names:
        raise UnknownNameError(
            f"unknown implementation {impl!r}; known: {', '.join(names)}.{suggest(impl, names)}"
        )
    if impl != "auto":
        reason = IMPLEMENTATIONS[impl].unsupported(cell, estimator, sample, by_name=True)
        if reason is not None:
            raise NotImplementedError(
                f"impl={impl!r} cannot run this: {reason}; use impl='auto' or 'reference'"
            )
        return Choice(impl, "asked for by name")
    refusals: list[str] = []
    for name, module in IMPLEMENTATIONS.items():
        reason = module.unsupported(cell, estimator, sample)
        if reason is None:
            return Choice(name, "; ".join(refusals) or "the fastest, and it supports this case")
        refusals.append(f"not {name!r}: {reason}")
    raise NotImplementedError("; ".join(refusals))


def report(choice: Choice) -> None:
    """Log which implementation runs, once for each reason."""
    if choice.reason not in _logged:
        _logged.add(choice.reason)
        logger.info("merging with %r: %s", choice.name, choice.reason)
