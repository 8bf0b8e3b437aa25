"""Readers on random files: they return examples or raise an error of one line."""

import gzip
import json
import time

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gumbeltree.tasks import TASKS
from gumbeltree.tasks.table import Table
from gumbeltree.text.files import BadLineError, Report
from gumbeltree.text.vectors import first_words, read_vectors

PAIR = {"gold_label": "neutral", "sentence1": "A cat.", "sentence2": "It is."}
TREES = {"sentence1_binary_parse": "( A ( cat . ) )", "sentence2_binary_parse": "( It ( is . ) )"}
JSONL = "".join(json.dumps({**PAIR, **TREES, "gold_label": x}) + "\n" for x in ("neutral", "-"))
# for each reader: how to make it, a file name, and valid content
READERS = {
    "snli": (TASKS["snli"], "a.jsonl", JSONL),
    "snli text": (
        TASKS["snli"],
        "a.txt",
        "\t".join([*PAIR, *TREES]) + "\n" + "\t".join([*PAIR.values(), *TREES.values()]) + "\n",
    ),
    "sst2": (TASKS["sst2"], "a.txt", "(3 (2 It) (4 (1 rocks) (2 !)))\n(0 no)\n"),
    "sst5": (TASKS["sst5"], "a.txt", "(3 (2 -LRB-) (4 (1 a\xa0b) (2 \\*)))\n"),
    "listops": (TASKS["listops"], "a.tsv", "5\t( ( ( [SM 2 ) 3 ) ] )\n9\t[MAX 2 9 ]\n"),
    "sick": (TASKS["sick"], "a.tsv", "neutral\tA cat\tA dog\nENTAILMENT\tA\tB\n"),
    "sick header": (
        TASKS["sick"],
        "a.txt",
        "pair_ID\tsentence_A\tsentence_B\tentailment_judgment\n1\ta\tb\tNEUTRAL\n",
    ),
    "demo": (TASKS["demo"], "a.tsv", "negative\t( ( it ( is dull ) ) . )\npositive\tany words\n"),
    "tsv": (lambda: Table("text"), "a.tsv", 'text\tlabel\n"a ""b""\nc"\tx\nd\ty\n'),
    "csv": (lambda: Table("text", labels="xy"), "a.csv", 'text,label\n"a, ""b"" c",x\nd,y\n'),
    "csv numbers": (lambda: Table("0", "1", "2"), "a.csv", "a,b,x\nc,d,y\n"),
    "tsv plain": (lambda: Table("text", quotes=False), "a.tsv", 'text\tlabel\n"a\tx\n'),
    "csv plain": (lambda: Table("text", quotes=False), "a.csv", 'text,label\na "b" c,x\n'),
    "jsonl": (lambda: Table("a", "b"), "a.jsonl", '{"a": "x", "b": "y", "label": 1}\n'),
    "json": (lambda: Table("a", "b"), "a.json", '[{"a": "x", "b": "y", "label": 1}]\n'),
}
readers = pytest.mark.parametrize("name", READERS)
VECTORS = "the 1 2 -3.5e-1\n. . . 4 5 6\nof 7 8 9\n"

# unexpected content
ODD = [
    b"\0", b"\r", b"\r\n", b"\n", b"\xff", b"\xef\xbb\xbf", b'"', b"\t", b",", b"(", b")", b"[",
    b"]", b"{", b"}", b" ", b"\x85", b"9", b"-", b"1e999", b"nan", b"\\", b"\\ud800", b"\x1c",
    b"\\udc00x",
    "😀".encode(), "\u202e\u200f".encode(), "\u2028".encode(), "\u0085".encode(), "\u3000".encode(),
    "\xa0".encode(), b"\x1f\x8b", b"PK\x03\x04", b"null", b"true", b"9" * 5_000, b"[" * 3_000,
    b"( " * 3_000, b"(2 " * 3_000, b"\t" * 500,
]  # fmt: skip
odd = st.sampled_from(ODD)
loosely = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def mutated(draw, valid):
    """Draw a valid file with a few random changes."""
    content = valid
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(content)))
        kind = draw(st.sampled_from(["flip", "cut", "insert", "insert", "delete", "repeat"]))
        if kind == "flip" and place < len(content):
            changed = bytes([content[place] ^ 1 << draw(st.integers(0, 7))])
            content = content[:place] + changed + content[place + 1 :]
        elif kind == "cut":
            content = content[:place]
        elif kind == "insert":
            content = content[:place] + draw(odd) + content[place:]
        elif kind == "delete":
            content = content[:place] + content[place + draw(st.integers(1, 5)) :]
        else:
            end = place + draw(st.integers(1, 20))
            content = content[:end] + content[place:]
    return content


