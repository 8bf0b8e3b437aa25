"""The commands that use a model: parse, predict, encode, evaluate."""

import gzip
import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import gumbeltree
from gumbeltree import array_file
from gumbeltree.evaluate import evaluate, split_of
from gumbeltree.model import SentenceModel
from gumbeltree.tasks.demo import generate
from gumbeltree.tasks.task import Example
from gumbeltree.text import lines as text_lines
from gumbeltree.text.files import BadLineError, Report
from gumbeltree.text.lines import read_texts
from tests.commands import run
from tests.models import TEXTS, tiny_model

PAIR, SINGLE = tiny_model("pair"), tiny_model("single")
SUMMARY = "6 texts, 20 words, 2 unknown (10.0 %)\n"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    gumbeltree.save(PAIR, folder / "pair")
    columns = {"text": "review", "text2": "", "label": "stars"}
    recipe = {"data": {"task": "table", **columns}}
    gumbeltree.save(SINGLE, folder / "single", {"recipe": recipe})
    return folder


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    return path


def sources(texts: Path, tmp_path: Path) -> list[tuple[list[object], bytes]]:
    """Return arguments and standard input for every way to pass the same texts."""
    content = texts.read_bytes()
    marked, packed = tmp_path / "marked.txt", tmp_path / "packed.gz"
    marked.write_bytes(b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n").rstrip())
    packed.write_bytes(gzip.compress(content))
    return [
        (list(TEXTS), b""),
        (["--input", texts], b""),
        (["--input", marked], b""),
        (["--input", packed], b""),
        ([], content),
        ([], marked.read_bytes()),
    ]


# parse


def test_parse_from_everywhere(models, texts, tmp_path):
    expected = "".join(f"{tree}\n" for tree in PAIR.parse_many(TEXTS))
    for arguments, stdin in sources(texts, tmp_path):
        assert run("parse", models / "pair", *arguments, stdin=stdin) == (0, expected, SUMMARY)


def test_parse_to_a_file(models, tmp_path):
    out = tmp_path / "trees.txt"
    assert run("parse", models / "pair", *TEXTS, "--out", out, "--quiet") == (0, "", "")
    assert out.read_text(encoding="utf-8").splitlines() == list(map(str, PAIR.parse_many(TEXTS)))
    assert [path.name for path in tmp_path.iterdir()] == ["trees.txt"]


def test_parse_as_json(models):
    result = run("parse", models / "pair", *TEXTS, "--format", "json")
    objects = [json.loads(line) for line in result.out.splitlines()]
    for text, tree, about in zip(TEXTS, PAIR.parse_many(TEXTS), objects, strict=True):
        assert about == {
            "text": text,
            "words": list(tree.words),
            "order": list(tree.order),
            "spans": [list(span) for span in tree.spans],
            "brackets": str(tree),
        }


@pytest.mark.parametrize("options", [["--draw"], ["--format", "draw"]])
def test_parse_draws(models, monkeypatch, options):
    # an empty line separates drawings, also across chunks
    monkeypatch.setattr(text_lines, "CHUNK_LINES", 1)
    stdin = b"\n" + "\n".join(TEXTS[:3]).encode()
    result = run("parse", models / "pair", "--skip-bad", *options, stdin=stdin)
    assert result.out == "\n".join(f"{t.draw(width=100)}\n" for t in PAIR.parse_many(TEXTS[:3]))


def test_parse_as_svg(models, tmp_path):
    result = run("parse", models / "pair", "--format", "svg", TEXTS[1])
    assert result.out == PAIR.parse(TEXTS[1]).svg() + "\n"
    one = tmp_path / "tree.svg"
    assert run("parse", models / "pair", "--format", "svg", TEXTS[1], "--out", one).code == 0
    assert one.read_text(encoding="utf-8") == result.out
    folder = tmp_path / "new" / "trees"
    stdin = "\n".join([TEXTS[0], "", TEXTS[1]]).encode()
    options = ["--format", "svg", "--out", folder, "--skip-bad"]
    assert run("parse", models / "pair", *options, stdin=stdin).code == 0
    # named by line number
    assert sorted(path.name for path in folder.iterdir()) == ["0001.svg", "0003.svg"]
    assert (folder / "0003.svg").read_text(encoding="utf-8") == result.out
    assert ElementTree.parse(folder / "0001.svg").getroot().tag.endswith("svg")
    # an error leaves no folder behind
    other = tmp_path / "other"
    options = ["--format", "svg", "--out", other]
    assert "line 2" in run("parse", models / "pair", *options, stdin=stdin).refused()
    assert not other.exists()
    # without texts the folder is empty
    assert run("parse", models / "pair", *options, stdin=b"").code == 0
    assert list(other.iterdir()) == []


def test_parse_rejects_several_trees_in_one_svg(models, tmp_path):
    for arguments in (["a", "b"], ["a", "b", "--out", tmp_path / "tree.svg"], []):
        result = run("parse", models / "pair", "--format", "svg", *arguments, stdin=b"a\nb\n")
        assert "--out FOLDER" in result.refused()
        assert result.out == ""
    assert list(tmp_path.iterdir()) == []


def test_parse_rejects_contradictory_and_unknown_formats(models):
    message = run("parse", models / "pair", "a", "--draw", "--format", "json").refused()
    assert "--format json" in message
    assert run("parse", models / "pair", "a", "--format", "png").code == 2


def test_pretokenized(models):
    result = run("parse", models / "pair", "--pretokenized", "the -LRB- dog", "--format", "json")
    assert json.loads(result.out)["words"] == ["the", "(", "dog"]
    flag = ["--pretokenized", "-q"]
    one = run("predict", models / "single", *flag, "the -LRB- dog").out.split("\t")
    assert one[:2] == run("predict", models / "single", "-q", "the ( dog").out.split("\t")[:2]


# predict


def test_predict_single_from_everywhere(models, texts, tmp_path):
    expected = "".join(
        f"{p.label}\t{p.probabilities[p.label]:.4f}\t{text}\n"
        for p, text in zip(SINGLE.predict(TEXTS), TEXTS, strict=True)
    )
    for arguments, stdin in sources(texts, tmp_path):
        assert run("predict", models / "single", *arguments, stdin=stdin) == (0, expected, SUMMARY)


def test_predict_pairs(models, tmp_path):
    pairs = list(zip(TEXTS, TEXTS[::-1], strict=True))
    path, out = tmp_path / "pairs.tsv", tmp_path / "labels.jsonl"
    path.write_text("".join("\t".join(pair) + "\n" for pair in pairs), encoding="utf-8")
    arguments = [text for pair in pairs for text in pair]
    first = run("predict", models / "pair", *arguments)
    assert first == run("predict", models / "pair", "--input", path)
    assert first.err == "12 texts, 40 words, 4 unknown (10.0 %)\n"
    assert run("predict", models / "pair", "--input", path, "--json", "--out", out).out == ""
    rows = [line.split("\t") for line in first.out.splitlines()]
    objects = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    for pair, expected, row, about in zip(pairs, PAIR.predict(pairs), rows, objects, strict=True):
        assert row[0] == about["label"] == expected.label
        assert float(row[1]) == pytest.approx(expected.probabilities[expected.label], abs=1e-4)
        assert tuple(row[2:]) == (about["text"], about["text2"]) == pair
        assert about["probabilities"] == pytest.approx(expected.probabilities, abs=1e-6)


def test_predict_prints_one_line_per_text(models):
    result = run("predict", models / "single", "-q", "the\tdog\nsleeps\r\nnow", "one")
    assert [line.split("\t")[2] for line in result.out.split("\n")[:-1]] == [
        "the dog sleeps  now",
        "one",
    ]
    exact = json.loads(run("predict", models / "single", "-q", "the\tdog\n", "--json").out)
    assert exact["text"] == "the\tdog\n"


def test_predict_rejects_anything_but_pairs(models):
    assert "got 3" in run("predict", models / "pair", *TEXTS[:3]).refused()
    for bad in (b"now", b"now\t", b"\tnow", b"now\tnow\tnow", b"now\t "):
        message = run("predict", models / "pair", stdin=b"a\tb\n" + bad + b"\n").refused()
        assert "standard input, line 2" in message
        result = run("predict", models / "pair", "--skip-bad", stdin=b"a\tb\n" + bad + b"\nc\td")
        assert result.code == 0
        assert len(result.out.splitlines()) == 2
        assert "1 bad line skipped:\n  standard input, line 2" in result.err


# encode


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_encode_from_everywhere(models, texts, tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(text_lines, "CHUNK_LINES", 2)
    for number, (arguments, stdin) in enumerate(sources(texts, tmp_path)):
        path = tmp_path / f"{number}{suffix}"
        code, out, err = run("encode", models / "pair", *arguments, "--out", path, stdin=stdin)
        assert (code, out, err) == (0, "", f"{path}: 6 x 6, float32\n{SUMMARY}")
        vectors = np.load(path) if suffix == ".npy" else load_file(path)["vectors"]
        assert vectors.dtype == np.float32
        np.testing.assert_allclose(vectors, PAIR.encode(TEXTS), rtol=0, atol=1e-6)


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_encode_of_nothing(models, tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    assert run("encode", models / "pair", "--out", path).code == 0
    vectors = np.load(path) if suffix == ".npy" else load_file(path)["vectors"]
    assert (vectors.shape, vectors.dtype) == ((0, 6), np.float32)


def test_encode_requires_a_writable_file(models, tmp_path):
    assert "--out" in run("encode", models / "pair", "a").refused()
    (tmp_path / "folder.npy").mkdir()
    for name, reason in (
        ("x.txt", ".npy or .safetensors"),
        ("x", ".npy or .safetensors"),
        ("no/x.npy", "does not exist"),
        ("folder.npy", "is a folder"),
    ):
        message = run("encode", models / "pair", "a", "--out", tmp_path / name).refused()
        assert reason in message


@pytest.mark.parametrize("command", ["encode", "parse", "predict"])
def test_out_never_replaces_a_pipe(models, tmp_path, command):
    pipe = tmp_path / "x.npy"
    os.mkfifo(pipe)
    assert "pipe" in run(command, models / "single", "a", "--out", pipe).refused()
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    ("command", "name"), [("encode", "x.npy"), ("parse", "x.txt"), ("predict", "x.txt")]
)
def test_a_failure_keeps_the_old_file(models, tmp_path, monkeypatch, command, name):
    monkeypatch.setattr(text_lines, "CHUNK_LINES", 1)
    path, given = tmp_path / "out" / name, tmp_path / "texts.txt"
    path.parent.mkdir()
    given.write_bytes(b"now\nthe dog\n\nnow\n")
    arguments = [command, models / "single", "--input", given, "--out", path]
    assert f"{given}, line 3" in run(*arguments).refused()
    assert list(path.parent.iterdir()) == []
    path.write_text("old", encoding="utf-8")
    run(*arguments).refused()
    assert [p.read_text(encoding="utf-8") for p in path.parent.iterdir()] == ["old"]


def test_rejects_nan_weights(tmp_path):
    model = tiny_model("single")
    with torch.no_grad():
        model.encoder.query[0] = torch.nan
    gumbeltree.save(model, tmp_path / "model")
    result = run("parse", tmp_path / "model", *TEXTS)
    assert "encoder.query contains NaN" in result.refused()
    assert result.out == ""


def test_headers_have_room_for_any_number_of_rows():
    for writer in (array_file._npy_header, array_file._safetensors_header):
        sizes = set()
        for rows in (0, 9, 10**6, 10**12):
            file = io.BytesIO()
            writer(file, rows, 2**20)
            sizes.add(len(file.getvalue()))
        assert len(sizes) == 1


# evaluate


@pytest.fixture
def table(tmp_path):
    rows = "".join(f"{label}\t{text}\n" for label, text in zip(GOLD, TEXTS, strict=True))
    for name in ("dev.tsv", "films.tsv"):
        (tmp_path / name).write_text("stars\treview\n" + rows, encoding="utf-8")
    return tmp_path


GOLD = ["good", "bad", "good", "bad", "bad", "good"]


def test_evaluate_a_table_as_trained(models, table):
    # another device rounds differently
    place = ("--data", table / "films.tsv", "--device", "cpu")
    code, out, err = run("evaluate", models / "single", *place, "--json")
    assert code == 0
    found = json.loads(out)
    examples = [Example((text,), label, (None,)) for text, label in zip(TEXTS, GOLD, strict=True)]
    expected = evaluate(SINGLE, split_of(SINGLE, examples)).as_dict()
    assert {key: found[key] for key in expected} == expected
    assert (found["task"], found["split"]) == ("table", None)
    assert found["file"].endswith("films.tsv")
    assert found["texts"] == {"texts": 6, "words": 20, "unknown": 2, "cut": 0, "max_words": 1024}
    assert err.endswith(f"6 examples read; 0 dropped; 0 bad lines skipped\n{SUMMARY}")


def test_evaluate_prints_tables(models, table):
    data = ["--data", table, "--split", "dev", "--quiet"]
    code, out, err = run("evaluate", models / "single", *data)
    assert (code, err) == (0, "")
    about = json.loads(run("evaluate", models / "single", *data, "--json").out)
    low, high = (f"{100 * end:.2f}" for end in about["interval_95"])
    assert f"accuracy {100 * about['accuracy']:.2f} % (95 % interval {low} to {high} %)" in out
    assert f"{about['correct']} of 6 correct, loss {about['loss']:.4f}" in out
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines()]
    for label, row in zip(about["labels"], about["confusion"], strict=True):
        assert [label, *map(str, row)] in cells
    assert any(row[:2] == ["1-5", "5"] for row in cells)
    assert any(row[:2] == ["6-10", "1"] for row in cells)


def test_evaluate_writes_predictions(models, table):
    path = table / "out.tsv"
    data = ["--data", table / "films.tsv", "--predictions", path]
    assert run("evaluate", models / "single", *data).code == 0
    header, *rows = [line.split("\t") for line in path.read_text("utf-8").splitlines()]
    assert header == ["gold", "predicted", "text"]
    assert [row[2] for row in rows] == TEXTS
    assert [row[1] for row in rows] == [p.label for p in SINGLE.predict(TEXTS)]
    # the file can be evaluated itself
    columns = ["--text", "text", "--label", "predicted"]
    again = run("evaluate", models / "single", "--data", path, *columns, "--json")
    assert json.loads(again.out)["accuracy"] == 1


def test_evaluate_another_task(models, tmp_path):
    path = tmp_path / "snli_1.0_dev.jsonl"
    pairs = list(zip(TEXTS, TEXTS[::-1], ["entailment", "neutral"] * 3, strict=True))
    rows = [{"sentence1": a, "sentence2": b, "gold_label": label} for a, b, label in pairs]
    rows.append({"sentence1": "a", "sentence2": "b", "gold_label": "-"})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    options = ["--task", "snli", "--data", tmp_path, "--split", "dev", "--json"]
    result = run("evaluate", models / "pair", *options)
    about = json.loads(result.out)
    guesses = PAIR.predict([pair[:2] for pair in pairs])
    hits = sum(g.label == pair[2] for g, pair in zip(guesses, pairs, strict=True))
    assert (about["examples"], about["correct"]) == (6, hits)
    assert "1 dropped (1 without a gold label)" in result.err
    out = tmp_path / "p.tsv"
    assert run("evaluate", models / "pair", *options, "--predictions", out).code == 0
    assert out.read_text("utf-8").startswith("gold\tpredicted\ttext\ttext2\nentailment\t")


def test_evaluate_a_treebank(tmp_path):
    model = tiny_model("single")
    labels = ("negative", "positive")
    head = gumbeltree.HeadConfig("single", labels, 7, 2, True, 0.3)
    config = gumbeltree.ModelConfig(model.config.encoder, head, model.config.embedding)
    named = SentenceModel(config, model.tokenizer)
    named.load_state_dict(model.state_dict())
    gumbeltree.save(named, tmp_path / "m", {"recipe": {"data": {"task": "sst2"}}})
    (tmp_path / "test.txt").write_text("(3 (2 the) (4 dog))\n(1 (2 -LRB-) (0 not))\n", "utf-8")
    about = json.loads(run("evaluate", tmp_path / "m", "--data", tmp_path, "--json").out)
    # whole sentences only, brackets as brackets
    assert about["examples"] == 2
    assert about["texts"]["words"] == 4
    expected = [labels.index(p.label) for p in named.eval().predict(["the dog", "( not"])]
    assert about["correct"] == [guess == gold for guess, gold in zip(expected, (1, 0))].count(True)  # noqa: B905


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("pair", [], "--task"),
        ("pair", ["--task", "snlu"], "unknown task 'snlu'"),
        ("single", ["--task", "snli"], "single sentences, but the task snli has pairs"),
        ("pair", ["--task", "sst2"], "pairs, but the task sst2 has single sentences"),
        ("single", ["--task", "sst2"], "negative, positive"),
        ("pair", ["--task", "table"], "--text COLUMN and --text2 COLUMN and --label COLUMN"),
        ("single", ["--task", "sst2", "--text", "x"], "--text names a column of a table"),
        ("single", ["--text", "x"], "'x'"),
        ("single", ["--label", "review", "--text", "stars"], "bad, good"),
        ("single", ["--split", "dev"], "films.tsv is a file"),
        ("single", ["--device", "toaster"], "'toaster'"),
        ("single", ["--predictions", "no/x.tsv"], "does not exist"),
    ],
)
def test_evaluate_rejects(models, table, model, options, message):
    result = run("evaluate", models / model, "--data", table / "films.tsv", *options)
    assert message in result.refused()


