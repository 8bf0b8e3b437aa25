"""Test what the shell completes, through the environment variables of its completion script."""

import os
import shutil
import subprocess
import sys

import pytest
import typer

from gumbeltree.cli import app, completion
from gumbeltree.config import recipe_names
from gumbeltree.packaged import packaged_names
from tests.commands import run


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A working folder with runs, models and other files."""
    for place in ("runs/reviews/model", "runs/seeds/seed-0/model", "plain", "two words/model"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "config.json").touch()
    (tmp_path / "data" / "sst").mkdir(parents=True)
    (tmp_path / "notes.txt").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def complete(monkeypatch):
    """Return a function that completes the last of its words."""

    def words(*typed):
        monkeypatch.setenv("_GUMBELTREE_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", " ".join(["gumbeltree", *typed]))
        monkeypatch.setenv("COMP_CWORD", str(len(typed)))
        result = run()
        assert (result.code, result.err) == (0, "")
        return result.out.split()

    return words


FOLDERS = ["plain", "runs/reviews", "runs/seeds/seed-0"]


@pytest.mark.parametrize(
    "command", ["predict", "parse", "encode", "evaluate", "draw", "index", "serve", "push", "trees"]
)
def test_models_of_every_command(complete, command):
    assert complete(command, "") == [*packaged_names(), *FOLDERS]


def test_models_start_with_what_was_typed(complete):
    assert complete("predict", "sst2") == ["sst2-100d"]
    assert complete("predict", "r") == FOLDERS[1:]
    assert complete("predict", "runs/") == FOLDERS[1:]
    assert complete("predict", "runs/reviews/") == ["runs/reviews/model"]
    # the shell completes the names of files
    assert complete("predict", "da") == []
    assert complete("predict", "runs/reviews/missing/x") == []


def test_several_models(complete):
    assert complete("draw", "sst2-100d", "sn") == ["snli-100d"]
    assert complete("train", "text", "--init", "pl") == ["plain"]
    assert complete("neighbours", "x.index", "--model", "pl") == ["plain"]


def test_models_in_other_folders(complete, folder, monkeypatch):
    monkeypatch.chdir(folder / "data")
    assert complete("predict", "../p") == ["../plain"]
    assert complete("predict", f"{folder}/ru") == [f"{folder}/{name}" for name in FOLDERS[1:]]
    monkeypatch.setenv("HOME", str(folder))
    assert complete("predict", "~/p") == ["~/plain"]


def test_search_is_bounded(complete, folder, monkeypatch):
    shutil.rmtree(folder / "two words")
    deep = folder.joinpath(*"abcd", "model")
    deep.mkdir(parents=True)
    (deep / "config.json").touch()
    assert not [name for name in complete("predict", "") if name.startswith("a/")]
    assert complete("predict", "a/b/") == ["a/b/c/d"]
    monkeypatch.setattr(completion, "FOLDERS", 1)
    assert complete("predict", "") == [*packaged_names(), "plain"]


def test_folders_that_cannot_be_read_are_skipped(complete, monkeypatch):
    scan = os.scandir

    def refuse(path):
        if "runs" in os.fspath(path):
            raise PermissionError(path)
        return scan(path)

    monkeypatch.setattr(completion.os, "scandir", refuse)
    assert complete("predict", "") == [*packaged_names(), "plain"]


def test_recipes(complete):
    assert complete("train", "") == recipe_names()
    assert complete("data", "prepare", "text") == ["text", "text-pair"]
    assert complete("info", "pl") == ["plain"]
    assert {"sst2", "sst2-100d"} <= set(complete("info", "sst2"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["pre"], ["predict"]),
        (["predict", "m", "--device", ""], ["auto", "cpu", "cuda"]),
        (["bench", "--device", "c"], ["cpu", "cuda"]),
        (["train", "text", "--precision", ""], ["32", "tf32", "bf16", "64"]),
        (["train", "text", "--encoder", ""], ["tree", "lstm", "bag", "auto"]),
        (["train", "text", "--resu"], ["--resume"]),
        (["evaluate", "m", "--task", "sst"], ["sst2", "sst5"]),
        (["trees", "m", "--task", "li"], ["listops"]),
        (["data", "get", "glove"], ["glove.6B", "glove.840B"]),
        (["parse", "m", "--format", "b"], ["brackets"]),
        (["train", "text", "--data", ""], []),
    ],
    ids=" ".join,
)
def test_other_words(complete, words, expected):
    assert complete(*words) == expected


@pytest.mark.parametrize(
    ("shell", "registers", "variables", "expected"),
    [
        (
            "zsh",
            "compdef _gumbeltree_completion gumbeltree",
            {"_TYPER_COMPLETE_ARGS": "gumbeltree predict sst"},
            '(("sst2-100d"))',
        ),
        (
            "fish",
            "complete --command gumbeltree",
            {
                "_TYPER_COMPLETE_ARGS": "gumbeltree predict sst",
                "_TYPER_COMPLETE_FISH_ACTION": "get-args",
            },
            "sst2-100d",
        ),
        (
            "powershell",
            "Register-ArgumentCompleter -Native -CommandName gumbeltree",
            {
                "_TYPER_COMPLETE_ARGS": "gumbeltree predict sst",
                "_TYPER_COMPLETE_WORD_TO_COMPLETE": "sst",
            },
            "sst2-100d:::",
        ),
    ],
    ids=["zsh", "fish", "powershell"],
)
def test_other_shells(monkeypatch, shell, registers, variables, expected):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("_GUMBELTREE_COMPLETE", f"complete_{shell}")
    assert expected in run().out
    monkeypatch.setenv("_GUMBELTREE_COMPLETE", f"source_{shell}")
    script = run().out
    assert registers in script
    assert "_GUMBELTREE_COMPLETE" in script


def test_completion_in_bash(folder):
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs bash")
    program = folder / "bin" / "gumbeltree"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m gumbeltree "$@"\n')
    program.chmod(0o755)
    script = (
        'eval "$(_GUMBELTREE_COMPLETE=source_bash gumbeltree)"\n'
        'COMP_WORDS=(gumbeltree predict "runs/") COMP_CWORD=2\n'
        "_gumbeltree_completion gumbeltree\n"
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    result = subprocess.run(
        [bash, "--norc", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PATH": path},
    )
    assert result.stdout.split() == FOLDERS[1:], result.stderr


def test_completion_imports_little():
    code = (
        "import sys\nfrom gumbeltree.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n"
        "    heavy = {'torch', 'numpy', 'tokenizers', 'huggingface_hub'}\n"
        "    print(sorted(heavy & set(sys.modules)))\n"
    )
    variables = {
        "_GUMBELTREE_COMPLETE": "complete_bash",
        "COMP_WORDS": "gumbeltree info ",
        "COMP_CWORD": "2",
    }
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **variables},
    )
    assert result.stdout.split()[-1] == "[]"
    assert "plain" in result.stdout


def test_installation(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("bash", "/bin/bash"))
    assert run("--install-completion").code == 0
    script = tmp_path / ".bash_completions" / "gumbeltree.sh"
    assert "_GUMBELTREE_COMPLETE=complete_bash" in script.read_text()
    assert str(script) in (tmp_path / ".bashrc").read_text()
    shown = run("--show-completion")
    assert shown.code == 0
    assert shown.out.strip() == script.read_text().strip()


def test_every_argument_that_takes_a_model_completes_models():
    checked = []
    for name, command in typer.main.get_command(app).commands.items():
        for parameter in command.params:
            about = getattr(parameter, "help", None) or ""
            if "hub:ORG/NAME" in about or "as for `parse`" in about:
                found = parameter.shell_complete(typer.Context(command), "sst2-1")
                assert "sst2-100d" in [item.value for item in found], name
                checked.append(name)
    assert {"train", "predict", "draw", "serve", "info", "trees"} <= set(checked)