def rubbish():
    pieces = st.lists(odd | st.binary(max_size=8), max_size=12).map(b"".join)
    return st.binary(max_size=200) | pieces


def check_message(error, path):
    message = str(error)
    assert len(message.splitlines()) == 1, message
    assert len(message) < 4_000
    assert path.name in message
    # it can be printed
    message.encode()


def check_reader(name, folder, content, suffix=""):
    """Read a file in both modes and both kinds of split; return the outcome of each."""
    make, file_name, _ = READERS[name]
    path = folder / (file_name + suffix)
    path.write_bytes(content)
    outcomes = []
    for skip_bad in (False, True):
        for split in ("train", "dev"):
            task, report = make(), Report()
            examples, error = [], None
            try:
                examples.extend(task.read(path, split, report, skip_bad))
            except (ValueError, OSError) as caught:
                error = caught
                check_message(error, path)
                # with skip_bad, only errors about the whole file are raised
                if skip_bad and isinstance(error, BadLineError):
                    assert "column" in str(error)
                    assert not examples
            for read_example in examples:
                assert len(read_example.texts) == len(read_example.trees) == 1 + task.pair
                assert all(text == text.strip() != "" for text in read_example.texts)
                if task.pretokenized:
                    assert all(" ".join(text.split()) == text for text in read_example.texts)
                assert task.labels is None or read_example.label in task.labels
                "".join([*read_example.texts, read_example.label]).encode()
            assert len(examples) == report.examples
            for message in report.first_bad:
                check_message(message, path)
            assert skip_bad or not report.bad
            outcomes.append((examples, error, report))
    # skip_bad changes nothing in good files, and loses no examples in others
    for strict, lenient in zip(outcomes[:2], outcomes[2:], strict=True):
        if strict[1] is None:
            assert lenient[0] == strict[0]
            assert not lenient[2].bad
        assert lenient[0][: len(strict[0])] == strict[0]
    return outcomes


@readers
def test_valid_files(tmp_path, name):
    for examples, error, report in check_reader(name, tmp_path, READERS[name][2].encode()):
        assert error is None
        assert examples
        assert not report.bad


@readers
@loosely
@given(data=st.data())
def test_random_files(tmp_path, name, data):
    content = data.draw(mutated(READERS[name][2].encode()) | rubbish())
    check_reader(name, tmp_path, content)


@readers
@pytest.mark.parametrize("content", [b"", b"\n\n \n", b"\xef\xbb\xbf", b"\0" * 100])
def test_empty_files(tmp_path, name, content):
    check_reader(name, tmp_path, content)


@readers
@pytest.mark.parametrize(
    ("old", "new"),
    [("\n", "\r"), ("\n", "\r\n"), ("\n", "\u2028"), ("\t", "\t\t"), (" ", "\u3000")],
    ids=ascii,
)
def test_other_line_ends_and_separators(tmp_path, name, old, new):
    valid = READERS[name][2]
    outcomes = check_reader(name, tmp_path, valid.replace(old, new).encode())
    if new == "\r\n":
        plain = check_reader(name, tmp_path, valid.encode())
        assert [len(x[0]) for x in outcomes] == [len(x[0]) for x in plain]


@readers
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "cp037"])
def test_other_encodings(tmp_path, name, encoding):
    outcomes = check_reader(name, tmp_path, READERS[name][2].encode(encoding, "replace"))
    if encoding == "utf-8-sig":
        assert all(examples and error is None for examples, error, _ in outcomes)
    else:
        assert not any(examples for examples, _, _ in outcomes[:2])


@pytest.mark.parametrize("name", ["snli", "csv"])
@settings(loosely, max_examples=30)
@given(data=st.data())
def test_damaged_gzip(tmp_path, name, data):
    packed = gzip.compress(READERS[name][2].encode() * 50, mtime=0)
    check_reader(name, tmp_path, data.draw(mutated(packed)), ".gz")


