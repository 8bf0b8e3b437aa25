"""Readers of labelled text, on hand-written lines."""

import doctest
import gzip
import itertools
import json
import pickle
import random
import statistics
import types

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gumbeltree.tasks import TASKS, listops, table
from gumbeltree.tasks.listops import evaluate, generate
from gumbeltree.tasks.table import Table, split
from gumbeltree.tasks.task import Example
from gumbeltree.text.files import BadLineError, Report, read_lines
from gumbeltree.tree import Tree

PAIR = {"gold_label": "neutral", "sentence1": "A cat sat.", "sentence2": "It slept."}
TREES = {
    "sentence1_binary_parse": "( ( A cat ) ( sat . ) )",
    "sentence2_binary_parse": "( It ( slept . ) )",
}
SST_LINE = "(3 (2 It) (4 (1 rocks) (2 !)))"
READERS = {
    "snli": (TASKS["snli"](), "a.jsonl"),
    "sst2": (TASKS["sst2"](), "a.txt"),
    "sst5": (TASKS["sst5"](), "a.txt"),
    "listops": (TASKS["listops"](), "a.tsv"),
    "sick": (TASKS["sick"](), "a.tsv"),
    "tsv": (Table(text="0", label="1"), "a.tsv"),
    "csv": (Table(text="text"), "a.csv"),
    "jsonl": (Table(text="text"), "a.jsonl"),
}


def written(folder, name, *lines):
    path = folder / name
    data = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def read(task, path, part="dev", skip_bad=False):
    report = Report()
    return list(task.read(path, part, report, skip_bad)), report


def refused(task, path):
    with pytest.raises(BadLineError) as caught:
        read(task, path)
    return caught.value


def test_table_of_tasks():
    assert list(TASKS) == ["snli", "sst2", "sst5", "listops", "sick", "demo", "table"]
    assert [TASKS[name].name for name in TASKS] == list(TASKS)
    with pytest.raises(ValueError, match=r"unknown task 'sst'; known: .*Did you mean"):
        TASKS["sst"]


@pytest.mark.parametrize("module", [table, listops])
def test_docstrings(module):
    results = doctest.testmod(module)
    assert results.attempted
    assert not results.failed


# lines


def lines_of(path, skip_bad=False):
    report = Report()
    return list(read_lines(path, report, skip_bad)), report


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_lines(tmp_path, name):
    path = written(tmp_path, name, "one", "", "naïve \0 漢字", " tail ")
    assert lines_of(path)[0] == [(1, "one"), (2, ""), (3, "naïve \0 漢字"), (4, " tail ")]


def test_lines_of_gzip_without_the_suffix(tmp_path):
    written(tmp_path, "a.gz", "one").rename(tmp_path / "a.txt")
    assert lines_of(tmp_path / "a.txt")[0] == [(1, "one")]


