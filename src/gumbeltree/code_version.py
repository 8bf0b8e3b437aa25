"""Identify the code that runs: by its commit if known, and always by a digest of its files."""

import hashlib
import subprocess
from functools import cache
from pathlib import Path
from typing import TypedDict

PACKAGE = Path(__file__).parent
EMPTY = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
"""Git id of an empty tree."""


class CodeVersion(TypedDict):
    """The code behind a result.

    Attributes:
        commit: Commit of the source tree; None if unknown.
        clean: Whether the package is as committed; None if unknown.
        source: Digest of the package's files, equal to `git rev-parse COMMIT:src/gumbeltree` for
            the commit with these files; None if they cannot be read.
    """

    commit: str | None
    clean: bool | None
    source: str | None


@cache
def code_version() -> CodeVersion:
    """Return the version of the running code; computed once."""
    try:
        source = source_digest(PACKAGE)
    except OSError:
        source = None
    # require that git tracks this file: an environment may be inside an unrelated checkout
    if _git("ls-files", "--error-unmatch", Path(__file__).name) is not None:
        commit = _git("rev-parse", "HEAD")
        changes = _git("status", "--porcelain", "--untracked-files=all", "--", ".")
        if commit is not None and changes is not None:
            return {"commit": commit, "clean": not changes, "source": source}
    return {"commit": None, "clean": None, "source": source}


def described(code: CodeVersion) -> str:
    """Return a short description, such as "commit 1a2b3c4d5e, modified; source 9f8e7d6c5b"."""
    commit = f"commit {code['commit'][:10]}" if code["commit"] else "commit unknown"
    changed = ", modified" if code["clean"] is False else ""
    return f"{commit}{changed}; source {code['source'][:10] if code['source'] else 'unknown'}"


def source_digest(folder: Path) -> str:
    """Return the id that git assigns to a folder's tree, ignoring `__pycache__`."""
    entries = []
    for path in folder.iterdir():
        if path.name == "__pycache__":
            continue
        if path.is_dir():
            digest = source_digest(path)
            # git does not track empty folders
            if digest != EMPTY:
                entries.append((path.name + "/", b"40000", digest))
        elif path.is_file():
            entries.append((path.name, b"100644", _git_id(b"blob", path.read_bytes())))
    rows = [
        mode + b" " + name.removesuffix("/").encode() + b"\0" + bytes.fromhex(digest)
        # git sorts folders as if their names ended with a slash
        for name, mode, digest in sorted(entries)
    ]
    return _git_id(b"tree", b"".join(rows))


def _git_id(kind: bytes, content: bytes) -> str:
    head = b"%s %d\0" % (kind, len(content))
    return hashlib.sha1(head + content, usedforsecurity=False).hexdigest()


def _git(*arguments: str) -> str | None:
    try:
        command = ["git", "-C", str(PACKAGE), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
