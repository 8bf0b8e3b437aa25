"""What the commands share: places to write to, standard output, signals."""

import io
import signal
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout

import pytest

import gumbeltree.config
from gumbeltree.cli import main, streams
from tests.commands import run


def test_a_folder_that_takes_no_files_is_refused_before_anything_is_loaded(tmp_path, monkeypatch):
    def refuse(**options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    out = tmp_path / "x.txt"
    message = run("parse", "no-such-model", "a dog", "--out", out).refused()
    assert f"{out}: expected a folder to write to, got {tmp_path}" in message
    assert "(Permission denied); name a file elsewhere" in message


def test_looking_whether_files_can_be_written_leaves_none(tmp_path):
    streams.check_out(tmp_path / "x.txt")
    assert list(tmp_path.iterdir()) == []


def test_standard_output_that_is_closed(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gumbeltree", "parse", "sst2-100d", "a dog"])
    err = io.StringIO()
    with redirect_stdout(None), redirect_stderr(err), pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    assert err.getvalue().startswith("gumbeltree: error: standard output is closed; ")


@pytest.fixture
def deaf():
    """What would end the tests does nothing, where it is not noticed."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    yield signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, before)


def test_sigterm_leaves_no_part_of_a_file(tmp_path, deaf, monkeypatch):
    def write(path, blocks):
        path.write_text("a part")
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(streams, "_write_file", write)
    out = tmp_path / "x.txt"
    monkeypatch.setattr(sys, "argv", ["gumbeltree", "parse", "sst2-100d", "a", "--out", str(out)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 143
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is deaf


def test_training_hears_signals_by_itself(deaf, monkeypatch):
    # a process that waits for others inside of torch would never come to a handler of Python
    heard = []

    def load(name):
        heard.append(signal.getsignal(signal.SIGTERM))
        raise ValueError("no recipe")

    monkeypatch.setattr(gumbeltree.config, "load_recipe", load)
    monkeypatch.setattr(sys, "argv", ["gumbeltree", "train", "demo", "--out", "run"])
    with redirect_stderr(io.StringIO()), pytest.raises(SystemExit):
        main()
    assert heard == [deaf]
