"""The command line as a whole, and the commands without a test file of their own."""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import gumbeltree
import gumbeltree.bench.cpu
from gumbeltree import load, save
from gumbeltree.code_version import code_version, described
from gumbeltree.config import recipe_names
from gumbeltree.describe import measured
from tests.commands import Result
from tests.models import tiny_model
from tests.test_import_reference import TEXTS, WORDS, Authors, state_dict
from tests.test_recipes import COUNTS, PARTS

# every command, with words that its help must contain
COMMANDS = {
    "train": ["--data", "--vectors", "--prepared", "--set", "--resume", "--seeds", "--init"],
    "parse": ["--draw", "Example"],
    "predict": ["--input", "--json", "Example"],
    "encode": ["--input", "--out", "Example"],
    "evaluate": ["--data", "--split", "--json", "Example"],
    "info": ["--json"],
    "recipes": ["Example"],
    "models": ["--json", "Example"],
    "import-reference": ["--out", "--variant", "--lower", "Example"],
    "demo": ["--out"],
    "bench": ["--device", "--json", "--plot", "--quick", "Example"],
    "push": ["--private", "--dry-run"],
    "export": ["--out", "Example"],
    "data": ["get", "prepare"],
    "draw": ["--out", "--film", "--seed", "Example"],
    "trees": ["--data", "--gold", "--plot", "--json", "Example"],
    "plot": ["--out", "--x", "Example"],
    "index": ["--input", "--out", "--replace", "Example"],
    "neighbours": ["--model", "--json", "Example"],
    "explore": ["--port", "--no-open", "--index", "Example"],
    "serve": ["--host", "--port", "--index", "--token", "--allow-host", "--cors", "--workers"],
}
SENTENCE = "the dog that barked all night sleeps ."


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "model"
    gumbeltree.save(tiny_model(), folder, {"from": "a test"})
    return folder


