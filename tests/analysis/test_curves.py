"""Learning curves: what is read, how runs are put together, what is drawn."""

import json
import math
from xml.etree import ElementTree

import numpy as np
import pytest

from gumbeltree.analysis import curves
from tests.commands import run


def line(step, accuracy, loss=0.5):
    return {
        **{"step": step, "epoch": step / 10, "seconds": 2.0 * step, "train_loss": loss},
        **{"dev_loss": loss + 0.1, "dev_accuracy": accuracy, "best_accuracy": accuracy},
        "learning_rate": 0.001,
    }


TWO = (line(10, 0.5), line(20, 0.75))


def make_run(path, seed=0, lines=TWO, finished=True, **changes):
    path.mkdir(parents=True)
    recipe = {
        "description": "a test",
        "model": {"encoder": {"hidden_dim": 8, **changes}},
        "training": {"seed": seed, "epochs": 2},
    }
    settings = {"recipe_name": "demo", "recipe": recipe, "data_digest": "d", "init_digest": None}
    (path / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    text = "".join(json.dumps(each) + "\n" for each in lines)
    (path / "metrics.jsonl").write_text(text, encoding="utf-8")
    if finished:
        (path / "result.json").write_text("{}", encoding="utf-8")
    return path


def make_record(path, seed=0, lines=TWO[:1], **changes):
    record = {
        "recipe_name": "snli-100d",
        "seed": seed,
        "overrides": {},
        "data": {"digest": "x"},
        "recipe": {"model": changes, "training": {"seed": seed}},
        "metrics": list(lines),
    }
    path.write_text(json.dumps(record), encoding="utf-8")
    return path


# reading


def test_a_folder(tmp_path):
    read = curves.read_run(make_run(tmp_path / "mine"))
    assert (read.name, read.recipe, read.seed, read.finished) == ("mine", "demo", 0, True)
    assert read.values["step"].tolist() == [10, 20]
    assert read.values["dev_accuracy"].tolist() == [0.5, 0.75]
    assert read.settings["model.encoder.hidden_dim"] == 8
    assert "training.seed" not in read.settings


def test_a_record(tmp_path):
    read = curves.read_run(make_record(tmp_path / "snli-100d--seed3.json", seed=3))
    assert (read.name, read.recipe, read.seed) == ("snli-100d--seed3", "snli-100d", 3)
    assert read.finished


def test_a_run_that_is_going(tmp_path):
    path = make_run(tmp_path / "mine", finished=False)
    with open(path / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"step": 30, "epo')
    read = curves.read_run(path)
    assert read.values["step"].tolist() == [10, 20]
    assert not read.finished


def test_losses_that_are_no_numbers_are_gaps(tmp_path):
    lines = [line(10, 0.5), line(20, 0.5, math.nan), line(30, 0.5, math.inf)]
    read = curves.read_run(make_run(tmp_path / "mine", lines=lines))
    assert np.isnan(read.values["train_loss"]).tolist() == [False, True, True]
    assert curves.draw([read], tmp_path / "x.png")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "expected a line for each evaluation, got none"),
        ('{"step": 1}', "got none"),
        ('{"step": 1}\n', "line 1: expected numbers step, epoch, seconds, dev_accuracy"),
        ("[1]\n", "line 1: expected a JSON object, got list"),
        (json.dumps(line(1, 0.5)) + "\n{...\n", "line 2: expected a JSON object, got b'{...'"),
        ("\x00\x01\n", "line 1: expected a JSON object"),
        (json.dumps({**line(1, 0.5), "dev_accuracy": "high"}) + "\n", "none for dev_accuracy"),
    ],
)
def test_damaged_metrics(tmp_path, content, message):
    path = make_run(tmp_path / "mine")
    (path / "metrics.jsonl").write_text(content, encoding="utf-8")
    refused = run("plot", path, "--out", tmp_path / "x.png").refused()
    assert message in refused
    assert "metrics.jsonl" in refused
    assert not (tmp_path / "x.png").exists()


