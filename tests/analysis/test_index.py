"""The index of sentences and its commands: index, neighbours."""

import builtins
import gzip
import json
import math
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import neighbours_speed, write_neighbours
from hypothesis import given
from hypothesis import strategies as st

import gumbeltree
from gumbeltree.analysis import index as index_module
from gumbeltree.analysis.index import Index, model_digest
from gumbeltree.analysis.index import approximate as index_approximate
from gumbeltree.analysis.index import files as index_files
from gumbeltree.analysis.index.files import (
    APPROXIMATE,
    HEADER,
    OFFSETS,
    TEXTS,
    VECTORS,
    Header,
    unit,
    write_files,
    write_folder,
    write_header,
)
from gumbeltree.text.ids import TextCounts
from tests.commands import run
from tests.models import TEXTS as SENTENCES
from tests.models import tiny_model

ROOT = Path(__file__).parent.parent.parent
REPORT = ROOT / "benchmarks" / "results" / "neighbours.json"
MODEL = tiny_model("pair")
OTHER = tiny_model("single", cell={"forget_offset": 0.0})
FILES = [HEADER, VECTORS, TEXTS, OFFSETS]
SUMMARY = "6 texts, 20 words, 2 unknown (10.0 %)\n"


def make(path, vectors, texts=None, approximate=False):
    """Write and open an index of given vectors."""
    vectors = np.asarray(vectors, dtype=np.float32)
    texts = [f"text {i}" for i in range(len(vectors))] if texts is None else texts

    def write(folder):
        width = vectors.shape[1]
        count = write_files(folder, width, [(texts, vectors)])
        lists = index_approximate.make(folder, unit(vectors)) if approximate else 0
        write_header(folder, Header("0", "", "", width, count, False, 0, False, lists))

    write_folder(path, write)
    return Index.open(path)


def plain(index, queries, k):
    """Return rows and cosines by a stable sort of all of them."""
    wide = unit(np.atleast_2d(queries)).astype(np.float64)
    products = index.vectors.astype(np.float64)[None] * wide[:, None]
    cosines = products.sum(-1).clip(-1, 1).astype(np.float32)
    rows = np.argsort(-cosines, axis=1, kind="stable")[:, :k]
    return rows, np.take_along_axis(cosines, rows, 1)


def agree(index, queries, k):
    rows, scores = index.search(queries, k)
    expected, cosines = plain(index, queries, k)
    assert rows.tolist() == expected.tolist()
    assert scores.tolist() == cosines.tolist()
    assert (rows.dtype, scores.dtype) == (np.int64, np.float32)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    gumbeltree.save(MODEL, folder / "pair")
    gumbeltree.save(OTHER, folder / "other")
    return folder


@pytest.fixture
def made(tmp_path, models):
    """The path of an index of the six sentences."""
    path = tmp_path / "six.index"
    Index.build(path, MODEL, SENTENCES, name=str(models / "pair"))
    return path


# search


def test_a_case_worked_by_hand(tmp_path):
    index = make(tmp_path / "x", [[3, 0], [0, 0.1], [-1, 0], [0, 0], [4, 3]])
    rows, scores = index.search(np.array([[2.0, 0], [0, 7]]), 3)
    assert rows.tolist() == [[0, 4, 1], [1, 4, 0]]
    np.testing.assert_allclose(scores, [[1, 0.8, 0], [1, 0.6, 0]], atol=1e-7)
    # a zero row is as near as one at a right angle, and farther up it comes first
    assert index.search(np.array([2.0, 0]), 9)[0].tolist() == [[0, 4, 1, 3, 2]]
    np.testing.assert_allclose(index.vectors[4], [0.8, 0.6])


@pytest.mark.parametrize("block", [1, 7, 64, 1000])
def test_exact(tmp_path, monkeypatch, block):
    monkeypatch.setattr(index_module, "BLOCK_ROWS", block)
    monkeypatch.setattr(index_module, "BLOCK_QUERIES", 4)
    monkeypatch.setattr(index_module, "RESCORED_ROWS", 3)
    generator = np.random.default_rng(1)
    vectors = generator.normal(size=(300, 20))
    index = make(tmp_path / "x", vectors)
    queries = generator.normal(size=(9, 20))
    for k in (1, 5, 300):
        agree(index, queries, k)
    agree(index, vectors[17], 5)
    assert index.search(vectors[17] * 1e-3, 1)[0].tolist() == [[17]]


