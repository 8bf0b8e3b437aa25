"""Train, evaluate and predict numbers and tags on the command line."""

import json

import numpy as np
import pytest

import gumbeltree
from gumbeltree.card import model_card
from gumbeltree.config import load_recipe, with_settings
from tests.commands import run
from tests.models import finished, tiny_model
from tests.runs import SMALL

QUICK = [
    argument
    for setting in (
        *(x for x in SMALL if not x.startswith("data.")),
        *("extra_words=0", "encoder.kind=bag", "epochs=1"),
    )
    for argument in ("--set", setting)
]


def written(path, labels, rows=60):
    lines = [f"w{i % 7} w{i % 5},{labels(i)}" for i in range(rows)]
    path.write_text("\n".join(["body,y", *lines]) + "\n", encoding="utf-8")
    return path


def train(path, out, *options):
    columns = ("--data", path, "--text", "body", "--label", "y", "--out", out)
    return run("train", "text", *columns, *QUICK, *options)


def test_numbers_from_the_command_line(tmp_path):
    path = written(tmp_path / "a.csv", lambda i: i % 7 + 0.5)
    shown = train(path, tmp_path / "run", "--target", "number", "--set", "best_by=mse")
    assert shown.code == 0, shown.err
    assert "dev mse" in shown.out
    assert "test: pearson 0." in shown.out or "test: pearson -0." in shown.out
    assert "dev mse" in shown.err
    result = json.loads((tmp_path / "run" / "result.json").read_text("utf-8"))
    assert result["measure"] == "mse"
    found = run("evaluate", tmp_path / "run", "--data", path, "--json", "-q")
    about = json.loads(found.out)
    assert {"pearson", "spearman", "mse", "loss", "examples"} <= about.keys()
    table = run("evaluate", tmp_path / "run", "--data", path, "--predictions", tmp_path / "p.tsv")
    assert "Pearson" in table.out
    gold, predicted, text = (tmp_path / "p.tsv").read_text("utf-8").splitlines()[1].split("\t")
    assert (gold, text) == ("0.5", "w0 w0")
    (value,) = (json.loads(run("predict", tmp_path / "run", "w0 w0", "--json").out)["value"],)
    assert value == pytest.approx(float(predicted), abs=1e-3)
    assert "single_number" in run("info", tmp_path / "run").out
    assert "mean" in run("info", tmp_path / "run").out
    bad = run("evaluate", tmp_path / "run", "--data", path, "--task", "sst2").refused()
    assert "the model predicts numbers, but the task sst2 has the labels" in bad


def test_tags_from_the_command_line(tmp_path):
    path = written(tmp_path / "a.csv", lambda i: "|".join(["a"] * (i % 2) + ["b"] * (i % 3 == 0)))
    shown = train(path, tmp_path / "run", "--target", "tags")
    assert shown.code == 0, shown.err
    assert "dev micro_f1" in shown.out
    about = json.loads(run("evaluate", tmp_path / "run", "--data", path, "--json", "-q").out)
    assert [tag["label"] for tag in about["tags"]] == ["a", "b"]
    answer = json.loads(run("predict", tmp_path / "run", "w0 w0", "--json").out)
    assert answer["probabilities"].keys() == {"a", "b"}
    line = run("predict", tmp_path / "run", "w0 w0").out.rstrip("\n").split("\t")
    assert len(line) == 3
    assert line[0] == "|".join(answer["labels"])


def test_class_weights_and_scores_of_classes(tmp_path):
    path = written(tmp_path / "a.csv", lambda i: "good" if i % 3 else "bad")
    options = ("--set", "class_weights=balanced", "--set", "best_by=recall:bad")
    shown = train(path, tmp_path / "run", *options)
    assert shown.code == 0, shown.err
    assert "dev recall:bad" in shown.out
    assert "macro_f1" in shown.out
    found = run("evaluate", tmp_path / "run", "--data", path)
    assert "Scores of each class" in found.out
    assert "macro-F1" in found.out
    about = json.loads(run("evaluate", tmp_path / "run", "--data", path, "--json", "-q").out)
    assert [row["label"] for row in about["classes"]] == ["bad", "good"]
    assert about["classes"][0]["recall"] == pytest.approx(about["confusion"][0][0] / 20)
    assert "class weights bad" in run("info", tmp_path / "run").out.replace("\n", " ")


