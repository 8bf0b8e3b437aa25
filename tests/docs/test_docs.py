"""The documentation's code runs, and its figures are those that were measured."""

import contextlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from gumbeltree import EncoderConfig, GumbelTreeEncoder
from gumbeltree.config import load_recipe
from gumbeltree.parts import CELLS
from gumbeltree.sharded import Job, ShardFolder
from gumbeltree.tasks.demo import generate
from gumbeltree.text.lines import Line
from tests.commands import run
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
    with contextlib.chdir(folder):
        assert run("demo", "--quick").code == 0
    rows = [f'"{e.texts[0]}",{"good" if e.label == "positive" else "bad"}' for e in generate(60, 1)]
    (folder / "reviews.csv").write_text("\n".join(["review,stars", *rows]), encoding="utf-8")
    job = Job("demo", "", 2, "texts.txt", 0, "", "", False, False, shard_rows=16)
    with ShardFolder(folder / "vectors", job) as shards:
        for shard in shards.missing(Line(row, ("text",)) for row in range(40)):
            shards.write(shard.number, np.ones((len(shard.texts), 2), dtype=np.float32))
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


def test_the_page_on_training_says_when_training_stops() -> None:
    text = " ".join((ROOT / "docs/train.md").read_text(encoding="utf-8").split())
    plans = [load_recipe(name).training for name in ("text", "text-pair")]
    assert [plan.stop_after for plan in plans] == [4, 6]
    assert "after four evaluations without improvement, or six with `text-pair`" in text
    assert [(plan.evaluations, plan.evaluation_steps) for plan in plans] == [(2, 30)] * 2
    assert "twice per epoch, but not more often than every 30 steps" in text


def test_links_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_figures_of_the_page_on_clusters_are_those_measured() -> None:
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    report = json.loads((ROOT / "benchmarks" / "results" / "cluster.json").read_text("utf-8"))
    assert f"{report['texts']:,} sentences of {report['words']:.1f} words" in page
    base = report["rows"][0]["rate"]
    for row in report["rows"]:
        assert f"| {row['way']} | {row['rate']:,.0f} | {row['rate'] / base:.2f} |" in page
    each = report["rows"][2]["rate"] / 2
    assert f"{each:,.0f} sentences per second" in page
    assert f"about {1e9 / 3600 / each:.0f} core-hours" in " ".join(page.split())
