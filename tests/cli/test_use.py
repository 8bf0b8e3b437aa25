"""The commands that use a model: parse, predict, encode, evaluate."""

import csv
import dataclasses
import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import threading
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import gumbeltree
from gumbeltree import array_file
from gumbeltree.evaluation import evaluate, split_of
from gumbeltree.model import SentenceModel
from gumbeltree.tasks.demo import generate
from gumbeltree.tasks.logic import Logic
from gumbeltree.tasks.task import Example
from gumbeltree.text import lines as text_lines
from gumbeltree.text.files import BadLineError, MismatchError, Report
from gumbeltree.text.lines import read_texts
from tests.commands import run
from tests.models import TEXTS, tiny_model

PAIR, SINGLE = tiny_model("pair"), tiny_model("single")
SUMMARY = "6 texts, 20 words, 2 unknown (10.0 %)\n"
CONTENT = "".join(f"{text}\n" for text in TEXTS).encode()
MARKED = b"\xef\xbb\xbf" + CONTENT.replace(b"\n", b"\r\n").rstrip()
PACKED = gzip.compress(CONTENT)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    gumbeltree.save(PAIR, folder / "pair")
    columns = {"text": "review", "text2": "", "label": "stars"}
    recipe = {"data": {"task": "table", **columns}}
    gumbeltree.save(SINGLE, folder / "single", {"recipe": recipe})
    return folder


# input and output


@pytest.mark.parametrize("content", [CONTENT, MARKED, PACKED], ids=["plain", "marked", "gzip"])
def test_reads_arguments_files_and_standard_input(models, tmp_path, content):
    path = tmp_path / "texts"
    path.write_bytes(content)
    lines = "".join(
        f"{p.label}\t{p.probabilities[p.label]:.4f}\t{text}\n"
        for p, text in zip(SINGLE.predict(TEXTS), TEXTS, strict=True)
    )
    expected = (0, lines, SUMMARY)
    assert run("predict", models / "single", *TEXTS) == expected
    assert run("predict", models / "single", "--input", path) == expected
    if content != PACKED:
        assert run("predict", models / "single", stdin=content) == expected


@pytest.mark.parametrize("command", ["encode", "parse", "predict"])
def test_failure_keeps_the_old_file(models, tmp_path, monkeypatch, command):
    monkeypatch.setattr(text_lines, "CHUNK_LINES", 1)
    out, texts = tmp_path / "out" / "x.npy", tmp_path / "texts.txt"
    out.parent.mkdir()
    texts.write_bytes(b"now\nthe dog\n\nnow\n")
    arguments = [command, models / "single", "--input", texts, "--out", out]
    assert f"{texts}, line 3" in run(*arguments).refused()
    assert list(out.parent.iterdir()) == []
    out.write_text("old", encoding="utf-8")
    run(*arguments).refused()
    assert [path.read_text(encoding="utf-8") for path in out.parent.iterdir()] == ["old"]
    out.unlink()
    os.mkfifo(out)
    assert "pipe" in run(*arguments).refused()
    assert out.is_fifo()


@pytest.mark.parametrize("command", ["parse", "predict", "encode"])
def test_rejects_wrong_use(models, tmp_path, command):
    out, packed = tmp_path / "x.npy", tmp_path / "x.gz"
    packed.write_bytes(gzip.compress(b"now\n" * 100)[:-9])
    for arguments, message in (
        (["now", "--input", packed], "not both"),
        (["now", "--device", "toaster"], "toaster"),
        (["now", "--device", "cuda:99"], "cuda:99"),
        (["--input", tmp_path / "text.txt"], "text.txt does not exist"),
        (["--input", tmp_path], "folder"),
        (["--input", packed], "damaged"),
        (["now", ""], "text 1 "),
    ):
        result = run(command, models / "single", *arguments, "--out", out)
        assert message in result.refused()
    assert "not a model folder" in run(command, tmp_path / "no", "now", "--out", out).refused()
    assert run(command, models / "single", "now", "--batch-size", "0", "--out", out).code == 2
    assert run(command).code == 2
    assert not out.exists()


