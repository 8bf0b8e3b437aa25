import gzip
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gumbeltree.text.vectors as module
from gumbeltree.text.vectors import Vectors, first_words, read_vectors

TEXT = b"the 0.1 -0.2 3\nof 1 2 3\nto -1e-2 .5 1.25\n"
THE = np.array([0.1, -0.2, 3], dtype=np.float32)


def write(folder, data, name="vectors.txt"):
    path = folder / name
    if isinstance(data, str):
        data = data.encode()
    if name.endswith(".gz"):
        data = gzip.compress(data, mtime=0)
    path.write_bytes(data)
    return path


def write_zip(folder, **members):
    path = folder / "vectors.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def lines(n, dim=3, start=0):
    """Return n lines; word w7 has the numbers 7, 8, ..."""
    return "".join(
        f"w{i} " + " ".join(str(i + j) for j in range(dim)) + "\n" for i in range(start, start + n)
    )


def same(one, other):
    assert one.array.dtype == other.array.dtype == np.float32
    np.testing.assert_array_equal(one.array, other.array)
    for name in ("words", "missing", "lines", "malformed", "duplicates", "problems"):
        assert getattr(one, name) == getattr(other, name), name


# what is read


def test_reads_the_needed_words_in_the_order_asked_for(tmp_path):
    vectors = read_vectors(write(tmp_path, TEXT), ["to", "house", "the", "to"])
    assert vectors.words == ("to", "the")
    assert vectors.missing == ("house",)
    assert vectors.array.dtype == np.float32
    assert vectors.array.tolist() == np.float32([[-0.01, 0.5, 1.25], [0.1, -0.2, 3]]).tolist()
    assert (vectors.dim, vectors.lines, vectors.malformed, vectors.duplicates) == (3, 3, 0, 0)
    assert len(vectors) == 2
    assert "to" in vectors
    assert "of" not in vectors
    np.testing.assert_array_equal(vectors["the"], THE)


def test_no_words_and_none_found(tmp_path):
    path = write(tmp_path, TEXT)
    assert read_vectors(path, []).array.shape == (0, 3)
    vectors = read_vectors(path, ["house"])
    assert vectors.array.shape == (0, 3)
    assert vectors.missing == ("house",)


@pytest.mark.parametrize("end", [b"", b"\n"])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b" \n", b" \r\n"])
def test_line_ends(tmp_path, newline, end):
    data = newline.join(TEXT.splitlines()) + end
    vectors = read_vectors(write(tmp_path, data), ["the", "of", "to"])
    assert vectors.words == ("the", "of", "to")
    assert (vectors.lines, vectors.malformed) == (3, 0)
    assert vectors["to"].tolist() == np.float32([-0.01, 0.5, 1.25]).tolist()


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
ASKED = ["the", ". . .", "at", "bad", "naïve", "日本", "last", "short", "at name", "4"]


def check_mixed(vectors):
    assert vectors.words == ("the", ". . .", "at", "bad", "naïve", "日本", "last")
    assert vectors.array[:, 2].tolist() == [3, 6, 12, 5, 4, 6, 7]
    assert vectors.missing == ("short", "at name", "4")
    assert (vectors.lines, vectors.malformed, vectors.duplicates) == (14, 5, 1)
    assert [problem.split(":")[0] for problem in vectors.problems] == [
        "line 6",
        "line 7",
        "line 9",
        "line 12",
        "line 14",
    ]


@pytest.mark.parametrize("name", ["a.txt", "a.gz"])
def test_block_boundaries_anywhere(tmp_path, name):
    path = write(tmp_path, MIXED, name)
    for block_size in range(1, len(MIXED.encode()) + 2):
        check_mixed(read_vectors(path, ASKED, block_size=block_size))