@pytest.mark.parametrize("block", [3, 16, 1000])
def test_ties_go_to_the_lower_row(tmp_path, monkeypatch, block):
    monkeypatch.setattr(index_module, "BLOCK_ROWS", block)
    generator = np.random.default_rng(2)
    few = generator.normal(size=(4, 33))
    # copies at places that a product of matrices treats differently
    vectors = few[generator.integers(0, 4, 101)]
    index = make(tmp_path / "x", vectors)
    for query in few:
        own = np.flatnonzero((vectors == query).all(1))
        rows, scores = index.search(query, 7)
        assert rows[0].tolist() == own[:7].tolist()
        assert len(set(scores[0].tolist())) == 1
    agree(index, few, 101)


def test_vectors_that_hardly_differ(tmp_path):
    # cosines closer to each other than products in float32 can tell
    generator = np.random.default_rng(3)
    vectors = 1 + 1e-4 * generator.normal(size=(2000, 300))
    index = make(tmp_path / "x", vectors)
    agree(index, vectors[:5], 10)


@given(
    st.lists(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 1.0]), min_size=3, max_size=3), min_size=1),
    st.lists(st.sampled_from([-2.0, 0.0, 1.0]), min_size=3, max_size=3),
    st.integers(1, 40),
)
def test_exact_whatever_comes(tmp_path_factory, vectors, query, k):
    index = make(tmp_path_factory.mktemp("any") / "x", vectors)
    agree(index, np.array(query), k)


def test_zero_vectors(tmp_path):
    index = make(tmp_path / "x", [[0, 0], [-1, 0], [0, 0], [1, 1]])
    rows, scores = index.search(np.zeros((2, 2)), 3)
    assert rows.tolist() == [[0, 1, 2]] * 2
    assert not scores.any()
    # beside others that are not zero
    assert index.search(np.array([[0, 0], [-1, 0]]), 1)[0].tolist() == [[0], [1]]


def test_lengths_at_the_ends_of_float32():
    vectors = np.array([[3e38, 3e38], [1e-45, 0], [0, 0]], dtype=np.float32)
    expected = [[math.sqrt(0.5), math.sqrt(0.5)], [1, 0], [0, 0]]
    np.testing.assert_allclose(unit(vectors), expected, rtol=1e-6)


def test_k_beyond_the_index(tmp_path):
    index = make(tmp_path / "x", np.eye(3))
    rows, scores = index.search(np.array([0, 1, 0]), 10)
    assert rows.tolist() == [[1, 0, 2]]
    assert scores.tolist() == [[1, 0, 0]]
    assert index.search(np.empty((0, 3)), 10)[0].shape == (0, 3)


@pytest.mark.parametrize(("kept", "sizes"), [(1, [1] * 5), (8, [2, 2, 1]), (2**20, [5])])
def test_query_by_query(tmp_path, monkeypatch, kept, sizes):
    generator = np.random.default_rng(5)
    index = make(tmp_path / "x", generator.normal(size=(9, 3)))
    queries = generator.normal(size=(5, 3))
    rows, scores = index.search(queries, 4)
    seen = []
    exact = index._exact
    monkeypatch.setattr(index, "_exact", lambda some, k: seen.append(len(some)) or exact(some, k))
    monkeypatch.setattr(index_module, "BLOCK_FOUND", kept)
    found = index.search_each(queries, 4)
    assert seen == []
    for i, (near, cosines) in enumerate(found):
        assert (near.tolist(), cosines.tolist()) == (rows[i].tolist(), scores[i].tolist())
    assert seen == sizes
    with pytest.raises(ValueError, match="`k` must be a whole number"):
        index.search_each(queries, 0)


@pytest.mark.parametrize("length", [1e300, 1e-300, 5e-324])
def test_queries_of_any_length(tmp_path, length):
    index = make(tmp_path / "x", [[1, 0], [0, 1], [1, 1]])
    rows, scores = index.search(np.array([length, length]), 1)
    assert rows.tolist() == [[2]]
    np.testing.assert_allclose(scores, [[1]], atol=1e-6)


def test_search_refuses(tmp_path):
    index = make(tmp_path / "x", np.eye(3))
    for k in (0, -1, 2.0):
        with pytest.raises(ValueError, match="`k` must be a whole number from 1 on"):
            index.search(np.eye(3), k)
    for wrong in (np.eye(2), np.ones(4), np.ones((1, 1, 3)), np.array(1.0)):
        with pytest.raises(ValueError, match=r"must be \[Q, 3\] for this index, got"):
            index.search(wrong)
    for number in (np.nan, np.inf):
        with pytest.raises(ValueError, match="must be finite"):
            index.search(np.array([0, number, 0]))