def test_reports_truncated_texts(tmp_path):
    gumbeltree.save(tiny_model(), tmp_path / "m")
    path = tmp_path / "m" / "config.json"
    config = json.loads(path.read_text("utf-8"))
    config["model"]["max_words"] = 3
    path.write_text(json.dumps(config), encoding="utf-8")
    result = run("parse", tmp_path / "m", TEXTS[1], "now")
    assert result.err == "2 texts, 4 words, 1 text truncated to 3 words\n"


def test_rejects_nan_weights(tmp_path):
    model = tiny_model("single")
    with torch.no_grad():
        model.encoder.query[0] = torch.nan
    gumbeltree.save(model, tmp_path / "model")
    result = run("parse", tmp_path / "model", *TEXTS)
    assert "encoder.query contains NaN" in result.refused()
    assert result.out == ""


def test_explains_folders_without_a_model(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "settings.json").write_text("{}", encoding="utf-8")
    assert "--resume" in run("predict", tmp_path / "run", "a").refused()
    (tmp_path / "seeds" / "seed-3" / "model").mkdir(parents=True)
    message = run("predict", tmp_path / "seeds", "a").refused()
    assert str(tmp_path / "seeds" / "seed-3") in message


def test_prompts_on_a_terminal(models):
    err = run("parse", models / "pair", stdin=b"now\n", terminal=True).err
    assert "one sentence per line" in err
    err = run("predict", models / "pair", stdin=b"now\tnow\n", terminal=True).err
    assert "pair per line" in err


@pytest.mark.slow
def test_answers_a_pipe_line_by_line(models):
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
        assert running.stderr.read().decode().startswith("3 texts, 12 words")
    assert running.returncode == 0


# lines


def test_lines_come_in_chunks(tmp_path, monkeypatch):
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"line {i}\n" for i in range(2500)), encoding="utf-8")
    chunks = list(read_texts(path, Report()))
    assert [len(chunk) for chunk in chunks] == [1024, 1024, 452]
    flat = [line for chunk in chunks for line in chunk]
    assert [line[:2] for line in flat] == [(i + 1, (f"line {i}",)) for i in range(2500)]
    monkeypatch.setattr(text_lines, "CHUNK_CHARACTERS", 20)
    assert [len(chunk) for chunk in read_texts(path, Report())][:3] == [4, 4, 4]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    assert [line for chunk in read_texts(None, Report()) for line in chunk] == flat


@pytest.mark.parametrize("source", ["texts.txt", None])
def test_rejects_or_skips_bad_lines(tmp_path, monkeypatch, source):
    content = b"\xef\xbb\xbfnow\r\n\n  \t\ncaf\xe9\nthe dog"
    path = None if source is None else tmp_path / source
    if path is not None:
        path.write_bytes(content)

    def read(**options):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        return [line[:2] for chunk in read_texts(path, report, **options) for line in chunk]

    report = Report()
    assert read(skip_bad=True) == [(1, ("now",)), (5, ("the dog",))]
    assert report.bad == 3
    assert sum("0xe9" in message for message in report.first_bad) == 1
    with pytest.raises(BadLineError, match=f"{path or 'standard input'}, line [24]: "):
        read()


def test_rejects_closed_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(OSError, match="standard input is closed"):
        list(read_texts(None, Report()))


# parse


def test_parse_prints_brackets(models, tmp_path):
    out = tmp_path / "trees.txt"
    expected = "".join(f"{tree}\n" for tree in PAIR.parse_many(TEXTS))
    small = ["--batch-size", "1", "--device", "cpu"]
    assert run("parse", models / "pair", *TEXTS, *small) == (0, expected, SUMMARY)
    assert run("parse", models / "pair", *TEXTS, "--out", out, "--quiet") == (0, "", "")
    assert out.read_text(encoding="utf-8") == expected
    assert [path.name for path in tmp_path.iterdir()] == ["trees.txt"]


def test_parse_prints_json(models):
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


