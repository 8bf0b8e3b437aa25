"""Shell completion of models, recipes and other names.

A function returns the completions of the word that the user is typing; with none, the shell
completes file names. Completion runs at every press of Tab, so it imports little and bounds its
search.
"""

import os
import shlex
from collections.abc import Callable, Iterable, Iterator

from gumbeltree.packaged import CONFIG, packaged_names

DEPTH = 3
"""Levels of folders below the one that the user has typed to search for models."""
FOLDERS = 300
"""Maximum number of folders to look into."""


def one_of(*names: str) -> Callable[[str], list[str]]:
    """Return a function that completes one of `names`."""

    def complete(incomplete: str) -> list[str]:
        return _starting(incomplete, names)

    return complete


def models(incomplete: str) -> list[str]:
    """Complete a packaged model, a model folder or a run folder."""
    return _starting(incomplete, [*packaged_names(), *_model_folders(incomplete)])


def recipes(incomplete: str) -> list[str]:
    """Complete the name of a recipe."""
    from gumbeltree.config import recipe_names

    return _starting(incomplete, recipe_names())


def recipes_and_models(incomplete: str) -> list[str]:
    """Complete a recipe or a model."""
    return sorted({*recipes(incomplete), *models(incomplete)})


def tasks(incomplete: str) -> list[str]:
    """Complete the name of a task."""
    from gumbeltree.tasks import TASKS

    return _starting(incomplete, TASKS)


def downloads(incomplete: str) -> list[str]:
    """Complete what `data get` downloads."""
    from gumbeltree.fetch import SOURCES

    return _starting(incomplete, SOURCES)


def _starting(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _model_folders(incomplete: str) -> Iterator[str]:
    """Yield the folders with a model below the folder that the user has typed."""
    typed, separator, _ = incomplete.rpartition("/")
    pending = [(typed + separator, 1)]
    for seen, (folder, depth) in enumerate(pending):
        if seen == FOLDERS:
            return
        try:
            with os.scandir(os.path.expanduser(folder) or ".") as entries:
                names = sorted(entry.name for entry in entries if entry.is_dir())
        except OSError:
            continue
        for name in names:
            path = folder + name
            # a shell would split other names; it quotes them itself when it completes files
            if name.startswith(".") or not path.startswith(incomplete) or not _plain(name):
                continue
            if any(
                os.path.isfile(os.path.join(os.path.expanduser(path), inner, CONFIG))
                for inner in ("", "model")
            ):
                yield path
            elif depth < DEPTH:
                pending.append((f"{path}/", depth + 1))


def _plain(name: str) -> bool:
    return shlex.quote(name) == name