def test_lines_with_mark_and_crlf(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\rtwo\r\nthree")
    assert lines_of(path)[0] == [(1, "one"), (2, "two\rtwo"), (3, "three")]


def test_lines_are_streamed(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\n\xff\n")
    lines = read_lines(path, Report())
    assert next(lines) == (1, "one")
    with pytest.raises(BadLineError):
        next(lines)
    task = TASKS["sick"]()
    path = written(tmp_path, "a.tsv", "neutral\ta\tb", "bad")
    examples = task.read(path, "dev", Report())
    assert isinstance(examples, types.GeneratorType)
    assert next(examples).texts == ("a", "b")


def test_long_lines(tmp_path):
    path = written(tmp_path, "a.txt.gz", "x" * 10_000_000, "y")
    assert [len(line) for _, line in lines_of(path)[0]] == [10_000_000, 1]
    for name, (task, file_name) in READERS.items():
        path = written(tmp_path, file_name, "(" * 10_000_000)
        if name == "csv":
            assert "fields of at most 131,072 characters" in refused(task, path).expected
        else:
            assert len(str(refused(task, path))) < 1000


def test_lines_in_another_encoding(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("one\nnaïve\nthree\nœuvre".encode("cp1252"))
    with pytest.raises(BadLineError) as caught:
        lines_of(path)
    assert str(caught.value) == (
        f"{path}, line 2: expected UTF-8 text, got byte 0xef at byte 2 of the line; "
        "save the file as UTF-8"
    )
    assert (caught.value.path, caught.value.number) == (path, 2)
    lines, report = lines_of(path, skip_bad=True)
    assert lines == [(1, "one"), (3, "three")]
    assert report.bad == 2
    path.write_bytes("one\n".encode("utf-16"))
    with pytest.raises(BadLineError, match=r"line 1: .*starts as UTF-16 does"):
        lines_of(path)


def test_damaged_gzip(tmp_path):
    generator = random.Random(0)
    lines = [f"{generator.random()}" for _ in range(20_000)]
    path = written(tmp_path, "a.txt.gz", *lines)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    given_out = []
    with pytest.raises(OSError, match="expected more gzip data, got the end of a cut") as caught:
        given_out.extend(read_lines(path, Report(), skip_bad=True))
    assert f"after line {len(given_out)}:" in str(caught.value)
    assert [line for _, line in given_out] == lines[: len(given_out)]
    assert 5_000 < len(given_out) < 15_000
    middle = len(whole) // 2
    path.write_bytes(whole[:middle] + bytes(200) + whole[middle + 200 :])
    with pytest.raises(OSError, match=r"after line \d+: expected more gzip data, got damaged data"):
        lines_of(path)
    path.write_bytes(whole[:-8] + bytes(8))
    with pytest.raises(OSError, match="damaged data"):
        lines_of(path)
    path.write_bytes(b"plain")
    with pytest.raises(OSError, match="after line 0: expected gzip data, got something else"):
        lines_of(path)


def test_no_file(tmp_path):
    written(tmp_path, "train.txt")
    with pytest.raises(FileNotFoundError, match=r"nothing there.*Did you mean 'train.txt'"):
        lines_of(tmp_path / "trian.txt")
    with pytest.raises(FileNotFoundError, match="nothing there"):
        lines_of(tmp_path / "no" / "folder.txt")
    with pytest.raises(IsADirectoryError, match="got a folder"):
        lines_of(tmp_path)


def test_report():
    report = Report()
    assert str(report) == "0 examples read; 0 dropped; 0 bad lines skipped"
    report.examples = 9842
    report.dropped["neutral"] += 3
    report.dropped["blank lines"] += 1
    for number in range(4):
        report.add_bad(ValueError(f"message {number}"))
    assert str(report) == (
        "9,842 examples read; 4 dropped (1 blank lines, 3 neutral); 4 bad lines skipped\n"
        "  message 0\n  message 1\n  message 2"
    )


def test_bad_line_error_survives_pickling(tmp_path):
    error = BadLineError(tmp_path, 7, "this", "that", "do something")
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error) == f"{tmp_path}, line 7: expected this, got that; do something"


# splits


def test_split_files(tmp_path):
    for name in ("train.txt.gz", "dev.txt", "dev.txt.gz"):
        written(tmp_path, name)
    found = TASKS["sst2"]().splits(tmp_path)
    assert found == {"train": tmp_path / "train.txt.gz", "dev": tmp_path / "dev.txt"}
    with pytest.raises(FileNotFoundError, match=r"expected train.tsv, dev.tsv, test.tsv .*none"):
        TASKS["sick"]().splits(tmp_path)
    with pytest.raises(NotADirectoryError, match="got nothing there"):
        TASKS["sick"]().splits(tmp_path / "no")
    with pytest.raises(NotADirectoryError, match="got a file"):
        TASKS["sick"]().splits(str(tmp_path / "dev.txt"))


def test_split_files_of_snli(tmp_path):
    task = TASKS["snli"]()
    part = written(tmp_path, "snli_1.0_train.part.jsonl.gz")
    dev = written(tmp_path, "snli_1.0_dev.txt")
    assert task.splits(tmp_path) == {"train": part, "dev": dev}
    written(tmp_path, "snli_1.0_train_b.jsonl.gz")
    with pytest.raises(ValueError, match=r"one file .*train\.part\.jsonl\.gz, snli_1\.0_train_b"):
        task.splits(tmp_path)
    whole = written(tmp_path, "snli_1.0_train.jsonl")
    assert task.splits(tmp_path)["train"] == whole


def test_split_files_of_others(tmp_path):
    (tmp_path / "trees").mkdir()
    tree = written(tmp_path, "trees/test.txt")
    answers = written(tmp_path, "test_d20s.tsv.gz")
    trial = written(tmp_path, "SICK_trial.txt")
    rows = written(tmp_path, "valid.csv.gz")
    assert TASKS["sst5"]().splits(tmp_path) == {"test": tree}
    assert TASKS["listops"]().splits(tmp_path) == {"test": answers}
    assert TASKS["sick"]().splits(tmp_path) == {"dev": trial}
    assert Table(text="a").splits(tmp_path) == {"dev": rows}


# snli


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_snli(tmp_path, name):
    task = TASKS["snli"]()
    assert (task.labels, task.pair, task.pretokenized) == (
        ("neutral", "entailment", "contradiction"),
        True,
        False,
    )
    records = [
        {**PAIR, **TREES},
        {**PAIR, "gold_label": "-", "sentence1": ""},
        {**PAIR, "gold_label": "entailment", "sentence1_binary_parse": "", "source": [1]},
    ]
    path = written(tmp_path, name, *map(json.dumps, records), "")
    examples, report = read(task, path)
    texts = ("A cat sat.", "It slept.")
    trees = tuple(map(Tree.from_brackets, TREES.values()))
    assert examples == [
        Example(texts, "neutral", trees),
        Example(texts, "entailment", (None, None)),
    ]
    assert report.examples == 2
    assert report.dropped == {"without a gold label": 1, "blank lines": 1}


def test_snli_text_file(tmp_path):
    task = TASKS["snli"]()
    header = "gold_label\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1\tsentence2\tx"
    row = "\t".join(["contradiction", *TREES.values(), 'A "cat" sat.', "It slept.", ""])
    path = written(tmp_path, "a.txt", header, row, row.replace("contradiction", "-"), "a\tb")
    examples, report = read(task, path, skip_bad=True)
    trees = tuple(map(Tree.from_brackets, TREES.values()))
    assert examples == [Example(('A "cat" sat.', "It slept."), "contradiction", trees)]
    assert (report.examples, report.dropped.total(), report.bad) == (1, 1, 1)
    assert str(refused(task, path)).startswith(f"{path}, line 4: expected 6 columns, got 2; ")
    path = written(tmp_path, "a.txt", "gold_label\tsentence\tsentence2")
    with pytest.raises(BadLineError, match=r"line 1: expected a column 'sentence1', got columns"):
        read(task, path, skip_bad=True)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"gold_label": "neutral"', 'expected a JSON object, got \'{"gold_label"'),
        ("[" * 100_000, r"expected a JSON object.*nested too deeply"),
        ("[1]", r"expected a JSON object, got '\[1\]'"),
        ('{"gold_label": "neutral"}', "expected a column 'sentence1', got columns 'gold_label'"),
        ({"gold_label": "entailmnt"}, "expected one of the labels neutral, .*mean 'entailment'"),
        ({"gold_label": None}, "expected one of the labels neutral, .*got None"),
        ({"sentence1": " "}, "expected text as sentence1, got an empty one"),
        ({"sentence2": 3}, "expected text as sentence2, got 3"),
        ({"sentence2": "a \ud800"}, "expected Unicode text as sentence2, got half a surrogate"),
        ({"sentence2_binary_parse": "( a"}, "expected a binary tree .* as sentence2_binary_parse"),
        ({"sentence2_binary_parse": 1}, "expected text as sentence2_binary_parse, got 1"),
    ],
)
def test_snli_refuses(tmp_path, line, message):
    good = json.dumps(PAIR)
    line = line if isinstance(line, str) else json.dumps({**PAIR, **line})
    path = written(tmp_path, "a.jsonl", good, "", line, good)
    with pytest.raises(BadLineError, match=f"line 3: {message}"):
        read(TASKS["snli"](), path)
    examples, report = read(TASKS["snli"](), path, skip_bad=True)
    assert len(examples) == report.examples == 2
    assert report.bad == 1
    assert "line 3: " in report.first_bad[0]


