"""Plugins: modules that add parts and tasks of your own to the registries.

Only plugins of installed packages and plugins that the user names are imported. Model folders name
the plugins they need, but nothing in a folder causes an import.
"""

import importlib
import importlib.util
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

GROUP = "gumbeltree.plugins"
"""Group of the entry points that name plugins of installed packages."""

log = logging.getLogger(__name__)

_tables: list[tuple[str, dict[str, str]]] = []
"""Kind and entries of every registry."""
_sources: dict[tuple[str, str], str] = {}
"""Module of the plugin that added a part, by kind and name of the part."""
_searched: set[str] = set()
"""Groups of entry points whose plugins have been imported."""


def watch(kind: str, table: dict[str, str]) -> None:
    """Record which plugin adds entries to the table of a registry."""
    _tables.append((kind, table))


def load_plugin(name: str) -> None:
    """Import a plugin, which adds its parts to the registries.

    Args:
        name: a module, which may be in the current folder, or the path of a .py file. Modules
            next to the file can be imported as well.
    """
    path = Path(name)
    is_file = path.suffix == ".py"
    if is_file and not path.is_file():
        raise FileNotFoundError(f"the plugin {name} does not exist; check the path")
    folder = str((path.parent if is_file else Path()).resolve())
    if folder not in sys.path:
        # at the end, so that no file of the folder hides an installed module
        sys.path.append(folder)
    module = path.stem if is_file else name
    try:
        with _recorded(module):
            _import_file(module, path.resolve()) if is_file else importlib.import_module(module)
    except Exception as error:
        hint = "" if is_file else "; pass the name of a module, or the path of a .py file"
        kind = type(error).__name__
        raise ImportError(f"cannot import the plugin {name} ({kind}: {error}){hint}") from error


def _import_file(module: str, path: Path) -> None:
    """Import a file as a top-level module."""
    known = sys.modules.get(module)
    if known is not None:
        if Path(getattr(known, "__file__", None) or "").resolve() != path:
            raise ImportError(f"another module is named {module!r}; rename the file")
        return
    spec = importlib.util.spec_from_file_location(module, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[module] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(sys.modules[module])
    except BaseException:
        del sys.modules[module]
        raise


def load_installed() -> None:
    """Import the plugins that installed packages declare as entry points, once."""
    if GROUP in _searched:
        return
    _searched.add(GROUP)
    for point in _entry_points():
        try:
            with _recorded(point.module):
                plugin = point.load()
                if callable(plugin):
                    plugin()
        except Exception as error:
            # a broken plugin must not hide the parts of the others
            package = point.dist.name if point.dist else point.module
            log.warning("cannot import the plugin %s of %s: %s", point.name, package, error)


def _entry_points() -> "EntryPoints":
    # this import is slow, and most programs need no plugin
    from importlib.metadata import entry_points

    return entry_points(group=GROUP)


@contextmanager
def _recorded(module: str) -> Iterator[None]:
    """Attribute the entries added in the `with` block to a plugin."""
    before = {(kind, name) for kind, table in _tables for name in table}
    yield
    for kind, table in _tables:
        for name in table:
            if (kind, name) not in before:
                _sources.setdefault((kind, name), module)


def plugin_of(kind: str, name: str, place: str) -> dict[str, str]:
    """Return the plugin that added a part, as model folders record it; empty for built-in parts.

    Args:
        kind: kind of the part, such as "encoder".
        name: name of the part.
        place: "module:attribute" of its class.
    """
    if place.startswith("gumbeltree."):
        return {}
    # a program can also add a part without a plugin
    module = _sources.get((kind, name), place.partition(":")[0])
    root = module.partition(".")[0]
    for point in _entry_points():
        if point.module.partition(".")[0] == root and point.dist is not None:
            return {"module": module, "package": point.dist.name}
    return {"module": module}