# help


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_lists_the_commands(cli, option):
    code, out, err = cli(option)
    assert (code, err) == (0, "")
    assert all(command in out for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(cli, command):
    code, out, err = cli(command, "--help")
    assert (code, err) == (0, "")
    assert all(word in out for word in [*COMMANDS[command], f"gumbeltree {command}"])


def test_without_a_command_shows_help(cli):
    code, out, err = cli()
    assert code == 2
    assert "import-reference" in out + err


def test_version(cli):
    version = f"gumbeltree {gumbeltree.__version__} ({described(code_version())})\n"
    assert cli("--version") == (0, version, "")


def test_suggests_the_nearest_command(cli):
    code, _, err = cli("prase")
    assert code == 2
    assert "Did you mean 'parse'" in err


# info


@pytest.mark.parametrize("name", COUNTS)
def test_info_counts_the_parameters_of_a_recipe(cli, name):
    info = json.loads(cli("info", name, "--json").out)
    counts = {part: count for part, count in zip(PARTS, COUNTS[name], strict=True) if count}
    assert info["parameters"] == counts
    assert info["recipe"] == name
    assert info["model"]["encoder"]["hidden_dim"] == COUNTS[name][2]
    code, out, err = cli("info", name)
    assert (code, err) == (0, "")
    for part, count in counts.items():
        rows = [line for line in out.splitlines() if f" {part.replace('_', ' ')} " in line]
        assert any(line.strip("│ ").endswith(f" {count:,}") for line in rows), (part, rows)


def test_info_of_a_model_folder(cli, model):
    info = json.loads(cli("info", model, "--json").out)
    loaded = load(model)
    total = sum(x.numel() for x in loaded.parameters()) - loaded.embedding.weight.numel()
    assert info["parameters"]["total"] == total
    assert info["provenance"] == {"from": "a test"}
    assert info["model_folder"] == str(model)
    code, out, err = cli("info", model)
    assert (code, err) == (0, "")
    assert f"{total:,}" in out
    assert "neutral, entailment, contradiction" in out


def test_info_shows_lists_of_numbers(cli):
    code, out, err = cli("info", "bcn-sst5")
    assert (code, err) == (0, "")
    assert "hidden dims 1200, 600" in " ".join(out.split())


def test_info_of_a_parser_and_composer(cli, tmp_path):
    save(tiny_model("single", encoder="parser_composer", parser={"leaf": "affine"}), tmp_path, {})
    code, out, err = cli("info", tmp_path)
    assert (code, err) == (0, "")
    assert "parser leaf affine cell treelstm" in " ".join(out.split())


RECORDED = {
    "recipe": {"description": "SNLI, 100D (Table 1: 82.6 %)", "data": {"task": "snli"}},
    "metrics": {"dev_accuracy": 0.75, "step": 3, "test_accuracy": 0.5},
    "data": {"splits": {"train": {"examples": 3000}, "test": {"examples": 200}}},
}


def test_info_shows_the_result_of_a_model_folder(cli, model):
    own = load(model)
    save(own, model, RECORDED)
    found = {"metric": "accuracy", "value": 0.5, "split": "test", "data": "snli"}
    found |= {"examples": 200, "trained_on": 3000}
    assert json.loads(cli("info", model, "--json").out)["measured"] == found
    out = " ".join(cli("info", model).out.split())
    assert "result accuracy 50.00%, test split of snli (200 examples), trained on 3,000" in out
    assert "82.6" not in out
    # without a test split, and for other metrics
    save(own, model, {"metrics": {"dev_pearson": 0.625, "test_pearson": float("inf")}})
    assert "result pearson 0.6250, dev split" in " ".join(cli("info", model).out.split())


@pytest.mark.parametrize(
    "provenance",
    [
        {},
        {"metrics": 3},
        {"metrics": {"test_accuracy": 0.5}},
        {"metrics": {"dev_accuracy": "0.5"}},
        {"metrics": {"dev_accuracy": float("nan")}},
        {"metrics": {"dev_\x1b[31m": 0.5}},
    ],
    ids=str,
)
def test_results_that_are_not_recorded_are_not_shown(provenance):
    assert measured(provenance) is None


def test_info_of_a_packaged_model_separates_its_result_from_the_papers(cli):
    out = " ".join(cli("info", "snli-100d").out.split())
    assert out.startswith("SNLI, 100D ")
    assert "accuracy dev 77.09%" in out
    assert "paper Table 1: 82.6 %, the authors' result, not that of this model" in out
    # a recipe without a model keeps its description
    assert "SNLI, 300D (Table 1: 85.6 %)" in " ".join(cli("info", "snli-300d").out.split())


@pytest.mark.parametrize("description", ["[/b] closing", "[bold]no style[/bold]", "[1] footnote"])
def test_info_prints_the_description_of_a_recipe_file_verbatim(cli, tmp_path, description):
    path = tmp_path / "mine.toml"
    path.write_text(f'description = "{description}"\n[model]\n', encoding="utf-8")
    code, out, err = cli("info", path)
    assert (code, err) == (0, "")
    assert "".join(description.split()) in "".join(out.split())
    assert json.loads(cli("info", path, "--json").out)["description"] == description


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("snli300d", "Did you mean 'snli-300d'?"),
        *[
            (name, f"recipes: {recipe_names()[0]}, ")
            for name in ("", "nothing like it", "sst2/", ".")
        ],
        ("nowhere.toml", "nowhere.toml"),
    ],
)
def test_info_rejects_unknown_names(cli, name, word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert word in cli("info", name).refused()


def test_info_rejects_invalid_files(cli, model, tmp_path):
    folder = shutil.copytree(model, tmp_path / "model")
    (folder / "config.json").write_text("{", encoding="utf-8")
    assert "config.json" in cli("info", folder).refused()
    path = tmp_path / "mine.toml"
    path.write_text("description", encoding="utf-8")
    assert "mine.toml" in cli("info", path).refused()
    path.write_text(f"description = 'x'\n[model.encoder]\nhidden_dim = {10**15}", encoding="utf-8")
    assert "hidden_dim" in cli("info", path).refused()


# parse; tests/cli/test_use.py has more


def test_parse_arguments(cli, model):
    code, out, err = cli("parse", model, SENTENCE, "the dog", "now", "zebra  quagga", "喜欢")
    assert (code, err.partition(",")[0]) == (0, "5 texts")
    tree = str(load(model).parse(SENTENCE))
    assert out.splitlines() == [tree, "( the dog )", "now", "( zebra quagga )", "喜欢"]


def test_parse_of_nothing_prints_nothing(cli, model):
    assert cli("parse", model, stdin=b"") == (0, "", "0 texts\n")


def test_parse_rejects_empty_texts(cli, model):
    result = cli("parse", model, "the dog", "")
    assert "at least one word" in result.refused()
    assert result.out == ""
    # lines are numbered from one
    message = cli("parse", model, stdin=b"the dog\n\nnow\n").refused()
    assert "line 2" in message
    assert "at least one word" in message


def test_parse_rejects_a_folder_without_a_model(cli, tmp_path):
    message = cli("parse", tmp_path / "nowhere", "the dog").refused()
    assert "nowhere is not a model folder" in message
    assert "gumbeltree train" in message


def test_parse_rejects_invalid_unicode(cli, model):
    message = cli("parse", model, "caf\udce9").refused()
    assert "UTF-8" in message or "Unicode" in message


# import-reference


@pytest.fixture
def checkpoint(tmp_path):
    torch.save(state_dict(), tmp_path / "snli.pkl")
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS), encoding="utf-8")
    return tmp_path


