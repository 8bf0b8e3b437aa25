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
from gumbeltree import load
from gumbeltree.code_version import code_version, described
from tests.commands import Result
from tests.models import tiny_model
from tests.test_import_reference import TEXTS, WORDS, Authors, state_dict
from tests.test_recipes import COUNTS, PARTS

COMMANDS = [
    "train",
    "parse",
    "predict",
    "encode",
    "evaluate",
    "info",
    "recipes",
    "models",
    "import-reference",
    "demo",
    "bench",
    "push",
    "data",
    "draw",
    "trees",
    "plot",
    "index",
    "neighbours",
    "explore",
    "serve",
]
SENTENCE = "the dog that barked all night sleeps ."


def process(*arguments, stdin=b"", folder=None):
    """The command line as a user starts it."""
    command = [sys.executable, "-m", "gumbeltree", *map(str, arguments)]
    done = subprocess.run(command, input=stdin, capture_output=True, check=False, cwd=folder)
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


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
    options = {
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
        "data": ["get", "prepare"],
        "draw": ["--out", "--film", "--seed", "Example"],
        "trees": ["--data", "--gold", "--plot", "--json", "Example"],
        "plot": ["--out", "--x", "Example"],
        "index": ["--input", "--out", "--replace", "Example"],
        "neighbours": ["--model", "--json", "Example"],
        "explore": ["--port", "--no-open", "--index", "Example"],
        "serve": ["--host", "--port", "--index", "--token", "--workers", "Example"],
    }
    assert all(option in out for option in options[command])
    assert f"gumbeltree {command}" in out


def test_no_command_shows_help(cli):
    code, out, err = cli()
    assert code == 2
    assert "import-reference" in out + err


def test_the_version(cli):
    wanted = f"gumbeltree {gumbeltree.__version__} ({described(code_version())})\n"
    assert cli("--version") == (0, wanted, "")


def test_an_unknown_command_gets_the_nearest(cli):
    code, _, err = cli("prase")
    assert code == 2
    assert "Did you mean 'parse'" in err


# info


@pytest.mark.parametrize("name", COUNTS)
def test_info_of_a_recipe_as_json(cli, name):
    code, out, err = cli("info", name, "--json")
    assert (code, err) == (0, "")
    about = json.loads(out)
    assert about["parameters"] == dict(zip(PARTS, COUNTS[name], strict=True))
    assert about["recipe"] == name
    assert about["model"]["encoder"]["hidden_dim"] == COUNTS[name][2]


@pytest.mark.parametrize("name", COUNTS)
def test_info_of_a_recipe_as_a_table(cli, name):
    code, out, err = cli("info", name)
    assert (code, err) == (0, "")
    for part, count in zip(PARTS, COUNTS[name], strict=True):
        rows = [line for line in out.splitlines() if f" {part.replace('_', ' ')} " in line]
        assert any(line.strip("│ ").endswith(f" {count:,}") for line in rows), (part, rows)


def test_info_of_a_model_folder(cli, model):
    about = json.loads(cli("info", model, "--json").out)
    loaded = load(model)
    total = sum(x.numel() for x in loaded.parameters()) - loaded.embedding.weight.numel()
    assert about["parameters"]["total"] == total
    assert about["provenance"] == {"from": "a test"}
    assert about["model_folder"] == str(model)
    code, out, err = cli("info", model)
    assert (code, err) == (0, "")
    assert f"{total:,}" in out
    assert "labels neutral, entailment, contradiction" in out