def test_parse_writes_svg(models, tmp_path):
    command = ["parse", models / "pair", "--format", "svg"]
    result = run(*command, TEXTS[1])
    assert result.out == PAIR.parse(TEXTS[1]).svg() + "\n"
    one = tmp_path / "tree.svg"
    assert run(*command, TEXTS[1], "--out", one).code == 0
    assert one.read_text(encoding="utf-8") == result.out
    folder, other = tmp_path / "new" / "trees", tmp_path / "other"
    stdin = "\n".join([TEXTS[0], "", TEXTS[1]]).encode()
    assert run(*command, "--out", folder, "--skip-bad", stdin=stdin).code == 0
    # named by line number
    assert sorted(path.name for path in folder.iterdir()) == ["0001.svg", "0003.svg"]
    assert (folder / "0003.svg").read_text(encoding="utf-8") == result.out
    assert ElementTree.parse(folder / "0001.svg").getroot().tag.endswith("svg")
    # an error leaves no folder behind
    assert "line 2" in run(*command, "--out", other, stdin=stdin).refused()
    assert not other.exists()
    assert run(*command, "--out", other, stdin=b"").code == 0
    assert list(other.iterdir()) == []


@pytest.mark.parametrize("arguments", [["a", "b"], ["a", "b", "--out", "tree.svg"], []])
def test_parse_rejects_several_trees_in_one_svg(models, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    result = run("parse", models / "pair", "--format", "svg", *arguments, stdin=b"a\nb\n")
    assert "--out FOLDER" in result.refused()
    assert result.out == ""
    assert list(tmp_path.iterdir()) == []


def test_parse_prints_the_most_probable_trees(models):
    command = ["parse", models / "single", *TEXTS, "--beams", "3"]
    found = SINGLE.best_trees(TEXTS, beams=3)
    expected = "\n".join(
        "".join(f"{p:.4f}\t{log_prob:.4f}\t{tree}\n" for tree, p, log_prob in best)
        for best in found
    )
    # by default NumPy, whose rounding errors differ
    assert run(*command, "--runtime", "torch", "--batch-size", "4") == (0, expected, SUMMARY)
    result = run(*command, "--format", "json")
    for text, best, line in zip(TEXTS, found, result.out.splitlines(), strict=True):
        about = json.loads(line)
        assert (about["text"], tuple(about["words"])) == (text, best[0].tree.words)
        for probable, shown in zip(best, about["beams"], strict=True):
            assert shown["brackets"] == str(probable.tree)
            assert shown["order"] == list(probable.tree.order)
            assert shown["spans"] == [list(span) for span in probable.tree.spans]
            assert shown["probability"] == pytest.approx(probable.probability, abs=1e-4)
            assert shown["log_prob"] == pytest.approx(probable.log_prob, abs=1e-4)
    drawn = run("parse", models / "single", TEXTS[4], "--beams", "2", "--draw").out
    for probable in SINGLE.best_trees([TEXTS[4]], beams=2)[0]:
        assert probable.tree.draw(width=100) in drawn


@pytest.mark.parametrize("beams", ["0", "-1", "101"])
def test_parse_rejects_a_wrong_number_of_beams(models, beams):
    message = run("parse", models / "single", "a b", "--beams", beams).refused()
    assert f"`beams` must be a whole number in 1..100, got {beams}" in message


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"encoder": "bag"}, "builds no tree: its encoder is 'bag'"),
        ({"trees": "left"}, "its encoder is 'fixed_tree', and it does not score merges"),
    ],
    ids=["bag", "fixed"],
)
@pytest.mark.parametrize("runtime", ["numpy", "torch"])
def test_parse_rejects_beams_without_learned_trees(tmp_path, settings, reason, runtime):
    gumbeltree.save(tiny_model("single", **settings), tmp_path / "model")
    command = ["parse", tmp_path / "model", "a b", "--runtime", runtime]
    message = run(*command, "--beams", "2").refused()
    assert reason in message
    assert "'gumbel_tree'" in message
    assert len(message.splitlines()) == 1


def test_parse_rejects_beams_as_images(models):
    message = run("parse", models / "single", "a", "--beams", "2", "--format", "svg").refused()
    assert "--beams and --format svg" in message


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


