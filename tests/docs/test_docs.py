"""The documentation's code runs, and its figures are those that were measured."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gumbeltree import EncoderConfig, GumbelTreeEncoder
from gumbeltree.parts import CELLS
from gumbeltree.tasks.demo import generate
from tests.nn import test_cells

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path) -> list[str]:
    """Return the Python blocks of a page."""
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the blocks find where they run: a demonstration, and a table of reviews."""
    folder = tmp_path_factory.mktemp("docs")
    command = [sys.executable, "-m", "gumbeltree", "demo", "--quick"]
    subprocess.run(command, check=True, capture_output=True, cwd=folder)
    rows = [f'"{e.texts[0]}",{"good" if e.label == "positive" else "bad"}' for e in generate(60, 1)]
    (folder / "reviews.csv").write_text("\n".join(["review,stars", *rows]), encoding="utf-8")
    return folder


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: p.name)
def test_python_blocks_run(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for block in blocks(page):
        exec(compile(block, str(page), "exec"), {"__name__": "__main__"})


def test_the_cell_of_the_contributing_page_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "average.py").write_text(blocks(ROOT / "CONTRIBUTING.md")[0], encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(CELLS.table, "average", "average:AverageCell")
    encoder = GumbelTreeEncoder(EncoderConfig(3, 4, cell="average"))
    name, reason = encoder.explain()
    assert name == "reference"
    assert "define `weight`, `gate_bias`, `activate`, `activate_backward`" in reason
    # the tests that the page promises will run over the table
    test_cells.test_gradients_by_finite_differences("average")
    test_cells.test_encoder_trains_with_every_cell("average")
    with pytest.raises(pytest.skip.Exception, match="AverageCell"):
        test_cells.test_activate_and_its_backward_pass_equal_the_cell("average")
    encoder(torch.randn(2, 6, 3), torch.tensor([6, 4])).vector.sum().backward()
    assert encoder.cell.mix.weight.grad.abs().max() > 0


def test_links_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"
