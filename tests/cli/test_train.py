"""The command `gumbeltree train`, called in this process."""

import json
import random
import re
from pathlib import Path

import pytest
import torch

from gumbeltree import load
from tests.runs import SMALL, contents, metrics

SMALLER = (*SMALL, "epochs=1")


@pytest.fixture(autouse=True)
def _place(tmp_path, monkeypatch):
    monkeypatch.setenv("GUMBELTREE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(cli):
    """Call `gumbeltree train` with small settings."""

    def call(recipe, *arguments, settings=()):
        options = [x for s in (*SMALLER, *settings) for x in ("--set", s)]
        return cli("train", recipe, *options, *arguments)

    return call


def read(path):
    return json.loads(Path(path).read_text(encoding="utf-8"))


def rows(count, seed):
    generator = random.Random(seed)
    for _ in range(count):
        words = [f"w{generator.randrange(9)}" for _ in range(generator.randint(2, 6))]
        yield " ".join(words), "yes" if "w1" in words else "no"


def csv(path, count=120, seed=0):
    lines = ["stars,review", *(f'{label},"{text}"' for text, label in rows(count, seed))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def tsv(path, count=120):
    lines = ["one\ttwo\tsame"]
    for (a, x), (b, y) in zip(rows(count, 1), rows(count, 2), strict=True):
        lines.append(f"{a}\t{b}\t{x == y}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


TEXT = ("--text", "review", "--label", "stars")


# what it does


def test_a_table_of_texts(run, tmp_path):
    result = run(
        "text",
        *("--data", csv(tmp_path / "reviews.csv"), *TEXT, "--out", tmp_path / "r"),
        settings=["epochs=12", "learning_rate=0.03", "dev_fraction=0.2", "batch_size=10"],
    )
    assert result.code == 0, result
    about = json.loads((tmp_path / "r" / "result.json").read_text(encoding="utf-8"))
    assert about["labels"] == ["no", "yes"]
    assert about["recipe"] == "text"
    # the table has the result, and says where the model is
    assert f"{about['dev_accuracy']:.2%}" in result.out
    assert f"{about['test_accuracy']:.2%}" in result.out
    assert f"The model is in {tmp_path / 'r' / 'model'}." in result.out
    model = load(tmp_path / "r")
    assert [p.label for p in model.predict(["w1 w1", "w2 w3"])] == ["yes", "no"]
    assert model.provenance["recipe_name"] == "text"


def test_a_table_of_pairs_with_files_of_its_own(run, tmp_path):
    result = run(
        "text-pair",
        *("--data", tsv(tmp_path / "train.tsv"), "--dev", tsv(tmp_path / "d.tsv", 21)),
        *("--test", tsv(tmp_path / "t.tsv", 22), "--out", "pairs"),
        *("--text", "one", "--text2", "two", "--label", "same"),
    )
    assert result.code == 0, result
    assert "train: 120 examples" in result.err
    assert "dev: 21 examples" in result.err
    assert "test: 22 examples" in result.err
    model = load("pairs")
    assert model.config.head.kind == "pair"
    assert model.predict([("w1", "w1 w2")])[0].label in ("True", "False")


def test_plain_lines_where_there_is_no_terminal(run):
    result = run("demo")
    assert result.code == 0
    lines = result.err.splitlines()
    assert lines[0] == "generating 280 examples"
    evaluations = [line for line in lines if line.startswith("epoch")]
    assert len(evaluations) == 3
    pattern = r"epoch +1\.00  step +7 +[\d,]+ examples/s  loss 0\.\d{4}  dev loss 0\.\d{4}  dev .*%"
    assert re.fullmatch(pattern + r"( \*)?", evaluations[-1])
    assert "\x1b" not in result.err + result.out
    assert "\r" not in result.err
    # the folder's name is the recipe's
    assert "The model is in runs/demo/model." in result.out
    assert len(metrics("runs/demo")) == 3


def test_quiet_and_json(run):
    result = run("demo", "--quiet", "--json")
    assert (result.code, result.err) == (0, "")
    about = json.loads(result.out)
    saved = read("runs/demo/result.json")
    assert about == saved
    again = run("demo", "--quiet", "--resume")
    assert (again.code, again.err) == (0, "")
    assert f"{about['dev_accuracy']:.2%}" in again.out


def test_a_bar_on_a_terminal(run, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    result = run("demo")
    assert result.code == 0
    assert "\x1b[" in result.err
    assert "training" in result.err
    assert "left at most" in result.err
    assert "dev loss" in result.err


def test_several_seeds(run):
    result = run("demo", "--seeds", 2, "--seed", 5)
    assert result.code == 0, result
    summary = read("runs/demo/summary.json")
    assert [each["seed"] for each in summary["runs"]] == [5, 6]
    for name in ("dev_accuracy", "test_accuracy"):
        a, b = summary[name]["each"]
        assert summary[name]["mean"] == pytest.approx((a + b) / 2)
        assert summary[name]["deviation"] == pytest.approx(abs(a - b) / 2**0.5)
        shown = f"{summary[name]['mean']:.2%} ± {summary[name]['deviation']:.2%}"
        assert shown in result.out
    one = read("runs/demo/seed-6/result.json")
    assert one == summary["runs"][1]
    assert "seed 6: epoch" in result.err
    assert "The model is in runs/demo/seed-5/model." in result.out
    # a third one more: the others stay
    more = run("demo", "--seeds", 3, "--seed", 5, "--resume", "--json")
    assert [each["seed"] for each in json.loads(more.out)["runs"]] == [5, 6, 7]
    assert json.loads(more.out)["runs"][:2] == summary["runs"]
    # the seed is all that differs from a single run
    assert run("demo", "--seed", 6, "--out", "single").code == 0
    assert contents("single") == contents("runs/demo/seed-6")


def test_settings_and_precision(run):
    result = run(
        "demo", "--precision", "64", "--device", "cpu", settings=["training.batch_size=70"]
    )
    assert result.code == 0
    assert read("runs/demo/result.json")["steps"] == 2
    assert load("runs/demo").embedding.weight.dtype == torch.float64


def test_vectors_and_what_is_prepared(run, cli, tmp_path):
    lines = [f"w{i} " + " ".join(str(i + j / 8) for j in range(8)) for i in range(9)]
    (tmp_path / "vectors.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    given = ("--data", csv(tmp_path / "reviews.csv"), *TEXT, "--vectors", tmp_path / "vectors.txt")
    result = run("text", *given, "--out", "direct", settings=["tuned=false"])
    assert result.code == 0, result
    model = load("direct")
    vector = model.embedding.weight[model.tokenizer.token_to_id("w3")]
    assert vector.tolist() == [3 + j / 8 for j in range(8)]
    settings = [x for s in (*SMALLER, "tuned=false") for x in ("--set", s)]
    made = cli("data", "prepare", "text", *given, *settings, "--out", "all.safetensors")
    assert made.code == 0, made
    result = run(
        "text",
        *TEXT,
        "--prepared",
        "all.safetensors",
        "--out",
        "prepared",
        settings=["tuned=false"],
    )
    assert result.code == 0, result
    assert contents("prepared") == contents("direct")
    both = run("text", *given, "--prepared", "all.safetensors", "--out", "both")
    assert "--prepared holds data and vectors already" in both.refused()
    other = run("text", *TEXT, "--prepared", "all.safetensors", settings=["dev_fraction=0.4"])
    assert "--prepared comes with dev_fraction = " in other.refused()
    table = csv(tmp_path / "none.csv")
    none = run("text", "--data", table, *TEXT, "--out", "none", settings=["tuned=false"])
    assert "there are none but random ones; pass --vectors" in none.refused()


def test_init(run, tmp_path):
    assert run("text", "--data", csv(tmp_path / "a.csv"), *TEXT, "--out", "first").code == 0
    result = run(
        *("text", "--data", csv(tmp_path / "b.csv", 60, 9), *TEXT, "--out", "second"),
        *("--init", "first"),
        settings=["learning_rate=0"],
    )
    assert result.code == 0, result
    other = run(
        *("text", "--data", tmp_path / "b.csv", *TEXT, "--out", "third", "--init", "first"),
        settings=["encoder.hidden_dim=9"],
    )
    assert "--init comes with hidden_dim = 8, got 9 for it as well" in other.refused()
    first, second = load("first"), load("second")
    for name, x in first.encoder.state_dict().items():
        assert torch.equal(second.encoder.state_dict()[name], x)
    assert first.tokenizer.get_vocab().keys() <= second.tokenizer.get_vocab().keys()
    message = run("text", "--data", tmp_path / "b.csv", *TEXT, "--init", "nowhere").refused()
    assert "nowhere is no model folder" in message


# what it refuses


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        (("demmo",), r"unknown recipe 'demmo'; known: .*Did you mean 'demo'\?"),
        (("mine.toml",), r"mine\.toml"),
        (
            ("demo", "--set", "batchsize=3"),
            r"unknown key 'batchsize' in --set.*'training.batch_size'",
        ),
        (("demo", "--set", "dropout=0.1"), r"dropout as well as .*dropout; write the whole name"),
        (("demo", "--set", "batch_size"), r"takes key=value, got 'batch_size'"),
        (("demo", "--set", "batch_size=many"), r"batch_size` must be a whole number, got 'many'"),
        (("demo", "--set", "batch_size=0"), r"batch_size` must be at least 1, got 0"),
        (("demo", "--set", "optimizer=adm"), r"must be one of adam, adadelta.*Did you mean 'adam'"),
        (("demo", "--text", "review"), r"--text.* are for one's own tables .* got recipe demo"),
        (("demo", "--pretokenized"), r"are for one's own tables"),
        (("text", "--text", "a", "--text2", "b"), r"takes single texts; with --text2 take text-pa"),
        (("text", "--data", "nowhere.csv", *TEXT), r"nowhere\.csv"),
        (("text", *TEXT), r"no table training file.*--data"),
        (("sst2",), r"there is no .* training file.*--data"),
        (("sst2", "--data", "empty"), r"empty"),
        (("demo", "--device", "toaster"), r"`--device` must be auto, cpu, cuda or cuda:N, got 'to"),
        (("demo", "--device", "cuda:x"), r"`--device` must be auto, cpu, cuda or cuda:N, got 'cud"),
        (("demo", "--precision", "16"), r"precision` must be one of 32, tf32, bf16, 64, got '16'"),
        (
            ("demo", "--prepared", "nowhere.safetensors"),
            r"nowhere.safetensors does not exist",
        ),
    ],
)
def test_refusals(run, tmp_path, arguments, pattern):
    (tmp_path / "empty").mkdir()
    message = run(*arguments, "--out", "run").refused()
    assert re.search(pattern, message), message
    assert message.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("column", ["--text", "--label"])
def test_missing_columns_are_named(run, tmp_path, column):
    path = csv(tmp_path / "reviews.csv")
    other = dict(zip(TEXT[::2], TEXT[1::2], strict=True)) | {column: "nothing"}
    result = run("text", "--data", path, *(x for pair in other.items() for x in pair))
    message = result.err.splitlines()[-1]
    assert result.code == 1
    assert "nothing" in message
    assert "review" in message


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there(run):
    result = run("demo", "--device", "cuda")
    # before anything is read
    assert result.refused() == "no CUDA device is to be found here; pass --device cpu\n"


def test_a_run_that_is_there_is_not_overwritten(run, tmp_path):
    assert run("demo").code == 0
    before = contents("runs/demo")
    result = run("demo")
    assert result.code == 1
    assert "runs/demo holds a training run; pass --resume to go on with it" in result.err
    result = run("demo", "--resume", "--seed", 3)
    assert result.code == 1
    assert "its `training.seed` is 0, now it is 3" in result.err
    assert contents("runs/demo") == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("years of work", encoding="utf-8")
    result = run("demo", "--out", "other", "--resume")
    assert result.code == 1
    assert "other exists, holds thesis.txt and is no training run" in result.err


def test_a_label_that_is_the_same_everywhere(run, tmp_path):
    (tmp_path / "x.csv").write_text("review,stars\n" + "good film,1\n" * 20, encoding="utf-8")
    result = run("text", "--data", "x.csv", *TEXT)
    assert result.code == 1
    assert "at least two labels" in result.err


def test_bad_lines_are_refused_or_counted(run, tmp_path):
    path = csv(tmp_path / "reviews.csv")
    path.write_text(path.read_text(encoding="utf-8") + "yes\n", encoding="utf-8")
    result = run("text", "--data", path, *TEXT)
    assert result.code == 1
    assert "reviews.csv" in result.err.splitlines()[-1]
    result = run("text", "--data", path, *TEXT, "--skip-bad")
    assert result.code == 0
    assert "1 bad lines skipped" in result.err


def test_help(cli):
    result = cli("train", "--help")
    assert result.code == 0
    for option in ("--data", "--vectors", "--resume", "--seeds", "--init", "--precision"):
        assert option in result.out
