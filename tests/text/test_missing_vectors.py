"""Vectors for out-of-vocabulary words: averaged from parts, and borrowed from another file."""

import json
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
def _working_folder(tmp_path, monkeypatch):
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


@pytest.fixture
def known():
    return Vectors(("a", "b", "c"), np.array([[1, 2], [3, 4], [6, 12]], dtype=np.float32))


def test_means_of_parts(known):
    words = ["a-b", "a", "a-b-c", "a-x", "--", "a.a'b", "x", "c.", "b-a", "a-b"]
    vectors = add_parts(known, words)
    # repeated parts count twice
    assert vectors.words == ("a", "b", "c", "a-b", "a-b-c", "a.a'b", "c.", "b-a")
    expected = [[1, 2], [3, 4], [6, 12], [2, 3], [10 / 3, 6], [5 / 3, 8 / 3], [6, 12], [2, 3]]
    assert vectors.array.dtype == np.float32
    assert vectors.array.tolist() == np.float32(expected).tolist()


@pytest.mark.parametrize("words", [[], ["x-y"], ["a"]])
def test_nothing_to_add(known, words):
    vectors = add_parts(known, words)
    assert vectors.words == known.words
    assert vectors.array.tolist() == known.array.tolist()


# borrowed


def pair(shared=60, only=7, noise=0.0, x_dim=4, y_dim=3, seed=0):
    """Return two files, y = x A + b plus noise, and the true vectors of words the first lacks."""
    random = np.random.default_rng(seed)
    x = random.normal(2, 1, (shared + only, x_dim)).astype(np.float32)
    truth = x.astype(np.float64) @ random.normal(0, 1, (x_dim, y_dim)) + [5, -3, 1][:y_dim]
    y = (truth + noise * random.normal(0, 1, truth.shape)).astype(np.float32)
    words = [f"w{i}" for i in range(shared + only)]
    order = random.permutation(shared + only)
    second = Vectors(tuple(words[i] for i in order), x[order])
    first = Vectors(("mine", *words[:shared]), np.concatenate([np.ones_like(y[:1]), y[:shared]]))
    return first, second, {w: truth[i] for i, w in enumerate(words) if i >= shared}


@pytest.mark.parametrize(("x_dim", "y_dim"), [(4, 3), (2, 3), (6, 2), (3, 3)])
def test_recovers_a_linear_map(x_dim, y_dim):
    first, second, truth = pair(x_dim=x_dim, y_dim=y_dim)
    vectors, fit = borrow(first, second)
    assert fit == Fit(60, RIDGES[0], 1.0)
    assert vectors.words[:61] == first.words
    assert set(vectors.words[61:]) == set(truth)
    for word, vector in truth.items():
        np.testing.assert_allclose(vectors[word], vector, atol=1e-4)
    assert vectors.array.dtype == np.float32


def oracle(first, second):
    """Fit the ridge regression as ordinary least squares with additional rows."""

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


def test_matches_ridge_regression():
    chosen = set()
    for noise, seed in [(0.1, 0), (3.0, 1), (10.0, 2), (30.0, 3), (30.0, 4)]:
        first, second, truth = pair(80, 7, noise, 8, 3, seed)
        vectors, fit = borrow(first, second)
        mapped, ridge, cosine = oracle(first, second)
        assert fit.ridge == ridge
        assert fit.cosine == pytest.approx(cosine, abs=1e-4)
        for word in truth:
            np.testing.assert_allclose(vectors[word], mapped(second[word]), atol=1e-4)
        # vectors of the first file do not change
        assert vectors.array[: len(first)].tobytes() == first.array.tobytes()
        chosen.add(ridge)
    assert len(chosen) > 1


def test_rounds_borrowed_numbers():
    first, second, _ = pair(200, 50, 0.5)
    # the largest number is below 16 = 2^4, and 20 bits are kept
    assert 8 < np.abs(first.array).max() < 16
    steps = borrow(first, second)[0].array[len(first) :].astype(np.float64) * 2**16
    assert (steps == np.round(steps)).all()


def test_rejects_too_few_shared_words():
    borrow(*pair(shared=40)[:2])
    with pytest.raises(ValueError, match=r"share 39 words .* size 4 needs at least 40"):
        borrow(*pair(shared=39)[:2])