# sst


def test_sst_training_nodes(tmp_path):
    path = written(tmp_path, "a.txt", SST_LINE)
    task = TASKS["sst5"]()
    assert (task.pair, task.pretokenized, task.labels[0], task.labels[4]) == (
        False,
        True,
        "very negative",
        "very positive",
    )
    examples, report = read(task, path, "train")
    assert [(example.texts[0], example.label) for example in examples] == [
        ("It", "neutral"),
        ("rocks", "negative"),
        ("!", "neutral"),
        ("rocks !", "very positive"),
        ("It rocks !", "positive"),
    ]
    assert [str(example.trees[0]) for example in examples[-2:]] == [
        "( rocks ! )",
        "( It ( rocks ! ) )",
    ]
    assert report.examples == 5
    examples, report = read(TASKS["sst2"](), path, "train")
    assert [example.label for example in examples] == ["negative", "positive", "positive"]
    assert report.dropped == {"neutral": 2}


def test_sst_roots(tmp_path):
    path = written(tmp_path, "a.txt.gz", SST_LINE, "(2 (2 so) (1 so))", "(0 bad)")
    examples, report = read(TASKS["sst2"](), path)
    assert [(example.texts, example.label) for example in examples] == [
        (("It rocks !",), "positive"),
        (("bad",), "negative"),
    ]
    assert report.dropped == {"neutral": 1}
    assert [example.label for example in read(TASKS["sst5"](), path)[0]] == [
        "positive",
        "neutral",
        "very negative",
    ]


