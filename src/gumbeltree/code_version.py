"""Which code ran: its commit where that is known, and in any case a digest of its files."""

import hashlib
import json
import subprocess
from functools import cache
from pathlib import Path
from typing import TypedDict

PACKAGE = Path(__file__).parent
EMPTY = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
"""The id of a tree without files."""


class CodeVersion(TypedDict):
    """The code behind a result.

    Attributes:
        commit: of the source tree, or the one that pip installed from; None where neither is known.
        clean: whether the package in the source tree was as committed; None where that is unknown.
        source: digest of the package's files, those of a source tree or of a wheel. It is what
            `git rev-parse COMMIT:src/gumbeltree` prints for the commit that has these files, unless
            git changed their line ends. None where they cannot be read.
    """

    commit: str | None
    clean: bool | None
    source: str | None


@cache
def code_version() -> CodeVersion:
    """Return which code this process runs; read once."""
    try:
        source = source_digest(PACKAGE)
    except OSError:
        source = None
    # a source tree: this file must be tracked, since an environment may lie in somebody's checkout
    if _git("ls-files", "--error-unmatch", Path(__file__).name) is not None:
        commit = _git("rev-parse", "HEAD")
        changes = _git("status", "--porcelain", "--untracked-files=all", "--", ".")
        if commit is not None and changes is not None:
            return {"commit": commit, "clean": not changes, "source": source}
    return {"commit": _installed_commit(), "clean": None, "source": source}


def described(code: CodeVersion) -> str:
    """Return such as "commit 1a2b3c4d5e, modified; source 9f8e7d6c5b"."""
    commit = f"commit {code['commit'][:10]}" if code["commit"] else "commit unknown"
    changed = ", modified" if code["clean"] is False else ""
    return f"{commit}{changed}; source {code['source'][:10] if code['source'] else 'unknown'}"


def source_digest(folder: Path) -> str:
    """Return the id that git gives the tree of a folder, compiled files left out."""
    entries = []
    for path in folder.iterdir():
        if path.name == "__pycache__":
            continue
        if path.is_dir():
            digest = source_digest(path)
            # git knows no empty folders
            if digest != EMPTY:
                entries.append((path.name + "/", b"40000", digest))
        elif path.is_file():
            blob = path.read_bytes()
            entries.append((path.name, b"100644", _git_id(b"blob", blob)))
    rows = [
        mode + b" " + name.removesuffix("/").encode() + b"\0" + bytes.fromhex(digest)
        # git sorts folders as if their names ended with a slash
        for name, mode, digest in sorted(entries)
    ]
    return _git_id(b"tree", b"".join(rows))


def _git_id(kind: bytes, content: bytes) -> str:
    head = b"%s %d\0" % (kind, len(content))
    return hashlib.sha1(head + content, usedforsecurity=False).hexdigest()


def _installed_commit() -> str | None:
    """Return the commit that pip noted when it installed from a repository (PEP 610)."""
    from importlib import metadata

    try:
        installed = metadata.distribution("gumbeltree")
        if Path(str(installed.locate_file("gumbeltree"))).resolve() != PACKAGE.resolve():
            return None
        noted = installed.read_text("direct_url.json")
        commit = json.loads(noted or "{}").get("vcs_info", {}).get("commit_id")
    except (metadata.PackageNotFoundError, ValueError, AttributeError):
        return None
    return commit if isinstance(commit, str) else None


def _git(*arguments: str) -> str | None:
    try:
        command = ["git", "-C", str(PACKAGE), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
