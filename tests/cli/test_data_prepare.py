"""`gumbeltree data prepare`, and training from what it wrote."""

import json

import pytest

import gumbeltree
from gumbeltree.cli.train import chosen_recipe
from gumbeltree.data.compile import prepare
from gumbeltree.data.prepared import load_prepared, save_prepared
from tests.commands import Result

SETTINGS = [
    *("generate=200", "embedding_dim=8", "encoder.hidden_dim=8", "head.hidden_dim=8"),
    *("epochs=1", "training.seed=3"),
]
TINY = [argument for setting in SETTINGS for argument in ("--set", setting)]


@pytest.fixture(autouse=True)
def _working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def refused(result):
    """Return the error in the last line of standard error."""
    *_, last = result.err.splitlines()
    return Result(result.code, result.out, last).refused()


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The prepared file of a tiny demo."""
    path = tmp_path_factory.mktemp("prepared") / "demo.safetensors"
    save_prepared(prepare(chosen_recipe("demo", SETTINGS, None, None, None, False)), path)
    return path


def test_prepare_writes_one_file(cli, tmp_path):
    out = tmp_path / "some/where/demo.safetensors"
    result = cli("data", "prepare", "demo", *TINY, "--out", out)
    assert result.code == 0, result
    lines = (result.out + result.err).splitlines()
    assert any(line.startswith("train: 140 examples, ") for line in lines)
    assert lines[-1].endswith(" MB")
    prepared = load_prepared(out)
    assert {name: len(split) for name, split in prepared.splits.items()} == {
        "train": 140,
        "dev": 20,
        "test": 40,
    }
    wanted = prepare(chosen_recipe("demo", SETTINGS, None, None, None, False))
    assert prepared.fingerprint() == wanted.fingerprint()
    assert [path.name for path in out.parent.iterdir()] == ["demo.safetensors"]


def test_prepare_quietly(cli, tmp_path):
    result = cli("data", "prepare", "demo", *TINY, "--out", tmp_path / "a", "--quiet")
    assert result == Result(0, "", "")
    load_prepared(tmp_path / "a")


def test_prepare_a_table_with_vectors(cli, tmp_path):
    rows = "".join(f"word{n} film,{'good' if n % 2 else 'bad'}\n" for n in range(20))
    (tmp_path / "mine.csv").write_text("review,stars\n" + rows)
    (tmp_path / "test.csv").write_text("review,stars\nfilm,bad\n\xff,\n", encoding="latin-1")
    (tmp_path / "glove.txt").write_text("film 1 2 3\nword1 4 5 6\n")
    arguments = [
        *("data", "prepare", "text", "--data", "mine.csv", "--vectors", "glove.txt"),
        *("--text", "review", "--label", "stars", "--test", "test.csv"),
        *("--set", "embedding_dim=3", "--out", "mine.safetensors"),
    ]
    assert "test.csv, line 3" in refused(cli(*arguments))
    assert not (tmp_path / "mine.safetensors").exists()
    result = cli(*arguments, "--skip-bad")
    assert result.code == 0, result
    prepared = load_prepared("mine.safetensors")
    assert prepared.labels == ("bad", "good")
    assert prepared.vectors.shape == (prepared.tokenizer.get_vocab_size(), 3)
    assert prepared.vectors[prepared.tokenizer.token_to_id("film")].tolist() == [1, 2, 3]
    assert prepared.report["splits"]["test"]["bad"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demmo"], "'demmo'"),
        (["demo", "--text", "a"], "--text is for your own files"),
        (["snli-100d"], "--data"),
        (["demo", "--set", "bach_size=3"], "'bach_size'"),
        (["snli-100d", "--data", "nowhere"], "nowhere"),
        (["text", "--set", "data.text="], "column"),
    ],
)
def test_prepare_rejects_invalid_arguments(cli, tmp_path, arguments, message):
    assert message in refused(cli("data", "prepare", *arguments, "--out", tmp_path / "a"))
    assert not (tmp_path / "a").exists()


def test_training_from_the_file_equals_training_from_the_data(cli, tmp_path, demo):
    for name, source in (("file", ["--prepared", demo]), ("data", [])):
        result = cli("train", "demo", *TINY, *source, "--out", name, "--device", "cpu", "--json")
        assert result.code == 0, result
        assert json.loads(result.out)["seed"] == 3
    weights = [
        (tmp_path / name / "model/model.safetensors").read_bytes() for name in ("file", "data")
    ]
    assert weights[0] == weights[1]
    results = [
        json.loads((tmp_path / name / "result.json").read_text()) for name in ("file", "data")
    ]
    assert results[0]["test_accuracy"] == results[1]["test_accuracy"]
    model = gumbeltree.load(tmp_path / "file/model")
    assert model.config.encoder.hidden_dim == 8
    assert model.labels == ("negative", "positive")


@pytest.mark.parametrize(
    ("recipe", "arguments", "message"),
    [
        *(("demo", [option, "x"], "--prepared") for option in ("--data", "--vectors", "--dev")),
        ("sst2", [], "'sst2'"),
        ("sick", [], "pairs"),
        ("listops", [], "labels 0, 1"),
        ("demo", ["--set", "max_words=9"], "9"),
    ],
)
def test_training_rejects_a_file_that_does_not_fit(cli, tmp_path, demo, recipe, arguments, message):
    ended = cli("train", recipe, "--prepared", demo, *arguments, "--out", "run")
    assert message in refused(ended)
    assert not (tmp_path / "run").exists()


def test_training_rejects_a_damaged_file(cli, tmp_path, demo):
    (tmp_path / "cut.safetensors").write_bytes(demo.read_bytes()[:1000])
    for name in ("cut.safetensors", "missing.safetensors"):
        ended = cli("train", "demo", "--prepared", name, "--out", "run")
        assert name in refused(ended)


def test_columns_can_have_any_name(cli, tmp_path):
    for name in ("été", "a b", 'a"b', "a#b", "1"):
        rows = [{name: f"word{n}", "label": n % 2} for n in range(20)]
        label = "2" if name == "1" else "label"
        lines = [json.dumps({name: row[name], label: row["label"]}) for row in rows]
        (tmp_path / "a.jsonl").write_text("\n".join(lines))
        arguments = ["--data", "a.jsonl", "--text", name, "--label", label, "--out", "a", "--quiet"]
        assert cli("data", "prepare", "text", *arguments) == Result(0, "", "")
        assert len(load_prepared("a").splits["train"]) == 16