@given(st.integers(1, 12), st.integers(0, 10**6))
def test_sst_trees_are_those_of_the_nltk_reader(tmp_path_factory, count, seed):
    words = list("abcdefghijkl"[:count])
    tree = Tree.random(words, seed)
    text = tree.to_nltk("3")
    for word in words:
        text = text.replace(f" {word}", f" (1 {word})") if count > 1 else text
    path = written(tmp_path_factory.mktemp("sst"), "a.txt", text)
    (whole,), _ = read(TASKS["sst5"](), path)
    assert whole.trees == (Tree.from_nltk(text),) == (tree,)
    nodes, _ = read(TASKS["sst5"](), path, "train")
    spans = {*tree.spans, *((start, start + 1) for start in range(count))}
    assert sorted(node.texts[0] for node in nodes) == sorted(
        " ".join(words[start:end]) for start, end in spans
    )
    for node in nodes:
        (gold,) = node.trees
        start = words.index(gold.words[0])
        assert " ".join(gold.words) == node.texts[0]
        moved = {(start + first, start + last) for first, last in gold.spans}
        inside = {span for span in tree.spans if start <= span[0] and span[1] <= start + len(gold)}
        assert moved == inside


def test_sst_escapes(tmp_path):
    line = "(2 (2 -LRB-) (2 (2 and\\/or) (2 (2 \\*\\*) (2 (2 2\xa01\\/2) (2 -RRB-)))))"
    (whole,), _ = read(TASKS["sst5"](), written(tmp_path, "a.txt", line))
    assert whole.texts == ("( and/or ** 2-1/2 )",)
    assert whole.trees[0].words == ("(", "and/or", "**", "2-1/2", ")")


def test_sst_deep_tree(tmp_path):
    depth = 3_000
    line = "(1 (2 a) " * depth + "(3 b)" + ")" * depth
    (whole,), _ = read(TASKS["sst5"](), written(tmp_path, "a.txt", line))
    assert whole.trees[0].depth == depth


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nice", r"'\(' first and nothing after its '\)', got 'nice' at piece 1"),
        ("(5 nice)", "a label 0 to 4 after '\\(', got '5' at piece 2"),
        ("(nice)", "a label 0 to 4 after '\\(', got 'nice' at piece 2"),
        ("(", "a label 0 to 4 after '\\(', got 'the end'"),
        ("(3)", "a word or two children in a node, got none at piece 3"),
        ("(3 (2 a))", "a word or two children in a node, got one child at piece 7"),
        ("(3 a b)", "a word or two children in a node, got another word, 'b', at piece 4"),
        ("(3 (2 a) b)", "a word or two children in a node, got another word, 'b', at piece 7"),
        ("(3 a (2 b))", "a word or two children in a node, got another child at piece 4"),
        ("(3 (2 a) (2 b) (2 c))", "a word or two children in a node, got another child"),
        ("(3 (2 a) (2 b)", r"1 more '\)', got the end of the line"),
        ("(3 a) (2 b)", r"one tree a line, got a second '\('"),
        ("(3 a) b", r"'\(' first and nothing after its '\)', got 'b'"),
        ("(3 a))", r"'\(' first and nothing after its '\)', got '\)'"),
    ],
)
def test_sst_refuses(tmp_path, line, message):
    path = written(tmp_path, "a.txt", SST_LINE, line, SST_LINE)
    with pytest.raises(BadLineError, match=f"line 2: expected {message}"):
        read(TASKS["sst5"](), path, "train")
    examples, report = read(TASKS["sst5"](), path, "train", skip_bad=True)
    assert (len(examples), report.examples, report.bad) == (10, 10, 1)


