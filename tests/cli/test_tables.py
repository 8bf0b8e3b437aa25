"""Tables as the input and output of the commands that use a model."""

import csv
import gzip
import json

import numpy as np
import pytest

import gumbeltree
from tests.commands import run
from tests.models import TEXTS, tiny_model

PAIR, SINGLE = tiny_model("pair"), tiny_model("single")
REVIEWS = [text + ", 'so' it is" for text in TEXTS]
ROWS = [{"id": str(n), "review": text, "stars": "good"} for n, text in enumerate(REVIEWS)]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    gumbeltree.save(PAIR, folder / "pair")
    recipe = {"data": {"task": "table", "text": "review", "text2": "", "label": "stars"}}
    gumbeltree.save(SINGLE, folder / "single", {"recipe": recipe})
    gumbeltree.save(SINGLE, folder / "plain")
    return folder


def delimited(separator):
    header = separator.join(ROWS[0])
    rows = (separator.join(f'"{cell}"' for cell in row.values()) for row in ROWS)
    return "\n".join([header, *rows]) + "\n"


FILES = {
    "a.csv": delimited(",").encode(),
    "b.CSV": b"\xef\xbb\xbf" + delimited(";").replace("\n", "\r\n").encode(),
    "c.tsv.gz": gzip.compress(delimited("\t").encode()),
    "d.jsonl": "".join(json.dumps(row) + "\n" for row in ROWS).encode(),
    "e.json": json.dumps(ROWS, indent=1).encode(),
}


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(FILES["a.csv"])
    return path


@pytest.mark.parametrize("name", FILES)
def test_commands_read_a_column(models, tmp_path, name):
    path = tmp_path / name
    path.write_bytes(FILES[name])
    for model, options in (("single", []), ("plain", ["--text", "review"])):
        given = ["--input", path, *options]
        code, out, _ = run("predict", models / model, *given, "--json")
        found = [json.loads(line) for line in out.splitlines()]
        assert code == 0
        assert [answer["text"] for answer in found] == REVIEWS
        assert [answer["label"] for answer in found] == [x.label for x in SINGLE.predict(REVIEWS)]
    result = run("parse", models / "single", "--input", path)
    assert result.out.splitlines() == [str(tree) for tree in SINGLE.parse_many(REVIEWS)]
    assert run("encode", models / "single", "--input", path, "--out", tmp_path / "x.npy").code == 0
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), SINGLE.encode(REVIEWS), atol=1e-6)
    index = tmp_path / "texts.index"
    assert run("index", models / "single", "--input", path, "--out", index).code == 0
    code, out, _ = run("neighbours", index, "--input", path, "-k", 1, "--json")
    assert code == 0
    found = [json.loads(line) for line in out.splitlines()]
    assert [answer["text"] for answer in found] == REVIEWS
    assert [answer["neighbours"][0]["score"] for answer in found] == pytest.approx([1] * 6)


@pytest.mark.parametrize("options", [[], ["--text", "a", "--text2", "b"]], ids=["default", "named"])
def test_predict_reads_both_columns_of_pairs(models, tmp_path, options):
    names = "a,b" if options else "text,text2"
    path = tmp_path / "pairs.csv"
    path.write_text(f'n,{names}\n1,the dog,"now, one"\n2,not one,the night\n', encoding="utf-8")
    code, out, _ = run("predict", models / "pair", "--input", path, *options)
    assert code == 0
    pairs = [("the dog", "now, one"), ("not one", "the night")]
    answers = PAIR.predict(pairs)
    expected = [[*answer.cells(), *pair] for answer, pair in zip(answers, pairs, strict=True)]
    assert [line.split("\t") for line in out.splitlines()] == expected


