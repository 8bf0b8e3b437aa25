"""Vectors for words that a file lacks: of their parts, and borrowed from another file."""

import json
import re
import zipfile

import numpy as np
import pytest

from gumbeltree import load
from gumbeltree.config import load_recipe, with_settings
from gumbeltree.data.compile import prepare
from gumbeltree.data.prepared import load_prepared, save_prepared
from gumbeltree.text.missing_vectors import RIDGES, Fit, add_parts, borrow, parts
from gumbeltree.text.vectors import Vectors
from tests.runs import SMALL, contents


@pytest.fixture(autouse=True)
def _place(tmp_path, monkeypatch):
    monkeypatch.setenv("GUMBELTREE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


# parts


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("coming-of-age", ["coming", "of", "age"]),
        ("sci-fi", ["sci", "fi"]),
        ("and/or", ["and", "or"]),
        ("u.s.", ["u", "s"]),
        ("rock-'n'-roll", ["rock", "n", "roll"]),
        ("d\u2019\u00eatre", ["d", "\u00eatre"]),
        ("well\u2010made", ["well", "made"]),
        ("well\u2011made", ["well", "made"]),
        ("so--so", ["so", "so"]),
        ("'tis", ["tis"]),
        ("film", ["film"]),
        ("a_b", ["a_b"]),
        ("``", ["``"]),
        ("--", []),
        ("...", []),
        ("''", []),
        ("", []),
    ],
)
def test_parts(word, expected):
    assert parts(word) == expected


def known():
    array = np.array([[1, 2], [3, 4], [6, 12]], dtype=np.float32)
    return Vectors(("a", "b", "c"), array, ("a-b", "x"), lines=9)


def test_means_of_parts():
    words = ["a-b", "a", "a-b-c", "a-x", "--", "a.a'b", "x", "c.", "b-a", "a-b"]
    vectors = add_parts(known(), words)
    # in the order asked for, behind those of the file; a part that comes twice counts twice
    assert vectors.words == ("a", "b", "c", "a-b", "a-b-c", "a.a'b", "c.", "b-a")
    expected = [[1, 2], [3, 4], [6, 12], [2, 3], [10 / 3, 6], [5 / 3, 8 / 3], [6, 12], [2, 3]]
    assert vectors.array.dtype == np.float32
    assert vectors.array.tolist() == np.float32(expected).tolist()
    assert vectors.missing == ("x",)
    assert vectors.lines == 9
    assert "a-x" not in vectors
    assert "--" not in vectors


def test_words_with_a_vector_keep_it():
    array = np.array([[1, 2], [3, 4], [9, 9]], dtype=np.float32)
    vectors = add_parts(Vectors(("a", "b", "a-b"), array), ["a-b"])
    assert vectors["a-b"].tolist() == [9, 9]
    assert len(vectors) == 3


def test_no_word_with_parts():
    assert add_parts(known(), []).array.tolist() == known().array.tolist()
    assert add_parts(known(), ["x-y"]).words == ("a", "b", "c")


# borrowed


def pair(shared=60, only=7, noise=0.0, x_dim=4, y_dim=3, seed=0):
    """Two files, y = x A + b but for noise, and the true vectors of words the first lacks."""
    random = np.random.default_rng(seed)
    x = random.normal(2, 1, (shared + only, x_dim)).astype(np.float32)
    truth = x.astype(np.float64) @ random.normal(0, 1, (x_dim, y_dim)) + [5, -3, 1][:y_dim]
    y = (truth + noise * random.normal(0, 1, truth.shape)).astype(np.float32)
    words = [f"w{i}" for i in range(shared + only)]
    # the second file has another order
    order = random.permutation(shared + only)
    second = Vectors(tuple(words[i] for i in order), x[order])
    first = Vectors(("mine", *words[:shared]), np.concatenate([np.ones_like(y[:1]), y[:shared]]))
    return first, second, {w: truth[i] for i, w in enumerate(words) if i >= shared}


