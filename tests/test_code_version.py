"""Which code ran: a source tree, a copy of one, and an environment in somebody else's checkout."""

import json
import shutil
import subprocess
import sys
from importlib import metadata
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


def version_in(folder):
    """Return what a process says that runs the package in `folder`/src."""
    command = [sys.executable, "-c", SCRIPT, str(folder / "src")]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.fixture
def tree(tmp_path):
    """A source tree with the part of the package that tells its version, not under git yet."""
    package = tmp_path / "project" / "src" / "gumbeltree"
    (package / "a" / "b").mkdir(parents=True)
    for name in ("__init__.py", "code_version.py"):
        shutil.copy(Path(module.__file__).with_name(name), package / name)
    # names that git sorts otherwise than plain strings: a.py before a/
    for name in ("a.py", "a-b.py", "a/x.py", "a/b/ä.txt"):
        (package / name).write_text(name, encoding="utf-8")
    (tmp_path / "project" / ".gitignore").write_text("__pycache__/\n", encoding="utf-8")
    return tmp_path / "project"


def test_a_source_tree_knows_its_commit_and_whether_it_is_clean(tree):
    git(tree, "init", "-q")
    git(tree, "add", ".")
    git(tree, "commit", "-qm", "a")
    found = version_in(tree)
    assert found["commit"] == git(tree, "rev-parse", "HEAD")
    assert found["clean"] is True
    assert found["source"] == git(tree, "rev-parse", "HEAD:src/gumbeltree")
    (tree / "src" / "gumbeltree" / "new.py").write_text("1", encoding="utf-8")
    git(tree, "config", "status.showUntrackedFiles", "no")
    changed = version_in(tree)
    assert (changed["commit"], changed["clean"]) == (found["commit"], False)
    assert changed["source"] != found["source"]
    (tree / "src" / "gumbeltree" / "new.py").unlink()
    # what lies elsewhere changes no result
    (tree / "notes.txt").write_text("1", encoding="utf-8")
    assert version_in(tree) == found


def test_files_without_a_repository_are_known_by_their_digest(tree, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tree.parent))
    # pip's note, where the tests run from an installation, is of another place than this one
    found = version_in(tree)
    assert found["commit"] is None
    assert found["clean"] is None
    git(tree, "init", "-q")
    git(tree, "add", ".")
    git(tree, "commit", "-qm", "a")
    assert found["source"] == git(tree, "rev-parse", "HEAD:src/gumbeltree")


def test_an_environment_in_a_checkout_is_not_that_checkout(tree):
    git(tree, "init", "-q")
    (tree / ".gitignore").write_text("src/\n", encoding="utf-8")
    git(tree, "add", ".gitignore")
    git(tree, "commit", "-qm", "a")
    assert version_in(tree)["commit"] is None


def test_pips_note_of_a_commit(monkeypatch, tmp_path):
    note = {"url": "https://example.org/x", "vcs_info": {"vcs": "git", "commit_id": "ab12"}}
    place = module.PACKAGE

    class Distribution:
        def read_text(self, name):
            return {"direct_url.json": json.dumps(note)}.get(name)

        def locate_file(self, name):
            assert name == "gumbeltree"
            return place

    monkeypatch.setattr(module, "_git", lambda *arguments: None)
    monkeypatch.setattr(metadata, "distribution", lambda name: Distribution())
    found = code_version.__wrapped__()
    # whether somebody changed it since is not known
    assert (found["commit"], found["clean"]) == ("ab12", None)
    # of another copy than the one that runs
    place = tmp_path
    assert code_version.__wrapped__()["commit"] is None
    place = module.PACKAGE
    note.pop("vcs_info")
    assert code_version.__wrapped__()["commit"] is None


def test_what_cannot_be_read_is_unknown(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "PACKAGE", tmp_path / "package.zip" / "gumbeltree")
    found = code_version.__wrapped__()
    assert found == {"commit": None, "clean": None, "source": None}
    assert described(found) == "commit unknown; source unknown"


def test_compiled_files_do_not_count(tmp_path):
    (tmp_path / "a.py").write_text("1", encoding="utf-8")
    before = source_digest(tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a.pyc").write_bytes(b"2")
    # left over from a folder that is gone, and what an editor leaves
    (tmp_path / "gone" / "__pycache__").mkdir(parents=True)
    (tmp_path / ".#a.py").symlink_to("nowhere")
    assert source_digest(tmp_path) == before


def test_in_words():
    code = {"commit": "0123456789abcdef", "clean": True, "source": "fedcba9876543210"}
    assert described(code) == "commit 0123456789; source fedcba9876"
    assert described({**code, "clean": False}) == "commit 0123456789, modified; source fedcba9876"
    assert described({**code, "clean": None}) == described(code)
    unknown = {**code, "commit": None, "clean": None}
    assert described(unknown) == "commit unknown; source fedcba9876"
