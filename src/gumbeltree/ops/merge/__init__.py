"""The merge, which builds trees from leaf states.

`IMPLEMENTATIONS` lists the implementations, fastest first; `choose` selects one.
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
    """The selected implementation and the reason for it."""

    name: str
    reason: str


def choose(
    impl: str, cell: nn.Module, estimator: Any, sample: bool, scorer: nn.Module | None = None
) -> Choice:
    """Return the implementation to use; raise an error if the requested one cannot run."""
    names = ["auto", *IMPLEMENTATIONS]
    if impl not in names:
        raise UnknownNameError(
            f"unknown implementation {impl!r}; known: {', '.join(names)}.{suggest(impl, names)}"
        )

    def why_not(name: str, by_name: bool = False) -> str | None:
        if name == "fused" and scorer is not None:
            return f"its kernels score candidates by the query only, got {type(scorer).__name__}"
        reason: str | None = IMPLEMENTATIONS[name].unsupported(cell, estimator, sample, by_name)
        return reason

    if impl != "auto":
        reason = why_not(impl, by_name=True)
        if reason is not None:
            raise NotImplementedError(
                f"impl={impl!r} is not available here: {reason}; use impl='auto' or 'reference'"
            )
        return Choice(impl, "requested by name")
    refusals: list[str] = []
    # always ends with a break: `reference` supports everything
    for name in IMPLEMENTATIONS:
        reason = why_not(name)
        if reason is None:
            break
        refusals.append(f"not {name!r}: {reason}")
    return Choice(name, "; ".join(refusals) or "the fastest implementation")


def report(choice: Choice) -> None:
    """Log the selected implementation, once per reason."""
    if choice.reason not in _logged:
        _logged.add(choice.reason)
        logger.info("merging with %r: %s", choice.name, choice.reason)
