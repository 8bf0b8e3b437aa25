"""Atomic replacement of files."""

import os
import re
from pathlib import Path

import pytest

from gumbeltree.atomic import replace_file


def test_replaces_the_name_and_not_the_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    os.link(path, tmp_path / "link")
    replace_file(path, lambda temporary: temporary.write_text("new"))
    assert path.read_text() == "new"
    # a reader that opened the old file keeps it whole
    assert (tmp_path / "link").read_text() == "old"
    assert sorted(x.name for x in tmp_path.iterdir()) == ["file", "link"]


def test_keeps_the_old_file_if_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def write(temporary: Path) -> None:
        temporary.write_text("ne")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        replace_file(path, write)
    assert path.read_text() == "old"
    assert [x.name for x in tmp_path.iterdir()] == ["file"]


def test_names_a_file_that_cannot_be_created(tmp_path: Path) -> None:
    path = tmp_path / "no" / "file"
    message = f"{path} cannot be created: No such file or directory; choose another place"
    with pytest.raises(OSError, match=f"^{re.escape(message)}$"):
        replace_file(path, lambda temporary: None)