def test_borrows_the_mean_from_constant_vectors():
    first, second, truth = pair()
    flat = Vectors(second.words, np.ones_like(second.array))
    vectors, _ = borrow(first, flat)
    mean = first.array[1:].mean(axis=0)
    for word in truth:
        np.testing.assert_allclose(vectors[word], mean, atol=1e-4)
    zeros, fit = borrow(Vectors(first.words, np.zeros_like(first.array)), second)
    assert not zeros.array.any()
    assert fit.cosine == 0


def test_second_file_without_new_words():
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
    """Write a table and vector files of sizes 3 and 4; return them and the true vectors."""
    first, second, truth = pair(noise=1e-3)
    rows = [f"{' '.join(f'w{j}' for j in range(i, i + 10))},{i % 2}" for i in range(0, 60, 10)]
    # borrowed words; parts in the first file, borrowed, in neither; unknown; without parts
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


def test_all_sources(files, tmp_path):
    table, one, two, truth = files
    messages = []
    prepared = prepare(
        small("missing_vectors=parts"), table, one, dev=table, more_vectors=two, say=messages.append
    )
    # the first file wins: mapped vectors would differ by the noise
    for word in ("w0", "w5", "w59"):
        assert vector(prepared, word).tolist() == truth[word].tolist()
    for word in ("w60", "w61"):
        np.testing.assert_allclose(vector(prepared, word), truth[word], atol=1e-2)
    mean = (truth["mine"] + truth["w1"]) / 2
    np.testing.assert_allclose(vector(prepared, "mine-w1"), mean, rtol=1e-6)
    # only the second file has w62
    mean = (truth["w2"] + truth["w3"] + truth["w62"]) / 3
    np.testing.assert_allclose(vector(prepared, "w2-w3/w62"), mean, atol=1e-2)
    for word in ("w1-zzz", "zzz", "--", "<unk>", "<pad>"):
        assert vector(prepared, word).tolist() == [0, 0, 0]
    # 60 words of the file, w60 twice, w61, two with parts, three others; in train and dev
    report = prepared.report["vectors"]
    assert {key: report[key] for key in ("types", "all_types", "tokens", "all_tokens")} == {
        "types": 60,
        "all_types": 67,
        "tokens": 120,
        "all_tokens": 136,
    }
    borrowed = report["borrowed"]
    assert (borrowed["file"], borrowed["types"], borrowed["tokens"]) == ("two.txt", 2, 6)
    assert (borrowed["shared"], borrowed["ridge"] in RIDGES) == (60, True)
    assert borrowed["cosine"] == pytest.approx(1, abs=1e-4)
    assert report["parts"] == {"types": 2, "tokens": 4}
    about_first, about_borrowed, about_parts = list(prepared.lines())[-3:]
    assert "60 of 67 words" in about_first
    assert "two.txt" in about_borrowed
    assert "2 more words, 2.9%" in about_parts
    assert any(str(one) in message for message in messages)
    assert any(str(two) in message for message in messages)
    save_prepared(prepared, tmp_path / "p.safetensors")
    loaded = load_prepared(tmp_path / "p.safetensors")
    assert loaded.report["vectors"] == report
    assert list(loaded.lines()) == list(prepared.lines())
    np.testing.assert_array_equal(loaded.vectors, prepared.vectors)


def test_each_source_alone(files):
    table, one, two, truth = files
    plain = prepare(small(), table, one, dev=table)
    assert set(plain.report["vectors"]) == {"file", "types", "all_types", "tokens", "all_tokens"}
    averaged = prepare(small("missing_vectors=parts"), table, one, dev=table)
    assert "borrowed" not in averaged.report["vectors"]
    assert averaged.report["vectors"]["parts"] == {"types": 1, "tokens": 2}
    assert vector(averaged, "mine-w1").any()
    assert not vector(averaged, "w2-w3/w62").any()
    borrowed = prepare(small(), table, one, dev=table, more_vectors=two)
    assert "parts" not in borrowed.report["vectors"]
    np.testing.assert_allclose(vector(borrowed, "w61"), truth["w61"], atol=1e-2)
    assert not vector(borrowed, "mine-w1").any()
    drawn = prepare(small("missing_vectors=random"), table, one, dev=table, more_vectors=two)
    np.testing.assert_array_equal(vector(drawn, "w61"), vector(borrowed, "w61"))
    assert 0 < np.abs(vector(drawn, "zzz")).max() < 0.06
    assert len({x.fingerprint() for x in (plain, averaged, borrowed, drawn)}) == 4
    again = prepare(small(), table, one, dev=table, more_vectors=two)
    assert again.fingerprint() == borrowed.fingerprint()
    assert again.report == borrowed.report