# listops


@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        ("7", 7),
        ("[MIN 6 3 5 ]", 3),
        ("[MAX 6 3 5 ]", 6),
        ("[MED 9 1 5 ]", 5),
        ("[MED 9 1 4 5 ]", 4),
        ("[MED 0 9 9 9 ]", 9),
        ("[SM 6 5 9 0 ]", 0),
        ("[SM 9 9 9 9 9 ]", 5),
        ("[MAX 2 [MIN 8 [SM 9 9 ] ] 3 ]", 8),
        ("[MED [SM 6 5 ] [MAX 0 8 ] ]", 4),
    ],
)
def test_listops_answers(expression, answer):
    assert evaluate(expression.split()) == answer


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("", "expected an expression, got the end after 0 tokens"),
        ("[SM 1 2", r"expected 1 more '\]', got the end after 3 tokens"),
        ("1 2", "expected the end after one expression, got '2' at token 2"),
        ("]", r"expected an operator \[MIN, .* or a digit, got '\]' at token 1"),
        ("[SM ]", r"or a digit, got '\]' at token 2"),
        ("[SM 10 ]", "or a digit, got '10' at token 2"),
        ("[SM 1 x ]", r"or a digit or '\]', got 'x' at token 3"),
    ],
)
def test_listops_malformed_expressions(expression, message):
    with pytest.raises(ValueError, match=message):
        evaluate(expression.split())


def test_listops(tmp_path):
    lines = ["2\t( ( ( ( [SM 6 ) 5 ) 1 ) ] )", "9\t9", "3\t[MIN 3 4 ]"]
    examples, report = read(TASKS["listops"](), written(tmp_path, "a.tsv.gz", *lines))
    assert examples == [
        Example(("[SM 6 5 1 ]",), "2", (Tree.left_branching("[SM 6 5 1 ]"),)),
        Example(("9",), "9", (Tree("9", []),)),
        Example(("[MIN 3 4 ]",), "3", (None,)),
    ]
    assert report.examples == 3


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("9", "expected 2 columns, got 1"),
        ("x\t9", "expected one of the labels 0, 1, .*got 'x'"),
        ("8\t9", "expected the answer 9 of '9' as label, got 8"),
        ("8\t", "expected text as expression, got an empty one"),
        ("8\t( [MIN 8", r"expected 1 more '\]'"),
        ("8\t( ( [MIN 8 ) ]", "expected a binary tree .* as expression"),
    ],
)
def test_listops_refuses(tmp_path, line, message):
    path = written(tmp_path, "a.tsv", "9\t9", line, "9\t9")
    with pytest.raises(BadLineError, match=f"line 2: {message}"):
        read(TASKS["listops"](), path)
    examples, report = read(TASKS["listops"](), path, skip_bad=True)
    assert (len(examples), report.bad) == (2, 1)


def test_listops_generator_is_reproducible():
    first = list(generate(50, seed=3))
    assert first == list(generate(50, seed=3)) == list(generate(80, seed=3))[:50]
    assert first != list(generate(50, seed=4))
    # the same on every machine and version of Python
    assert [(first[place].texts[0], first[place].label) for place in (0, 11)] == [
        ("[MAX 6 [SM 2 4 ] 4 1 ]", "6"),
        ("[MAX [SM 0 0 3 ] 9 9 0 0 ]", "9"),
    ]
    assert TASKS["listops"].generate is generate


def test_listops_generator_writes_what_the_reader_reads(tmp_path):
    made = list(generate(300, seed=1))
    lines = [f"{example.label}\t{example.trees[0]}" for example in made]
    assert read(TASKS["listops"](), written(tmp_path, "a.tsv", *lines))[0] == made
    assert len({example.texts for example in made}) == 300


