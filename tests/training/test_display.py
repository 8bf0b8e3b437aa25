"""Progress of training."""

import pytest
from rich.console import Console

from gumbeltree.training.display import Display
from gumbeltree.training.loop import train
from tests.runs import small


def test_train_shows_progress_unless_quiet(demo, tmp_path, capsys):
    train(small("epochs=1"), demo, tmp_path / "shown")
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert lines.pop().startswith("The model is no better on the development split")
    assert len(lines) == 3
    assert all("examples/s" in line and "dev loss" in line for line in lines)
    train(small("epochs=1"), demo, tmp_path / "quiet", quiet=True)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("notebook", [True, False])
def test_notebooks_show_plain_lines_below_the_cell(notebook, monkeypatch, capsys):
    monkeypatch.setattr("rich.console._is_jupyter", lambda: notebook)
    # as the kernels of notebooks do
    monkeypatch.setenv("FORCE_COLOR", "1" if notebook else "")
    assert Console().is_jupyter == notebook
    display = Display()
    assert not display.console.is_jupyter
    assert not display.console.is_terminal
    display.say("reading")
    assert capsys.readouterr() == (("reading\n", "") if notebook else ("", "reading\n"))


@pytest.mark.parametrize("best_by", ["loss", "accuracy"])
def test_shows_the_accuracy_once_whatever_selects_the_model(best_by, demo, tmp_path, capsys):
    train(small("epochs=1", f"best_by={best_by}"), demo, tmp_path / "run", test=False)
    lines = [line for line in capsys.readouterr().err.splitlines() if "examples/s" in line]
    assert lines
    for line in lines:
        assert line.count("dev loss") == line.count("dev accuracy") == 1
        assert "%" in line
