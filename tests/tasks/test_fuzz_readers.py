"""Readers of files that someone else made: whatever is in them, one line says what is wrong."""

import gzip
import json
import time
from pathlib import Path

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
# for each reader, how it is made, the name of a file, and lines that it takes
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
}
readers = pytest.mark.parametrize("name", READERS)
VECTORS = "the 1 2 -3.5e-1\n. . . 4 5 6\nof 7 8 9\n"

# what files hold that nobody expects
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
    """A valid file with a few accidents."""
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
    # it can be shown
    message.encode()


def check_reader(name, folder, content, suffix=""):
    """Read a file both ways; only errors that say what to do may come out."""
    make, file_name, _ = READERS[name]
    path = folder / (file_name + suffix)
    path.write_bytes(content)
    outcomes = []
    for skip_bad in (False, True):
        for split in ("train", "dev"):
            task, report = make(), Report()
            examples, error = [], None
            try:
                for found in task.read(path, split, report, skip_bad):
                    examples.append(found)
            except (ValueError, OSError) as caught:
                error = caught
                check_message(error, path)
                # only what concerns the file as a whole still raises
                if skip_bad and isinstance(error, BadLineError):
                    assert "column" in error.expected
                    assert not examples
            assert all(len(x.texts) == len(x.trees) == 1 + task.pair for x in examples)
            for found in examples:
                assert all(text == text.strip() != "" for text in found.texts)
                assert task.labels is None or found.label in task.labels
                "".join([*found.texts, found.label]).encode()
            if name.startswith("snli") or error is None:
                assert len(examples) == report.examples
            for message in report.first_bad:
                check_message(message, path)
            assert skip_bad or not report.bad
            outcomes.append((examples, error, report))
    # without bad lines both ways give the same, and skipping gives no less
    for strict, lenient in zip(outcomes[:2], outcomes[2:], strict=True):
        if strict[1] is None:
            assert lenient[0] == strict[0]
            assert not lenient[2].bad
        assert lenient[0][: len(strict[0])] == strict[0]
    return outcomes


@readers
def test_the_valid_files_are_valid(tmp_path, name):
    for examples, error, report in check_reader(name, tmp_path, READERS[name][2].encode()):
        assert error is None
        assert examples
        assert not report.bad


@readers
@loosely
@given(data=st.data())
def test_mutated_files(tmp_path, name, data):
    check_reader(name, tmp_path, data.draw(mutated(READERS[name][2].encode())))


@readers
@loosely
@given(content=rubbish())
@example(b"")
@example(b"\n\n \n")
@example(b"\xef\xbb\xbf")
@example(b"\0" * 100)
def test_rubbish(tmp_path, name, content):
    check_reader(name, tmp_path, content)


@readers
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("\n", "\r"),
        ("\n", "\r\n"),
        ("\n", "\n\n"),
        ("\n", "\u2028"),
        ("\t", "\t\t"),
        (" ", "\u3000"),
    ],
    ids=ascii,
)
def test_other_ends_of_lines_and_separators(tmp_path, name, old, new):
    valid = READERS[name][2]
    outcomes = check_reader(name, tmp_path, valid.replace(old, new).encode())
    if (old, new) == ("\n", "\r\n") and "quotes" not in name:
        plain = check_reader(name, tmp_path, valid.encode())
        assert [len(x[0]) for x in outcomes] == [len(x[0]) for x in plain]


@readers
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32", "cp037"])
def test_other_encodings(tmp_path, name, encoding):
    outcomes = check_reader(name, tmp_path, READERS[name][2].encode(encoding, "replace"))
    if encoding == "utf-8-sig":
        assert all(examples and error is None for examples, error, _ in outcomes)
    else:
        assert not any(examples for examples, _, _ in outcomes[:2])


@readers
@settings(loosely, max_examples=15)
@given(data=st.data())
def test_mutated_gzip(tmp_path, name, data):
    packed = gzip.compress(READERS[name][2].encode() * 50, mtime=0)
    place = data.draw(st.integers(0, len(packed)))
    if data.draw(st.booleans()):
        content = packed[:place]
    else:
        content = packed[:place] + data.draw(odd) + packed[place + data.draw(st.integers(0, 3)) :]
    check_reader(name, tmp_path, content, ".gz")


def test_half_a_surrogate_pair_in_any_place(tmp_path):
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
def test_a_suggested_name_is_quoted(tmp_path, name):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text" + name: "a", "label": "x"}), encoding="utf-8")
    with pytest.raises(BadLineError) as caught:
        list(Table("text").read(path, "train", Report()))
    message = str(caught.value)
    assert "Did you mean 'text" in message
    assert len(message.splitlines()) == 1
    message.encode()


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

LONG = 10_000_000
FILLERS = {
    "letters": "x",
    "words": "word ",
    "tabs": "\t",
    "commas": ",",
    "quotes": '"',
    "open": "(",
    "closed": ")",
    "trees": "(2 ",
    "spaced": "( ",
    "operators": "[MAX ",
    "digits": "9",
    "nested": '{"a":',
    "emoji": "😀",
    "blank": " ",
}


def long_lines(name, filler):
    """A line of 10 MB, where a valid line stands and inside one."""
    valid = READERS[name][2]
    text = filler * (LONG // len(filler.encode()))
    yield text + "\n" + valid
    first, _, rest = valid.partition("\n")
    middle = max(first.find("a"), 3)
    yield first + "\n" + (rest or first)[:middle] + text + (rest or first)[middle:]


def check_long(name, folder, filler):
    make, file_name, _ = READERS[name]
    path = Path(folder / file_name)
    for content in long_lines(name, filler):
        path.write_text(content, encoding="utf-8", newline="")
        for skip_bad in (False, True):
            started = time.process_time()
            try:
                for _ in make().read(path, "train", Report(), skip_bad):
                    pass
            except (ValueError, OSError) as error:
                check_message(error, path)
            assert time.process_time() - started < 4, (name, filler, skip_bad)


@readers
def test_a_long_line(tmp_path, name):
    check_long(name, tmp_path, FILLERS["letters"])


@pytest.mark.parametrize("name", ["listops", "demo", "sick"])
def test_a_line_of_many_columns(tmp_path, name):
    check_long(name, tmp_path, FILLERS["tabs"])


@pytest.mark.slow
@readers
@pytest.mark.parametrize("filler", FILLERS)
def test_every_long_line(tmp_path, name, filler):
    check_long(name, tmp_path, FILLERS[filler])


@pytest.mark.parametrize("filler", ["letters", "words", "blank"])
def test_a_long_line_of_vectors(tmp_path, filler):
    text = FILLERS[filler] * (LONG // len(FILLERS[filler]))
    for content in (text, VECTORS + text, VECTORS + "the " + text + " 1 2 3\n"):
        started = time.process_time()
        check_vectors(tmp_path / "a.txt", content.encode())
        # three readings
        assert time.process_time() - started < 9


@pytest.mark.slow
@readers
@settings(max_examples=3_000, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_many_mutated_files(tmp_path, name, data):
    check_reader(name, tmp_path, data.draw(mutated(READERS[name][2].encode()) | rubbish()))