def test_half_a_surrogate_pair(tmp_path):
    for half in ("\\ud800", "\\udfff", "a\\ud83d b"):
        for key in ("gold_label", "sentence1", "sentence1_binary_parse", "other"):
            line = json.dumps({**PAIR, key: "?"}).replace('"?"', f'"{half}"')
            check_reader("snli", tmp_path, line.encode())
            check_reader("snli", tmp_path, line.replace(key, key + half).encode())
        for key in ("a", "b", "label"):
            record = json.dumps({"a": "x", "b": "y", "label": "z", key: "?"})
            check_reader("jsonl", tmp_path, record.replace('"?"', f'"{half}"').encode())
            check_reader("jsonl", tmp_path, record.replace(f'"{key}"', f'"{key}{half}"').encode())


@pytest.mark.parametrize("name", ["\r", "\u2028", "\ud800"], ids=ascii)
def test_quotes_the_suggested_column(tmp_path, name):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text" + name: "a", "label": "x"}), encoding="utf-8")
    with pytest.raises(BadLineError, match="Did you mean 'text") as caught:
        list(Table("text").read(path, "train", Report()))
    check_message(caught.value, path)


# vectors


def check_vectors(path, content):
    path.write_bytes(content)
    for read in (
        lambda: read_vectors(path, ["the", ". . .", "of", "\0", "9"]),
        lambda: read_vectors(path, ["the"], 3),
        lambda: first_words(path, 3),
    ):
        try:
            read()
        except (ValueError, OSError) as error:
            check_message(error, path)


@loosely
@given(content=mutated(VECTORS.encode()) | rubbish())
@example(b"\n")
@example(b" 1 2 3\n")
@example(b"3 3\n" + VECTORS.encode())
def test_vectors(tmp_path, content):
    check_vectors(tmp_path / "a.txt", content)


@loosely
@given(data=st.data())
def test_packed_vectors(tmp_path, data):
    content = data.draw(mutated(gzip.compress(VECTORS.encode() * 20, mtime=0)) | rubbish())
    check_vectors(tmp_path / "a.gz", content)
    check_vectors(tmp_path / "a.zip", content)


# long lines

LONG = 3_000_000
FILLERS = ["x", "word ", "\t", ",", '"', "(", ")", "(2 ", "( ", "[MAX ", "9", '{"a":', "😀", " "]


def check_long_line(name, folder, filler):
    """Read lines of 3 MB, where a valid line would be and inside one, in bounded time."""
    make, file_name, valid = READERS[name]
    path = folder / file_name
    long = filler * (LONG // len(filler.encode()))
    first, _, rest = valid.partition("\n")
    place = max(first.find("a"), 3)
    for content in (
        f"{long}\n{valid}",
        f"{first}\n{(rest or first)[:place]}{long}{(rest or first)[place:]}",
    ):
        path.write_text(content, encoding="utf-8", newline="")
        for skip_bad in (False, True):
            started = time.process_time()
            try:
                for _ in make().read(path, "train", Report(), skip_bad):
                    pass
            except (ValueError, OSError) as error:
                check_message(error, path)
            assert time.process_time() - started < 4, (name, filler, skip_bad)


@pytest.mark.parametrize(
    ("name", "filler"),
    [("snli", "x"), ("sst5", "("), ("listops", "\t"), ("csv", "x"), ("jsonl", '{"a":')],
)
def test_long_line(tmp_path, name, filler):
    check_long_line(name, tmp_path, filler)


@pytest.mark.slow
@readers
@pytest.mark.parametrize("filler", FILLERS)
def test_every_long_line(tmp_path, name, filler):
    check_long_line(name, tmp_path, filler)


@pytest.mark.parametrize("filler", ["x", "word "])
def test_long_line_of_vectors(tmp_path, filler):
    text = filler * (LONG // len(filler))
    for content in (text, VECTORS + text, f"{VECTORS}the {text} 1 2 3\n"):
        started = time.process_time()
        check_vectors(tmp_path / "a.txt", content.encode())
        # three calls
        assert time.process_time() - started < 9