def test_evaluate_rejects_missing_data(models, table):
    (table / "empty.tsv").write_text("stars\treview\n", encoding="utf-8")
    for options, message in (
        (["--data", table], "no file for the split test, only for dev"),
        (["--data", table / "no.tsv"], "no.tsv"),
        (["--data", table / "empty.tsv"], "no usable examples"),
        ([], "--data"),
    ):
        assert message in run("evaluate", models / "single", *options).refused()


def test_evaluate_skips_bad_lines_if_asked(models, table):
    path = table / "films.tsv"
    path.write_text("stars\treview\ngood\tthe dog\nugly\tthe dog\n", encoding="utf-8")
    message = run("evaluate", models / "single", "--data", path).refused()
    assert "films.tsv, line 3" in message
    result = run("evaluate", models / "single", "--data", path, "--skip-bad", "--json")
    assert json.loads(result.out)["examples"] == json.loads(result.out)["bad_lines"] == 1
    assert "1 bad line skipped\n" in result.err


# shared options


@pytest.mark.parametrize("command", ["parse", "predict", "encode"])
def test_rejects_wrong_use(models, texts, tmp_path, command):
    out = tmp_path / "x.npy"
    packed = tmp_path / "x.gz"
    packed.write_bytes(gzip.compress(b"now\n" * 100)[:-9])
    for arguments, message in (
        (["now", "--input", texts], "not both"),
        (["now", "--device", "toaster"], "toaster"),
        (["now", "--device", "cuda:99"], "cuda:99"),
        (["--input", tmp_path / "text.txt"], "text.txt does not exist"),
        (["--input", tmp_path], "folder"),
        (["--input", packed], "damaged"),
        (["now", ""], "text 1 "),
    ):
        result = run(command, models / "single", *arguments, "--out", out)
        assert message in result.refused()
    assert "no model folder" in run(command, tmp_path / "no", "now", "--out", out).refused()
    assert run(command, models / "single", "now", "--batch-size", "0", "--out", out).code == 2
    assert run(command).code == 2
    assert not out.exists()


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_devices(models, device):
    if device == "auto" and torch.cuda.is_available():
        pytest.skip("another device rounds differently")
    result = run("parse", models / "pair", TEXTS[1], "--device", device, "--batch-size", "1")
    assert result.out == f"{PAIR.parse(TEXTS[1])}\n"


