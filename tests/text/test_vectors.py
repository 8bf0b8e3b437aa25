import gzip
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gumbeltree.text.vectors as module
from gumbeltree.text.vectors import Vectors, first_words, read_vectors, text_files

TEXT = b"the 0.1 -0.2 3\nof 1 2 3\nto -1e-2 .5 1.25\n"
# header, tokens with spaces, malformed and repeated lines, CRLF, no final newline
MIXED = (
    "4 3\n"
    "the 1 2 3\n"
    ". . . 4 5 6\n"
    "at name@domain.com 7 8 9\n"
    "at 10 11 12\n"
    "short 1 2\n"
    "\n"
    "at 13 14 15\n"
    "bad 1 x 3\n"
    "naïve 1 2 4\n"
    "bad 1 2 5\n"
    " 1 2 3\n"
    "日本 1 2 6\r\n"
    "lonely\n"
    "last 1 2 7"
)
ASKED = ["the", ". . .", "at", "bad", "naïve", "日本", "last", "short", "at name", "4", "lonely"]


def write(folder, data, name="vectors.txt"):
    data = data.encode() if isinstance(data, str) else data
    path = folder / name
    path.write_bytes(gzip.compress(data, mtime=0) if name.endswith(".gz") else data)
    return path


def write_zip(folder, **members):
    path = folder / "vectors.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def lines(n, dim=3):
    """Return n lines; word w7 has the numbers 7, 8, ..."""
    return "".join(f"w{i} {' '.join(str(i + j) for j in range(dim))}\n" for i in range(n))


# reading


def test_reads_requested_words_in_their_order(tmp_path):
    vectors = read_vectors(write(tmp_path, TEXT), ["to", "house", "the", "to"])
    assert vectors.words == ("to", "the")
    assert vectors.array.dtype == np.float32
    assert vectors.array.tolist() == np.float32([[-0.01, 0.5, 1.25], [0.1, -0.2, 3]]).tolist()
    assert (len(vectors), vectors.dim, vectors.malformed) == (2, 3, 0)
    assert "to" in vectors
    assert "of" not in vectors
    np.testing.assert_array_equal(vectors["the"], np.float32([0.1, -0.2, 3]))


@pytest.mark.parametrize("words", [[], ["house"], ["", "a\nb", " ", "\ud800"]])
def test_no_word_found(tmp_path, words):
    assert read_vectors(write(tmp_path, TEXT), words).array.shape == (0, 3)


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.zip"])
def test_mixed_file(tmp_path, name):
    if name == "a.zip":
        members = {"__MACOSX/a.txt": "no", "readme.md": "no", "a.txt": MIXED}
        path = write_zip(tmp_path, **members)
    else:
        path = write(tmp_path, MIXED, name)
    vectors = read_vectors(path, ASKED)
    assert vectors.words == ("the", ". . .", "at", "bad", "naïve", "日本", "last")
    assert vectors.array[:, 2].tolist() == [3, 6, 12, 5, 4, 6, 7]
    # of the requested words: short, bad, lonely
    assert vectors.malformed == 3
    every = ["the", ". . .", "at name@domain.com", "at", "naïve", "bad", "日本", "last"]
    for n in (0, 1, 5, 8, 12):
        assert first_words(path, n) == every[:n]


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b" \n", b" \r\n"])
def test_line_ends(tmp_path, newline):
    vectors = read_vectors(write(tmp_path, newline.join(TEXT.splitlines())), ["the", "of", "to"])
    assert vectors.words == ("the", "of", "to")
    assert vectors["to"].tolist() == np.float32([-0.01, 0.5, 1.25]).tolist()


def test_token_with_spaces_is_not_its_first_word(tmp_path):
    path = write(tmp_path, lines(10) + "at home@domain.com 1 2 3\n. . 4 5 6\n")
    vectors = read_vectors(path, ["at", ".", ". .", "home@domain.com"])
    assert (vectors.words, vectors.malformed) == ((". .",), 0)


def test_tokens_that_are_numbers(tmp_path):
    vectors = read_vectors(write(tmp_path, "1 2 3\n-1 4 5\n2009 6 7\n"), ["1", "2009"])
    assert vectors.array.tolist() == [[2, 3], [6, 7]]


def test_only_spaces_separate_fields(tmp_path):
    odd = ["a\u00a0b", "\u0085", "\u2028", "x\ty", "\x0b", "\x1c"]
    path = write(tmp_path, "".join(f"{word} {i} 1\n" for i, word in enumerate(odd)))
    assert read_vectors(path, odd).array[:, 0].tolist() == list(range(len(odd)))
    assert first_words(path, 9) == odd


def test_ignores_tokens_that_are_not_utf8(tmp_path):
    path = write(tmp_path, b"\xff\xfe 1 2\nthe\xe9 3 4\nthe 5 6\n")
    assert read_vectors(path, ["the", "theé"]).words == ("the",)
    assert first_words(path, 9) == ["the"]


