"""Input, output and signals of the commands."""

import io
import os
import signal
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest

import gumbeltree.config
from gumbeltree.cli import main, streams
from tests.commands import Terminal, run


def test_rejects_folders_without_permission_before_loading(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    out = tmp_path / "x.txt"
    message = run("parse", "no-such-model", "a dog", "--out", out).refused()
    assert f"{out}: no permission" in message
    assert list(tmp_path.iterdir()) == []


def test_characters_that_a_terminal_lacks_are_replaced(monkeypatch):
    stream = Terminal(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    streams.write_lines(None, ["caf\u00e9", "tea"])
    assert stream.buffer.getvalue().split() == [b"caf?", b"tea"]


def test_rejects_closed_standard_output(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gumbeltree", "parse", "sst2-100d", "a dog"])
    err = io.StringIO()
    with redirect_stdout(None), redirect_stderr(err), pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    assert err.getvalue().startswith("gumbeltree: error: standard output is closed; ")


@pytest.fixture
def deaf():
    """Ignore SIGTERM, which would end the tests."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    yield signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, before)


def test_sigterm_leaves_no_partial_file(tmp_path, deaf, monkeypatch):
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


def test_reports_ctrl_c(monkeypatch, capsys):
    def interrupted(path):
        raise KeyboardInterrupt

    monkeypatch.setattr(streams, "check_out", interrupted)
    monkeypatch.setattr(sys, "argv", ["gumbeltree", "parse", "sst2-100d", "a"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130
    assert capsys.readouterr().err == "gumbeltree: interrupted\n"


def test_training_handles_signals_itself(deaf, monkeypatch):
    # a process that waits for others inside torch never runs a Python handler
    heard = []

    def load(*arguments):
        heard.append(signal.getsignal(signal.SIGTERM))
        raise ValueError("no recipe")

    monkeypatch.setattr(gumbeltree.config, "load_recipe", load)
    monkeypatch.setattr(sys, "argv", ["gumbeltree", "train", "demo", "--out", "run"])
    with redirect_stderr(io.StringIO()), pytest.raises(SystemExit):
        main()
    assert heard == [deaf]
