"""The notebook: its cells run, and the outputs it stores are those of its cells."""

import copy
import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

DOCS = Path(__file__).parent.parent.parent / "docs"
PATH = DOCS / "notebook.ipynb"


@pytest.fixture(scope="module")
def runner() -> ModuleType:
    """docs/notebook.py as a module."""
    spec = importlib.util.spec_from_file_location("notebook", DOCS / "notebook.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def notebook() -> dict[str, Any]:
    """The notebook as it is stored."""
    loaded: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    return loaded


@pytest.fixture(scope="module")
def again(
    runner: ModuleType, notebook: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The notebook after a run with little training, and the variables of its cells."""
    ran = copy.deepcopy(notebook)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("notebook"))
        return ran, runner.run(ran, REVIEWS=120, EPOCHS=1)


def code(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def printed(cell: dict[str, Any]) -> str:
    return "".join("".join(output.get("text", ())) for output in cell["outputs"])


def test_every_cell_runs(again: tuple[dict[str, Any], dict[str, Any]]) -> None:
    _, variables = again
    assert (variables["REVIEWS"], variables["EPOCHS"]) == (120, 1)
    assert set(variables["models"]) == {"bag", "lstm", "gumbel_tree"}


def test_outputs_without_training_are_current(
    notebook: dict[str, Any], again: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    stored, ran = code(notebook), code(again[0])
    trained = next(n for n, cell in enumerate(stored) if cell["metadata"].get("tags"))
    compared = 0
    for before, after in zip(stored[:trained], ran[:trained], strict=True):
        assert before["outputs"] == after["outputs"], "".join(before["source"])
        compared += len(before["outputs"])
    assert compared > 8
    # the others print the same kind of output
    for before, after in zip(stored, ran, strict=True):
        kinds = [[o["output_type"] for o in cell["outputs"]] for cell in (before, after)]
        assert kinds[0] == kinds[1], "".join(before["source"])


def test_the_file_is_small_and_says_nothing_of_the_machine(notebook: dict[str, Any]) -> None:
    text = PATH.read_text(encoding="utf-8")
    assert len(text.encode()) < 300_000
    assert not re.search(r"/(tmp|home|root|Users|work|usr)\b|0x[0-9a-f]{6}", text)
    assert notebook["nbformat"] == 4
    cells = code(notebook)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    pictures = [
        o for cell in cells for o in cell["outputs"] if "image/svg+xml" in o.get("data", ())
    ]
    assert len(pictures) >= 6


def test_the_text_agrees_with_the_figures(notebook: dict[str, Any]) -> None:
    outputs = "\n".join(printed(cell) for cell in code(notebook))
    accuracy = {
        kind: float(value)
        for kind, value in re.findall(r"^(bag|lstm|gumbel_tree) +([\d.]+)%", outputs, re.MULTILINE)
    }
    # "the bag of words does not get far"
    assert 50 < accuracy["bag"] < 75 < accuracy["lstm"] < accuracy["gumbel_tree"]
    agreement = {
        kind: float(value)
        for kind, value in re.findall(r"^(learned|right|random) +([\d.]+)%", outputs, re.MULTILINE)
    }
    # "its trees agree with the gold trees less than random trees do"
    assert agreement["learned"] < agreement["random"] < agreement["right"]


def test_outputs_are_recorded_as_jupyter_does(runner: ModuleType) -> None:
    source = ["print(1)\n", "display(2)\n", "print(3)\n", "print(4)\n", "tree"]
    first = {"cell_type": "code", "metadata": {"tags": ["parameters"]}, "source": ["n = 1"]}
    second = {
        "cell_type": "code",
        "metadata": {},
        "source": ["from gumbeltree import Tree\n", 'tree = Tree("a b", [0])\n', *source],
    }
    cells = [{"cell_type": "markdown", "source": ["text"]}, first, second]
    assert runner.run({"cells": cells}, n=5)["n"] == 5
    assert first["outputs"] == []
    streams = [o.get("text") for o in second["outputs"]]
    assert streams == [["1\n"], None, ["3\n", "4\n"], None]
    result = second["outputs"][-1]
    assert result["output_type"] == "execute_result"
    assert result["execution_count"] == 2
    assert result["data"]["text/plain"] == ["Tree('( a b )')"]
    assert "".join(result["data"]["image/svg+xml"]).startswith("<svg")


def test_an_error_in_a_cell_stops_the_run(runner: ModuleType) -> None:
    cells = [{"cell_type": "code", "metadata": {}, "source": ["1 / 0"]}]
    with pytest.raises(ZeroDivisionError):
        runner.run({"cells": cells})
