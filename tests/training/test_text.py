"""Training on texts in memory."""

import doctest
import json
import random
import tempfile
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

import gumbeltree
from gumbeltree.answers import Prediction
from gumbeltree.training import candidates, loop, text
from gumbeltree.training.stopping import InterruptedRunError
from gumbeltree.training.text import train_text
from tests.columns import FORMS
from tests.commands import run
from tests.runs import SMALL, contents

SETTINGS = [*SMALL, "epochs=1"]


def data(rows=100, seed=5):
    generator = random.Random(seed)
    texts = [
        " ".join(f"w{generator.randrange(9)}" for _ in range(generator.randint(1, 6)))
        for _ in range(rows)
    ]
    return texts, ["yes" if "w1" in text else "no" for text in texts]


@pytest.fixture(autouse=True)
def _temporary(tmp_path, monkeypatch):
    """Make the folder of temporary files visible to the test."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(candidates, "RATE_SECONDS", 0.0)


@pytest.fixture(scope="module")
def model():
    return train_text(*data(), settings=SETTINGS, device="cpu", quiet=True)


def test_random_numbers_of_the_caller_do_not_change():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    train_text(*data(), settings=SETTINGS, device="cpu", quiet=True)
    assert torch.rand(1) == expected


@pytest.mark.parametrize("form", FORMS)
def test_trains_on_every_form(form, model, tmp_path):
    texts, labels = data()
    make = FORMS[form]
    found = train_text(make(texts), make(labels), settings=SETTINGS, device="cpu", quiet=True)
    assert isinstance(found, gumbeltree.SentenceModel)
    assert not found.training
    expected = model.predict(texts)
    assert found.predict(make(texts)) == expected
    # nothing is left behind
    assert list((tmp_path / "temporary").iterdir()) == []


def test_learns():
    settings = [*SMALL, "epochs=6", "learning_rate=0.04"]
    found = train_text(*data(300), settings=settings, device="cpu", quiet=True)
    metrics = found.provenance["metrics"]
    assert metrics["dev_accuracy"] > 0.95
    evaluation = gumbeltree.evaluate(found, *data(50, seed=6))
    assert evaluation.accuracy > 0.9
    assert [p.label for p in found.predict(["w1 w2", "w3 w2"])] == ["yes", "no"]


def test_equals_the_command_line(tmp_path):
    texts, labels = data()
    rows = ["text,label", *(f"{text},{label}" for text, label in zip(texts, labels, strict=True))]
    (tmp_path / "table.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    sets = [word for setting in SETTINGS for word in ("--set", setting)]
    command = ("train", "text", "--data", tmp_path / "table.csv", "--out", tmp_path / "command")
    result = run(*command, *sets, "--device", "cpu", "--seed", 3, "-q")
    assert result.code == 0, result.err
    out = tmp_path / "python"
    train_text(texts, labels, settings=SETTINGS, seed=3, out=out, device="cpu", quiet=True)
    assert contents(tmp_path / "command") == contents(out)


def test_keeps_and_resumes_a_run_folder(tmp_path, model, monkeypatch):
    out, (texts, labels) = tmp_path / "run", data()
    options = {"settings": SETTINGS, "out": out, "device": "cpu", "quiet": True}
    with monkeypatch.context() as patch:
        # as if Ctrl-C had been pressed before the first step
        patch.setattr(loop, "StopRequest", lambda: nullcontext(SimpleNamespace(number=2)))
        with pytest.raises(InterruptedRunError, match="resume"):
            train_text(texts, labels, **options)
        # without a folder there is nothing to resume
        with pytest.raises(KeyboardInterrupt, match="pass `out`"):
            train_text(texts, labels, **{**options, "out": None})
    with pytest.raises(FileExistsError, match="already holds a training run"):
        train_text(texts, labels, **options)
    found = train_text(iter(texts), iter(labels), resume=True, **options)
    assert found.predict(texts) == model.predict(texts)
    assert (out / "result.json").is_file()
    assert gumbeltree.load(out).predict(texts) == model.predict(texts)
    with pytest.raises(ValueError, match="pass `out`"):
        train_text(texts, labels, resume=True)


def test_trains_on_pairs(tmp_path):
    texts, labels = data(60)
    found = train_text(
        texts, labels, texts[::-1], settings=SETTINGS, device="cpu", quiet=True, encoder="bag"
    )
    assert found.head.sentences == 2
    assert found.config.encoder.kind == "bag"
    assert found.provenance["recipe_name"] == "text-pair"
    (answer,) = found.predict([("w1", "w2")])
    assert isinstance(answer, Prediction)


def test_takes_splits(tmp_path):
    (texts, labels), dev, test = data(40), data(7, seed=1), data(9, seed=2)
    found = train_text(
        texts,
        labels,
        dev=dev,
        test=(iter(test[0]), iter(test[1])),
        settings=SETTINGS,
        device="cpu",
        quiet=True,
    )
    counts = {name: x["examples"] for name, x in found.provenance["data"]["splits"].items()}
    assert counts == {"train": 40, "dev": 7, "test": 9}
    evaluation = gumbeltree.evaluate(found, *test)
    assert found.provenance["metrics"]["test_accuracy"] == evaluation.accuracy


def test_predicts_numbers():
    texts, _ = data(200)
    means = [sum(int(word[1:]) for word in x) / len(x) for x in map(str.split, texts)]
    settings = [*SMALL, "epochs=8", "embedding.dropout=0", "head.dropout=0"]
    found = train_text(
        texts, means, target="number", encoder="bag", settings=settings, device="cpu", quiet=True
    )
    assert found.provenance["metrics"]["test_pearson"] > 0.8
    assert gumbeltree.evaluate(found, texts, means).value > 0.8


def test_predicts_tags():
    texts, _ = data(200)
    tags = [[word for word in ("w1", "w2") if word in text.split()] for text in texts]
    options = {"encoder": "bag", "settings": [*SMALL, "epochs=8"], "device": "cpu", "quiet": True}
    found = train_text(texts, tags, target="tags", **options)
    assert found.config.head.tags == ("w1", "w2")
    assert gumbeltree.evaluate(found, texts, tags).value > 0.8
    joined = train_text(texts, map("|".join, tags), target="tags", **options)
    assert joined.predict(texts[:9]) == found.predict(texts[:9])
    dev = (["w1 w3"], [["w1", "w3"]])
    with pytest.raises(ValueError, match=r"dev: the label of row 0 .*'w3'"):
        train_text(texts, tags, target="tags", dev=dev, **options)
    with pytest.raises(ValueError, match=r"unknown target 'tag'.*Did you mean 'tags'"):
        train_text(texts, tags, target="tag")


def test_auto_returns_the_best(tmp_path, capsys):
    texts, labels = data()
    out = tmp_path / "auto"
    found = train_text(texts, labels, encoder="auto", out=out, settings=SETTINGS, device="cpu")
    err = capsys.readouterr().err
    assert "sentences/s" in err
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    kinds = {"bag": "bag", "lstm": "lstm", "tree": "gumbel_tree"}
    assert found.config.encoder.kind == kinds[result["encoder"]]
    assert [row["encoder"] for row in result["candidates"]] == list(kinds)


def test_shows_progress_unless_quiet(capsys):
    train_text(*data(), settings=SETTINGS, device="cpu")
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert lines[0] == "building the vocabulary"
    assert sum("examples/s" in line for line in lines) == 3
    assert lines[-1].startswith("best model, epoch ")
    assert ": accuracy dev " in lines[-1]
    train_text(*data(), settings=SETTINGS, device="cpu", quiet=True)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": ["a"] * 99}, "100 texts and 99 labels"),
        ({"labels": ["a"] * 100}, "at least two labels, but has only a"),
        ({"labels": [*["a"] * 50, None, *["b"] * 49]}, "label of row 50 is missing"),
        ({"texts": [], "labels": []}, "train: there are no texts"),
        ({"texts": [*["a"] * 99, " "]}, "text of row 99 is empty"),
        ({"dev": (["a"], ["maybe"])}, r"dev: the label of row 0 is 'maybe', .*no, yes"),
        ({"test": (["a", "b"], ["yes"])}, "test: every text needs one label"),
        ({"dev": ["a", "b", "c"]}, r"`dev` must be \(texts, labels\)"),
        ({"second": ["b"] * 100, "dev": (["a"], ["yes"])}, r"`dev` must be .*second\)"),
        ({"labels": [i / 7 for i in range(100)]}, "look like measurements.*--target number"),
        ({"settings": "epochs=1"}, r"pass \['epochs=1'\]"),
        ({"settings": ["epoch=1"]}, "^the setting epoch=1: unknown key 'epoch'"),
        ({"settings": {"epoch": 1}}, "^the setting epoch=1: unknown key 'epoch'"),
        ({"settings": {"epochs"}}, "a setting has the form KEY=VALUE, got 'epochs'"),
        ({"settings": ["tuned=false", "own_vectors=false"]}, "pass `vectors`"),
        ({"encoder": "forest"}, "unknown encoder 'forest'"),
    ],
)
def test_rejects_wrong_arguments(change, message):
    texts, labels = data()
    options = {"texts": texts, "labels": labels, "settings": SETTINGS, "quiet": True, **change}
    with pytest.raises((ValueError, TypeError), match=message):
        train_text(**options)


def test_the_example_runs():
    results = doctest.testmod(text)
    assert results.attempted == 6
    assert results.failed == 0


def test_real_data_frames():
    pandas = pytest.importorskip("pandas")
    texts, labels = data()
    frame = pandas.DataFrame({"text": texts, "label": labels})[::-1]
    found = train_text(frame["text"], frame.label, settings=SETTINGS, device="cpu", quiet=True)
    assert gumbeltree.evaluate(found, frame.text, frame["label"]).count == len(texts)
    with pytest.raises(TypeError, match="pass one of its columns"):
        train_text(frame, frame.label)


def test_real_data_sets():
    datasets = pytest.importorskip("datasets")
    texts, labels = data()
    columns = datasets.Dataset.from_dict({"text": texts, "label": labels})
    found = train_text(
        columns["text"], columns["label"], settings=SETTINGS, device="cpu", quiet=True
    )
    assert gumbeltree.evaluate(found, columns["text"], columns["label"]).count == len(texts)


def test_every_argument_is_documented():
    described = text.train_text.__doc__.partition("Args:")[2]
    for name in text.train_text.__annotations__:
        assert name == "return" or f"\n        {name}: " in described, name