@pytest.mark.parametrize("command", ["parse", "predict", "encode", "evaluate"])
def test_help_has_examples(command):
    code, out, _ = run(command, "--help")
    assert code == 0
    assert out.count(f"gumbeltree {command} ") >= 2
    for option in ("--device", "--pretokenized", "--quiet", "--skip-bad"):
        assert option in out


def test_truncated_texts_are_reported(tmp_path):
    model = tiny_model()
    gumbeltree.save(model, tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text("utf-8"))
    config["model"]["max_words"] = 3
    (tmp_path / "m" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    result = run("parse", tmp_path / "m", TEXTS[1], "now")
    assert result.err == "2 texts, 4 words, 1 text cut to 3 words\n"
    assert result.out.count("\n") == 2


# lines


def test_lines_come_in_chunks(tmp_path, monkeypatch):
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"line {i}\n" for i in range(2500)), encoding="utf-8")
    chunks = list(read_texts(path, Report()))
    assert [len(chunk) for chunk in chunks] == [1024, 1024, 452]
    flat = [line for chunk in chunks for line in chunk]
    assert [line.number for line in flat] == list(range(1, 2501))
    assert [line.texts for line in flat] == [(f"line {i}",) for i in range(2500)]
    monkeypatch.setattr(text_lines, "CHUNK_CHARACTERS", 20)
    assert [len(chunk) for chunk in read_texts(path, Report())][:3] == [4, 4, 4]
    stdin = io.TextIOWrapper(io.BytesIO(path.read_bytes()))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert [line for chunk in read_texts(None, Report()) for line in chunk] == flat