def test_listops_generator_statistics():
    made = [example.texts[0].split() for example in generate(6_000, seed=0, distinct=False)]
    operators = [token for tokens in made for token in tokens if token[0] == "["]
    digits = [token for tokens in made for token in tokens if token.isdigit()]
    nodes = len(operators) + len(digits)
    # children below the last level are digits, so that the share is a little lower than 0.25
    assert 0.23 < len(operators) / nodes < 0.255
    assert 0.23 < statistics.mean(tokens[0][0] == "[" for tokens in made) < 0.27
    for operator in ("[MIN", "[MAX", "[MED", "[SM"):
        assert 0.23 < operators.count(operator) / len(operators) < 0.27
    for digit in "0123456789":
        assert 0.09 < digits.count(digit) / len(digits) < 0.11
    depths, counts = [], []
    for tokens in made:
        waiting, depth = [0], 0
        for token in tokens:
            if token == "]":
                counts.append(waiting.pop())
                continue
            waiting[-1] += 1
            if token[0] == "[":
                waiting.append(0)
            depth = max(depth, len(waiting))
        depths.append(depth)
    assert max(depths) == 20
    assert set(counts) == {2, 3, 4, 5}
    for count in (2, 3, 4, 5):
        assert 0.23 < counts.count(count) / len(counts) < 0.27


def test_listops_generator_options():
    assert sorted(example.label for example in generate(10, seed=0, max_depth=1)) == list(
        "0123456789"
    )
    for example_ in generate(200, seed=0, max_depth=3, max_arguments=2, probability=0.9):
        assert example_.trees[0].depth <= 3 * 2
        assert evaluate(example_.texts[0].split()) == int(example_.label)
    with pytest.raises(ValueError, match=r"`count` must not exceed .* after 10 were all repeated"):
        list(generate(11, seed=0, max_depth=1))
    for wrong in (
        {"count": -1},
        {"max_depth": 0},
        {"max_arguments": 1},
        {"probability": 1.5},
    ):
        with pytest.raises(ValueError, match=f"`{next(iter(wrong))}` must"):
            generate(**{"count": 1, "seed": 0, **wrong})


# sick


def test_sick(tmp_path):
    task = TASKS["sick"]()
    assert (task.labels, task.pair) == (("entailment", "neutral", "contradiction"), True)
    path = tmp_path / "a.tsv"
    path.write_bytes(b"\xef\xbb\xbfneutral\tA b\tC d\r\nENTAILMENT\te\tf")
    assert read(task, path)[0] == [
        Example(("A b", "C d"), "neutral", (None, None)),
        Example(("e", "f"), "entailment", (None, None)),
    ]
    header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"
    path = written(tmp_path, "SICK_train.txt", header, "1\tA b\tC d\t4.5\tCONTRADICTION")
    examples, _ = read(task, path)
    assert examples == [Example(("A b", "C d"), "contradiction", (None, None))]
    path = written(tmp_path, "b.txt", "pair_ID\tsentence_A\tsentence_C")
    with pytest.raises(BadLineError, match="line 1: expected a column 'entailment_judgment'"):
        read(task, path, skip_bad=True)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("neutral\ta", "expected 3 columns, got 2"),
        ("neutral\ta\tb\tc", "expected 3 columns, got 4"),
        ("neutrl\ta\tb", "expected one of the labels entailment, .*did you mean 'neutral'"),
        ("neutral\t\tb", "expected text as premise, got an empty one"),
        ("neutral\ta\t ", "expected text as hypothesis, got an empty one"),
        ("\t\t", "expected one of the labels"),
    ],
)
def test_sick_refuses(tmp_path, line, message):
    path = written(tmp_path, "a.tsv", "neutral\ta\tb", line, "neutral\ta\tb")
    with pytest.raises(BadLineError, match=f"line 2: {message}"):
        read(TASKS["sick"](), path)
    examples, report = read(TASKS["sick"](), path, skip_bad=True)
    assert (len(examples), report.bad) == (2, 1)


# table


def test_table_formats(tmp_path):
    expected = [Example(("a, b",), "1", (None,)), Example(('c "d"',), "0", (None,))]
    tsv = written(tmp_path, "a.tsv", "label\ttext", "1\ta, b", '0\tc "d"')
    rows = written(tmp_path, "a.csv.gz", "text,label", '"a, b",1', "", '"c ""d""",0')
    records = [{"text": "a, b", "label": 1}, {"label": "0", "text": 'c "d"', "more": None}]
    jsonl = written(tmp_path, "a.JSONL", *map(json.dumps, records))
    for path in (tsv, rows, jsonl):
        assert read(Table(text="text"), path)[0] == expected
    assert read(Table(text="text"), rows)[1].dropped == {"blank lines": 1}
    flags = written(tmp_path, "b.jsonl", '{"text": "a", "label": true}')
    assert read(Table(text="text"), flags)[0][0].label == "true"
    with pytest.raises(ValueError, match=r"ends in \.tsv, \.csv, \.jsonl .*got 'a\.xls'"):
        read(Table(text="text"), tmp_path / "a.xls")