def test_texts_come_back_as_they_were(tmp_path):
    texts = ["a\tb", "two\nlines\r\n", "", "naïve 犬 🐕", "\n", "last"]
    index = make(tmp_path / "x", np.eye(6), texts)
    assert index.texts(range(6)) == texts
    assert index.texts(np.array([5, 0, 5])) == ["last", "a\tb", "last"]
    for row in (-1, 6):
        with pytest.raises(IndexError, match=rf"rows lie in 0\.\.5, got {row}"):
            index.texts([row])


def test_files_are_mapped_not_read(tmp_path):
    index = make(tmp_path / "x", np.eye(3))
    for array in (index.vectors, index._offsets, index._text):
        assert isinstance(array, np.memmap)
        assert array.mode == "r"
    with pytest.raises(ValueError, match="read-only"):
        index.vectors[0, 0] = 7


# build


def test_build(tmp_path):
    counts = TextCounts()
    index = Index.build(tmp_path / "x", MODEL, iter(SENTENCES), name="tiny", counts=counts)
    assert [index.path, len(index)] == [tmp_path / "x", 6]
    assert index.header == Header(
        gumbeltree.__version__, "tiny", model_digest(MODEL), 6, 6, True, 0, False, 0
    )
    assert sorted(path.name for path in (tmp_path / "x").iterdir()) == sorted(FILES)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (counts.texts, counts.words) == (6, 20)
    vectors = MODEL.encode(SENTENCES)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(index.vectors, vectors / lengths, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(index.vectors, axis=1), 1, atol=1e-6)
    rows, scores = index.search(vectors, 1)
    assert index.texts(rows[:, 0]) == SENTENCES
    np.testing.assert_allclose(scores, 1, atol=1e-6)


@pytest.mark.parametrize("chunk", [1, 2, 4096])
def test_repeated_texts(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(index_module, "CHUNK_TEXTS", chunk)
    texts = ["now", "the dog", "now", "the dog ", "now", "one"]
    index = Index.build(tmp_path / "x", MODEL, texts)
    assert index.texts(range(len(index))) == ["now", "the dog", "the dog ", "one"]
    assert (index.header.unique, index.header.repeated) == (True, 2)
    index = Index.build(tmp_path / "y", MODEL, texts, unique=False)
    assert index.texts(range(len(index))) == texts
    assert (index.header.unique, index.header.repeated) == (False, 0)
    rows, scores = index.search(MODEL.encode(["now"]), 3)
    assert rows.tolist() == [[0, 2, 4]]
    assert len(set(scores[0].tolist())) == 1


def test_texts_are_taken_a_few_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(index_module, "CHUNK_CHARACTERS", 8)
    sizes = []
    encode = type(MODEL).encode

    def spy(self, texts, *arguments, **options):
        sizes.append(len(texts))
        return encode(self, texts, *arguments, **options)

    monkeypatch.setattr(type(MODEL), "encode", spy)
    Index.build(
        tmp_path / "x", MODEL, ["now", "now", "one dog", "not", "the dog", "all"], unique=False
    )
    assert sizes == [3, 2, 1]


def test_pretokenized(tmp_path):
    texts = ["the -LRB- dog"]
    index = Index.build(tmp_path / "x", MODEL, texts, pretokenized=True)
    assert index.header.pretokenized
    assert index.texts([0]) == texts
    np.testing.assert_allclose(
        index.vectors, unit(MODEL.encode(texts, pretokenized=True)), atol=1e-6
    )


def test_build_refuses(tmp_path):
    for texts, error, message in (
        ([], ValueError, "expected at least one text for an index, got none"),
        ("now", TypeError, r"got one string; pass \['now'\]"),
        (["now", "\ud800"], ValueError, "text 1 is not valid Unicode"),
    ):
        with pytest.raises(error, match=message):
            Index.build(tmp_path / "x", MODEL, texts)
    with pytest.raises(FileNotFoundError, match="make it first"):
        Index.build(tmp_path / "no" / "x", MODEL, ["now"])
    for number in (math.nan, math.inf):
        vectors = np.ones((4, 3))
        vectors[2, 1] = number
        with pytest.raises(ValueError, match="NaN or infinite numbers, at first for text 2; its"):
            make(tmp_path / "x", vectors)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, MemoryError])
