"""Which code ran: its commit where that is known, and in any case a digest of its files."""

import hashlib
import json
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TypedDict

PACKAGE = Path(__file__).parent


class CodeVersion(TypedDict):
    """The code behind a result.

    Attributes:
        commit: of the source tree, or the one that pip installed from; None where neither is known.
        clean: whether the source tree was as committed; None without a commit.
        source: digest of the package's files, those of a source tree or of a wheel. It is what
            `git rev-parse COMMIT:src/gumbeltree` prints for the commit that has these files.
    """

    commit: str | None
    clean: bool | None
    source: str


@cache
def code_version() -> CodeVersion:
    """Return which code this process runs; read once."""
    source = source_digest(PACKAGE)
    # a source tree: this file must be tracked, since an environment may lie in somebody's checkout
    if _git("ls-files", "--error-unmatch", Path(__file__).name) is not None:
        commit, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain")
        if commit is not None and changes is not None:
            return {"commit": commit, "clean": not changes, "source": source}
    commit = _installed_commit()
    return {"commit": commit, "clean": None if commit is None else True, "source": source}


def described(code: CodeVersion) -> str:
    """Return such as "commit 1a2b3c4d5e, modified; source 9f8e7d6c5b"."""
    commit = "commit unknown"
    if code["commit"] is not None:
        commit = f"commit {code['commit'][:10]}" + ("" if code["clean"] else ", modified")
    return f"{commit}; source {code['source'][:10]}"


def source_digest(folder: Path) -> str:
    """Return the id that git gives the tree of a folder, compiled files left out."""
    entries = []
    for path in folder.iterdir():
        if path.name == "__pycache__":
            continue
        if path.is_dir():
            entries.append((path.name + "/", b"40000", source_digest(path)))
        else:
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
    try:
        noted = metadata.distribution("gumbeltree").read_text("direct_url.json")
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