def test_predict_pairs(models, tmp_path):
    pairs = list(zip(TEXTS, TEXTS[::-1], strict=True))
    path, out = tmp_path / "pairs.txt", tmp_path / "labels.jsonl"
    path.write_text("".join("\t".join(pair) + "\n" for pair in pairs), encoding="utf-8")
    first = run("predict", models / "pair", *(text for pair in pairs for text in pair))
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
    text = "the\tdog\nsleeps\r\nnow"
    result = run("predict", models / "single", "-q", text, "one")
    cells = [line.split("\t")[2] for line in result.out.split("\n")[:-1]]
    assert cells == ["the dog sleeps  now", "one"]
    exact = json.loads(run("predict", models / "single", "-q", text, "--json").out)
    assert exact["text"] == text


@pytest.mark.parametrize("bad", [b"now", b"now\t", b"\tnow", b"now\tnow\tnow", b"now\t "])
def test_predict_rejects_or_skips_lines_that_are_no_pairs(models, bad):
    stdin = b"a\tb\n" + bad + b"\nc\td"
    assert "standard input, line 2" in run("predict", models / "pair", stdin=stdin).refused()
    result = run("predict", models / "pair", "--skip-bad", stdin=stdin)
    assert (result.code, len(result.out.splitlines())) == (0, 2)
    assert "1 bad line skipped:\n  standard input, line 2" in result.err


def test_predict_rejects_an_odd_number_of_arguments(models):
    assert "got 3" in run("predict", models / "pair", *TEXTS[:3]).refused()


# encode


@pytest.mark.parametrize("texts", [TEXTS, []])
def test_encode_writes_vectors(models, tmp_path, monkeypatch, texts):
    monkeypatch.setattr(text_lines, "CHUNK_LINES", 2)
    path = tmp_path / "x.npy"
    result = run("encode", models / "pair", "--out", path, stdin="\n".join(texts).encode())
    assert (result.code, result.out) == (0, "")
    assert result.err.startswith(f"{path}: {len(texts)} x 6, float32\n{len(texts)} texts")
    vectors = np.load(path)
    assert (vectors.dtype, vectors.shape) == (np.float32, (len(texts), 6))
    np.testing.assert_allclose(vectors, PAIR.encode(texts), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "pass its name, for example --out x.npy"),
        (["--out", "x.txt"], ".npy"),
        (["--out", "no/x.npy"], "does not exist"),
        (["--out", "folder.npy"], "is a folder"),
    ],
)
def test_encode_requires_a_writable_file(models, tmp_path, monkeypatch, options, message):
    (tmp_path / "folder.npy").mkdir()
    monkeypatch.chdir(tmp_path)
    assert message in run("encode", models / "pair", "a", *options).refused()


def test_headers_have_room_for_any_number_of_rows():
    files = [io.BytesIO() for _ in range(4)]
    for file, rows in zip(files, (0, 9, 10**6, 10**12), strict=True):
        array_file.write_header(file, rows, 2**20)
    assert len({len(file.getvalue()) for file in files}) == 1


# evaluate

GOLD = ["good", "bad", "good", "bad", "bad", "good"]


@pytest.fixture
def table(tmp_path):
    rows = "".join(f"{label}\t{text}\n" for label, text in zip(GOLD, TEXTS, strict=True))
    for name in ("dev.tsv", "films.tsv"):
        (tmp_path / name).write_text("stars\treview\n" + rows, encoding="utf-8")
    return tmp_path


def test_evaluate_a_table_as_trained(models, table):
    # another device rounds differently
    place = ("--data", table / "films.tsv", "--device", "cpu")
    code, out, err = run("evaluate", models / "single", *place, "--json")
    assert code == 0
    result = json.loads(out)
    examples = [Example((text,), label, (None,)) for text, label in zip(TEXTS, GOLD, strict=True)]
    expected = evaluate(SINGLE, split_of(SINGLE, examples)).as_dict()
    assert {key: result[key] for key in expected} == expected
    assert (result["task"], result["split"]) == ("table", None)
    assert result["file"].endswith("films.tsv")
    texts = {"texts": 6, "words": 20, "unknown": 2}
    assert result["texts"] == {**texts, "cut": 0, "max_words": 1024, "cut_characters": 0}
    assert err.endswith(f"6 examples read; 0 dropped; 0 bad lines skipped\n{SUMMARY}")


