"""Learning curves: reading runs, averaging seeds, drawing."""

import json
import math
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gumbeltree.analysis import curves
from gumbeltree.plots import check_picture
from tests.commands import run


def evaluation(step, accuracy, loss=0.5):
    return {
        **{"step": step, "epoch": step / 10, "seconds": 6.0 * step, "train_loss": loss},
        **{"dev_loss": loss + 0.1, "dev_accuracy": accuracy, "best_accuracy": accuracy},
        "learning_rate": 0.001,
    }


TWO = (evaluation(10, 0.5), evaluation(20, 0.75))


def make_run(path, lines=TWO):
    path.mkdir(parents=True)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (path / "metrics.jsonl").write_text(text, encoding="utf-8")
    return path


def texts_of(svg):
    """Return the text elements of an SVG file."""
    return [node.text for node in ElementTree.parse(svg).iter() if node.tag.endswith("}text")]


def test_reads_a_run_that_is_still_writing(tmp_path):
    path = make_run(tmp_path / "mine")
    with open(path / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"step": 30, "epo')
    read = curves.read_run(path)
    assert read.measure == "accuracy"
    assert read.values["step"].tolist() == [10, 20]
    assert read.values["dev_accuracy"].tolist() == [0.5, 0.75]


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
@pytest.mark.parametrize("key", ["train_loss", "dev_accuracy"])
def test_undefined_numbers_are_gaps(tmp_path, key, value):
    path = make_run(tmp_path / "mine", [TWO[0], {**TWO[1], key: value}])
    read = curves.read_run(path).values
    places, values = curves.mean_curve([(read["step"], read[key])])
    assert (places.tolist(), values.tolist()) == ([10], [[0.5]])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no evaluations"),
        ('{"step": 1}\n', "line 1"),
        ("[1]\n", "line 1"),
        (json.dumps(TWO[0]) + "\n{...\n", "line 2"),
        (json.dumps({**TWO[0], "dev_accuracy": "high"}) + "\n", "high"),
    ],
)
def test_damaged_metrics_are_reported(tmp_path, content, message):
    path, out = make_run(tmp_path / "mine"), tmp_path / "x.png"
    (path / "metrics.jsonl").write_text(content, encoding="utf-8")
    out.write_bytes(b"old")
    refused = run("plot", path, "--out", out).refused()
    assert message in refused
    assert "metrics.jsonl" in refused
    assert out.read_bytes() == b"old"


def test_rejects_bad_arguments(tmp_path):
    path, out = make_run(tmp_path / "one"), tmp_path / "x.png"
    assert "nowhere" in run("plot", tmp_path / "nowhere", "--out", out).refused()
    assert "no metrics.jsonl" in run("plot", tmp_path, "--out", out).refused()
    assert "x.docx" in run("plot", path, "--out", tmp_path / "x.docx").refused()
    assert "folder" in run("plot", path, "--out", tmp_path / "no" / "x.png").refused()
    lines = [{"dev_pearson" if k == "dev_accuracy" else k: v for k, v in TWO[0].items()}]
    other = make_run(tmp_path / "other", lines)
    assert "accuracy and pearson" in run("plot", path, other, "--out", out).refused()
    with pytest.raises(ValueError, match="'hours'"):
        curves.draw([path], out, "hours")
    with pytest.raises(ValueError, match="no runs"):
        curves.draw([], out)
    assert not out.exists()


def test_check_picture_accepts_any_case():
    check_picture(Path("x.PNG"))
    with pytest.raises(ValueError, match=r"x\.pgf"):
        check_picture(Path("x.pgf"))


def test_seeds_of_a_folder_form_one_curve(tmp_path):
    for seed in (10, 2, 0):
        make_run(tmp_path / "runs" / f"seed-{seed}")
    make_run(tmp_path / "runs" / "other")
    seeds = curves.find_runs(tmp_path / "runs")
    assert [path.name for path in seeds] == ["seed-0", "seed-2", "seed-10"]


def test_mean_covers_the_range_that_all_runs_have():
    first, second = ([10, 20, 40], [0.4, 0.6, 0.8]), ([15, 25], [0.1, 0.3])
    places, values = curves.mean_curve([first, second])
    assert places.tolist() == [15, 20, 25]
    assert values.tolist() == [pytest.approx([0.5, 0.6, 0.65]), pytest.approx([0.1, 0.2, 0.3])]
    assert curves.mean_curve([first, ([50], [0.1])])[1].shape == (2, 0)


@pytest.mark.parametrize(("x", "label"), [("steps",) * 2, ("epochs",) * 2, ("time", "minutes")])
def test_picture_names_its_curves_and_axes(tmp_path, x, label):
    paths = [make_run(tmp_path / name) for name in ("one", "\u4e2d\u6587", "a/x", "b/x")]
    for seed in range(2):
        make_run(tmp_path / "seeds" / f"seed-{seed}")
    out = tmp_path / "curves.svg"
    result = run("plot", *paths, tmp_path / "seeds", "--out", out, "--x", x)
    assert (result.code, result.out) == (0, "")
    names = {"one", "\u4e2d\u6587", str(paths[2]), str(paths[3]), "seeds (2 seeds)"}
    assert all(name in result.err for name in names)
    panels = {"training loss", "development loss", "development accuracy, %", label}
    assert names | panels <= set(texts_of(out))


def test_draws_one_evaluation_and_undefined_numbers_to_png(tmp_path):
    one = make_run(tmp_path / "one", TWO[:1])
    undefined = make_run(tmp_path / "undefined", [{**TWO[0], "dev_accuracy": None}])
    out = tmp_path / "curves.PNG"
    result = run("plot", one, undefined, "--out", out, "-q")
    assert (result.code, result.err) == (0, "")
    assert out.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.parametrize("metric", ["loss", "mse", "recall:a_b", "macro_f1"])
def test_draws_the_metric_that_selects_the_best_model(tmp_path, metric):
    lines = [
        {**{k: v for k, v in line.items() if k != "best_accuracy"}, f"dev_{metric}": 0.25,
         f"best_{metric}": 0.25}
        for line in TWO
    ]  # fmt: skip
    path = make_run(tmp_path / "run", lines)
    assert curves.read_run(path).measure == metric
    picture = tmp_path / "a.svg"
    curves.draw([path], picture)
    unit = ", %" if metric in ("recall:a_b", "macro_f1") else ""
    assert f"development {metric}{unit}" in picture.read_text("utf-8")