@pytest.mark.parametrize("old", [False, True])
def test_an_interrupted_build_leaves_nothing(tmp_path, monkeypatch, made, error, old):
    monkeypatch.setattr(index_module, "CHUNK_TEXTS", 1)

    def texts():
        yield "now"
        yield "one dog"
        # the first two are on disk by now
        assert len([path for path in tmp_path.iterdir() if path.suffix == ".part"]) == 1
        raise error("stopped")

    path = made if old else tmp_path / "new.index"
    before = {file.name: file.read_bytes() for file in made.iterdir()}
    with pytest.raises(error, match="stopped"):
        Index.build(path, MODEL, texts(), replace=old)
    assert {file.name: file.read_bytes() for file in made.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["six.index"]


def test_replace(tmp_path, made):
    with pytest.raises(FileExistsError, match=r"six\.index exists; .* pass --replace"):
        Index.build(made, MODEL, ["now"])
    held = Index.open(made)
    index = Index.build(made, MODEL, ["now"], replace=True)
    assert len(index) == 1
    # who had it open keeps what was there
    assert held.texts([1]) == SENTENCES[1:2]
    (made / OFFSETS).unlink()
    Index.build(made, MODEL, ["now", "one"], replace=True)
    assert [path.name for path in tmp_path.iterdir()] == ["six.index"]
    (tmp_path / "empty").mkdir()
    assert len(Index.build(tmp_path / "empty", MODEL, ["now"], replace=True)) == 1


def test_a_failing_move_brings_the_old_index_back(tmp_path, made, monkeypatch):
    rename = Path.rename

    def failing(self, target):
        if self.suffix == ".part":
            raise OSError("no room")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="no room"):
        Index.build(made, MODEL, ["now"], replace=True)
    assert len(Index.open(made)) == 6
    assert [path.name for path in tmp_path.iterdir()] == ["six.index"]


def test_nothing_but_an_index_is_replaced(tmp_path, made):
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / HEADER).write_text('{"format": "mine"}', encoding="utf-8")
    (made / "notes.txt").write_text("mine", encoding="utf-8")
    before = sorted(map(str, tmp_path.rglob("*")))
    for path in (tmp_path / "file", tmp_path / "folder", made):
        with pytest.raises(FileExistsError, match="so it is not replaced"):
            Index.build(path, MODEL, ["now"], replace=True)
    assert sorted(map(str, tmp_path.rglob("*"))) == before


# damaged


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file(made, name):
    (made / name).unlink()
    with pytest.raises(FileNotFoundError, match=re.escape(name)):
        Index.open(made)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("keep", [0, 5, -1])
def test_a_truncated_file(made, name, keep):
    content = (made / name).read_bytes()
    # the last byte of the header is but a line end
    (made / name).write_bytes(content[: keep - 1 if name == HEADER and keep < 0 else keep])
    with pytest.raises(ValueError, match=f"{re.escape(name)}.*make the index anew"):
        Index.open(made)


@pytest.mark.parametrize("name", [VECTORS, TEXTS, OFFSETS])
def test_a_longer_file(made, name):
    with (made / name).open("ab") as file:
        file.write(b"more")
    with pytest.raises(ValueError, match=f"{re.escape(name)} is damaged"):
        Index.open(made)


def test_other_arrays(made):
    for values in (
        np.zeros((6, 6)),
        np.zeros((6, 7), dtype=np.float32),
        np.zeros(36, dtype=np.float32),
        np.asfortranarray(np.zeros((6, 6), dtype=np.float32)),
        np.array([None]),
    ):
        np.save(made / VECTORS, values)
        with pytest.raises(ValueError, match=rf"{VECTORS} is damaged"):
            Index.open(made)
    with (made / VECTORS).open("wb") as file:
        np.savez(file, x=np.zeros((6, 6), dtype=np.float32))
    with pytest.raises(ValueError, match=f"{VECTORS} is damaged"):
        Index.open(made)


def edit(made, **changes):
    about = json.loads((made / HEADER).read_text(encoding="utf-8")) | changes
    about = {key: value for key, value in about.items() if value is not None}
    (made / HEADER).write_text(json.dumps(about), encoding="utf-8")


def test_other_headers(made, tmp_path):
    good = (made / HEADER).read_bytes()
    for changes, message in (
        ({"format": "gumbeltree"}, 'expected "format": "gumbeltree-index"'),
        ({"format_version": 2}, r"format version 2, this gumbeltree \(.*\) reads version 1"),
        ({"format_version": None}, "format version None"),
        ({"width": None}, "`Header` lacks width"),
        ({"count": 0}, "`count` must be at least 1, got 0"),
        ({"count": "6"}, "`count` must be"),
        ({"count": True}, "`count` must be"),
        ({"count": 7}, f"{VECTORS} is damaged: expected float32"),
        ({"shape": 3}, "unknown key 'shape'"),
    ):
        edit(made, **changes)
        with pytest.raises(ValueError, match=message):
            Index.open(made)
        (made / HEADER).write_bytes(good)
    for content in (b"[]", b"[" * 10**5, b"\xff", b"null"):
        (made / HEADER).write_bytes(content)
        with pytest.raises(ValueError, match=f"{HEADER} is not"):
            Index.open(made)
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(FileNotFoundError, match=r"is no index: it has no index\.json"):
            Index.open(path)


