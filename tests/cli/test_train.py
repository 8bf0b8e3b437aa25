"""The command `gumbeltree train`, called in this process."""

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gumbeltree import load
from gumbeltree.training.stopping import InterruptedRunError
from tests.runs import SMALL, contents, metrics

SMALLER = (*SMALL, "epochs=1")


@pytest.fixture(autouse=True)
def _working_directory(tmp_path, monkeypatch):
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


# results


def test_trains_on_a_table_of_texts(run, tmp_path):
    result = run(
        "text",
        *("--data", csv(tmp_path / "reviews.csv"), *TEXT, "--out", tmp_path / "r"),
        settings=["epochs=6", "learning_rate=0.05", "dev_fraction=0.2", "batch_size=10"],
    )
    assert result.code == 0, result
    about = read(tmp_path / "r" / "result.json")
    assert about["labels"] == ["no", "yes"]
    assert about["recipe"] == "text"
    assert f"{about['dev_accuracy']:.2%}" in result.out
    assert f"{about['test_accuracy']:.2%}" in result.out
    assert f"The model is in {tmp_path / 'r' / 'model'}." in result.out
    model = load(tmp_path / "r")
    assert [p.label for p in model.predict(["w1 w1", "w2 w3"])] == ["yes", "no"]
    assert model.provenance["recipe_name"] == "text"


def test_trains_on_a_table_of_pairs_with_dev_and_test_files(run, tmp_path):
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


def test_prints_a_line_per_evaluation(run):
    result = run("demo")
    assert result.code == 0
    evaluations = [line for line in result.err.splitlines() if line.startswith("epoch")]
    assert len(evaluations) == len(metrics("runs/demo")) == 3
    pattern = r"epoch +1\.00  step +7 +[\d,]+ examples/s  loss 0\.\d{4}  dev loss 0\.\d{4}  dev .*%"
    assert re.fullmatch(pattern + r"( \*)?", evaluations[-1])
    assert "\x1b" not in result.err + result.out
    assert "\r" not in result.err
    assert "The model is in runs/demo/model." in result.out


def test_quiet_and_json(run):
    result = run("demo", "--quiet", "--json")
    assert (result.code, result.err) == (0, "")
    about = json.loads(result.out)
    saved = read("runs/demo/result.json")
    assert about == saved
    again = run("demo", "--quiet", "--resume")
    assert (again.code, again.err) == (0, "")
    assert f"{about['dev_accuracy']:.2%}" in again.out


