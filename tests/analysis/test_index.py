"""The index of sentences and its commands: index, neighbours."""

import gzip
import json
import math
import re
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import write_neighbours
from hypothesis import given
from hypothesis import strategies as st

import gumbeltree
from gumbeltree.analysis import index as index_module
from gumbeltree.analysis.index import (
    HEADER,
    OFFSETS,
    TEXTS,
    VECTORS,
    Header,
    Index,
    model_digest,
    unit,
    write_index,
)
from gumbeltree.text.ids import TextCounts
from gumbeltree.text_model import TextModel
from tests.commands import run
from tests.models import TEXTS as SENTENCES
from tests.models import tiny_model

MODEL = tiny_model("pair")
OTHER = tiny_model("single", cell={"forget_offset": 0.0})
FILES = [HEADER, VECTORS, TEXTS, OFFSETS]


def index_of(path, vectors, texts=None):
    """Write and open an index of the given vectors."""
    vectors = np.asarray(vectors, dtype=np.float32)
    texts = [f"text {i}" for i in range(len(vectors))] if texts is None else texts
    header = Header("0", "", "", vectors.shape[1], False, False)
    write_index(path, header, [(texts, vectors)])
    return Index.open(path)


def assert_exact(index, queries, k):
    """Compare with a sort of all cosines; rows may be swapped only if float32 cannot tell them."""
    rows, scores = index.search(queries, k)
    cosines = unit(np.atleast_2d(queries)).astype(np.float64) @ index.vectors.T.astype(np.float64)
    expected = -np.sort(-cosines, axis=1)[:, :k]
    assert (rows.dtype, scores.dtype) == (np.int64, np.float32)
    assert rows.shape == scores.shape == expected.shape
    np.testing.assert_allclose(scores, expected, atol=1e-6)
    np.testing.assert_allclose(np.take_along_axis(cosines, rows, 1), scores, atol=1e-6)
    assert all(len(set(row)) == len(row) for row in rows.tolist())
    assert (np.diff(scores, axis=1) <= 0).all()
    assert ((np.diff(rows, axis=1) > 0) | (np.diff(scores, axis=1) < 0)).all()


def edit_header(folder, **changes):
    """Change index.json; a value of None removes the key."""
    content = json.loads((folder / HEADER).read_text(encoding="utf-8")) | changes
    content = {key: value for key, value in content.items() if value is not None}
    (folder / HEADER).write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    gumbeltree.save(MODEL, folder / "pair")
    gumbeltree.save(OTHER, folder / "other")
    return folder


@pytest.fixture
def built(tmp_path, models):
    """The path of an index of the six sentences."""
    path = tmp_path / "six.index"
    Index.build(path, MODEL, SENTENCES, name=str(models / "pair"))
    return path


# search


def test_search_finds_rows_worked_out_by_hand(tmp_path):
    index = index_of(tmp_path / "x", [[3, 0], [0, 0.1], [-1, 0], [0, 0], [4, 3]])
    rows, scores = index.search(np.array([[2.0, 0], [0, 7]]), 3)
    assert rows.tolist() == [[0, 4, 1], [1, 4, 0]]
    np.testing.assert_allclose(scores, [[1, 0.8, 0], [1, 0.6, 0]], atol=1e-7)
    # the zero vector in row 3 has cosine 0
    assert index.search(np.array([2.0, 0]), 9)[0].tolist() == [[0, 4, 1, 3, 2]]


@pytest.mark.parametrize(("rows", "queries"), [(7, 4), (100, 2), (2**14, 256)])
def test_search_is_exact(tmp_path, monkeypatch, rows, queries):
    monkeypatch.setattr(index_module, "BLOCK_ROWS", rows)
    monkeypatch.setattr(index_module, "BLOCK_QUERIES", queries)
    generator = np.random.default_rng(1)
    vectors = generator.normal(size=(300, 20))
    index = index_of(tmp_path / "x", vectors)
    for k in (1, 5, 300):
        assert_exact(index, generator.normal(size=(9, 20)), k)
    assert index.search(vectors[17] * 1e-3, 1)[0].tolist() == [[17]]