def test_table_pairs_and_numbers(tmp_path):
    path = written(tmp_path, "a.tsv", "x\ta b\tc", "y\td\te")
    task = Table(text="1", second="2", label="0")
    assert task.pair
    examples = [Example(("a b", "c"), "x", (None, None)), Example(("d", "e"), "y", (None, None))]
    assert read(task, path)[0] == examples
    with pytest.raises(BadLineError, match="line 1: expected a column 3, counted from 0, got 3 co"):
        read(Table(text="3", label="0"), path, skip_bad=True)
    with pytest.raises(ValueError, match="all names or all numbers, got text, 0"):
        Table(text="text", label="0")
    with pytest.raises(ValueError, match="each label once"):
        Table(text="text", labels=["a", "a"])


def test_table_quoted_newlines(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'text,label\r\n"a\r\nb\r\n\r\nc",1\r\nd,1,2\r\n"e\nf",\r\n')
    with pytest.raises(BadLineError, match="line 6: expected 2 columns, got 3"):
        read(Table(text="text"), path)
    examples, report = read(Table(text="text"), path, skip_bad=True)
    assert [example.texts for example in examples] == [("a\nb\n\nc",)]
    assert report.bad == 2
    assert "line 7: expected text as label, got an empty one" in report.first_bad[1]


def test_table_stray_quotes(tmp_path):
    lines = ["text\tlabel", '"a\t1', "b\t1", '"c" d\t0', "e\t0"]
    path = written(tmp_path, "a.tsv", *lines)
    error = refused(Table(text="text"), path)
    assert error.number == 2
    assert "--set quotes=false" in error.remedy
    examples, report = read(Table(text="text"), path, skip_bad=True)
    assert [example.texts[0] for example in examples] == ["b", "e"]
    assert report.bad == 2
    examples, _ = read(Table(text="text", quotes=False), path)
    assert [example.texts[0] for example in examples] == ['"a', "b", '"c" d', "e"]
    # a quote that never closes does not swallow the file
    path = written(tmp_path, "b.tsv", *lines[:2], *["b\t1"] * 100_000)
    examples, report = read(Table(text="text"), path, skip_bad=True)
    assert (len(examples), report.bad) == (100_000, 1)


def test_table_carriage_returns(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"text,label\ra,1\rb,2\r")
    with pytest.raises(BadLineError, match="line 1: expected rows that end in LF or CRLF"):
        read(Table(text="text"), path)


def test_table_unknown_column(tmp_path):
    message = r"line 1: expected a column 'txt', got columns 'text', 'label'; .*mean 'text'\?"
    for name, line in (("a.csv", "text,label"), ("a.jsonl", '{"text": "a", "label": "b"}')):
        path = written(tmp_path, name, line)
        with pytest.raises(BadLineError, match=message):
            read(Table(text="txt"), path)
    path = written(tmp_path, "b.csv", "text,text,label")
    with pytest.raises(BadLineError, match="expected a column 'text', got 2 times that name"):
        read(Table(text="text"), path, skip_bad=True)


def test_table_labels(tmp_path):
    path = written(tmp_path, "a.csv", "text,label", "a,yes", "b,no", "c,yes")
    task = Table(text="text")
    assert task.labels is None
    assert task.discover(path) == task.labels == ("no", "yes")
    other = written(tmp_path, "b.csv", "text,label", "a,yes", "b,maybe")
    with pytest.raises(BadLineError, match="line 3: expected one of the labels no, yes, got 'may"):
        read(task, other)
    given_order = Table(text="text", labels=["yes", "no"])
    assert given_order.labels == ("yes", "no")
    assert [example.label for example in read(given_order, path)[0]] == ["yes", "no", "yes"]
    with pytest.raises(ValueError, match="expected rows with labels, got none"):
        task.discover(written(tmp_path, "c.csv", "text,label"))


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"text": "", "label": "a"}, "expected text as column 'text', got an empty one"),
        ({"text": None, "label": "a"}, "expected text as column 'text', got None"),
        ({"text": "a", "label": None}, "expected text as label, got None"),
        ({"text": "a", "label": 0.5}, "expected text as label, got 0.5"),
        ({"text": "a", "label": " "}, "expected text as label, got an empty one"),
        ([], r"expected a JSON object, got '\[\]'"),
    ],
)
def test_table_refuses(tmp_path, record, message):
    path = written(tmp_path, "a.jsonl", '{"text": "a", "label": 1}', json.dumps(record))
    with pytest.raises(BadLineError, match=f"line 2: {message}"):
        read(Table(text="text"), path)