def test_import_reference(cli, checkpoint):
    files = checkpoint / "snli.pkl", checkpoint / "vocab.txt"
    code, out, err = cli("import-reference", *files, "--out", checkpoint / "m", "--lower")
    assert (code, err) == (0, "")
    assert "6D, leaf lstm, 11 words, labels neutral, entailment, contradiction" in out
    model, authors = load(checkpoint / "m"), Authors(state_dict())
    assert model.config.encoder.score == "scaled_dot"
    assert np.array_equal(model.encode(["NOW"]), model.encode(["now"]))
    expected = [str(authors.encode(text)[1]) for text in TEXTS]
    assert cli("parse", checkpoint / "m", *TEXTS).out.splitlines() == expected
    # again, over the model just made
    code, _, _ = cli("import-reference", *files, "--out", checkpoint / "m", "--variant", "paper")
    assert code == 0
    assert load(checkpoint / "m").config.encoder.score == "dot"


@pytest.mark.parametrize(
    ("files", "options", "pattern"),
    [
        (("nowhere.pkl", "vocab.txt"), [], "nowhere.pkl"),
        (("snli.pkl", "nowhere.txt"), [], "nowhere.txt"),
        (("vocab.txt", "vocab.txt"), [], "vocab.txt is not a state dict"),
        (("snli.pkl", "vocab.txt"), ["--variant", "papr"], "Did you mean 'paper'?"),
        (("snli.pkl", "snli.pkl"), [], "snli.pkl"),
    ],
)
def test_import_reference_rejects(cli, checkpoint, files, options, pattern):
    paths = [checkpoint / name for name in files]
    result = cli("import-reference", *paths, "--out", checkpoint / "m", *options)
    assert pattern in result.refused()
    assert not (checkpoint / "m").exists()


def test_import_reference_requires_out(cli, checkpoint):
    code, _, err = cli("import-reference", checkpoint / "snli.pkl", checkpoint / "vocab.txt")
    assert code == 2
    assert "Missing option '--out'" in err


# demo