def test_wrong_targets_are_refused_before_training(tmp_path):
    path = written(tmp_path / "a.csv", lambda i: "high" if i == 3 else i)
    out = tmp_path / "run"
    message = train(path, out, "-q", "--target", "number").refused()
    assert "a.csv, line 5: expected a number as label, got 'high'" in message
    message = train(path, out, "--target", "number", "--set", "best_by=accuracy").refused()
    assert "one of pearson, spearman, mse, loss, got 'accuracy'" in message
    assert run("train", "text", "--target", "numbers").code == 2
    message = run("train", "sick", "--data", path, "--target", "number").refused()
    assert "--target is for your own files, but recipe sick reads the data set sick" in message
    path = written(tmp_path / "b.csv", lambda i: "")
    message = train(path, out, "-q", "--target", "tags").refused()
    assert "at least one tag, but all labels are empty" in message
    assert not out.exists()


def test_prepared_data_for_a_target(tmp_path):
    path = written(tmp_path / "a.csv", lambda i: i)
    columns = ("--data", path, "--text", "body", "--label", "y", "--target", "number")
    file = tmp_path / "a.safetensors"
    assert run("data", "prepare", "text", *columns, *QUICK, "--out", file).code == 0
    options = ("--prepared", file, "--text", "body", "--label", "y", "--out", tmp_path / "run")
    shown = run("train", "text", *options, "--target", "number", *QUICK)
    assert shown.code == 0, shown.err
    message = run("train", "text", *options[:-1], tmp_path / "other", "-q", *QUICK).refused()
    assert "classifies, but the data was prepared for a head that does not" in message


def test_settings_of_class_weights():
    recipe = load_recipe("text")
    plain = with_settings(recipe, ["class_weights=balanced"])
    assert plain.model.head.class_weights == "balanced"
    table = with_settings(recipe, ["head.class_weights={bad = 3, good = 1}"])
    assert table.model.head.class_weights == {"bad": 3, "good": 1}
    one = with_settings(recipe, ["class_weights.spam and eggs=2.5", "class_weights.epochs=4"])
    assert one.model.head.class_weights == {"spam and eggs": 2.5, "epochs": 4}
    # labels are not settings
    assert with_settings(one, ["epochs=7"]).training.epochs == 7
    assert with_settings(one, ["class_weights=none"]).model.head.class_weights == "none"
    with pytest.raises(ValueError, match="unknown key 'class_weights'"):
        with_settings(recipe, ["head.kind=single_number", "class_weights=balanced"])


@pytest.mark.parametrize("kind", ["pair_number", "single_bins", "single_tags", "pair_tags"])
def test_model_cards(kind):
    card = model_card(tiny_model(kind))
    what = {"number": "value", "bins": "value", "tags": "labels and probabilities"}
    assert f"# {what[kind.partition('_')[2]]} per" in card
    assert ("`music`" in card) == kind.endswith("tags")


@pytest.mark.parametrize("kind", ["single_number", "single_bins", "pair_bins", "single_tags"])
def test_the_server_answers(kind):
    service = pytest.importorskip("gumbeltree.web.service")
    model = tiny_model(kind)
    served = service.Served("mine", model)
    text, second = "the dog sleeps now .", "one dog"
    pair = kind.startswith("pair")
    (answer,) = service.predict(served, [(text, second if pair else None)])
    expected = model.predict([(text, second)] if pair else [text])[0].as_dict()
    assert json.loads(answer) == json.loads(json.dumps(expected))
    (parsed,) = finished(service.parse(served, [text], service.Options()))
    found = json.loads(parsed)
    assert found["classes"] is None
    assert found["answer"] == (None if pair else json.loads(json.dumps(expected)))
    assert all(node["classes"] is None for node in found["nodes"])
    assert served.describe()["labels"] == []


@pytest.mark.parametrize("kind", ["single_number", "pair_bins", "single_tags"])
def test_the_numpy_runtime_answers_like_torch(kind, tmp_path):
    model = tiny_model(kind)
    gumbeltree.save(model, tmp_path / "model", {})
    texts = ["the dog sleeps now .", "one dog"]
    arguments = texts if kind.startswith("pair") else texts[:1]
    command = ("predict", tmp_path / "model", *arguments, "--json", "-q", "--runtime")
    light, full = (json.loads(run(*command, name).out) for name in ("numpy", "torch"))
    assert light.keys() == full.keys()
    for name in light.keys() - {"labels", "text", "text2", "bins"}:
        assert light[name] == pytest.approx(full[name], abs=1e-5)
    np.testing.assert_allclose(light.get("bins", []), full.get("bins", []), atol=1e-5)