def test_split_by_fraction():
    parts = split(1000, [0.8, 0.1, 0.1], seed=0)
    assert [len(part) for part in parts] == [800, 100, 100]
    assert sorted(itertools.chain(*parts)) == list(range(1000))
    assert parts == split(1000, [0.8, 0.1, 0.1], seed=0) == Table.split(1000, [0.8, 0.1, 0.1], 0)
    assert parts != split(1000, [0.8, 0.1, 0.1], seed=1)
    assert all(part == sorted(part) for part in parts)
    assert 400 < statistics.mean(parts[1]) < 600
    assert [len(part) for part in split(7, [0.5, 0.25], seed=0)] == [4, 1]
    assert split(0, [1.0], seed=0) == [[]]
    for count, fractions, message in (
        (-1, [1.0], "`examples_count` must be at least 0"),
        (5, [], "`fractions` must lie in"),
        (5, [-0.1], "`fractions` must lie in"),
        (5, [float("nan")], "`fractions` must lie in"),
        (5, [0.9, 0.2], r"add up to 1 at most, got 1\.1"),
    ):
        with pytest.raises(ValueError, match=message):
            split(count, fractions, seed=0)


@given(st.integers(0, 60), st.lists(st.floats(0, 1), min_size=1, max_size=5), st.integers())
def test_split_gives_each_example_once(count, shares, seed):
    fractions = [share / max(1, sum(shares)) for share in shares]
    taken = list(itertools.chain(*split(count, fractions, seed)))
    assert len(set(taken)) == len(taken) == round(sum(fractions) * count)


# fuzzing

PIECES = st.sampled_from(
    [
        *(b"\n", b"\r\n", b"\r", b"\t", b",", b'"', b"(", b")", b" ", b"\0", b"\xff", b"\xc2\xa0"),
        *(b"\x1f\x8b\x08", b"\xef\xbb\xbf", b"text,label\n", b"[SM", b"]", b"3", b"neutral"),
        *(b"(3 (2 a) (4 b))", b"pair_ID\t", b"gold_label\tsentence1\tsentence2\n"),
        json.dumps({**PAIR, **TREES, "text": "a", "label": "b"}).encode(),
        *(b"\xe2\x80\xa8", b"\x85", b"\x1c", b'{"text": "\\ud800", "label": 1}', b"a", b"-LRB-"),
    ]
)
CONTENTS = st.one_of(
    st.binary(max_size=200),
    st.lists(PIECES, max_size=25).map(b"".join),
    st.lists(PIECES, max_size=25).map(b"".join).map(gzip.compress),
    st.tuples(st.binary(max_size=100).map(gzip.compress), st.integers(0, 60)).map(
        lambda pair: pair[0][: pair[1]]
    ),
)


@pytest.mark.parametrize("name", READERS)
@given(content=CONTENTS, part=st.sampled_from(["train", "dev"]))
@example(content=b"", part="train")
def test_any_bytes(tmp_path_factory, name, content, part):
    task, file_name = READERS[name]
    path = tmp_path_factory.getbasetemp() / file_name
    path.write_bytes(content)
    lines = content.count(b"\n") + 1
    for skip_bad in (False, True):
        report = Report()
        given_out, failure = [], None
        try:
            given_out.extend(task.read(path, part, report, skip_bad))
        except (BadLineError, OSError) as error:
            failure = error
        assert failure is None or str(path) in str(failure)
        if isinstance(failure, BadLineError) and not content.startswith(b"\x1f\x8b"):
            assert 1 <= failure.number <= lines
        assert report.examples == len(given_out)
        for one in given_out:
            assert len(one.texts) == len(one.trees) == 1 + task.pair
            assert all(text and text == text.strip() for text in one.texts)
            assert task.labels is None or one.label in task.labels
            if task.pretokenized:
                assert all(" ".join(text.split()) == text for text in one.texts)