def test_parts_of_treebank_words(tmp_path):
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
    # the bracket does not get the vector of lrb
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


def test_second_file_in_a_zip(files, tmp_path):
    table, one, two, _ = files
    plain = prepare(small(), table, one, dev=table, more_vectors=two).fingerprint()
    archive = tmp_path / "two.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.write(two, "two.txt")
    assert prepare(small(), table, one, dev=table, more_vectors=archive).fingerprint() == plain
    # of several files, the one with vectors of the first file's size is read
    several = tmp_path / "several.zip"
    with zipfile.ZipFile(several, "w") as file:
        file.write(two, "glove.4d.txt")
        file.write(one, "glove.3d.txt")
    prepared = prepare(small(), table, one, dev=table, more_vectors=several)
    assert prepared.report["vectors"]["borrowed"]["types"] == 0
    with zipfile.ZipFile(several, "w") as file:
        file.write(two, "glove.4d.txt")
        file.write(one, "glove.5d.txt")
    with pytest.raises(ValueError, match=r"several\.zip.* 3d "):
        prepare(small(), table, one, dev=table, more_vectors=several)
    archive.write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"two\.zip is damaged"):
        prepare(small(), table, one, dev=table, more_vectors=archive)


def test_rejects_unusable_second_files(files, tmp_path):
    table, one, two, _ = files
    with pytest.raises(ValueError, match=r"two\.txt .*--vectors"):
        prepare(small(), table, dev=table, more_vectors=two)
    with pytest.raises(FileNotFoundError, match=r"no\.txt does not exist"):
        prepare(small(), table, one, dev=table, more_vectors=tmp_path / "no.txt")
    few = tmp_path / "few.txt"
    few.write_text("w1 1 2 3\nw60 1 2 3\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"few\.txt: .* at least 30"):
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


def test_prepare_and_train(cli, files):
    table, one, two, _ = files
    prepared = cli("data", "prepare", "text", *arguments(table, one, two), "--out", "p.safetensors")
    direct = cli("train", "text", *arguments(table, one, two), "--out", "direct")
    for result in (prepared, direct):
        assert result.code == 0, result
        assert "two.txt" in result.out + result.err
        assert "means of parts" in result.out + result.err
    about = load("direct").provenance["data"]["vectors"]
    assert (about["file"], about["borrowed"]["file"]) == ("one.txt", "two.txt")
    settings = [x for s in (*SMALL, *OPTIONS) for x in ("--set", s)]
    again = cli(
        *("train", "text", "--prepared", "p.safetensors", "--out", "prepared", *settings),
        *("--text", "text", "--label", "label", "--pretokenized"),
    )
    assert again.code == 0, again
    assert contents("prepared") == contents("direct")


def test_rejects_more_vectors_without_vectors(cli, files, tmp_path):
    two = files[2]
    both = cli("train", "demo", "--prepared", "p.safetensors", "--more-vectors", two)
    assert "--prepared" in both.refused()
    for command in (["train", "demo"], ["data", "prepare", "demo", "--out", "x"]):
        assert "--vectors" in cli(*command, "--more-vectors", two).refused()
        assert not (tmp_path / "x").exists()


def test_resumes_with_moved_vector_files(cli, files, tmp_path):
    table, one, two, _ = files
    short = cli("train", "text", *arguments(table, one, two), "--out", "run", "--set", "epochs=1")
    assert short.code == 0, short
    settings = json.loads((tmp_path / "run/settings.json").read_text(encoding="utf-8"))
    assert "two.txt" not in json.dumps(settings)
    (tmp_path / "else").mkdir()
    one, two = one.rename(tmp_path / "else/one.txt"), two.rename(tmp_path / "else/two.txt")
    longer = cli("train", "text", *arguments(table, one, two), "--out", "run", "--resume")
    assert longer.code == 0, longer
    whole = cli("train", "text", *arguments(table, one, two), "--out", "whole")
    assert whole.code == 0, whole
    assert contents("run") == contents("whole")
    # without the second file, the data differ
    given = arguments(table, one, two)
    place = given.index("--more-vectors")
    other = cli("train", "text", *given[:place], *given[place + 2 :], "--out", "run", "--resume")
    assert other.code == 1
    assert "data" in other.err.splitlines()[-1]