def test_block_boundaries_after_the_first_lines(tmp_path):
    path = write(tmp_path, lines(150))
    asked = [f"w{i}" for i in range(0, 160, 3)]
    whole = read_vectors(path, asked)
    assert whole.array[:, 0].tolist() == list(range(0, 150, 3))
    assert whole.lines == 150
    for block_size in (1, 2, 3, 5, 7, 11, 13, 64, 1000):
        same(read_vectors(path, asked, block_size=block_size), whole)
        assert first_words(path, 140, block_size=block_size) == [f"w{i}" for i in range(140)]


def test_first_line_of_a_word_wins(tmp_path):
    path = write(tmp_path, "a 1 2\nb 3 4\na 5 6\na 7 8\nb 9 9\nc 1 1\nc 2 2\n")
    vectors = read_vectors(path, ["a", "b"])
    assert vectors.array.tolist() == [[1, 2], [3, 4]]
    assert vectors.duplicates == 3


def test_token_with_spaces_is_not_its_first_word(tmp_path):
    path = write(tmp_path, lines(10) + "at home@domain.com 1 2 3\n. . 4 5 6\n")
    vectors = read_vectors(path, ["at", ".", ". .", "home@domain.com"])
    assert vectors.words == (". .",)
    assert vectors.malformed == 0


def test_token_with_spaces_on_the_first_line(tmp_path):
    vectors = read_vectors(write(tmp_path, ". . . 1 2 3\na 4 5 6\n"), ["a", ". . ."])
    assert vectors.array.tolist() == [[4, 5, 6], [1, 2, 3]]


def test_tokens_that_are_numbers(tmp_path):
    vectors = read_vectors(write(tmp_path, "1 2 3\n-1 4 5\n2009 6 7\n"), ["1", "2009"])
    assert vectors.array.tolist() == [[2, 3], [6, 7]]
    assert vectors.lines == 3


def test_white_space_other_than_the_space_belongs_to_the_token(tmp_path):
    odd = ["a\u00a0b", "\u0085", "\u2028", "x\ty", "\x0b", "\x1c"]
    path = write(tmp_path, "".join(f"{word} {i} 1\n" for i, word in enumerate(odd)))
    vectors = read_vectors(path, odd)
    assert vectors.words == tuple(odd)
    assert vectors.array[:, 0].tolist() == list(range(len(odd)))
    assert first_words(path, 9) == odd


def test_bytes_that_are_not_utf8_do_no_harm(tmp_path):
    path = write(tmp_path, b"\xff\xfe 1 2\nthe\xe9 3 4\nthe 5 6\n\xed\xa0\x80 7 8\n")
    vectors = read_vectors(path, ["the", "theé", "\ud800"])
    assert vectors.words == ("the",)
    assert vectors.missing == ("theé", "\ud800")
    assert vectors.malformed == 0
    assert first_words(path, 9) == ["the"]


def test_byte_order_mark(tmp_path):
    assert read_vectors(write(tmp_path, b"\xef\xbb\xbf" + TEXT), ["the"]).words == ("the",)


@pytest.mark.parametrize(
    "number", ["x", "nan", "inf", "-Infinity", "1_0", "1e39", "", "1,5", "0x1"]
)
def test_not_a_number(tmp_path, number):
    path = write(tmp_path, f"{lines(3)}a 1 {number} 3\n")
    vectors = read_vectors(path, ["a", "w1"])
    assert vectors.words == ("w1",)
    assert vectors.malformed == 1
    assert vectors.problems == (f"line 4: expected 3 numbers, number 2 is {number!r}",)
    assert "a" not in first_words(path, 9)


def test_malformed_lines_of_other_words_are_counted(tmp_path):
    data = lines(200) + "x 1\ny\n\n 1 2 3\n  1 2 3\n" + lines(5, start=200)
    vectors = read_vectors(write(tmp_path, data), ["w203"])
    assert (vectors.words, vectors.malformed, vectors.lines) == (("w203",), 5, 210)
    assert vectors.problems[0] == "line 201: expected a token and 3 numbers, got 2 fields"
    assert vectors.problems[2] == "line 203: empty"
    report = vectors.report()
    assert "1 of 1 words found in 210 lines" in report
    assert "5 malformed" in report
    assert "line 201" in report