def test_evaluate_prints_tables(models, table):
    data = ["--data", table, "--split", "dev", "--quiet"]
    code, out, err = run("evaluate", models / "single", *data)
    assert (code, err) == (0, "")
    about = json.loads(run("evaluate", models / "single", *data, "--json").out)
    assert f"accuracy {100 * about['accuracy']:.2f} %" in out
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines()]
    for label, row in zip(about["labels"], about["confusion"], strict=True):
        assert [label, *map(str, row)] in cells
    assert any(row[:2] == ["1-5", "5"] for row in cells)
    assert any(row[:2] == ["6-10", "1"] for row in cells)


def test_evaluate_compares_several_files(models, table, monkeypatch):
    (table / "two.tsv").write_text("stars\treview\ngood\ta b\nbad\tc\n", encoding="utf-8")
    data = ["--data", table / "films.tsv", "--data", table / "two.tsv", "--quiet"]
    found = json.loads(run("evaluate", models / "single", *data, "--json").out)
    alone = [
        json.loads(run("evaluate", models / "single", *data[i : i + 2], "--quiet", "--json").out)
        for i in (0, 2)
    ]
    assert found == alone
    assert found[1]["mean_words"] == 1.5
    picture = table / "lengths.png"
    code, out, _ = run("evaluate", models / "single", *data, "--plot", picture)
    assert code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines()]
    shares = [f"{100 * result['accuracy']:.1f}" for result in found]
    assert [row[:4] for row in cells if row and row[0].endswith(".tsv")] == [
        ["films.tsv", "6", "3.3", shares[0]],
        ["two.tsv", "2", "1.5", shares[1]],
    ]
    # files of the same name, and a malformed one
    monkeypatch.chdir(table)
    (table / "more").mkdir()
    shutil.copy(table / "two.tsv", table / "more" / "films.tsv")
    same = ("--data", "films.tsv", "--data", "more/films.tsv")
    out = run("evaluate", models / "single", *same, "--quiet").out
    assert [line.split()[1] for line in out.splitlines() if ".tsv" in line] == [*same[1::2]]
    (table / "bad.tsv").write_text("stars\treview\ngood\n", encoding="utf-8")
    with monkeypatch.context() as patch:
        # nothing is evaluated before all files are read
        patch.setattr("gumbeltree.evaluation.evaluate", None)
        result = run("evaluate", models / "single", *data[:4], "--data", table / "bad.tsv")
        assert "bad.tsv, line 2" in result.refused()
    for option in ("--predictions", "--confusion"):
        message = run("evaluate", models / "single", *data, option, table / "x.csv").refused()
        assert f"{option} needs a single --data" in message


def test_evaluate_by_levels_and_operations(tmp_path):
    model = tiny_model("single", lower=False)
    head = dataclasses.replace(model.config.head, labels=tuple("0123456789"))
    config = dataclasses.replace(model.config, head=head)
    gumbeltree.save(SentenceModel(config, model.tokenizer).eval(), tmp_path / "model", {})
    path = tmp_path / "test.tsv"
    path.write_text("3\t3\n4\t[MAX 4 2 ]\n1\t[MIN 9 [SM 5 6 ] ]\n7\t[MAX 1 7 ]\n")
    options = ("evaluate", tmp_path / "model", "--task", "listops", "--data", path, "--quiet")
    result = json.loads(run(*options, "--json").out)
    assert [(x["size"], x["examples"]) for x in result["by_levels"]] == [(1, 1), (2, 2), (3, 1)]
    right = sum(x["accuracy"] * x["examples"] for x in result["by_levels"])
    assert right == pytest.approx(4 * result["accuracy"])
    assert "Accuracy by levels:" in run(*options).out
    # several files: one column each
    more, picture = tmp_path / "more.tsv", tmp_path / "levels.svg"
    more.write_text("2\t[MAX 2 [MIN 1 [SM 1 1 ] ] ]\n7\t[MAX 1 7 ]\n")
    out = run(*options, "--data", more, "--plot", picture).out
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines()]
    (second,) = [x["accuracy"] for x in result["by_levels"] if x["size"] == 2]
    rows = {row[0]: row for row in cells if len(row) == 3}
    assert [*rows] == ["1", "2", "3", "4"]
    assert rows["2"][1] == f"{100 * second:.1f}"
    assert [bool(x) for x in rows["1"][1:] + rows["4"][1:]] == [True, False, False, True]
    drawn = picture.read_text(encoding="utf-8")
    assert "levels" in drawn
    assert "more.tsv" in drawn
    assert Logic().size_of(("( not a )", "( a ( and ( not b ) ) )")) == 2