def test_predict_writes_all_columns_to_a_table(models, table, tmp_path):
    out = tmp_path / "out.csv"
    assert run("predict", models / "single", "--input", table, "--out", out).code == 0
    with out.open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    answers = [answer.cells() for answer in SINGLE.predict(REVIEWS)]
    assert found == [
        {**row, "predicted": label, "probability": probability}
        for row, (label, probability) in zip(ROWS, answers, strict=True)
    ]
    # the result is a table as well, whose predictions are kept
    again = tmp_path / "again.csv"
    assert run("predict", models / "single", "--input", out, "--out", again).code == 0
    header = again.read_text("utf-8").splitlines()[0]
    assert header == "id,review,stars,predicted,probability,new_predicted,new_probability"
    assert run("predict", models / "single", "--input", again, "--out", out).code == 0
    header = out.read_text("utf-8").splitlines()[0].split(",")
    assert len(set(header)) == len(header) == 9


@pytest.mark.parametrize(("ending", "separator"), [(".csv", ","), (".tsv", "\t")])
def test_predict_quotes_line_breaks_and_separators(models, tmp_path, ending, separator):
    rows = [["the dog", "x\ny"], ["a\rdog", "p\tq,r"], ['"now"', "\r\n"]]
    source, out = tmp_path / "in.jsonl", tmp_path / f"out{ending}"
    lines = [json.dumps(dict(zip(("text", "note"), row, strict=True))) for row in rows]
    source.write_text("\n".join(lines), encoding="utf-8")
    assert (
        run("predict", models / "single", "--input", source, "--text", "text", "--out", out).code
        == 0
    )
    with out.open(encoding="utf-8", newline="") as file:
        header, *found = csv.reader(file, delimiter=separator)
    assert header == ["text", "note", "predicted", "probability"]
    assert [row[:2] for row in found] == rows