def test_info_of_a_recipe_file(cli, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('description = "mine"\n[model]\n', encoding="utf-8")
    assert json.loads(cli("info", path, "--json").out)["description"] == "mine"


@pytest.mark.parametrize("description", ["[/b] closing", "[bold]no style[/bold]", "[1] footnote"])
def test_info_prints_a_description_as_it_stands(cli, tmp_path, description):
    path = tmp_path / "mine.toml"
    path.write_text(f'description = "{description}"\n[model]\n', encoding="utf-8")
    code, out, err = cli("info", path)
    assert (code, err) == (0, "")
    assert "".join(description.split()) in "".join(out.split())


def test_info_of_an_unknown_name_names_the_nearest(cli):
    message = cli("info", "snli300d").refused()
    assert "'snli300d' is neither a recipe nor a model folder" in message
    assert "Did you mean 'snli-300d'?" in message


@pytest.mark.parametrize("name", ["", "nothing like it", "sst2/", "."])
def test_info_of_what_is_neither_lists_the_recipes(cli, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "recipes: demo, " in cli("info", name).refused()


def test_info_of_damaged_things(cli, model, tmp_path):
    folder = shutil.copytree(model, tmp_path / "model")
    (folder / "config.json").write_text("{", encoding="utf-8")
    assert "config.json is not JSON" in cli("info", folder).refused()
    path = tmp_path / "mine.toml"
    path.write_text("description", encoding="utf-8")
    assert "mine.toml" in cli("info", path).refused()
    assert "nowhere.toml" in cli("info", "nowhere.toml").refused()
    path.write_text(f"description = 'x'\n[model.encoder]\nhidden_dim = {10**15}", encoding="utf-8")
    assert "hidden_dim" in cli("info", path).refused()


# parse


def test_parse_arguments(cli, model):
    code, out, err = cli("parse", model, SENTENCE, "the dog", "now")
    assert (code, err) == (0, "3 texts, 11 words\n")
    expected = load(model).parse(SENTENCE)
    assert out.splitlines() == [str(expected), "( the dog )", "now"]


def test_parse_standard_input(cli, model):
    texts = [SENTENCE, "now", "the dog"]
    expected = cli("parse", model, *texts)
    assert cli("parse", model, stdin=("\n".join(texts) + "\n").encode()) == expected
    assert cli("parse", model, stdin="\n".join(texts).encode()) == expected
    assert cli("parse", model, stdin="\r\n".join(texts).encode()) == expected


def test_parse_of_nothing_prints_nothing(cli, model):
    assert cli("parse", model, stdin=b"") == (0, "", "0 texts\n")


def test_parse_draws(cli, model):
    code, out, err = cli("parse", model, "--draw", "--quiet", SENTENCE, "the dog")
    assert (code, err) == (0, "")
    expected = [tree.draw(width=120) for tree in load(model).parse_many([SENTENCE, "the dog"])]
    assert out == f"{expected[0]}\n\n{expected[1]}\n"
    assert "┴" in out


def test_parse_keeps_words_outside_the_vocabulary(cli, model):
    assert cli("parse", model, "zebra  quagga").out == "( zebra quagga )\n"
    assert cli("parse", model, "喜欢").out == "喜欢\n"


def test_parse_of_an_empty_line_names_it(cli, model):
    # lines count from one, as in every editor
    message = cli("parse", model, stdin=b"the dog\n\nnow\n").refused()
    assert "line 2" in message
    assert "at least one word" in message


def test_parse_of_an_empty_argument_is_refused(cli, model):
    assert "at least one word" in cli("parse", model, "the dog", "").refused()


def test_parse_prints_nothing_if_it_refuses_anything(cli, model):
    assert cli("parse", model, "the dog", "").out == ""


def test_parse_without_a_model_says_how_to_get_one(cli, tmp_path):
    message = cli("parse", tmp_path / "nowhere", "the dog").refused()
    assert "nowhere is no model folder" in message
    assert "gumbeltree demo" in message


def test_parse_of_text_that_is_no_unicode_is_refused(cli, model):
    assert "at least" not in cli("parse", model, "caf\udce9").refused()
    assert any(word in cli("parse", model, "caf\udce9").err for word in ("UTF-8", "Unicode"))


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
def test_import_reference_refuses(cli, checkpoint, files, options, pattern):
    paths = [checkpoint / name for name in files]
    result = cli("import-reference", *paths, "--out", checkpoint / "m", *options)
    assert pattern in result.refused()
    assert not (checkpoint / "m").exists()


def test_import_reference_needs_a_folder_to_write(cli, checkpoint):
    code, _, err = cli("import-reference", checkpoint / "snli.pkl", checkpoint / "vocab.txt")
    assert code == 2
    assert "Missing option '--out'" in err


# demo


def test_demo(cli, tmp_path):
    code, out, err = cli("demo", "--quick", "--quiet", "--out", tmp_path / "demo")
    assert (code, err) == (0, "")
    assert "140 synthetic reviews" in out
    for name in ("Gumbel Tree-LSTM", "LSTM", "bag of words"):
        assert f"{name} " in out
    result = json.loads((tmp_path / "demo" / "result.json").read_text(encoding="utf-8"))
    assert f"{result['test_accuracy']:.1%}" in out
    picture = ElementTree.parse(tmp_path / "demo" / "tree.svg").getroot()
    assert picture.tag == "{http://www.w3.org/2000/svg}svg"
    words = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert load(tmp_path / "demo").parse(" ".join(words)).draw(width=100) in out
    # the same again over its own results
    assert cli("demo", "--quick", "--quiet", "--out", tmp_path / "demo") == (0, out, "")


def test_demo_leaves_other_files_alone(cli, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "thesis.txt").write_text("years of work", encoding="utf-8")
    assert "is not a training run" in cli("demo", "--quick", "--out", tmp_path).refused()
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["thesis.txt"]
    inside = tmp_path / "model" / "thesis.txt"
    assert "thesis.txt" in cli("demo", "--quick", "--out", inside).refused()


# bench


@pytest.fixture
def no_measuring(monkeypatch):
    monkeypatch.setattr(gumbeltree.bench.cpu, "largest_error", lambda: pytest.fail("measured"))


@pytest.mark.usefixtures("no_measuring")
def test_bench_on_a_wrong_device_is_refused(cli):
    message = cli("bench", "--device", "toaster").refused()
    assert "`--device` must be cpu or cuda, got 'toaster'" in message


@pytest.mark.usefixtures("no_measuring")
def test_bench_without_a_cuda_device_is_refused(cli, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "pass --device cpu" in cli("bench", "--device", "cuda").refused()


@pytest.mark.usefixtures("no_measuring")
def test_bench_refuses_a_picture_it_cannot_draw_before_it_measures(cli, tmp_path):
    message = cli("bench", "--quick", "--plot", tmp_path / "growth.docx").refused()
    assert "docx" in message
    assert "png" in message.lower()


@pytest.mark.usefixtures("no_measuring")
@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_bench_refuses_a_folder_for_a_file_before_it_measures(cli, tmp_path, option):
    (tmp_path / "growth.svg").mkdir()
    assert "growth.svg" in cli("bench", "--quick", option, tmp_path / "growth.svg").refused()


def test_bench_refuses_to_time_wrong_results(cli, monkeypatch):
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


def test_process_ends_well():
    code, out, err = process("--version")
    assert (code, err) == (0, "")
    assert out.startswith(f"gumbeltree {gumbeltree.__version__} (commit ")


def test_process_demo_then_parse(tmp_path):
    code, out, _ = process("demo", "--quick", folder=tmp_path)
    assert code == 0
    # the next steps it names work as they stand
    command = next(line for line in out.splitlines() if "gumbeltree predict" in line)
    code, out, _ = process(*shlex.split(command)[1:], folder=tmp_path)
    assert code == 0
    assert out.split("\t")[0] in ("negative", "positive")
    # with the byte order mark that some editors put in front
    stdin = "nobody loved the cake .\nété\n".encode("utf-8-sig")
    code, out, err = process("parse", "demo/model", stdin=stdin, folder=tmp_path)
    assert (code, err) == (0, "2 texts, 6 words, 1 unknown (16.7 %)\n")
    tree, word = out.splitlines()
    assert tree == str(load(tmp_path / "demo" / "model").parse("nobody loved the cake ."))
    assert word == "été"


def test_process_refusals_leave_standard_output_empty():
    result = process("info", "snli300d")
    assert "Did you mean 'snli-300d'?" in result.refused()
    assert result.out == ""
    assert result.err.count("\n") == 1


def test_process_refuses_bytes_that_are_no_utf_8(model):
    result = process("parse", model, stdin=b"the dog\ncaf\xe9\n")
    message = result.refused()
    assert "UTF-8" in message or "Unicode" in message
    assert "TextEncodeInput" not in message


def test_process_survives_a_reader_that_leaves(model, tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("the dog sleeps\n" * 20_000, encoding="utf-8")
    command = [sys.executable, "-m", "gumbeltree", "parse", str(model)]
    with (
        texts.open("rb") as stdin,
        subprocess.Popen(
            command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as running,
    ):
        assert running.stdout.readline().startswith(b"( ")
        running.stdout.close()
        assert running.stderr.read() == b""
    assert running.returncode != 0


def test_the_script_is_the_same_program():
    script = Path(sys.executable).with_name("gumbeltree")
    if not script.exists():
        pytest.skip("not installed as a script")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"gumbeltree {gumbeltree.__version__} (commit ")