def test_what_is_no_run(tmp_path):
    out = ["--out", tmp_path / "x.png"]
    assert "got nothing there" in run("plot", tmp_path / "nowhere", *out).refused()
    (tmp_path / "empty").mkdir()
    assert "got another folder" in run("plot", tmp_path / "empty", *out).refused()
    make_run(tmp_path / "runs" / "a")
    message = run("plot", tmp_path / "runs", *out).refused()
    assert f"it holds runs, such as {tmp_path / 'runs' / 'a'}: name them" in message
    (tmp_path / "runs" / "a" / "metrics.jsonl").unlink()
    message = run("plot", tmp_path / "runs" / "a", *out).refused()
    assert "wait for its first evaluation" in message
    other = tmp_path / "other.json"
    other.write_text("{}", encoding="utf-8")
    assert "got another JSON file" in run("plot", other, *out).refused()
    other.write_text("{", encoding="utf-8")
    assert "other.json: expected JSON, got a damaged file" in run("plot", other, *out).refused()
    other.write_text("[]", encoding="utf-8")
    assert "expected a JSON object, got list" in run("plot", other, *out).refused()
    make_record(other, lines=[])
    assert "expected evaluations in `metrics`" in run("plot", other, *out).refused()
    settings = make_run(tmp_path / "b") / "settings.json"
    settings.write_text("{", encoding="utf-8")
    assert "settings.json: expected JSON" in run("plot", tmp_path / "b", *out).refused()


def test_a_folder_of_seeds(tmp_path):
    for seed in (10, 2, 0):
        make_run(tmp_path / "runs" / f"seed-{seed}", seed=seed)
    make_run(tmp_path / "runs" / "other")
    found = curves.find_runs(tmp_path / "runs")
    assert [path.name for path in found] == ["seed-0", "seed-2", "seed-10"]
    (group,) = curves.draw([tmp_path / "runs"], tmp_path / "x.svg")
    assert group.label == "demo (3 seeds)"


# groups


def test_seeds_are_one_group_and_changes_another(tmp_path):
    paths = [make_run(tmp_path / f"a{seed}", seed=seed) for seed in (0, 1)]
    paths += [make_run(tmp_path / f"b{seed}", seed=seed, trees="left") for seed in (0, 1)]
    paths.append(make_run(tmp_path / "alone", trees="right"))
    paths += [make_record(tmp_path / f"r{seed}.json", seed=seed) for seed in (0, 1)]
    groups = curves.group([curves.read_run(path) for path in paths])
    assert [each.label for each in groups] == [
        "demo, trees=learned (2 seeds)",
        "demo, trees=left (2 seeds)",
        "alone",
        "snli-100d (2 seeds)",
    ]
    assert [len(each.runs) for each in groups] == [2, 2, 1, 2]


def test_names_that_come_twice_get_their_path(tmp_path):
    paths = [make_run(tmp_path / x / "mine", hidden_dim=n) for n, x in enumerate("ab")]
    labels = [each.label for each in curves.group([curves.read_run(path) for path in paths])]
    assert len(set(labels)) == 2
    assert labels[0].startswith("mine, ")


def test_runs_without_settings_stay_apart(tmp_path):
    paths = [make_run(tmp_path / name) for name in ("a", "b")]
    for path in paths:
        (path / "settings.json").unlink()
    groups = curves.group([curves.read_run(path) for path in paths])
    assert [each.label for each in groups] == ["a", "b"]


def test_the_mean_in_the_range_of_all(tmp_path):
    first = make_run(tmp_path / "a", lines=[line(10, 0.4), line(20, 0.6), line(40, 0.8)])
    second = make_run(tmp_path / "b", lines=[line(15, 0.1), line(25, 0.3)])
    runs = [curves.read_run(path) for path in (first, second)]
    places, values = curves.mean_curve(runs, "step", "dev_accuracy")
    # 15: (0.5 + 0.1) / 2, 20: (0.6 + 0.2) / 2, 25: (0.65 + 0.3) / 2
    assert places.tolist() == [15, 20, 25]
    assert values.tolist() == pytest.approx([0.3, 0.4, 0.475])
    late = curves.read_run(make_run(tmp_path / "c", lines=[line(50, 0.1)]))
    assert len(curves.mean_curve([runs[0], late], "step", "dev_accuracy")[0]) == 0


# pictures


@pytest.mark.parametrize("x", ["steps", "epochs", "time", "all"])
def test_a_picture_names_its_runs(tmp_path, x):
    paths = [make_run(tmp_path / "one"), make_run(tmp_path / "two", finished=False, trees="left")]
    paths += [make_record(tmp_path / f"r{seed}.json", seed=seed) for seed in (0, 1)]
    out = tmp_path / "curves.svg"
    result = run("plot", *paths, "--out", out, "--x", x)
    assert (result.code, result.out) == (0, "")
    assert f"{out}: 4 runs, 1 not finished" in result.err
    root = ElementTree.parse(out).getroot()
    assert root.tag.endswith("svg")
    texts = [node.text for node in root.iter() if node.tag.endswith("}text")]
    assert {"one", "two, not finished", "snli-100d (2 seeds)"} <= set(texts)
    assert {"training loss", "development loss", "development accuracy, %"} <= set(texts)
    axes = {"steps": {"steps"}, "epochs": {"epochs"}, "time": {"time, seconds"}}
    axes["all"] = set().union(*axes.values())
    assert set(texts) & axes["all"] == axes[x]