def test_shows_a_bar_in_a_terminal(run, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    result = run("demo")
    assert result.code == 0
    assert "\x1b[" in result.err
    assert "training" in result.err
    assert "at most" in result.err
    assert "dev loss" in result.err


def test_trains_several_seeds(run):
    result = run("demo", "--seeds", 2, "--seed", 5)
    assert result.code == 0, result
    summary = read("runs/demo/summary.json")
    assert [one["seed"] for one in summary["runs"]] == [5, 6]
    for name in ("dev_accuracy", "test_accuracy"):
        a, b = summary[name]["each"]
        assert summary[name]["mean"] == pytest.approx((a + b) / 2)
        assert summary[name]["deviation"] == pytest.approx(abs(a - b) / 2**0.5)
        shown = f"{summary[name]['mean']:.2%} ± {summary[name]['deviation']:.2%}"
        assert shown in result.out
    one = read("runs/demo/seed-6/result.json")
    assert one == summary["runs"][1]
    assert "seed 6: epoch" in result.err
    a, b = summary["dev_accuracy"]["each"]
    best = 5 if a >= b else 6
    assert summary["best_seed"] == best
    assert f"Seed {best} has the best dev accuracy." in result.out
    assert f"The model is in runs/demo/seed-{best}/model." in result.out
    # a third seed leaves the others as they are
    more = run("demo", "--seeds", 3, "--seed", 5, "--resume", "--json")
    assert [one["seed"] for one in json.loads(more.out)["runs"]] == [5, 6, 7]
    assert json.loads(more.out)["runs"][:2] == summary["runs"]
    # equal to a single run with that seed
    assert run("demo", "--seed", 6, "--out", "single").code == 0
    assert contents("single") == contents("runs/demo/seed-6")


def test_seeds_selected_by_loss_also_show_accuracy(run):
    result = run("demo", "--seeds", 2, settings=["training.best_by=loss"])
    summary = read("runs/demo/summary.json")
    for name, form in (("dev_loss", ".4f"), ("dev_accuracy", ".2%")):
        for one in summary["runs"]:
            assert format(one[name], form) in result.out
        assert summary[name]["each"] == [one[name] for one in summary["runs"]]
    scores = {one["dev_accuracy"]: one["seed"] for one in reversed(summary["runs"])}
    assert summary["best_seed"] == scores[max(scores)]


def test_settings_and_precision(run):
    result = run(
        "demo", "--precision", "64", "--device", "cpu", settings=["training.batch_size=70"]
    )
    assert result.code == 0
    assert read("runs/demo/result.json")["steps"] == 2
    assert load("runs/demo").embedding.weight.dtype == torch.float64


def test_trains_with_vectors_and_from_a_prepared_file(run, cli, tmp_path):
    lines = [f"w{i} " + " ".join(str(i + j / 8) for j in range(8)) for i in range(9)]
    (tmp_path / "vectors.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    options = (
        "--data",
        csv(tmp_path / "reviews.csv"),
        *TEXT,
        "--vectors",
        tmp_path / "vectors.txt",
    )
    result = run("text", *options, "--out", "direct", settings=["tuned=false"])
    assert result.code == 0, result
    model = load("direct")
    vector = model.embedding.weight[model.tokenizer.token_to_id("w3")]
    assert vector.tolist() == [3 + j / 8 for j in range(8)]
    settings = [x for s in (*SMALLER, "tuned=false") for x in ("--set", s)]
    made = cli("data", "prepare", "text", *options, *settings, "--out", "all.safetensors")
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
    both = run("text", *options, "--prepared", "all.safetensors", "--out", "both")
    assert "--prepared already contains" in both.refused()
    other = run("text", *TEXT, "--prepared", "all.safetensors", settings=["dev_fraction=0.4"])
    assert "--prepared fixes dev_fraction = " in other.refused()
    table = csv(tmp_path / "none.csv")
    settings = ["tuned=false", "own_vectors=false"]
    none = run("text", "--data", table, *TEXT, "--out", "none", settings=settings)
    assert "pass --vectors" in none.refused()


def test_starts_from_a_trained_model(run, tmp_path):
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
    assert "--init fixes hidden_dim = 8" in other.refused()
    first, second = load("first"), load("second")
    for name, x in first.encoder.state_dict().items():
        assert torch.equal(second.encoder.state_dict()[name], x)
    assert first.tokenizer.get_vocab().keys() <= second.tokenizer.get_vocab().keys()
    message = run("text", "--data", tmp_path / "b.csv", *TEXT, "--init", "nowhere").refused()
    assert "nowhere is not a model folder" in message


# errors


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        (("demmo",), r"'demmo'.*Did you mean 'demo'\?"),
        (("mine.toml",), r"mine\.toml"),
        (("demo", "--set", "batchsize=3"), r"'batchsize'.*'training.batch_size'"),
        (("demo", "--set", "dropout=0.1"), r"dropout is ambiguous"),
        (("demo", "--set", "batch_size"), r"KEY=VALUE, got 'batch_size'"),
        (("demo", "--set", "batch_size=0"), r"batch_size` .*at least 1, got 0"),
        (("demo", "--text", "review"), r"--text is for your own files.*recipe demo"),
        (("demo", "--pretokenized"), r"--pretokenized is for your own files"),
        (("text", "--text", "a", "--text2", "b"), r"single texts.*text-pair"),
        (("text", "--data", "nowhere.csv", *TEXT), r"nowhere\.csv"),
        (("text", *TEXT), r"--data"),
        (("text", "my.csv"), r"'my\.csv'; did you mean --data my\.csv"),
        (("my.csv",), r"unknown recipe 'my\.csv'.*gumbeltree train text --data my\.csv"),
        (("demo", "batch_size=3"), r"did you mean --set batch_size=3"),
        (("sst2",), r"--data"),
        (("sst2", "--data", "empty"), r"empty"),
        (("demo", "--device", "toaster"), r"--device.*'toaster'"),
        (("demo", "--device", "cuda:x"), r"--device.*'cuda:x'"),
        (("demo", "--precision", "16"), r"precision` .*32, tf32, bf16, 64, got '16'"),
        (("demo", "--prepared", "nowhere.safetensors"), r"nowhere.safetensors"),
    ],
)
def test_rejects_invalid_arguments(run, tmp_path, arguments, pattern):
    (tmp_path / "empty").mkdir()
    (tmp_path / "my.csv").write_text("text,label\n", encoding="utf-8")
    message = run(*arguments, "--out", "run").refused()
    assert re.search(pattern, message), message
    assert message.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("column", ["--text", "--label"])