def test_byte_order_mark(tmp_path):
    assert read_vectors(write(tmp_path, b"\xef\xbb\xbf" + TEXT), ["the"]).words == ("the",)


@pytest.mark.parametrize("number", ["x", "nan", "-Infinity", "1e39", "", "1,5", "0x1"])
def test_skips_lines_without_valid_numbers(tmp_path, number):
    path = write(tmp_path, f"{lines(3)}a 1 {number} 3\n")
    vectors = read_vectors(path, ["a", "w1"])
    assert (vectors.words, vectors.malformed) == (("w1",), 1)
    assert "a" not in first_words(path, 9)


# size and header


def test_two_integers_are_no_header_of_vectors_of_size_one(tmp_path):
    path = write(tmp_path, "5 7\na 1\nb 2\n")
    for dim in (None, 1):
        assert read_vectors(path, ["5", "a"], dim).array.tolist() == [[7], [1]]
    assert read_vectors(write(tmp_path, "5 7\n"), ["5"], 1)["5"].tolist() == [7]


def test_size_is_that_of_most_lines(tmp_path):
    data = "a b c 1 2 3\nd e 1 2 3\nshort 1\n5 5 1 2 3\n" + lines(3)
    asked = ["a b c", "d e", "5 5", "w2"]
    assert read_vectors(write(tmp_path, data), asked).words == tuple(asked)


def test_requested_size_breaks_a_tie(tmp_path):
    path = write(tmp_path, "5 5 1 2 3\na 1 2 3\n")
    assert read_vectors(path, ["5 5", "a"], 3).words == ("5 5", "a")


@pytest.mark.parametrize("dim", [1, 2, 4, 300])
def test_rejects_another_size(tmp_path, dim):
    with pytest.raises(ValueError, match=rf"vectors\.txt.* size 3, not {dim}"):
        read_vectors(write(tmp_path, "9 3\n" + lines(5)), ["w1"], dim)


def test_chooses_the_size_from_a_zip(tmp_path):
    sizes = (50, 130, 200, 300, 30)
    path = write_zip(tmp_path, **{f"glove.6B.{dim}d.txt": lines(3, dim) for dim in sizes})
    assert text_files(path) == [f"glove.6B.{dim}d.txt" for dim in sizes]
    assert read_vectors(path, ["w1"]).dim == 50
    for dim in sizes:
        assert read_vectors(path, ["w1"], dim).dim == dim
        assert first_words(path, 2, dim) == ["w0", "w1"]
    with pytest.raises(ValueError, match=r"20d.*glove\.6B\.50d\.txt"):
        read_vectors(path, ["w1"], 20)


# errors


@pytest.mark.parametrize(
    "read", [lambda path: read_vectors(path, ["a"]), lambda p: first_words(p, 3)]
)
def test_missing_file_and_folder(tmp_path, read):
    with pytest.raises(FileNotFoundError, match=r"no\.txt does not exist"):
        read(tmp_path / "no.txt")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        read(tmp_path)
    assert text_files(tmp_path / "no.zip") == []


def test_gz_of_several_members(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(TEXT[:20]) + gzip.compress(TEXT[20:]))
    assert len(read_vectors(path, ["the", "of", "to"])) == 3


@pytest.mark.parametrize("keep", [5, 15, 200, -1, -9])
def test_truncated_gz(tmp_path, keep):
    noise = np.random.default_rng(0).normal(size=(400, 3))
    text = "".join(f"w{i} {a} {b} {c}\n" for i, (a, b, c) in enumerate(noise))
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(text.encode())[:keep])
    with pytest.raises(ValueError, match=r"a\.gz is damaged"):
        read_vectors(path, ["w1"])


def damaged_checksum():
    data = bytearray(gzip.compress(lines(300).encode()))
    data[-6] ^= 1
    return bytes(data)


def change(data):
    return data.replace(b"of 1", b"of 2")


def encrypt(data):
    for flag in (6, data.find(b"PK\x01\x02") + 8):
        data = data[:flag] + b"\x01" + data[flag + 1 :]
    return data


@pytest.mark.parametrize(
    ("name", "data"),
    [("a.gz", TEXT), ("a.gz", damaged_checksum()), ("a.zip", TEXT), ("a.zip", b"")],
)
def test_damaged_archive(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=rf"{name} is damaged.*download"):
        read_vectors(tmp_path / name, ["w1"])


@pytest.mark.parametrize("damage", [change, encrypt])
def test_damaged_zip_member(tmp_path, damage):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", TEXT)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"a\.zip is damaged.*unpack"):
        read_vectors(path, ["the"])