def test_a_png(tmp_path):
    out = tmp_path / "curves.PNG"
    result = run("plot", make_run(tmp_path / "one"), "--out", out, "-q")
    assert (result.code, result.err) == (0, "")
    assert out.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.parametrize(
    ("seconds", "unit"),
    [(100, "time, seconds"), (600, "time, minutes"), (20_000, "time, hours")],
)
def test_units_of_time(tmp_path, seconds, unit):
    path = make_run(tmp_path / "one", lines=[line(1, 0.1), line(seconds / 2, 0.2)])
    curves.draw([path], tmp_path / "x.svg", "time")
    assert f">{unit}<" in (tmp_path / "x.svg").read_text(encoding="utf-8")


def test_no_run_leaves_the_picture(tmp_path, monkeypatch):
    # one that stays at 0.1 beside many evaluations near 0.9
    many = [line(n, 0.9 + n / 1000) for n in range(1, 60)]
    paths = [make_run(tmp_path / "good", lines=many), make_run(tmp_path / "bad", trees="left")]
    seen = []
    limit = curves._limit

    def record(axis, *arguments):
        limit(axis, *arguments)
        seen.append((arguments[1], axis.get_ylim()))

    monkeypatch.setattr(curves, "_limit", record)
    curves.draw(paths, tmp_path / "x.png", "steps")
    bottom, top = dict(seen)["dev_accuracy"]
    assert bottom < 75 < 95.9 < top


def test_names_that_matplotlib_would_leave_out(tmp_path):
    runs = [make_run(tmp_path / name) for name in ("_one", "_two", "three")]
    for i, path in enumerate(runs):
        (path / "settings.json").write_text(json.dumps({"recipe_name": str(i)}), encoding="utf-8")
    curves.draw(runs, tmp_path / "x.svg", "steps")
    drawn = ElementTree.parse(tmp_path / "x.svg").getroot().itertext()
    words = [text.strip() for text in drawn if text.strip()]
    assert [word for word in words if word in ("_one", "_two", "three")] == [
        "_one",
        "_two",
        "three",
    ]
    assert "best development accuracy" in words


def test_letters_that_the_font_lacks_are_no_warning(tmp_path):
    run = make_run(tmp_path / "\u4e2d\u6587")
    for name in ("x.png", "x.svg"):
        curves.draw([run], tmp_path / name, "steps")
    assert "\u4e2d\u6587" in (tmp_path / "x.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("key", ["seconds", "train_loss", "dev_accuracy"])
@pytest.mark.parametrize("value", [1e308, math.nan])
def test_numbers_that_cannot_be_drawn_are_gaps(tmp_path, key, value):
    read = curves.read_run(make_run(tmp_path / "run", lines=[{**each, key: value} for each in TWO]))
    assert np.isnan(read.values[key]).all()
    curves.draw([read], tmp_path / "x.png", "time")


def test_refusals(tmp_path):
    path = make_run(tmp_path / "one")
    message = run("plot", path, "--out", tmp_path / "x.docx").refused()
    assert "x.docx: expected a picture's file name" in message
    assert "expected a folder" in run("plot", path, "--out", tmp_path / "no" / "x.png").refused()
    assert "is a folder" in run("plot", path, "--out", tmp_path).refused()
    message = run("plot", path, path, "--out", tmp_path / "x.png").refused()
    assert "expected each run once" in message
    with pytest.raises(ValueError, match="steps, epochs, time or all, got 'hours'"):
        curves.draw([path], tmp_path / "x.png", "hours")
    with pytest.raises(ValueError, match="expected a run to draw, got none"):
        curves.draw([], tmp_path / "x.png")
    # what was there before stays when a run cannot be read
    (tmp_path / "x.png").write_bytes(b"old")
    (path / "metrics.jsonl").write_text("", encoding="utf-8")
    run("plot", path, "--out", tmp_path / "x.png").refused()
    assert (tmp_path / "x.png").read_bytes() == b"old"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["one", "x.png"]


def test_endings_that_need_other_programs_are_refused(tmp_path):
    curves.check_picture(tmp_path / "x.png")
    with pytest.raises(ValueError, match="expected a picture's file name") as found:
        curves.check_picture(tmp_path / "x.pgf")
    assert "pgf," not in str(found.value)