def test_only_the_first_problems_are_kept(tmp_path):
    vectors = read_vectors(write(tmp_path, lines(120) + "x 1\n" * 50), [])
    assert vectors.malformed == 50
    assert len(vectors.problems) == module.PROBLEMS
    assert vectors.report().endswith("; ...")


# dim and header


def test_header(tmp_path):
    vectors = read_vectors(write(tmp_path, b"3 3\n" + TEXT), ["3", "the"])
    assert (vectors.words, vectors.lines, vectors.malformed) == (("the",), 3, 0)
    assert first_words(tmp_path / "vectors.txt", 2) == ["the", "of"]


def test_two_integers_are_no_header_if_vectors_have_one_number(tmp_path):
    path = write(tmp_path, "5 7\na 1\nb 2\n")
    for dim in (None, 1):
        vectors = read_vectors(path, ["5", "a"], dim)
        assert vectors.array.tolist() == [[7], [1]]
    assert read_vectors(write(tmp_path, "5 7\n"), ["5"], 1)["5"].tolist() == [7]


def test_dim_is_that_of_most_of_the_first_lines(tmp_path):
    data = "a b c 1 2 3\nd e 1 2 3\nshort 1\n5 5 1 2 3\n" + lines(3)
    vectors = read_vectors(write(tmp_path, data), ["a b c", "d e", "5 5", "w2"])
    assert vectors.dim == 3
    assert vectors.missing == ()
    assert vectors.malformed == 1


def test_given_dim_breaks_a_tie(tmp_path):
    path = write(tmp_path, "5 5 1 2 3\na 1 2 3\n")
    assert read_vectors(path, ["5 5", "a"], 3).missing == ()


def test_wrong_dim(tmp_path):
    path = write(tmp_path, "9 3\n" + lines(5))
    for dim in (1, 2, 4, 300):
        with pytest.raises(
            ValueError, match=rf"line \d: expected a token and {dim} numbers, got 3"
        ):
            read_vectors(path, ["w1"], dim)
    assert read_vectors(path, ["w1"], 3).words == ("w1",)
    with pytest.raises(ValueError, match="`dim` must be positive, got 0"):
        read_vectors(path, ["w1"], 0)


# packed files


def test_gz(tmp_path):
    check_mixed(read_vectors(write(tmp_path, MIXED, "a.txt.gz"), ASKED))


def test_gz_of_several_parts(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(TEXT[:20]) + gzip.compress(TEXT[20:]))
    assert read_vectors(path, ["the", "of", "to"]).missing == ()


def test_zip(tmp_path):
    path = write_zip(tmp_path, **{"__MACOSX/a.txt": "no", "readme.md": "no", "a.txt": MIXED})
    check_mixed(read_vectors(path, ASKED))
    check_mixed(read_vectors(path, ASKED, 3, block_size=7))


def test_zip_with_several_sizes(tmp_path):
    members = {f"glove.6B.{dim}d.txt": lines(3, dim) for dim in (50, 130, 200, 300, 30)}
    path = write_zip(tmp_path, **members)
    assert read_vectors(path, ["w1"]).dim == 50
    for dim in (50, 130, 200, 300, 30):
        assert read_vectors(path, ["w1"], dim).dim == dim
        assert first_words(path, 2, dim) == ["w0", "w1"]
    with pytest.raises(
        ValueError, match=r"no .txt file with 20d in its name, but glove.6B.50d.txt"
    ):
        read_vectors(path, ["w1"], 20)


# errors


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no\.txt does not exist; expected .* download"):
        read_vectors(tmp_path / "no.txt", ["a"])
    with pytest.raises(IsADirectoryError, match="is a folder; expected a file of GloVe vectors"):
        read_vectors(tmp_path, ["a"])
    with pytest.raises(FileNotFoundError, match="does not exist"):
        first_words(str(tmp_path / "no.txt"), 3)