@pytest.mark.parametrize(("x_dim", "y_dim"), [(4, 3), (2, 3), (6, 2), (3, 3)])
def test_a_linear_relation_is_found(x_dim, y_dim):
    first, second, truth = pair(x_dim=x_dim, y_dim=y_dim)
    vectors, fit = borrow(first, second)
    assert fit == Fit(60, RIDGES[0], 1.0)
    assert vectors.words[:61] == first.words
    assert set(vectors.words[61:]) == set(truth)
    for word, vector in truth.items():
        np.testing.assert_allclose(vectors[word], vector, atol=1e-4)
    assert vectors.array.dtype == np.float32


def oracle(first, second):
    """The same by least squares with one more row for each number of the second file."""

    def fitted(x, y, ridge):
        mean_x, mean_y = x.mean(0), y.mean(0)
        variance = ((x - mean_x) ** 2).sum() / x.shape[1]
        rows = np.sqrt(ridge * variance) * np.eye(x.shape[1])
        left, right = np.vstack([x - mean_x, rows]), np.vstack([y - mean_y, 0 * rows @ x.T @ y])
        weight = np.linalg.lstsq(left, right, rcond=None)[0]
        return lambda new: (new - mean_x) @ weight + mean_y

    words = [word for word in first.words if word in second]
    x = np.array([second[word] for word in words], dtype=np.float64)
    y = np.array([first[word] for word in words], dtype=np.float64)
    held = [i for i in range(len(words)) if i % 10 == 9]
    rest = [i for i in range(len(words)) if i % 10 != 9]
    errors, cosines = [], []
    for ridge in RIDGES:
        mapped = fitted(x[rest], y[rest], ridge)(x[held])
        errors.append(((mapped - y[held]) ** 2).mean())
        cosines.append(
            np.mean(
                [
                    a @ b / np.sqrt(a @ a) / np.sqrt(b @ b)
                    for a, b in zip(mapped, y[held], strict=True)
                ]
            )
        )
    best = int(np.argmin(errors))
    return fitted(x, y, RIDGES[best]), RIDGES[best], cosines[best]


def test_the_map_is_that_of_ridge_regression():
    chosen = set()
    for noise, seed in [(0.1, 0), (3.0, 1), (10.0, 2), (30.0, 3), (30.0, 4)]:
        first, second, truth = pair(80, 7, noise, 8, 3, seed)
        vectors, fit = borrow(first, second)
        mapped, ridge, cosine = oracle(first, second)
        assert fit.ridge == ridge
        assert fit.cosine == pytest.approx(cosine, abs=1e-4)
        for word in truth:
            np.testing.assert_allclose(vectors[word], mapped(second[word]), atol=1e-4)
        # the first file wins
        assert vectors.array[: len(first)].tobytes() == first.array.tobytes()
        chosen.add(ridge)
    assert len(chosen) > 1


def test_the_same_bytes_each_time_and_in_another_order_of_sums():
    first, second, _ = pair(200, 50, 0.5)
    one = borrow(first, second)[0]
    again = borrow(first, second)[0]
    assert one.array.tobytes() == again.array.tobytes()
    # coarse enough that rounding errors do not show: largest number below 16, 20 bits
    assert 8 < np.abs(first.array).max() < 16
    steps = one.array[len(first) :].astype(np.float64) * 2**16
    assert (steps == np.round(steps)).all()


def test_too_few_words_in_both():
    first, second, _ = pair(shared=40)
    borrow(first, second)
    first, second, _ = pair(shared=39)
    message = r"at least 40 words that both .* 10 for each of the second's 4 numbers, got 39; take"
    with pytest.raises(ValueError, match=message):
        borrow(first, second)


def test_vectors_that_say_nothing():
    first, second, truth = pair()
    flat = Vectors(second.words, np.ones_like(second.array))
    vectors, _ = borrow(first, flat)
    mean = first.array[1:].mean(axis=0)
    for word in truth:
        np.testing.assert_allclose(vectors[word], mean, atol=1e-4)
    zeros, fit = borrow(Vectors(first.words, np.zeros_like(first.array)), second)
    assert not zeros.array.any()
    assert fit.cosine == 0


def test_nothing_to_borrow():
    first, second, _ = pair(only=0)
    vectors, fit = borrow(first, second)
    assert vectors.words == first.words
    assert fit.shared == 60


# from files to a prepared one