def test_damage_inside_is_found_when_it_is_met(made):
    content = (made / TEXTS).read_bytes()
    (made / TEXTS).write_bytes(b"\xff" + content[1:])
    with pytest.raises(ValueError, match=f"{TEXTS} is damaged: it has text 0 is not UTF-8"):
        Index.open(made).texts([0])
    offsets = np.load(made / OFFSETS)
    for wrong in (0, -5, 10**6):
        changed = offsets.copy()
        changed[2] = wrong
        np.save(made / OFFSETS, changed)
        with pytest.raises(ValueError, match=f"{TEXTS} is damaged: it has text 1 from byte"):
            Index.open(made).texts([1])
    vectors = np.load(made / VECTORS)
    vectors[3, 3] = math.nan
    np.save(made / VECTORS, vectors)
    with pytest.raises(ValueError, match=f"{VECTORS} is damaged: it has numbers that are not"):
        Index.open(made).search(np.ones(6))


# the model


def test_the_digest_is_of_what_vectors_depend_on(models):
    digest = model_digest(MODEL)
    assert re.fullmatch("[0-9a-f]{64}", digest)
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


def test_another_model_is_refused(made):
    index = Index.open(made)
    index.check_model(MODEL)
    with pytest.raises(ValueError, match=r"made with another model: expected .*pair with digest"):
        index.check_model(OTHER, "other")


# approximate


def clusters(count):
    generator = np.random.default_rng(5)
    centres = generator.normal(size=(40, 16))
    return centres[generator.integers(0, 40, count)] + 0.3 * generator.normal(size=(count, 16))


def test_approximate_finds_nearly_all(tmp_path):
    pytest.importorskip("faiss")
    vectors = clusters(3000)
    index = make(tmp_path / "x", vectors, approximate=True)
    assert index.header.lists == 54
    queries = vectors[::30] + 0.1
    exact, cosines = index.search(queries, 5)
    rows, scores = index.search(queries, 5, approximate=True)
    found = [len(set(a) & set(b)) for a, b in zip(exact.tolist(), rows.tolist(), strict=True)]
    assert np.mean(found) / 5 > 0.95
    # where it finds the same, it scores the same
    same = (rows == exact).all(1)
    assert same.mean() > 0.8
    assert scores[same].tolist() == cosines[same].tolist()
    assert (np.diff(scores, axis=1) <= 0).all()


def test_approximate_looks_at_all_where_it_finds_too_few(tmp_path, monkeypatch):
    pytest.importorskip("faiss")
    monkeypatch.setattr(index_approximate, "LEAST", 1)
    monkeypatch.setattr(index_approximate, "SHARE", 1000)
    index = make(tmp_path / "x", clusters(400), approximate=True)
    query = clusters(1)
    for k in (200, 400):
        rows, _ = index.search(query, k, approximate=True)
        assert rows.tolist() == plain(index, query, k)[0].tolist()


def test_approximate_of_one_text(tmp_path):
    pytest.importorskip("faiss")
    index = Index.build(tmp_path / "x", MODEL, ["now"], approximate=True)
    rows, scores = index.search(MODEL.encode(["now"]), 5, approximate=True)
    assert rows.tolist() == [[0]]
    np.testing.assert_allclose(scores, 1, atol=1e-6)


def test_approximate_needs_its_file(tmp_path, made):
    pytest.importorskip("faiss")
    with pytest.raises(ValueError, match="has no approximate index; make it with `gumbeltree"):
        Index.open(made).search(np.ones(6), approximate=True)
    path = tmp_path / "x"
    Index.build(path, MODEL, SENTENCES, approximate=True)
    content = (path / APPROXIMATE).read_bytes()
    for keep in (0, 20, len(content) // 2):
        (path / APPROXIMATE).write_bytes(content[:keep])
        with pytest.raises(ValueError, match=f"{APPROXIMATE} is damaged or cut short: [^\n]*$"):
            Index.open(path).search(np.ones(6), approximate=True)
    Index.build(tmp_path / "other", MODEL, SENTENCES[:3], approximate=True)
    shutil.copy(tmp_path / "other" / APPROXIMATE, path)
    with pytest.raises(ValueError, match="is of another index: expected 6 vectors of 6 numbers"):
        Index.open(path).search(np.ones(6), approximate=True)
    (path / APPROXIMATE).unlink()
    with pytest.raises(FileNotFoundError, match=f"it has no {APPROXIMATE}"):
        Index.open(path).search(np.ones(6), approximate=True)


@pytest.fixture
def no_faiss(monkeypatch):
    original = builtins.__import__

    def without(name, *arguments, **options):
        if name.partition(".")[0] == "faiss":
            raise ImportError("No module named 'faiss'")
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)