@pytest.mark.parametrize("arguments", [["x.parquet"], ["x.json"], ["x.csv", "--json"]])
def test_predict_rejects_files_it_cannot_write(models, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    result = run("predict", models / "single", "the dog", "--out", *arguments)
    assert "FILE.csv" in result.refused()
    assert not list(tmp_path.glob("x.*"))


def test_predict_writes_json_lines(models, tmp_path):
    out = tmp_path / "out.jsonl"
    assert run("predict", models / "single", "the dog", "--out", out).code == 0
    assert json.loads(out.read_text("utf-8"))["text"] == "the dog"


def test_predict_writes_texts_to_a_table(models, tmp_path):
    out = tmp_path / "out.csv"
    assert run("predict", models / "single", "a dog, now", "--out", out).code == 0
    (answer,) = SINGLE.predict(["a dog, now"])
    rows = list(csv.reader(out.read_text("utf-8").splitlines()))
    assert rows == [["text", "predicted", "probability"], ["a dog, now", *answer.cells()]]
    empty = tmp_path / "empty.csv"
    empty.write_text("id,review\n", encoding="utf-8")
    assert run("predict", models / "single", "--input", empty, "--out", out).code == 0
    assert out.read_text("utf-8") == "id,review,predicted,probability\n"


@pytest.mark.parametrize(("name", "content"), [("a.csv", ""), ("a.csv", "\n\n"), ("a.json", "[]")])
def test_rejects_empty_tables(models, tmp_path, name, content):
    (tmp_path / name).write_text(content, encoding="utf-8")
    message = run("predict", models / "single", "--input", tmp_path / name).refused()
    assert f"{name} is empty" in message
    assert message.count("\n") == 1


def test_rejects_or_skips_bad_rows(models, tmp_path):
    path = tmp_path / "a.csv"
    lines = ["id,review", '1,"the', 'dog"', "2,", "3,one,dog", "4,now"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = ["predict", models / "single", "--input", path]
    message = run(*command).refused()
    assert "a.csv, line 4: expected text as column 'review', got an empty string" in message
    assert "--skip-bad" in message
    code, out, err = run(*command, "--skip-bad", "--json")
    assert code == 0
    assert [json.loads(line)["text"] for line in out.splitlines()] == ["the\ndog", "now"]
    assert "2 bad lines skipped" in err
    assert "line 5: expected 2 columns, got 3\n" in err
    assert "--skip-bad" not in err


def test_names_the_columns_that_a_table_has(models, table):
    message = run("predict", models / "plain", "--input", table).refused()
    assert "line 1: expected a column 'text', got columns 'id', 'review', 'stars'" in message
    assert "--text COLUMN" in message
    message = run("predict", models / "pair", "--input", table, "--text", "review").refused()
    assert "expected a column 'text2'" in message
    assert "--text2 COLUMN" in message


def test_columns_without_a_header(models, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("1,the dog\n2,now\n", encoding="utf-8")
    code, out, _ = run("parse", models / "plain", "--input", path, "--text", 1)
    assert (code, out) == (0, "( the dog )\nnow\n")


@pytest.mark.parametrize(
    ("source", "place"),
    [("texts.txt", "texts.txt"), (None, "standard input"), ("now", "arguments")],
)
def test_rejects_columns_of_what_is_no_table(models, tmp_path, source, place):
    (tmp_path / "texts.txt").write_text("now\n", encoding="utf-8")
    given = {"texts.txt": ["--input", tmp_path / "texts.txt"], None: [], "now": ["now"]}[source]
    message = run("predict", models / "single", *given, "--text", "review", stdin=b"now").refused()
    assert "--text names a column of a table" in message
    assert place in message
    assert ".csv" in message


@pytest.mark.parametrize("name", ["a.csv", "b.CSV", "c.tsv.gz"])
def test_rejects_a_table_that_is_read_line_by_line(models, tmp_path, name):
    content = gzip.decompress(FILES[name]) if name.endswith(".gz") else FILES[name]
    (tmp_path / "texts.txt").write_bytes(content)
    columns = "looks like a table with the columns 'id', 'review', 'stars'"
    for options, place, fix in (
        ([], "standard input", "save it to a file and pass --input FILE.csv --text COLUMN"),
        (
            ["--input", tmp_path / "texts.txt"],
            "texts.txt",
            "ends in .csv and pass --input FILE.csv",
        ),
    ):
        result = run("predict", models / "single", *options, stdin=content)
        message = result.refused()
        assert f"{place} {columns}" in message
        assert fix in message
        assert message.count("\n") == 1
        assert result.out == ""


@pytest.mark.parametrize(
    "lines",
    [
        ["Yes, sir", "No, sir", "Never, sir"],
        ["yes , sir", "no , sir", "never , sir"],
        ["I came, I saw, I won.", "It rains, it pours, it ends.", "We ate, we left, we slept."],
        ["Well; no.", "Fine; yes.", "Good; perhaps."],
        ["1,000", "2,500", "3,000"],
        # too few lines to tell
        ["id,review", "1,the dog"],
        # other rows have other numbers of fields
        ["dog,cat", "one,two,three", "now,then"],
        ["a dog", "the night", "now"],
    ],
)
def test_prose_is_no_table(models, lines):
    result = run("predict", models / "plain", stdin="\n".join(lines).encode())
    assert result.code == 0, result.err
    assert len(result.out.splitlines()) == len(lines)


def test_a_minus_stands_for_standard_input(models):
    (result,) = {run("predict", models / "plain", *x, stdin=b"now") for x in ([], ["--input", "-"])}
    assert result.code == 0


def test_rejects_texts_beside_a_file(models, table):
    options = ["--input", table, "--text", "review"]
    message = run("predict", models / "plain", "the dog", *options).refused()
    assert f"both --input {table} and the text 'the dog' were given" in message


def test_rejects_a_file_as_a_text(models, table):
    message = run("predict", models / "single", "now", table).refused()
    assert f"--input {table}" in message
    assert run("predict", models / "single", "no-such-file.csv").code == 0


def test_rejects_a_second_column_for_single_sentences(models, table):
    message = run("predict", models / "single", "--input", table, "--text2", "stars").refused()
    assert "omit --text2" in message


def test_rejects_spreadsheets(models, tmp_path):
    (tmp_path / "a.xlsx").write_bytes(b"PK\x03\x04")
    message = run("predict", models / "single", "--input", tmp_path / "a.xlsx").refused()
    assert "save it as CSV" in message