def write(path, vectors, *lines):
    rows = [
        f"{word} {' '.join(map(str, row))}"
        for word, row in zip(vectors.words, vectors.array.tolist(), strict=True)
    ]
    path.write_text("\n".join([*lines, *rows]) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def files(tmp_path):
    """A table, a vector file of 3 numbers and one of 4, and the true vectors of w60 to w66."""
    first, second, truth = pair(noise=1e-3)
    rows = [f"{' '.join(f'w{j}' for j in range(i, i + 10))},{i % 2}" for i in range(0, 60, 10)]
    # borrowed; parts in the first file; one part borrowed; one in neither; in neither; no parts
    rows += ["w60 w61 w60,0", "mine-w1 w2-w3/w62 w1-zzz zzz --,1"]
    table = tmp_path / "table.csv"
    table.write_text("\n".join(["text,label", *rows, ""]), encoding="utf-8")
    one = write(tmp_path / "one.txt", first)
    two = write(tmp_path / "two.txt", second, "theirs 1 2 3 4")
    return table, one, two, {**truth, **{word: first[word] for word in first.words}}


def small(*settings):
    given = ["dev_fraction=0", "test_fraction=0", "embedding_dim=3", "pretokenized=true"]
    plain = ["extra_words=0", "missing_vectors=zero"]
    return with_settings(load_recipe("text"), [*given, *plain, *settings])


def vector(prepared, word):
    return prepared.vectors[prepared.tokenizer.token_to_id(word)]


def test_all_sources(files):
    table, one, two, truth = files
    said = []
    prepared = prepare(
        small("missing_vectors=parts"), table, one, dev=table, more_vectors=two, say=said.append
    )
    # the first file wins: the map would be off by the noise
    for word in ("w0", "w5", "w59"):
        assert vector(prepared, word).tolist() == truth[word].tolist()
    for word in ("w60", "w61"):
        np.testing.assert_allclose(vector(prepared, word), truth[word], atol=1e-2)
        assert vector(prepared, word).any()
    np.testing.assert_allclose(
        vector(prepared, "mine-w1"), (truth["mine"] + truth["w1"]) / 2, rtol=1e-6
    )
    # w62 is only in the second file
    mean = (truth["w2"] + truth["w3"] + truth["w62"]) / 3
    np.testing.assert_allclose(vector(prepared, "w2-w3/w62"), mean, atol=1e-2)
    for word in ("w1-zzz", "zzz", "--", "<unk>", "<pad>"):
        assert vector(prepared, word).tolist() == [0, 0, 0]
    # 60 words of the file, w60 twice, w61, two with parts, three others; in train and dev
    about = prepared.report["vectors"]
    fitted = {name: about["borrowed"].pop(name) for name in ("ridge", "cosine")}
    assert fitted["ridge"] in RIDGES
    assert fitted["cosine"] == pytest.approx(1, abs=1e-4)
    assert about == {
        "file": "one.txt",
        "types": 60,
        "all_types": 67,
        "tokens": 120,
        "all_tokens": 136,
        "borrowed": {"file": "two.txt", "types": 2, "tokens": 6, "shared": 60},
        "parts": {"types": 2, "tokens": 4},
    }
    about["borrowed"] |= {**fitted, "cosine": 0.789}
    assert list(prepared.lines())[-3:] == [
        "vectors: for 60 of 67 words of the data, 88.2% of their occurrences",
        "borrowed from two.txt: for 2 more words, 4.4% of the occurrences; 60 words in both files, "
        "held-out cosine 0.79",
        "means of parts: for 2 more words, 2.9% of the occurrences; others zero",
    ]
    assert said[-2:] == [
        f"reading word vectors from {one}",
        f"reading more word vectors from {two}",
    ]


def test_each_alone(files):
    table, one, two, truth = files
    plain = prepare(small(), table, one, dev=table)
    assert set(plain.report["vectors"]) == {"file", "types", "all_types", "tokens", "all_tokens"}
    parted = prepare(small("missing_vectors=parts"), table, one, dev=table)
    assert "borrowed" not in parted.report["vectors"]
    assert parted.report["vectors"]["parts"] == {"types": 1, "tokens": 2}
    assert parted.report["vectors"]["types"] == plain.report["vectors"]["types"] == 60
    assert vector(parted, "mine-w1").any()
    assert not vector(parted, "w2-w3/w62").any()
    last = list(parted.lines())[-1]
    assert last == "means of parts: for 1 more words, 1.5% of the occurrences; others zero"
    borrowed = prepare(small(), table, one, dev=table, more_vectors=two)
    assert "parts" not in borrowed.report["vectors"]
    np.testing.assert_allclose(vector(borrowed, "w61"), truth["w61"], atol=1e-2)
    assert not vector(borrowed, "mine-w1").any()
    assert list(borrowed.lines())[-1].endswith("held-out cosine 1.00; others zero")
    drawn = prepare(small("missing_vectors=random"), table, one, dev=table, more_vectors=two)
    np.testing.assert_array_equal(vector(drawn, "w61"), vector(borrowed, "w61"))
    assert vector(drawn, "zzz").any()
    assert np.abs(vector(drawn, "zzz")).max() < 0.06
    assert list(drawn.lines())[-1].endswith("; others random")
    prints = {x.fingerprint() for x in (plain, parted, borrowed, drawn)}
    assert len(prints) == 4
    again = prepare(small(), table, one, dev=table, more_vectors=two)
    assert again.fingerprint() == borrowed.fingerprint()
    assert again.report == borrowed.report


def test_escapes_of_treebanks(tmp_path):
    tree = r"(3 (4 either\/or) (3 (3 -LRB-) (1 B.C.)))"
    for name in ("train", "dev", "test"):
        (tmp_path / f"{name}.txt").write_text(tree + "\n(0 (1 bad) (1 ...))\n", encoding="utf-8")
    lines = "either 1 2\nor 3 4\nb 5 6\nc 7 9\nlrb 8 8\nbad 1 1\n"
    (tmp_path / "glove.txt").write_text(lines, encoding="utf-8")
    recipe = with_settings(
        load_recipe("sst5"), ["embedding_dim=2", "extra_words=0", "missing_vectors=parts"]
    )
    prepared = prepare(recipe, tmp_path, tmp_path / "glove.txt")
    assert vector(prepared, "either/or").tolist() == [2, 3]
    assert vector(prepared, "b.c.").tolist() == [6, 7.5]
    assert vector(prepared, "bad").tolist() == [1, 1]
    # an opening bracket is no lrb
    assert vector(prepared, "(").tolist() == [0, 0]
    assert vector(prepared, "...").tolist() == [0, 0]
    assert prepared.report["vectors"]["types"] == 1
    assert prepared.report["vectors"]["parts"]["types"] == 2


def test_extra_words_come_from_the_first_file(files):
    table, one, two, _ = files
    prepared = prepare(small("extra_words=100"), table, one, dev=table, more_vectors=two)
    ids = prepared.tokenizer.get_vocab()
    assert "mine" in ids
    assert "theirs" not in ids
    assert "w62" not in ids
    assert prepared.report["vocabulary"]["extra"] == 1


def test_a_prepared_file_tells_where_vectors_come_from(files, tmp_path):
    table, one, two, _ = files
    prepared = prepare(small("missing_vectors=parts"), table, one, dev=table, more_vectors=two)
    save_prepared(prepared, tmp_path / "p.safetensors")
    loaded = load_prepared(tmp_path / "p.safetensors")
    assert loaded.report["vectors"] == prepared.report["vectors"]
    assert list(loaded.lines()) == list(prepared.lines())
    np.testing.assert_array_equal(loaded.vectors, prepared.vectors)


def test_a_second_file_in_an_archive(files, tmp_path):
    table, one, two, _ = files
    plain = prepare(small(), table, one, dev=table, more_vectors=two).fingerprint()
    archive = tmp_path / "two.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.write(two, "two.txt")
    assert prepare(small(), table, one, dev=table, more_vectors=archive).fingerprint() == plain
    # of several the one as wide as the first file's vectors
    several = tmp_path / "several.zip"
    with zipfile.ZipFile(several, "w") as file:
        file.write(two, "glove.4d.txt")
        file.write(one, "glove.3d.txt")
    prepared = prepare(small(), table, one, dev=table, more_vectors=several)
    assert prepared.report["vectors"]["borrowed"]["types"] == 0
    with zipfile.ZipFile(several, "w") as file:
        file.write(two, "glove.4d.txt")
        file.write(one, "glove.5d.txt")
    with pytest.raises(ValueError, match=r"several\.zip has no \.txt file with 3d in its name"):
        prepare(small(), table, one, dev=table, more_vectors=several)
    archive.write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"two\.zip is no \.zip file"):
        prepare(small(), table, one, dev=table, more_vectors=archive)