def test_names_missing_columns(run, tmp_path, column):
    path = csv(tmp_path / "reviews.csv")
    other = dict(zip(TEXT[::2], TEXT[1::2], strict=True)) | {column: "nothing"}
    result = run("text", "--data", path, *(x for pair in other.items() for x in pair))
    message = result.err.splitlines()[-1]
    assert result.code == 1
    assert "nothing" in message
    assert "review" in message


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_rejects_a_missing_device(run):
    # before anything is read
    assert "--device cuda" in run("demo", "--device", "cuda").refused()


def test_does_not_overwrite_a_run(run):
    assert run("demo").code == 0
    before = contents("runs/demo")
    assert "pass --resume" in run("demo").refused()
    assert "`training.seed` is 0, not 3" in run("demo", "--resume", "--seed", 3).err
    other = run("demo", "--resume", "--encoder", "lstm").err
    assert "`model.encoder.kind` is 'gumbel_tree', not 'lstm'" in other
    assert contents("runs/demo") == before


def test_an_interrupted_run_ends_with_the_status_of_the_signal(run, monkeypatch):
    def interrupted(*args, **kwargs):
        raise InterruptedRunError(2, "runs/demo")

    monkeypatch.setattr("gumbeltree.training.loop.train", interrupted)
    result = run("demo")
    assert result.code == 130
    assert "runs/demo" in result.err.splitlines()[-1]
    assert "--resume" in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(
            (("text", f"--{option}", "no"), "no does not exist; check the path\n")
            for option in ("data", "vectors", "more-vectors", "dev", "test")
        ),
        (("txt",), "unknown recipe 'txt'"),
        (("text", "--set", "epocs=2"), "unknown key 'epocs'"),
        (("text", "--out", "run"), "run already holds a training run"),
        (("text", "--data", "x.csv", "--text", "t", "--label", "no"), "expected a column 'no'"),
    ],
)
def test_rejects_arguments_before_importing_torch(arguments, message, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "settings.json").write_text("{}", encoding="utf-8")
    (tmp_path / "x.csv").write_text("t,l\na dog,good\n", encoding="utf-8")
    code = "import sys; sys.modules['torch'] = None; from gumbeltree.cli import main; main()"
    command = [sys.executable, "-c", code, "train", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_names_the_settings_that_split_the_data(run, tmp_path):
    rows = ["review,stars", *(f"{'good' if row % 2 else 'bad'} film,{row % 2}" for row in range(8))]
    for name, lines in (("few.csv", rows[:-1]), ("enough.csv", rows)):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    default = [f"{split}_fraction=0.1" for split in ("dev", "test")]
    result = run("text", "--data", "few.csv", *TEXT, "--out", "few", settings=default)
    assert "7 examples cannot be split: nothing is left for dev" in result.err
    for name in ("--dev", "--test", "settings dev_fraction", "test_fraction"):
        assert name in result.err.splitlines()[-1]
    result = run("text", "--data", "enough.csv", *TEXT, "--out", "enough", settings=default)
    assert result.code == 0


def test_rejects_data_with_a_single_label(run, tmp_path):
    (tmp_path / "x.csv").write_text("review,stars\n" + "good film,1\n" * 20, encoding="utf-8")
    result = run("text", "--data", "x.csv", *TEXT)
    assert result.code == 1
    assert "two labels" in result.err


def test_rejects_or_skips_malformed_lines(run, tmp_path):
    path = csv(tmp_path / "reviews.csv")
    path.write_text(path.read_text(encoding="utf-8") + "yes\n", encoding="utf-8")
    result = run("text", "--data", path, *TEXT)
    assert result.code == 1
    assert "reviews.csv" in result.err.splitlines()[-1]
    result = run("text", "--data", path, *TEXT, "--skip-bad")
    assert result.code == 0
    assert re.search(r"1 \w+ lines? skipped", result.err)