@given(
    st.lists(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 1.0]), min_size=3, max_size=3), min_size=1),
    st.lists(st.sampled_from([-2.0, 0.0, 1.0]), min_size=3, max_size=3),
    st.integers(1, 40),
)
def test_search_is_exact_with_ties_and_zero_vectors(tmp_path_factory, vectors, query, k):
    index = index_of(tmp_path_factory.mktemp("any") / "x", vectors)
    assert_exact(index, np.array(query), k)


@pytest.mark.parametrize("block", [2, 2**14])
def test_ties_go_to_the_lower_row(tmp_path, monkeypatch, block):
    monkeypatch.setattr(index_module, "BLOCK_ROWS", block)
    index = index_of(tmp_path / "x", [[0, 1], [1, 0], [0, 1], [1, 0], [1, 0], [0, 1], [1, 0]])
    assert index.search(np.array([1, 0]), 3)[0].tolist() == [[1, 3, 4]]
    assert index.search(np.array([1, 0]), 6)[0].tolist() == [[1, 3, 4, 6, 0, 2]]
    assert index.search(np.zeros(2), 3)[0].tolist() == [[0, 1, 2]]


def test_k_may_exceed_the_number_of_texts(tmp_path):
    index = index_of(tmp_path / "x", np.eye(3))
    rows, scores = index.search(np.array([0, 1, 0]), 10)
    assert (rows.tolist(), scores.tolist()) == ([[1, 0, 2]], [[1, 0, 0]])
    assert index.search(np.empty((0, 3)), 10)[0].shape == (0, 3)


def test_unit_vectors_at_the_limits_of_float32():
    vectors = np.array([[3e38, 3e38], [1e-45, 0], [0, 0]], dtype=np.float32)
    expected = [[math.sqrt(0.5), math.sqrt(0.5)], [1, 0], [0, 0]]
    np.testing.assert_allclose(unit(vectors), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("query", "k", "message"),
    [
        (np.eye(3), 0, "`k` .* 0"),
        (np.eye(2), 1, r"\[Q, 3\] .* \[2, 2\]"),
        (np.ones(4), 1, r"\[Q, 3\] .* \[4\]"),
        (np.ones((1, 1, 3)), 1, r"\[1, 1, 3\]"),
        (np.array([0, np.inf, 0]), 1, "infinite"),
    ],
)
def test_search_rejects_bad_arguments(tmp_path, query, k, message):
    index = index_of(tmp_path / "x", np.eye(3))
    with pytest.raises(ValueError, match=message):
        index.search(query, k)


def test_texts_are_returned_unchanged(tmp_path):
    texts = ["a\tb", "two\nlines\r\n", "", "naïve 犬 🐕", "\n", "last"]
    index = index_of(tmp_path / "x", np.eye(6), texts)
    assert index.texts(range(6)) == texts
    assert index.texts(np.array([5, 0, 5])) == ["last", "a\tb", "last"]
    for row in (-1, 6):
        with pytest.raises(IndexError, match=f"row {row} "):
            index.texts([row])


# build


def test_build_writes_header_texts_and_unit_vectors(tmp_path):
    counts = TextCounts()
    index = Index.build(tmp_path / "x", MODEL, iter(SENTENCES), name="tiny", counts=counts)
    assert (index.path, len(index)) == (tmp_path / "x", 6)
    assert index.header == Header(
        gumbeltree.__version__, "tiny", model_digest(MODEL), 6, True, False, count=6
    )
    assert {path.name for path in (tmp_path / "x").iterdir()} == set(FILES)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (counts.texts, counts.words) == (6, 20)
    vectors = MODEL.encode(SENTENCES)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(index.vectors, vectors / lengths, atol=1e-6)
    rows, scores = index.search(vectors, 1)
    assert index.texts(rows[:, 0]) == SENTENCES
    np.testing.assert_allclose(scores, 1, atol=1e-6)