def test_what_is_refused(files, tmp_path):
    table, one, two, _ = files
    with pytest.raises(ValueError, match=r"two\.txt .*--vec"):
        prepare(small(), table, dev=table, more_vectors=two)
    with pytest.raises(FileNotFoundError, match=r"no\.txt does not exist"):
        prepare(small(), table, one, dev=table, more_vectors=tmp_path / "no.txt")
    few = tmp_path / "few.txt"
    few.write_text("w1 1 2 3\nw60 1 2 3\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"few\.txt: expected at least 30 words .* 3 numbers, got"):
        prepare(small(), table, one, dev=table, more_vectors=few)


# the commands

OPTIONS = (
    *("embedding_dim=3", "dev_fraction=0.3", "test_fraction=0", "extra_words=0"),
    *("missing_vectors=parts", "vocabulary=all"),
)


def arguments(*files):
    settings = [x for s in (*SMALL, *OPTIONS) for x in ("--set", s)]
    table, one, two = files
    source = ("--data", table, "--vectors", one, "--more-vectors", two)
    return [*source, "--text", "text", "--label", "label", "--pretokenized", *settings]


def test_prepare_and_train(cli, files, tmp_path):
    table, one, two, _ = files
    given = arguments(table, one, two)
    made = cli("data", "prepare", "text", *given, "--out", "all.safetensors")
    assert made.code == 0, made
    run = cli("train", "text", *given, "--out", "direct")
    assert run.code == 0, run
    for result in (made, run):
        shown = result.out + result.err
        assert f"reading more word vectors from {two}" in shown
        assert re.search(
            r"borrowed from two\.txt: for \d more words, .* cosine [01]\.\d\d\n", shown
        )
        assert re.search(r"means of parts: for \d more words, .*; others zero\n", shown)
    # the model tells both files
    about = load("direct").provenance["data"]["vectors"]
    assert (about["file"], about["borrowed"]["file"]) == ("one.txt", "two.txt")
    settings = [x for s in (*SMALL, *OPTIONS) for x in ("--set", s)]
    again = cli(
        *("train", "text", "--prepared", "all.safetensors", "--out", "prepared", *settings),
        *("--text", "text", "--label", "label", "--pretokenized"),
    )
    assert again.code == 0, again
    assert contents("prepared") == contents("direct")
    assert "borrowed from two.txt" in again.err
    both = cli("train", "demo", "--prepared", "all.safetensors", "--more-vectors", two)
    assert "--prepared holds data and vectors already" in both.refused()
    for command in (["train", "demo"], ["data", "prepare", "demo", "--out", "x"]):
        alone = cli(*command, "--more-vectors", two)
        assert "--vectors" in alone.refused()
        assert not (tmp_path / "x").exists()
    for command in (["train"], ["data", "prepare"]):
        assert "--more-vectors" in cli(*command, "--help").out


def test_a_run_goes_on_with_files_that_were_moved(cli, files, tmp_path):
    table, one, two, _ = files
    short = cli("train", "text", *arguments(table, one, two), "--out", "run", "--set", "epochs=1")
    assert short.code == 0, short
    settings = json.loads((tmp_path / "run/settings.json").read_text(encoding="utf-8"))
    assert "two.txt" not in json.dumps(settings)
    assert settings["recipe"]["data"]["missing_vectors"] == "parts"
    (tmp_path / "else").mkdir()
    one, two = one.rename(tmp_path / "else/one.txt"), two.rename(tmp_path / "else/two.txt")
    longer = cli("train", "text", *arguments(table, one, two), "--out", "run", "--resume")
    assert longer.code == 0, longer
    whole = cli("train", "text", *arguments(table, one, two), "--out", "whole")
    assert whole.code == 0, whole
    assert contents("run") == contents("whole")
    # without the second file these are other data
    given = arguments(table, one, two)
    place = given.index("--more-vectors")
    other = cli("train", "text", *given[:place], *given[place + 2 :], "--out", "run", "--resume")
    assert other.code == 1
    assert "run holds a run of another kind: its data is" in other.err.splitlines()[-1]