def test_faiss_is_an_extra(tmp_path, no_faiss, models):
    # refused before anything is encoded
    texts = iter(["now"])
    with pytest.raises(ImportError, match=r"needs faiss: pip install 'gumbeltree\[faiss\]'"):
        Index.build(tmp_path / "x", MODEL, texts, approximate=True)
    assert next(texts) == "now"
    out = tmp_path / "y"
    message = run("index", models / "pair", "--out", out, "--faiss", stdin=b"now\n").refused()
    assert "pip install 'gumbeltree[faiss]'" in message
    assert list(tmp_path.iterdir()) == []
    Index.build(tmp_path / "x", MODEL, ["now"]).search(np.ones(6))
    edit(tmp_path / "x", lists=1)
    with pytest.raises(ImportError, match=r"gumbeltree\[faiss\]"):
        Index.open(tmp_path / "x").search(np.ones(6), approximate=True)


# commands


def test_index_command(models, tmp_path):
    given, packed = tmp_path / "texts.txt", tmp_path / "texts.gz"
    content = "\n".join([*SENTENCES, "now", "now"]).encode()
    given.write_bytes(content)
    packed.write_bytes(gzip.compress(content))
    said = "2 repeated texts left out\n" + SUMMARY
    for number, (options, stdin) in enumerate(
        [(["--input", given], b""), (["--input", packed], b""), ([], content)]
    ):
        out = tmp_path / f"{number}.index"
        code, printed, err = run("index", models / "pair", *options, "--out", out, stdin=stdin)
        assert (code, printed, err) == (0, "", f"{out}: 6 x 6, float32\n{said}")
        index = Index.open(out)
        assert index.texts(range(6)) == SENTENCES
        assert index.header.model == str(models / "pair")
        np.testing.assert_allclose(index.vectors, unit(MODEL.encode(SENTENCES)), atol=1e-6)
    out = tmp_path / "all.index"
    assert run("index", models / "pair", "--input", given, "--out", out, "--all", "-q")[1:] == (
        "",
        "",
    )
    assert len(Index.open(out)) == 8


def test_index_command_refuses(models, tmp_path, made):
    assert "got no --out" in run("index", models / "pair", stdin=b"now").refused()
    options = ["index", models / "pair", "--out"]
    assert "pass --replace" in run(*options, made, stdin=b"now").refused()
    assert len(Index.open(made)) == 6
    assert run(*options, made, "--replace", stdin=b"now").code == 0
    assert len(Index.open(made)) == 1
    out = tmp_path / "new.index"
    assert "at least one text" in run(*options, out, stdin=b"").refused()
    assert "line 2: expected at least one word" in run(*options, out, stdin=b"now\n\n").refused()
    assert not out.exists()
    result = run(*options, out, "--skip-bad", stdin=b"now\n\n")
    assert "1 bad line skipped:" in result.err
    assert Index.open(out).texts([0]) == ["now"]


def test_an_index_of_bad_lines_alone(models, tmp_path):
    out = tmp_path / "x.index"
    for content, what in ((b" \n\n", "all 2 lines are bad"), (b"\n", "the only line is bad")):
        result = run("index", models / "pair", "--out", out, "--skip-bad", stdin=content)
        message = result.refused()
        assert f"got none: {what}, at first standard input, line 1: expected at least" in message
    assert list(tmp_path.iterdir()) == []


def test_sigterm_leaves_no_part_of_an_index(models, tmp_path, monkeypatch):
    def encode(*arguments, **options):
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError("the signal was not noticed")

    monkeypatch.setattr(gumbeltree.SentenceModel, "encode", encode)
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        result = run("index", models / "pair", "--out", tmp_path / "x.index", stdin=b"a dog\n")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (result.code, result.out, result.err) == (143, "", "")
    assert list(tmp_path.iterdir()) == []