def test_demo(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = cli("demo", "--quick", "--quiet")
    assert (code, err) == (0, "")
    for name in ("Gumbel Tree-LSTM", "LSTM", "bag of words"):
        assert f"{name} " in out
    result = json.loads(Path("demo/result.json").read_text(encoding="utf-8"))
    assert f"{result['test_accuracy']:.1%}" in out
    picture = ElementTree.parse("demo/tree.svg").getroot()
    words = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert load("demo").parse(" ".join(words)).draw(width=100) in out
    # the command it suggests works
    command = next(line for line in out.splitlines() if "gumbeltree predict" in line)
    assert cli(*shlex.split(command)[1:]).out.split("\t")[0] in ("negative", "positive")
    # a finished demonstration is shown again
    assert cli("demo", "--quick", "--quiet") == (0, out, "")


def test_demo_keeps_other_files(cli, tmp_path):
    (tmp_path / "model").mkdir()
    inside = tmp_path / "model" / "thesis.txt"
    inside.write_text("years of work", encoding="utf-8")
    assert str(tmp_path) in cli("demo", "--quick", "--out", tmp_path).refused()
    assert list((tmp_path / "model").iterdir()) == [inside]
    assert "thesis.txt" in cli("demo", "--quick", "--out", inside).refused()


# bench


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--device", "toaster"], ["cpu or cuda", "toaster"]),
        (["--device", "cuda"], ["pass --device cpu"]),
        (["--plot", "growth.docx"], ["docx", "png"]),
        (["--plot", "folder.svg"], ["folder.svg"]),
        (["--json", "folder.svg"], ["folder.svg"]),
    ],
)
def test_bench_rejects_options_before_it_measures(cli, tmp_path, monkeypatch, options, words):
    monkeypatch.chdir(tmp_path)
    Path("folder.svg").mkdir()
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(gumbeltree.bench.cpu, "largest_error", lambda: pytest.fail("measured"))
    message = cli("bench", "--quick", *options).refused()
    assert all(word in message for word in words)


def test_bench_rejects_wrong_results(cli, monkeypatch):
    monkeypatch.setattr(gumbeltree.bench.cpu, "largest_error", lambda: float("nan"))
    assert "exact differs from reference" in cli("bench", "--quick").refused()


@pytest.mark.slow
def test_bench_quick(cli, tmp_path):
    files = tmp_path / "new" / "cpu.json", tmp_path / "new" / "growth.svg"
    code, out, _ = cli("bench", "--quick", "--json", files[0], "--plot", files[1])
    assert code == 0
    assert "quick" in out
    report = json.loads(files[0].read_text(encoding="utf-8"))
    assert report["quick"] is True
    assert 0 <= report["correctness"]["float64_relative_error"] < 1e-10
    assert [case["name"] for case in report["cases"]] == [
        "snli-inference",
        "snli-inference-memory",
        "snli-training",
        "snli-training-memory",
    ]
    assert all(
        case[impl]["median"] > 0 for case in report["cases"] for impl in ("exact", "reference")
    )
    assert set(report["growth"]["exponents"]) == {"inference", "training", "memory"}
    assert report["versions"]["gumbeltree"] == gumbeltree.__version__
    assert ElementTree.parse(files[1]).getroot().tag.endswith("svg")


# whole processes


def test_installed_script():
    script = Path(sys.executable).with_name("gumbeltree")
    if not script.exists():
        pytest.skip("not installed as a script")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"gumbeltree {gumbeltree.__version__} (commit ")
    assert done.stderr == ""


def test_errors_leave_standard_output_empty(model):
    command = [sys.executable, "-m", "gumbeltree", "parse", str(model)]
    done = subprocess.run(command, input=b"the dog\ncaf\xe9\n", capture_output=True, check=False)
    result = Result(done.returncode, done.stdout.decode(), done.stderr.decode())
    message = result.refused()
    assert "UTF-8" in message or "Unicode" in message
    assert (result.out, result.err.count("\n")) == ("", 1)


def test_a_closed_pipe_ends_the_program_quietly(model, tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("the dog sleeps\n" * 5000, encoding="utf-8")
    command = [sys.executable, "-m", "gumbeltree", "parse", str(model), "--input", str(texts)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout.readline().startswith(b"( ")
        running.stdout.close()
        assert running.stderr.read() == b""
    assert running.returncode != 0


def test_ctrl_c_during_imports_prints_no_traceback():
    program = (
        "import sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'typer':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from gumbeltree.__main__ import main\n"
        "main()"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (130, b"", b"")