@pytest.mark.parametrize("chunk", [1, 2, 4096])
def test_repeated_texts_are_skipped_unless_unique_is_off(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(index_module, "CHUNK_TEXTS", chunk)
    texts = ["now", "the dog", "now", "the dog ", "now", "one"]
    index = Index.build(tmp_path / "x", MODEL, texts)
    assert index.texts(range(len(index))) == ["now", "the dog", "the dog ", "one"]
    assert (index.header.unique, index.header.repeated) == (True, 2)
    index = Index.build(tmp_path / "y", MODEL, texts, unique=False)
    assert index.texts(range(len(index))) == texts
    assert (index.header.unique, index.header.repeated) == (False, 0)


def test_build_with_pretokenized_texts(tmp_path):
    texts = ["the -LRB- dog"]
    index = Index.build(tmp_path / "x", MODEL, texts, pretokenized=True)
    assert index.header.pretokenized
    assert index.texts([0]) == texts
    expected = unit(MODEL.encode(texts, pretokenized=True))
    np.testing.assert_allclose(index.vectors, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("path", "texts", "error", "message"),
    [
        ("x", [], ValueError, "no texts"),
        ("x", "now", TypeError, r"\['now'\]"),
        ("x", ["now", "\ud800"], ValueError, "text 1 is not valid Unicode"),
        ("no/x", ["now"], FileNotFoundError, "does not exist"),
    ],
)
def test_build_rejects_bad_arguments(tmp_path, path, texts, error, message):
    with pytest.raises(error, match=message):
        Index.build(tmp_path / path, MODEL, texts)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("replace", [False, True])
def test_interrupted_build_leaves_nothing_behind(tmp_path, monkeypatch, built, replace):
    monkeypatch.setattr(index_module, "CHUNK_TEXTS", 1)

    def texts():
        yield "now"
        yield "one dog"
        raise KeyboardInterrupt

    before = {file.name: file.read_bytes() for file in built.iterdir()}
    with pytest.raises(KeyboardInterrupt):
        Index.build(built if replace else tmp_path / "new", MODEL, texts(), replace=replace)
    assert {file.name: file.read_bytes() for file in built.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["six.index"]


def test_replace_overwrites_an_index(tmp_path, built):
    with pytest.raises(FileExistsError, match=r"six\.index already exists.*--replace"):
        Index.build(built, MODEL, ["now"])
    still_open = Index.open(built)
    assert len(Index.build(built, MODEL, ["now"], replace=True)) == 1
    assert still_open.texts([1]) == SENTENCES[1:2]
    # also if it is damaged, or was reached through a link
    (built / OFFSETS).unlink()
    (tmp_path / "link").symlink_to(built)
    Index.build(tmp_path / "link", MODEL, ["now", "one"], replace=True)
    assert len(Index.open(built)) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "six.index"]


def test_only_an_index_is_replaced(tmp_path, built):
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    (tmp_path / "folder").mkdir()
    (built / "notes.txt").write_text("mine", encoding="utf-8")
    before = sorted(map(str, tmp_path.rglob("*")))
    for path in (tmp_path / "file", tmp_path / "folder", built):
        with pytest.raises(FileExistsError, match="not replaced"):
            Index.build(path, MODEL, ["now"], replace=True)
    assert sorted(map(str, tmp_path.rglob("*"))) == before


@pytest.mark.parametrize("replace", [False, True])
def test_files_created_during_a_build_are_kept(tmp_path, replace):
    path = tmp_path / "index"

    def texts():
        yield "now"
        path.mkdir()
        (path / "thesis.txt").write_text("work", encoding="utf-8")

    with pytest.raises(FileExistsError):
        Index.build(path, MODEL, texts(), replace=replace)
    assert [file.name for file in tmp_path.iterdir()] == ["index"]
    assert (path / "thesis.txt").read_text(encoding="utf-8") == "work"


# older and damaged folders


def test_indexes_with_an_approximate_index_still_open(tmp_path, built):
    (built / "approximate.faiss").write_bytes(b"unused")
    edit_header(built, lists=3, gumbeltree_version="0.9.0")
    index = Index.open(built)
    assert index.texts(index.search(MODEL.encode(["one dog"]), 1)[0][0]) == ["one dog"]
    assert len(Index.build(built, MODEL, ["now"], replace=True)) == 1
    assert {path.name for path in built.iterdir()} == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_missing_file_is_reported(built, name):
    (built / name).unlink()
    with pytest.raises(FileNotFoundError, match=re.escape(name)):
        Index.open(built)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("keep", [0, -2])
def test_truncated_file_is_reported(built, name, keep):
    (built / name).write_bytes((built / name).read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"six\.index.*rebuild the index"):
        Index.open(built)


def test_wrong_vectors_are_reported(built):
    np.save(built / VECTORS, np.zeros((6, 7), np.float32))
    with pytest.raises(ValueError, match="damaged"):
        Index.open(built)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "gumbeltree"}, "gumbeltree-index"),
        ({"format_version": 2}, "version 2, .* reads version 1"),
        ({"count": "6"}, "`count` must be"),
        ({"count": 7}, "damaged"),
        ({"shape": 3}, "unknown key 'shape'"),
    ],
)
def test_wrong_header_is_reported(built, changes, message):
    edit_header(built, **changes)
    with pytest.raises(ValueError, match=message):
        Index.open(built)