def test_each_query_is_printed_before_the_next_is_looked_up(made, monkeypatch):
    asked = []
    texts = Index.texts

    def once(self, rows):
        asked.append(rows)
        if len(asked) > 1:
            raise ValueError("enough")
        return texts(self, rows)

    monkeypatch.setattr(Index, "texts", once)
    result = run("neighbours", made, "one dog", "now", "-k", 1)
    assert (result.code, result.out) == (1, "one dog\n  1.0000  one dog\n")


def test_neighbours_command(made):
    code, out, err = run("neighbours", made, "one dog", "now", "-k", "3")
    assert (code, err) == (0, "2 texts, 3 words\n")
    index = Index.open(made)
    blocks = []
    for text in ("one dog", "now"):
        rows, scores = index.search(MODEL.encode([text]), 3)
        lines = [
            f"{score:8.4f}  {found}\n"
            for score, found in zip(scores[0], index.texts(rows[0]), strict=True)
        ]
        blocks.append("".join([f"{text}\n", *lines]))
    assert out == "\n".join(blocks)
    assert out.startswith("one dog\n  1.0000  one dog\n")


def test_neighbours_as_json_and_from_a_file(made, tmp_path, monkeypatch):
    monkeypatch.setattr("gumbeltree.text.lines.CHUNK_LINES", 1)
    given = tmp_path / "queries.txt"
    given.write_text("now\nthe dog barked\nzebra\n", encoding="utf-8")
    result = run("neighbours", made, "--input", given, "--json", "-q")
    assert (result.code, result.err) == (0, "")
    objects = [json.loads(line) for line in result.out.splitlines()]
    index = Index.open(made)
    assert [about["text"] for about in objects] == ["now", "the dog barked", "zebra"]
    for about in objects:
        rows, scores = index.search(MODEL.encode([about["text"]]), 5)
        assert [each["row"] for each in about["neighbours"]] == rows[0].tolist()
        assert [each["score"] for each in about["neighbours"]] == scores[0].tolist()
        assert [each["text"] for each in about["neighbours"]] == index.texts(rows[0])
    # the same number of empty lines, in one chunk or in several
    table = run("neighbours", made, "--input", given, "-q").out
    assert table == run("neighbours", made, "now", "the dog barked", "zebra", "-q").out
    assert table.split("\n\n")[1].startswith("the dog barked\n")


def test_a_text_stays_on_its_line(tmp_path, models):
    Index.build(tmp_path / "x", MODEL, ["the\tdog\nsleeps"], name=str(models / "pair"))
    out = run("neighbours", tmp_path / "x", "not\tone\ncat", "-q").out
    assert [line.strip()[-14:] for line in out.splitlines()] == ["not one cat", "the dog sleeps"]
    exact = json.loads(run("neighbours", tmp_path / "x", "now\n", "-q", "--json").out)
    assert exact["text"] == "now\n"
    assert exact["neighbours"][0]["text"] == "the\tdog\nsleeps"


def test_neighbours_command_checks_the_model(made, models, tmp_path):
    assert run("neighbours", made, "now", "--model", models / "pair").code == 0
    message = run("neighbours", made, "now", "--model", models / "other").refused()
    assert "was made with another model" in message
    assert f"got {models / 'other'} with" in message
    edit(made, model="/nowhere/model")
    message = run("neighbours", made, "now").refused()
    assert "with the model /nowhere/model, which is not there; pass it with --model" in message
    assert run("neighbours", made, "now", "--model", models / "pair").code == 0
    edit(made, model="")
    assert "does not say which model made it" in run("neighbours", made, "now").refused()
    assert "is no index" in run("neighbours", tmp_path, "now").refused()
    assert run("neighbours", made, "now", "-k", "0").code == 2


def test_neighbours_command_approximately(tmp_path, models):
    pytest.importorskip("faiss")
    out = tmp_path / "x"
    stdin = "\n".join(SENTENCES).encode()
    assert run("index", models / "pair", "--out", out, "--faiss", stdin=stdin).code == 0
    exact = run("neighbours", out, "now", "one", "-q")
    assert run("neighbours", out, "now", "one", "-q", "--approximate") == exact


def test_a_relative_name_is_found_from_elsewhere(models, tmp_path, monkeypatch):
    monkeypatch.chdir(models)
    assert run("index", "pair", "--out", tmp_path / "x", "-q", stdin=b"now").code == 0
    monkeypatch.chdir(tmp_path)
    assert run("neighbours", "x", "now", "-q").out == "now\n  1.0000  now\n"