def test_bad_lines_are_rejected_or_skipped(tmp_path, monkeypatch):
    content = b"\xef\xbb\xbfnow\r\n\n  \t\ncaf\xe9\nthe dog"
    path = tmp_path / "texts.txt"
    path.write_bytes(content)
    for source, name in ((path, str(path)), (None, "standard input")):
        report = Report()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        lines = [line for chunk in read_texts(source, report, skip_bad=True) for line in chunk]
        assert lines == [(1, ("now",)), (5, ("the dog",))]
        assert report.bad == 3
        assert sum("0xe9" in message for message in report.first_bad) == 1
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"now\ncaf\xe9\n")))
        path.write_bytes(b"now\ncaf\xe9\n")
        with pytest.raises(BadLineError, match=rf"{name}, line 2.*UTF-8"):
            list(read_texts(source, Report()))
        path.write_bytes(content)


def test_closed_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(OSError, match="standard input is closed"):
        list(read_texts(None, Report()))


def test_prompts_on_a_terminal(models):
    err = run("parse", models / "pair", stdin=b"now\n", terminal=True).err
    assert "one sentence per line" in err
    err = run("predict", models / "pair", stdin=b"now\tnow\n", terminal=True).err
    assert "pair per line" in err


@pytest.mark.slow
def test_a_pipe_is_answered_line_by_line(models):
    command = [sys.executable, "-m", "gumbeltree", "predict", str(models / "single")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        # a command that waits for the end of its input would block
        late = threading.Timer(60, running.kill)
        late.start()
        for text, expected in zip(TEXTS[:3], SINGLE.predict(TEXTS[:3]), strict=True):
            running.stdin.write(f"{text}\n".encode())
            running.stdin.flush()
            answer = running.stdout.readline().decode()
            assert answer.startswith(f"{expected.label}\t")
            assert answer.endswith(f"\t{text}\n")
        running.stdin.close()
        late.cancel()
        assert running.stdout.read() == b""
        assert running.stderr.read().decode().startswith("3 texts, 12 words")
    assert running.returncode == 0


def test_evaluate_on_generated_data(tmp_path):
    assert run("demo", "--quick", "--quiet", "--out", tmp_path / "demo").code == 0
    result = json.loads((tmp_path / "demo" / "result.json").read_text(encoding="utf-8"))
    for split, options in (("test", ()), ("dev", ("--split", "dev"))):
        out = run("evaluate", tmp_path / "demo", "--json", "--device", "cpu", *options).out
        assert json.loads(out)["accuracy"] == result[f"{split}_accuracy"]


def test_explains_folders_without_a_model(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "settings.json").write_text("{}", encoding="utf-8")
    assert "--resume" in run("predict", tmp_path / "run", "a").refused()
    (tmp_path / "seeds" / "seed-3" / "model").mkdir(parents=True)
    message = run("predict", tmp_path / "seeds", "a").refused()
    assert str(tmp_path / "seeds" / "seed-3") in message


def test_evaluate_never_generates_training_examples(tmp_path):
    lines = [f"{e.label}\t{e.texts[0]}" for e in generate(30, 9)]
    (tmp_path / "test.tsv").write_text("\n".join(lines), encoding="utf-8")
    sizes = ("generate=200", "epochs=1", "embedding_dim=8", "encoder.hidden_dim=8")
    options = [x for size in sizes for x in ("--set", size)]
    trained = run("train", "demo", "-q", "--data", tmp_path, "--out", tmp_path / "run", *options)
    assert trained.code == 0, trained
    assert "cannot be generated again" in run("evaluate", tmp_path / "run").refused()
    assert run("evaluate", tmp_path / "run", "--data", tmp_path, "-q").code == 0