def test_folder_that_is_no_index_is_reported(tmp_path):
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(FileNotFoundError, match=r"not an index.*index\.json"):
            Index.open(path)


# the model


def test_digest_depends_on_what_vectors_depend_on(models):
    digest = model_digest(MODEL)
    assert model_digest(gumbeltree.load(models / "pair")) == digest
    assert model_digest(tiny_model("pair", impl="reference")) == digest
    # the same encoder under another head
    single = tiny_model("single")
    encoder = {k: v for k, v in MODEL.state_dict().items() if not k.startswith("head")}
    single.load_state_dict(encoder, strict=False)
    assert model_digest(single) == digest
    for other in (
        tiny_model("pair", cell={"forget_offset": 0.0}),
        tiny_model("pair", lower=True),
        tiny_model("pair").double(),
        tiny_model("pair").bfloat16(),
    ):
        assert model_digest(other) != digest
    for name in ("embedding.weight", "encoder.query"):
        changed = tiny_model("pair")
        with torch.no_grad():
            changed.state_dict()[name].view(-1)[-1] += 1e-3
        assert model_digest(changed) != digest


def test_digest_matches_existing_indexes():
    model = gumbeltree.load(Path(__file__).parent.parent / "frozen" / "models" / "pair")
    assert model_digest(model).startswith("5421b0722a34d660")


# commands


def test_index_command_reads_files_and_standard_input(models, tmp_path):
    plain, packed = tmp_path / "texts.txt", tmp_path / "texts.gz"
    content = "\n".join([*SENTENCES, "now", "now"]).encode()
    plain.write_bytes(content)
    packed.write_bytes(gzip.compress(content))
    for number, (options, stdin) in enumerate(
        [(["--input", plain], b""), (["--input", packed], b""), ([], content)]
    ):
        out = tmp_path / f"{number}.index"
        result = run("index", models / "pair", *options, "--out", out, stdin=stdin)
        assert (result.code, result.out) == (0, "")
        assert f"{out}: 6 x 6" in result.err
        assert "2 repeated texts skipped" in result.err
        assert "6 texts, 20 words" in result.err
        index = Index.open(out)
        assert index.texts(range(6)) == SENTENCES
        assert index.header.model == str(models / "pair")
        np.testing.assert_allclose(index.vectors, unit(MODEL.encode(SENTENCES)), atol=1e-6)
    options = ["index", models / "pair", "--input", plain, "--out", out, "--all", "-q"]
    assert "--replace" in run(*options).refused()
    assert run(*options, "--replace") == (0, "", "")
    assert len(Index.open(out)) == 8


def test_index_command_reports_bad_lines(models, tmp_path):
    out = tmp_path / "new.index"
    options = ["index", models / "pair", "--out", out]
    assert "line 2" in run(*options, stdin=b"now\n\n").refused()
    assert "no texts" in run(*options, "--skip-bad", stdin=b" \n\n").refused()
    assert list(tmp_path.iterdir()) == []
    assert "1 bad line skipped" in run(*options, "--skip-bad", stdin=b"now\n\n").err
    assert Index.open(out).texts([0]) == ["now"]


def test_sigterm_leaves_no_part_of_an_index(models, tmp_path, monkeypatch):
    def encode(*arguments, **options):
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError("the signal was not noticed")

    monkeypatch.setattr(TextModel, "encode", encode)
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        result = run("index", models / "pair", "--out", tmp_path / "x.index", stdin=b"a dog\n")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (result.code, result.out, result.err) == (143, "", "")
    assert list(tmp_path.iterdir()) == []


def test_neighbours_command_prints_a_table(built):
    code, out, err = run("neighbours", built, "one dog", "now", "-k", "3")
    assert (code, err) == (0, "2 texts, 3 words\n")
    first, second = (block.splitlines() for block in out.split("\n\n"))
    assert first[:2] == ["one dog", "  1.0000  one dog"]
    assert second[:2] == ["now", "  1.0000  now"]
    assert len(first) == len(second) == 4