def test_a_packaged_name_stays_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = gumbeltree.pretrained_models()[0].name
    assert run("index", name, "--out", "x", "-q", stdin=b"a dog sleeps .").code == 0
    assert Index.open("x").header.model == name
    assert run("neighbours", "x", "a dog sleeps .", "-q").out.endswith("1.0000  a dog sleeps .\n")


# what is measured


def test_the_benchmark_measures(tmp_path, monkeypatch):
    monkeypatch.setattr(neighbours_speed, "BLOCK", 128)
    path = tmp_path / "x"
    neighbours_speed.make(path, 1000, 8)
    index = Index.open(path)
    assert len(index) == 1000
    neighbours_speed.check(index)
    # the ties that the benchmark promises
    rows, scores = index.search(np.array(index.vectors[3]), 2)
    assert rows.tolist() == [[3, 903]]
    assert scores[0, 0] == scores[0, 1]
    run = neighbours_speed.measure(path)
    assert 0 < run["open_seconds"] < 1
    assert 0 < run["query_seconds"]["fastest"] <= run["query_seconds"]["median"]
    monkeypatch.setattr(index_module, "_candidates", lambda fast, k, *_: np.arange(k))
    monkeypatch.setattr(Index, "_scores", lambda self, query, rows: np.zeros(len(rows)))
    with pytest.raises(ValueError, match="not timed"):
        neighbours_speed.check(index)


def test_the_page_is_what_was_measured():
    report = json.loads(REPORT.read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "neighbours.md").read_text(encoding="utf-8")
    assert write_neighbours.replaced(page, "speed", write_neighbours.speed(report)) == page
    assert (report["vectors"]["count"], report["vectors"]["width"]) == (1_000_000, 300)
    assert report["machine"]["threads"] == 2
    assert report["best"]["open_seconds"] < 1
    assert report["cold"]["open_seconds"] < 1
    assert report["best"]["query_seconds"]["median"] < 0.5
    assert report["best"]["first_query_seconds"] < 0.5
    for query in write_neighbours.TABLE_3:
        assert f"**{query.text}**" in page
        for place, text in enumerate(query.paper, 1):
            assert re.search(rf"\| {place} \| [01]\.\d\d\d \| [^|]+ \| {re.escape(text)} \|", page)


def test_the_page_is_written_from_the_data(tmp_path, models):
    pytest.importorskip("faiss")
    pairs = [("A dog | sleeps.", "now"), ("the dog", "now "), ("not one", "all night .")]
    rows = [
        json.dumps({"gold_label": "-" if i else "neutral", "sentence1": a, "sentence2": b})
        for i, (a, b) in enumerate(pairs)
    ]
    (tmp_path / "dev.jsonl").write_text("\n".join(rows), encoding="utf-8")
    page = tmp_path / "page.md"
    names = ("table 3", "speed", "recall")
    marks = "".join(f"kept\n<!-- {name} -->\nold\n<!-- end of {name} -->\n" for name in names)
    page.write_text(marks, encoding="utf-8")
    arguments = (tmp_path / "dev.jsonl", str(models / "pair"), REPORT, page)
    write_neighbours.write(*arguments)
    text = page.read_text(encoding="utf-8")
    assert "over the 5 distinct sentences" in text
    assert "A dog \\| sleeps." in text
    assert text.count("kept") == 3
    assert "old" not in text
    write_neighbours.write(*arguments)
    assert page.read_text(encoding="utf-8") == text
    page.write_text("nothing", encoding="utf-8")
    with pytest.raises(ValueError, match="expected <!-- table 3 -->"):
        write_neighbours.write(*arguments)


def test_what_appears_at_the_name_meanwhile_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "index"

    def write(folder: Path) -> None:
        (folder / "vectors.npy").write_bytes(b"new")
        path.mkdir()
        (path / "thesis.txt").write_text("work", encoding="utf-8")

    for replace in (False, True):
        with pytest.raises(FileExistsError):
            index_files.write_folder(path, write, replace)
        assert [found.name for found in tmp_path.iterdir()] == ["index"]
        assert (path / "thesis.txt").read_text(encoding="utf-8") == "work"
        (path / "thesis.txt").unlink()
        path.rmdir()


def test_a_file_that_appears_at_the_name_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "index"

    def write(folder: Path) -> None:
        path.write_text("work", encoding="utf-8")

    with pytest.raises(FileExistsError, match="exists; name another folder"):
        index_files.write_folder(path, write)
    assert path.read_text(encoding="utf-8") == "work"
    assert [found.name for found in tmp_path.iterdir()] == ["index"]