@pytest.mark.parametrize("keep", [5, 15, 200, -1, -9])
def test_truncated_gz(tmp_path, keep):
    noise = np.random.default_rng(0).normal(size=(400, 3))
    text = "".join(f"w{i} {a} {b} {c}\n" for i, (a, b, c) in enumerate(noise))
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(text.encode())[:keep])
    with pytest.raises(ValueError, match=r"a\.gz is damaged or cut short .* line \d+; download"):
        read_vectors(path, ["w1"], block_size=100)


def test_damaged_gz(tmp_path):
    data = bytearray(gzip.compress(lines(300).encode()))
    data[-6] ^= 1  # of the checksum
    path = tmp_path / "a.gz"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"is damaged or not gzip .* after line 2\d\d; download"):
        read_vectors(path, ["w1"], block_size=1000)


def test_not_a_gz(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(TEXT)
    with pytest.raises(ValueError, match=r"is damaged or not gzip .* name it \.txt"):
        read_vectors(path, ["the"])


def test_bad_zips(tmp_path):
    with pytest.raises(ValueError, match=r"is no \.zip file"):
        read_vectors(write(tmp_path, TEXT, "a.zip"), ["the"])
    path = write_zip(tmp_path, **{"a.md": "text"})
    with pytest.raises(ValueError, match=r"has no \.txt file in it, but a\.md"):
        read_vectors(path, ["the"])
    path = write_zip(tmp_path)
    with pytest.raises(ValueError, match=r"has no \.txt file in it, but nothing"):
        read_vectors(path, ["the"])


def test_damaged_zip(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", TEXT)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"of 1 2 3", b"of 1 2 4"))
    with pytest.raises(ValueError, match=r"a\.zip \(a\.txt\) is damaged or cut short"):
        read_vectors(path, ["the"])
    flag = data.find(b"PK\x01\x02") + 8
    for encrypted in (6, flag):
        data = data[:encrypted] + b"\x01" + data[encrypted + 1 :]
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"cannot be read: .*encrypted.*; unpack it first"):
        read_vectors(path, ["the"])


@pytest.mark.parametrize("data", [b"", b"\n", b" \r\n\n", b"\xef\xbb\xbf"])
def test_empty_file(tmp_path, data):
    with pytest.raises(ValueError, match="is empty; expected GloVe text"):
        read_vectors(write(tmp_path, data), ["the"])
    with pytest.raises(ValueError, match="is empty"):
        first_words(tmp_path / "vectors.txt", 3)


@pytest.mark.parametrize(
    "data",
    [
        b"It was a dark and stormy night\n" * 200,
        b"the\t0.1\t0.2\nof\t0.3\t0.4\n",
        TEXT.decode().encode("utf-16"),
        b"0.1 0.2 0.3 x\n" * 5,
        b"word\n",
        b"night\n" * 99 + b"chapter 1\n",
        gzip.compress(TEXT, mtime=0),
        bytes(range(256)) * 40,
    ],
)
def test_nothing_fits(tmp_path, data):
    path = write(tmp_path, data)
    with pytest.raises(ValueError, match=r"vectors\.txt, line 1: expected GloVe text in UTF-8"):
        read_vectors(path, ["the"])
    with pytest.raises(ValueError, match=r"line 1: .* a token and 3 numbers"):
        read_vectors(path, ["the"], 3)


def test_nothing_after_the_header(tmp_path):
    with pytest.raises(ValueError, match=r"line 2: .* got nothing after the header"):
        read_vectors(write(tmp_path, "400000 300\n"), ["the"])


def test_endless_line(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LONGEST_LINE", 1000)
    path = write(tmp_path, lines(150) + "x " * 2000)
    with pytest.raises(ValueError, match="line 151: expected GloVe text, got a line of over 1,000"):
        read_vectors(path, ["the"], block_size=100)


def test_wrong_arguments(tmp_path):
    path = write(tmp_path, TEXT)
    with pytest.raises(TypeError, match="got one string: 'the'"):
        read_vectors(path, "the")
    with pytest.raises(TypeError, match="must be strings, got 3"):
        read_vectors(path, ["the", 3])
    with pytest.raises(ValueError, match="`block_size` must be positive, got 0"):
        read_vectors(path, ["the"], block_size=0)
    with pytest.raises(ValueError, match="`n` must not be negative, got -1"):
        first_words(path, -1)


def test_words_no_line_can_hold(tmp_path):
    asked = ["", "a\nb", " ", "\ud800"]
    assert read_vectors(write(tmp_path, TEXT), asked).missing == tuple(asked)


# progress and memory


@pytest.mark.parametrize("packing", ["txt", "gz", "zip"])
def test_progress(tmp_path, packing):
    text = lines(500)
    if packing == "zip":
        path, total = write_zip(tmp_path, **{"a.txt": text}), len(text)
    else:
        path = write(tmp_path, text, f"a.{packing}")
        total = path.stat().st_size
    calls = []
    read_vectors(path, [], progress=lambda *call: calls.append(call), block_size=1000)
    assert len(calls) == -(-len(text) // 1000)
    assert {call[1] for call in calls} == {total}
    done = [call[0] for call in calls]
    assert done == sorted(done)
    assert done[-1] == total
    if packing != "gz":
        assert done[0] == 1000


def test_blocks_are_small_and_whole(tmp_path):
    path = write(tmp_path, lines(1000))
    with module._open(path, None) as text:
        blocks = list(text.blocks(500, None))
    assert b"".join(blocks) == path.read_bytes()
    assert all(block.endswith(b"\n") for block in blocks)
    assert max(map(len, blocks)) < 500 + 20


# what a Vectors does


def made():
    array = np.array([[1, 2], [3, 4], [5, 6]], dtype=np.float32)
    return Vectors(("a", "b", "c"), array, ("d",))


def test_coverage():
    coverage = made().coverage({"a": 10, "c": 5, "d": 3, "e": 2})
    assert coverage == (2, 4, 15, 20)
    assert (coverage.types, coverage.all_types) == (2, 4)
    assert (coverage.tokens, coverage.all_tokens) == (15, 20)
    assert made().coverage({}) == (0, 0, 0, 0)


def test_matrix_with_zeros():
    matrix = made().matrix(["c", "e", "a", "c"])
    assert matrix.dtype == np.float32
    assert matrix.tolist() == [[5, 6], [0, 0], [1, 2], [5, 6]]
    assert made().matrix([]).shape == (0, 2)
    vectors = made()
    vectors.matrix(["a"])[:] = 9
    assert vectors["a"].tolist() == [1, 2]


def test_matrix_with_random_numbers():
    words = ["x", "a", "y", "x"]
    matrix = made().matrix(words, "random", seed=3)
    assert matrix.dtype == np.float32
    assert matrix[1].tolist() == [1, 2]
    assert matrix[0].tolist() == matrix[3].tolist() != matrix[2].tolist()
    np.testing.assert_array_equal(matrix, made().matrix(words, "random", seed=3))
    assert (matrix[0] != made().matrix(words, "random", seed=4)[0]).all()
    expected = np.random.default_rng(3).normal(0, 0.01, (2, 2)).astype(np.float32)
    np.testing.assert_array_equal(matrix[[0, 2]], expected)
    many = made().matrix([f"x{i}" for i in range(20000)], missing="random", seed=0)
    assert abs(many.std() - 0.01) < 2e-4
    assert abs(many.mean()) < 2e-4
    with pytest.raises(ValueError, match="must be 'zero' or 'random', got 'mean'"):
        made().matrix(["a"], "mean")
    with pytest.raises(TypeError, match="one string"):
        made().matrix("ab")


def test_vectors_are_checked():
    with pytest.raises(ValueError, match=r"must be float32 \[words, dim\], got float64 \[1, 2\]"):
        Vectors(("a",), np.zeros((1, 2)))
    with pytest.raises(ValueError, match="got 1 rows, 2 words, 2 of them distinct"):
        Vectors(("a", "b"), np.zeros((1, 2), dtype=np.float32))
    with pytest.raises(ValueError, match="1 of them distinct"):
        Vectors(("a", "a"), np.zeros((2, 2), dtype=np.float32))


# first words


def test_first_words(tmp_path):
    path = write(tmp_path, MIXED)
    every = ["the", ". . .", "at name@domain.com", "at", "naïve", "bad", "日本", "last"]
    for n in range(12):
        assert first_words(path, n) == every[:n]
    assert set(every) == set(read_vectors(path, every).words)


# at random

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
TOKENS = st.text(
    st.characters(exclude_characters="\n\r \ufeff", exclude_categories=("Cs",)), min_size=1
)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_round_trip(tmp_path_factory, data):
    dim = data.draw(st.integers(2, 5))
    vector = st.lists(FLOATS, min_size=dim, max_size=dim)
    table = data.draw(st.dictionaries(TOKENS, vector, min_size=1, max_size=8))
    absent = data.draw(st.lists(TOKENS.filter(lambda word: word not in table), max_size=3))
    newline = data.draw(st.sampled_from(["\n", "\r\n"]))
    text = newline.join(
        " ".join([word, *(str(np.float32(x)) for x in numbers)]) for word, numbers in table.items()
    )
    text += data.draw(st.sampled_from(["", newline]))
    name = data.draw(st.sampled_from(["a.txt", "a.gz"]))
    path = write(tmp_path_factory.getbasetemp(), text, name)
    asked = data.draw(st.permutations([*table, *dict.fromkeys(absent)]))
    vectors = read_vectors(path, asked, dim, block_size=data.draw(st.integers(1, 60)))
    assert vectors.words == tuple(word for word in asked if word in table)
    assert vectors.missing == tuple(word for word in asked if word not in table)
    assert (vectors.lines, vectors.malformed, vectors.duplicates) == (len(table), 0, 0)
    expected = np.array([table[word] for word in vectors.words], dtype=np.float32)
    np.testing.assert_array_equal(vectors.array, expected)
    assert first_words(path, 99, dim) == list(table)


def plain(text, asked, dim):
    """Read without any of the shortcuts."""
    found, lines, malformed, duplicates = {}, 0, 0, 0
    for line in text.removesuffix("\n").split("\n"):
        lines += 1
        fields = line.split(" ")
        word = " ".join(fields[:-dim])
        if len(fields) <= dim or not word.strip():
            malformed += 1
        elif word in asked and word in found:
            duplicates += 1
        elif word in asked:
            try:
                found[word] = [float(field) for field in fields[-dim:]]
            except ValueError:
                malformed += 1
    return found, lines, malformed, duplicates


FIELD = st.sampled_from(["a", "b", ".", "1", "2.5", "-3"])


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.lists(FIELD, min_size=1, max_size=6).map(" ".join), max_size=15),
    st.lists(st.sampled_from(["a", "b", ".", "a b", ". .", ". . .", "a 1", "1"]), unique=True),
    st.integers(1, 80),
)
def test_like_plain_reading(tmp_path_factory, odd, asked, block_size):
    text = lines(20, 2) + "".join(line + "\n" for line in odd)
    path = write(tmp_path_factory.getbasetemp(), text, "odd.txt")
    vectors = read_vectors(path, asked, block_size=block_size)
    found, count, malformed, duplicates = plain(text, asked, 2)
    assert vectors.words == tuple(word for word in asked if word in found)
    assert vectors.array.tolist() == [found[word] for word in vectors.words]
    assert (vectors.lines, vectors.malformed, vectors.duplicates) == (count, malformed, duplicates)
