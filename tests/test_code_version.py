"""The code version of a source tree, of a copy of one, and of an environment in a checkout."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gumbeltree import code_version as module
from gumbeltree.code_version import code_version, described, source_digest

SCRIPT = """
import json, sys
sys.path.insert(0, sys.argv[1])
from gumbeltree.code_version import code_version
print(json.dumps(code_version()))
"""


def git(folder, *arguments):
    name = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *name, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit(folder):
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "a")


def version_in(folder):
    """Return the code version of a process that runs the package in `folder`/src."""
    command = [sys.executable, "-c", SCRIPT, str(folder / "src")]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A source tree with two modules of the package, not under git."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    package = tmp_path / "project" / "src" / "gumbeltree"
    (package / "a" / "b").mkdir(parents=True)
    for name in ("__init__.py", "code_version.py"):
        shutil.copy(Path(module.__file__).with_name(name), package / name)
    # git sorts a.py before a/
    for name in ("a.py", "a-b.py", "a/x.py", "a/b/ä.txt"):
        (package / name).write_text(name, encoding="utf-8")
    (tmp_path / "project" / ".gitignore").write_text("__pycache__/\n", encoding="utf-8")
    return tmp_path / "project"


def test_source_tree_has_a_commit_and_is_clean_until_changed(tree):
    commit(tree)
    clean = version_in(tree)
    assert clean == {
        "commit": git(tree, "rev-parse", "HEAD"),
        "clean": True,
        "source": git(tree, "rev-parse", "HEAD:src/gumbeltree"),
    }
    # files outside the package do not count
    (tree / "notes.txt").write_text("1", encoding="utf-8")
    assert version_in(tree) == clean
    git(tree, "config", "status.showUntrackedFiles", "no")
    (tree / "src" / "gumbeltree" / "new.py").write_text("1", encoding="utf-8")
    changed = version_in(tree)
    assert (changed["commit"], changed["clean"]) == (clean["commit"], False)
    assert changed["source"] != clean["source"]


def test_files_without_a_repository_have_their_digest(tree):
    version = version_in(tree)
    assert (version["commit"], version["clean"]) == (None, None)
    commit(tree)
    assert version["source"] == git(tree, "rev-parse", "HEAD:src/gumbeltree")


def test_environment_inside_a_checkout_is_not_that_checkout(tree):
    (tree / ".gitignore").write_text("src/\n", encoding="utf-8")
    commit(tree)
    assert version_in(tree)["commit"] is None


def test_unreadable_files_are_unknown(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "PACKAGE", tmp_path / "package.zip" / "gumbeltree")
    assert code_version.__wrapped__() == {"commit": None, "clean": None, "source": None}


def test_digest_ignores_compiled_files(tmp_path):
    (tmp_path / "a.py").write_text("1", encoding="utf-8")
    before = source_digest(tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a.pyc").write_bytes(b"2")
    # an otherwise empty folder, and an editor's lock file
    (tmp_path / "gone" / "__pycache__").mkdir(parents=True)
    (tmp_path / ".#a.py").symlink_to("nowhere")
    assert source_digest(tmp_path) == before


def test_description_is_short():
    code = {"commit": "0123456789abcdef", "clean": True, "source": "fedcba9876543210"}
    assert described(code) == "commit 0123456789; source fedcba9876"
    assert "modified" in described({**code, "clean": False})
    unknown = {"commit": None, "clean": None, "source": None}
    assert described(unknown) == "commit unknown; source unknown"