def test_evaluate_writes_predictions(models, table):
    path = table / "out.tsv"
    data = ["--data", table / "films.tsv", "--predictions", path]
    assert run("evaluate", models / "single", *data).code == 0
    header, *rows = [line.split("\t") for line in path.read_text("utf-8").splitlines()]
    assert header == ["gold", "predicted", "text"]
    assert [row[0] for row in rows] == GOLD
    assert [row[1] for row in rows] == [p.label for p in SINGLE.predict(TEXTS)]
    assert [row[2] for row in rows] == TEXTS
    # the file can be evaluated itself
    columns = ["--text", "text", "--label", "predicted"]
    again = run("evaluate", models / "single", "--data", path, *columns, "--json")
    assert json.loads(again.out)["accuracy"] == 1


def test_evaluate_writes_predictions_as_csv(models, tmp_path):
    source, path = tmp_path / "films.jsonl", tmp_path / "out.csv"
    text = 'a dog, "now"\tone'
    source.write_text(json.dumps({"text": text, "label": GOLD[0]}) + "\n", encoding="utf-8")
    columns = ["--text", "text", "--label", "label"]
    data = ["--task", "table", "--data", source, *columns, "--predictions", path]
    result = run("evaluate", models / "single", *data)
    assert result.code == 0, result.err
    rows = list(csv.reader(path.read_text("utf-8").splitlines()))
    assert rows == [["gold", "predicted", "text"], [GOLD[0], SINGLE.predict([text])[0].label, text]]


def test_evaluate_pairs_of_another_task(models, tmp_path):
    path, out = tmp_path / "snli_1.0_dev.jsonl", tmp_path / "p.tsv"
    pairs = list(zip(TEXTS, TEXTS[::-1], ["entailment", "neutral"] * 3, strict=True))
    rows = [{"sentence1": a, "sentence2": b, "gold_label": label} for a, b, label in pairs]
    rows.append({"sentence1": "a", "sentence2": "b", "gold_label": "-"})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    options = ["--task", "snli", "--data", tmp_path, "--split", "dev", "--json"]
    result = run("evaluate", models / "pair", *options, "--predictions", out)
    about = json.loads(result.out)
    guesses = PAIR.predict([pair[:2] for pair in pairs])
    hits = sum(g.label == pair[2] for g, pair in zip(guesses, pairs, strict=True))
    assert (about["examples"], about["correct"]) == (6, hits)
    assert "1 dropped (1 without a gold label)" in result.err
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
    assert (about["examples"], about["texts"]["words"]) == (2, 4)
    guesses = [p.label for p in named.eval().predict(["the dog", "( not"])]
    assert about["correct"] == (guesses[0] == "positive") + (guesses[1] == "negative")


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
def test_evaluate_rejects_options(models, table, model, options, message):
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
    assert run("evaluate", models / "single", "--data", table, "--split", "tests").code == 2


def test_evaluate_rejects_or_skips_bad_lines(models, table):
    path = table / "films.tsv"
    path.write_text("stars\treview\ngood\tthe dog\nugly\tthe dog\n", encoding="utf-8")
    assert "films.tsv, line 3" in run("evaluate", models / "single", "--data", path).refused()
    result = run("evaluate", models / "single", "--data", path, "--skip-bad", "--json")
    assert json.loads(result.out)["examples"] == json.loads(result.out)["bad_lines"] == 1
    assert "1 bad line skipped\n" in result.err


def train_demo(folder, *options):
    sizes = ("generate=200", "epochs=1", "embedding_dim=8", "encoder.hidden_dim=8")
    settings = [x for size in sizes for x in ("--set", size)]
    trained = run("train", "demo", "-q", "--out", folder, *settings, *options)
    assert trained.code == 0, trained