def test_zip_without_text(tmp_path):
    with pytest.raises(ValueError, match=r"no \.txt file"):
        read_vectors(write_zip(tmp_path, **{"a.md": "text"}), ["the"])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" \r\n\n",
        b"\xef\xbb\xbf",
        b"400000 300\n",
        b"It was a dark and stormy night\n" * 200,
        b"the\t0.1\t0.2\nof\t0.3\t0.4\n",
        TEXT.decode().encode("utf-16"),
        b"0.1 0.2 0.3 x\n" * 5,
        b"night\n" * 99 + b"chapter 1\n",
        gzip.compress(TEXT, mtime=0),
        bytes(range(256)) * 40,
    ],
)
def test_rejects_other_files(tmp_path, data):
    path = write(tmp_path, data)
    for dim in (None, 3):
        with pytest.raises(ValueError, match=r"vectors\.txt is not a GloVe vector file"):
            read_vectors(path, ["the"], dim)
    with pytest.raises(ValueError, match=r"vectors\.txt is not a GloVe vector file"):
        first_words(path, 3)


def test_rejects_endless_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LONGEST_LINE", 1000)
    with pytest.raises(ValueError, match="line of over 1,000 bytes"):
        read_vectors(write(tmp_path, lines(150) + "x " * 2000), ["the"])


# Vectors


@pytest.fixture
def vectors():
    return Vectors(("a", "b", "c"), np.array([[1, 2], [3, 4], [5, 6]], dtype=np.float32))


def test_coverage(vectors):
    assert vectors.coverage({"a": 10, "c": 5, "d": 3, "e": 2}) == (2, 4, 15, 20)
    assert vectors.coverage({}) == (0, 0, 0, 0)


def test_matrix_with_zeros(vectors):
    matrix = vectors.matrix(["c", "e", "a", "c"])
    assert matrix.dtype == np.float32
    assert matrix.tolist() == [[5, 6], [0, 0], [1, 2], [5, 6]]
    assert vectors.matrix([]).shape == (0, 2)
    matrix[:] = 9
    assert vectors["a"].tolist() == [1, 2]


def test_matrix_with_random_numbers(vectors):
    matrix = vectors.matrix(["x", "a", "y", "x"], "random", seed=3)
    expected = np.random.default_rng(3).normal(0, 0.01, (2, 2)).astype(np.float32)
    assert matrix.dtype == np.float32
    assert matrix.tolist() == [
        expected[0].tolist(),
        [1, 2],
        expected[1].tolist(),
        expected[0].tolist(),
    ]


# properties

TOKENS = st.text(
    st.characters(exclude_characters="\n\r \ufeff", exclude_categories=("Cs",)), min_size=1
)


@settings(max_examples=30)
@given(st.data())
def test_round_trip(tmp_path_factory, data):
    dim = data.draw(st.integers(2, 5))
    numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)
    vector = st.lists(numbers, min_size=dim, max_size=dim)
    table = data.draw(st.dictionaries(TOKENS, vector, min_size=1, max_size=8))
    newline = data.draw(st.sampled_from(["\n", "\r\n"]))
    text = newline.join(
        " ".join([word, *(str(np.float32(x)) for x in numbers)]) for word, numbers in table.items()
    )
    name = data.draw(st.sampled_from(["a.txt", "a.gz"]))
    path = write(tmp_path_factory.getbasetemp(), text, name)
    asked = data.draw(st.permutations([*table, *data.draw(st.lists(TOKENS, max_size=3))]))
    vectors = read_vectors(path, asked, dim)
    assert vectors.words == tuple(dict.fromkeys(word for word in asked if word in table))
    expected = np.array([table[word] for word in vectors.words], dtype=np.float32)
    np.testing.assert_array_equal(vectors.array, expected)
    assert first_words(path, 99, dim) == list(table)


def read_plainly(text, asked, dim):
    """Read without any shortcut."""
    found = {}
    for line in text.split("\n"):
        fields = line.split(" ")
        word = " ".join(fields[:-dim])
        if len(fields) > dim and word in asked and word not in found:
            try:
                found[word] = [float(field) for field in fields[-dim:]]
            except ValueError:
                continue
    return found


@settings(max_examples=60)
@given(
    st.lists(
        st.lists(st.sampled_from(["a", "b", ".", "1", "2.5", "-3"]), min_size=1, max_size=6),
        max_size=15,
    ),
    st.lists(st.sampled_from(["a", "b", ".", "a b", ". .", ". . .", "a 1", "1"]), unique=True),
)
def test_reads_like_a_plain_loop(tmp_path_factory, odd, asked):
    text = lines(20, 2) + "".join(" ".join(fields) + "\n" for fields in odd)
    vectors = read_vectors(write(tmp_path_factory.getbasetemp(), text, "odd.txt"), asked)
    found = read_plainly(text, asked, 2)
    assert vectors.words == tuple(word for word in asked if word in found)
    assert vectors.array.tolist() == [found[word] for word in vectors.words]