def test_neighbours_command_reads_a_file_and_prints_json(built, tmp_path, monkeypatch):
    monkeypatch.setattr("gumbeltree.text.lines.CHUNK_LINES", 1)
    path = tmp_path / "queries.txt"
    path.write_text("now\nthe dog barked\nzebra\n", encoding="utf-8")
    result = run("neighbours", built, "--input", path, "--json", "-q")
    assert (result.code, result.err) == (0, "")
    answers = [json.loads(line) for line in result.out.splitlines()]
    index = Index.open(built)
    assert [answer["text"] for answer in answers] == ["now", "the dog barked", "zebra"]
    for answer in answers:
        rows, scores = index.search(MODEL.encode([answer["text"]]), 5)
        near = answer["neighbours"]
        assert [neighbour["row"] for neighbour in near] == rows[0].tolist()
        assert [neighbour["score"] for neighbour in near] == pytest.approx(scores[0], abs=1e-5)
        assert [neighbour["text"] for neighbour in near] == index.texts(rows[0])


def test_table_shows_each_text_on_one_line(tmp_path, models):
    Index.build(tmp_path / "x", MODEL, ["the\tdog\nsleeps"], name=str(models / "pair"))
    out = run("neighbours", tmp_path / "x", "not\tone\ncat", "-q").out
    assert [line.strip()[-14:] for line in out.splitlines()] == ["not one cat", "the dog sleeps"]
    answer = json.loads(run("neighbours", tmp_path / "x", "now\n", "-q", "--json").out)
    assert answer["text"] == "now\n"
    assert answer["neighbours"][0]["text"] == "the\tdog\nsleeps"


def test_neighbours_command_checks_the_model(built, models, tmp_path):
    options = ["neighbours", built, "now"]
    assert run(*options, "--model", models / "pair").code == 0
    message = run(*options, "--model", models / "other").refused()
    assert "another model" in message
    assert str(models / "other") in message
    edit_header(built, model="/nowhere/model")
    message = run(*options).refused()
    assert "/nowhere/model" in message
    assert "--model" in message
    assert run(*options, "--model", models / "pair").code == 0
    edit_header(built, model="")
    assert "--model" in run(*options).refused()
    assert "not an index" in run("neighbours", tmp_path, "now").refused()
    assert run(*options, "-k", "0").code == 2


def test_model_is_found_from_another_working_directory(models, tmp_path, monkeypatch):
    monkeypatch.chdir(models)
    assert run("index", "pair", "--out", tmp_path / "x", "-q", stdin=b"now").code == 0
    monkeypatch.chdir(tmp_path)
    assert run("neighbours", "x", "now", "-q").out == "now\n  1.0000  now\n"


def test_packaged_model_is_stored_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = gumbeltree.pretrained_models()[0].name
    assert run("index", name, "--out", "x", "-q", stdin=b"a dog sleeps .").code == 0
    assert Index.open("x").header.model == name
    assert run("neighbours", "x", "a dog sleeps .", "-q").out.endswith("1.0000  a dog sleeps .\n")


# docs/neighbours.md


def test_page_is_written_from_the_data(tmp_path, models):
    pairs = [("A dog | sleeps.", "now"), ("the dog", "now "), ("not one", "all night .")]
    rows = [
        json.dumps({"gold_label": "-" if i else "neutral", "sentence1": a, "sentence2": b})
        for i, (a, b) in enumerate(pairs)
    ]
    (tmp_path / "dev.jsonl").write_text("\n".join(rows), encoding="utf-8")
    page = tmp_path / "page.md"
    marks = "".join(f"kept\n<!-- {x} -->\nold\n<!-- end of {x} -->\n" for x in ("table 3", "speed"))
    page.write_text(marks, encoding="utf-8")
    write_neighbours.write(tmp_path / "dev.jsonl", str(models / "pair"), page, 1000, 8)
    text = page.read_text(encoding="utf-8")
    assert "over the 5 distinct sentences" in text
    assert "A dog \\| sleeps." in text
    assert "1,000 random vectors" in text
    assert (text.count("kept"), text.count("old")) == (2, 0)