def test_evaluate_generates_the_data_of_training(tmp_path):
    train_demo(tmp_path, "--device", "cpu")
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    for split, options in (("test", ()), ("dev", ("--split", "dev"))):
        out = run("evaluate", tmp_path, "--json", "--device", "cpu", *options).out
        assert json.loads(out)["accuracy"] == result[f"{split}_accuracy"]


def test_evaluate_never_generates_training_examples(tmp_path):
    lines = [f"{e.label}\t{e.texts[0]}" for e in generate(30, 9)]
    (tmp_path / "test.tsv").write_text("\n".join(lines), encoding="utf-8")
    train_demo(tmp_path / "run", "--data", tmp_path)
    assert "cannot be regenerated" in run("evaluate", tmp_path / "run").refused()
    assert run("evaluate", tmp_path / "run", "--data", tmp_path, "-q").code == 0


@pytest.mark.parametrize("command", ["predict", "parse", "encode", "draw"])
def test_commands_refuse_texts_that_the_task_cannot_have(command, tmp_path):
    out = tmp_path / ("tree.svg" if command == "draw" else "out.npy")
    for text, problem in (("i love it", "got 'i' at token 1"), ("[MED 4 5 ] ]", "after its end")):
        message = run(command, "listops-64d", text, "--out", out).refused()
        assert "expected one expression of [MIN" in message
        assert problem in message
        assert "correct the expression" in message
        assert not out.exists()


def test_bad_texts_of_a_task_in_a_file(models, tmp_path):
    good, bad = "[MAX 2 9 ]", "[MAX 2 [FOO 3 ] ]"
    expected = "expected one expression of [MIN, [MAX, [MED, [SM, digits and ']', such as"
    result = run("predict", "listops-64d", good, bad)
    assert result.code == 1
    assert "arguments, text 2: " + expected in result.err
    assert "got '[FOO' at token 3" in result.err
    path, out = tmp_path / "some.txt", tmp_path / "out.tsv"
    path.write_text(f"{good}\n[MIN 1 2\n{bad}\n{good}\n")
    result = run("predict", "listops-64d", "--input", path, "--out", out)
    assert result.code == 1
    assert f"{path}, line 2: {expected}" in result.err
    assert not out.exists()
    result = run("predict", "listops-64d", "--input", path, "--skip-bad")
    assert result.code == 0
    assert [line.split("\t")[0] for line in result.out.splitlines()] == ["9", "9"]
    assert "2 bad lines skipped" in result.err
    # the first bad row is reported, with the number of the row
    table = tmp_path / "some.json"
    table.write_text(json.dumps([{"text": good}, {"text": bad}, {"text": ""}]))
    result = run("predict", "listops-64d", "--input", table)
    assert f"{table}, row 2: {expected}" in result.err
    assert "got an empty text" in run("predict", "listops-64d", "").err
    assert "got the end with 2 open brackets" in run("predict", "listops-64d", "[SM [SM 1").err
    # escapes are decoded first
    assert run("predict", "listops-64d", "[MAX 2 9 -RSB-").code == 1
    assert run("predict", "listops-64d", "--pretokenized", "[MAX 2 9 -RSB-").code == 0
    assert "--skip-bad" not in run("draw", "listops-64d", "[MIN 1 2").refused()
    # a model of sentences reads everything
    assert run("predict", models / "single", bad).code == 0


def test_checks_of_formulas():
    Logic.check_text("( a  ( and ( not b ) ) )")
    with pytest.raises(MismatchError, match="expected a formula of a"):
        Logic.check_text("( a ( and g ) )")


def test_checks_of_pairs_and_of_unknown_tasks(tmp_path):
    recipe = {"data": {"task": "logic"}}
    model = tiny_model("pair")
    for task, code in (("logic", 1), ("no task", 0), (None, 0), (["logic"], 0)):
        recipe["data"]["task"] = task
        gumbeltree.save(model, tmp_path / "model", provenance={"recipe": recipe})
        texts = ("a", "( not a )", "( a", "b")
        result = run("predict", tmp_path / "model", *texts)
        assert result.code == code, task
        if code:
            assert "arguments, pair 2: expected a formula of a..f" in result.err
