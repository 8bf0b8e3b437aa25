"""Readers of labelled text, on hand-written lines."""

import doctest
import gzip
import itertools
import json
import math
import random
import statistics
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gumbeltree.extras import pip_command
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
GOLD = tuple(map(Tree.from_brackets, TREES.values()))
SST_LINE = "(3 (2 It) (4 (1 rocks) (2 !)))"


@pytest.fixture
def write(tmp_path):
    def write(name, *lines):
        path = tmp_path / name
        data = "".join(f"{line}\n" for line in lines).encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write


def read(task, path, part="dev", skip_bad=False):
    task = TASKS[task]() if isinstance(task, str) else task
    report = Report()
    return list(task.read(path, part, report, skip_bad)), report


def check_bad_line(task, path, number, match, good):
    """Check that line `number` is refused, and that skipping it leaves `good` examples."""
    with pytest.raises(BadLineError, match=f"{path.name}, line {number}: .*{match}"):
        read(task, path)
    examples, report = read(task, path, skip_bad=True)
    assert len(examples) == report.examples == good
    assert report.bad == 1
    assert f"line {number}: " in report.first_bad[0]


def test_names_of_tasks():
    assert list(TASKS) == [
        *("snli", "snli_similarity", "sst2", "sst5", "listops", "logic"),
        *("sick", "sick_relatedness", "parses", "demo", "table"),
    ]
    assert [TASKS[name].name for name in TASKS] == list(TASKS)
    with pytest.raises(ValueError, match="unknown task 'sst'"):
        TASKS["sst"]


def test_snli_similarity_numbers_the_premises(write, tmp_path):
    pairs = [
        ("entailment", "A cat sat.", "An animal sat."),
        ("neutral", "A cat sat.", "It slept."),
        ("contradiction", "A dog ran.", "Nobody ran."),
        ("contradiction", "A cat sat.", "A cat ran."),
        ("-", "A cat sat.", "A cat."),
    ]
    fields = ("gold_label", "sentence1", "sentence2")
    lines = [json.dumps(dict(zip(fields, pair, strict=True))) for pair in pairs]
    examples, report = read("snli_similarity", write("a.jsonl", *lines))
    assert [(e.label, e.texts[1]) for e in examples] == [
        ("similar 0", "An animal sat."),
        ("different 1", "Nobody ran."),
        ("different 0", "A cat ran."),
    ]
    assert report.dropped == {"neutral": 1, "without a gold label": 1}
    # the loss would not use the dog
    kept, report = read("snli_similarity", tmp_path / "a.jsonl", "train")
    assert [e.texts[1] for e in kept] == ["An animal sat.", "A cat ran."]
    assert report.examples == 2
    assert report.dropped["without a similar sentence"] == 1


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
def test_lines(write, name):
    path = write(name, "one", "", "naïve \0 漢字", " tail ")
    assert lines_of(path)[0] == [(1, "one"), (2, ""), (3, "naïve \0 漢字"), (4, " tail ")]


def test_gzip_without_suffix(write, tmp_path):
    write("a.gz", "one").rename(tmp_path / "a.txt")
    assert lines_of(tmp_path / "a.txt")[0] == [(1, "one")]


def test_byte_order_mark_and_line_ends(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\rtwo\r\nthree")
    assert lines_of(path)[0] == [(1, "one"), (2, "two\rtwo"), (3, "three")]


def test_examples_are_streamed(write):
    examples = TASKS["sick"]().read(write("a.tsv", "neutral\ta\tb", "bad"), "dev", Report())
    assert next(examples).texts == ("a", "b")
    with pytest.raises(BadLineError):
        next(examples)


def test_rejects_other_encodings(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("one\nnaïve\nthree\nœuvre".encode("cp1252"))
    with pytest.raises(BadLineError, match=r"a\.txt, line 2: .*UTF-8.* 0xef at byte 2"):
        lines_of(path)
    lines, report = lines_of(path, skip_bad=True)
    assert lines == [(1, "one"), (3, "three")]
    assert report.bad == 2
    path.write_bytes("one\n".encode("utf-16"))
    with pytest.raises(BadLineError, match=r"line 1: .*UTF-16"):
        lines_of(path)


def test_damaged_gzip(write):
    generator = random.Random(0)
    lines = [f"{generator.random()}" for _ in range(5_000)]
    path = write("a.txt.gz", *lines)
    whole = path.read_bytes()
    middle = len(whole) // 2
    path.write_bytes(whole[:middle])
    read_before = []
    with pytest.raises(OSError, match="damaged or truncated") as caught:
        read_before.extend(read_lines(path, Report(), skip_bad=True))
    assert f"after line {len(read_before)} " in str(caught.value)
    assert [line for _, line in read_before] == lines[: len(read_before)]
    for damaged in (whole[:middle] + bytes(200) + whole[middle + 200 :], whole[:-8] + bytes(8)):
        path.write_bytes(damaged)
        with pytest.raises(OSError, match=r"a\.txt\.gz is damaged or truncated after line \d+"):
            lines_of(path)


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no\.txt does not exist"):
        lines_of(tmp_path / "no.txt")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        lines_of(tmp_path)


def test_report(write):
    assert str(Report()) == "0 examples read; 0 dropped; 0 bad lines skipped"
    path = write("a.tsv", "neutral\ta\tb", "", *[f"bad {i}" for i in range(4)])
    _, report = read("sick", path, skip_bad=True)
    first, *others = str(report).splitlines()
    assert first == "1 example read; 1 dropped (1 blank lines); 4 bad lines skipped"
    assert ["line 3" in others[0], "line 4" in others[1], "line 5" in others[2]] == [True] * 3
    assert len(others) == 3


# splits


def test_files_of_splits(write, tmp_path):
    train, dev = write("train.txt.gz"), write("dev.txt")
    write("dev.txt.gz")
    assert TASKS["sst2"]().splits(tmp_path) == {"train": train, "dev": dev}
    with pytest.raises(FileNotFoundError, match=r" train\.tsv, .* dev\.tsv, .* test\.tsv"):
        TASKS["sick"]().splits(tmp_path)
    with pytest.raises(NotADirectoryError, match="does not exist"):
        TASKS["sick"]().splits(tmp_path / "no")
    with pytest.raises(NotADirectoryError, match="is a file"):
        TASKS["sick"]().splits(str(dev))


def test_files_of_snli(write, tmp_path):
    task = TASKS["snli"]()
    part, dev = write("snli_1.0_train.part.jsonl.gz"), write("snli_1.0_dev.txt")
    assert task.splits(tmp_path) == {"train": part, "dev": dev}
    write("snli_1.0_train_b.jsonl.gz")
    with pytest.raises(ValueError, match=r"train\.part\.jsonl\.gz, snli_1\.0_train_b"):
        task.splits(tmp_path)
    whole = write("snli_1.0_train.jsonl")
    assert task.splits(tmp_path)["train"] == whole


@pytest.mark.parametrize(
    ("task", "split_name", "name"),
    [
        ("sst5", "test", "trees/test.txt"),
        ("listops", "test", "test_d20s.tsv.gz"),
        ("sick", "dev", "SICK_trial.txt"),
        (Table(text="a"), "dev", "valid.csv.gz"),
    ],
)
def test_files_of_other_tasks(write, tmp_path, task, split_name, name):
    task = TASKS[task]() if isinstance(task, str) else task
    (tmp_path / "trees").mkdir()
    path = write(name)
    assert task.splits(tmp_path) == {split_name: path}


# snli


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_snli(write, name):
    records = [
        {**PAIR, **TREES},
        {**PAIR, "gold_label": "-", "sentence1": ""},
        {**PAIR, "gold_label": "entailment", "sentence1_binary_parse": "", "source": [1]},
    ]
    examples, report = read("snli", write(name, *map(json.dumps, records), ""))
    texts = ("A cat sat.", "It slept.")
    assert examples == [
        Example(texts, "neutral", GOLD),
        Example(texts, "entailment", (None, None)),
    ]
    assert report.dropped == {"without a gold label": 1, "blank lines": 1}


def test_snli_text_file(write):
    header = "gold_label\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1\tsentence2\tx"
    row = "\t".join(["contradiction", *TREES.values(), 'A "cat" sat.', "It slept.", ""])
    path = write("a.txt", header, row, row.replace("contradiction", "-"), "a\tb")
    examples, report = read("snli", path, skip_bad=True)
    assert examples == [Example(('A "cat" sat.', "It slept."), "contradiction", GOLD)]
    assert report.dropped.total() == 1
    check_bad_line("snli", path, 4, "6 columns, got 2", good=1)


@pytest.mark.parametrize(
    ("task", "header", "missing"),
    [
        ("snli", "gold_label\tsentence\tsentence2", "sentence1"),
        ("sick", "pair_ID\tsentence_A\tsentence_C", "entailment_judgment"),
        (Table(text="txt"), "text\tlabel", "txt"),
        (Table(text="text"), "text\ttext\tlabel", "text"),
    ],
)
def test_rejects_a_header_without_a_column(write, task, header, missing):
    with pytest.raises(BadLineError, match=f"line 1: .*column '{missing}'"):
        read(task, write("a.tsv", header), skip_bad=True)


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ('{"gold_label": "neutral"', "JSON object"),
        ("[" * 100_000, "JSON object.*nested too deeply"),
        ("[1]", r"JSON object, got '\[1\]'"),
        ('{"gold_label": "neutral"}', "column 'sentence1'"),
        ({"gold_label": "entailmnt"}, "got 'entailmnt'.*mean 'entailment'"),
        ({"gold_label": None}, "labels neutral, .*got None"),
        ({"sentence1": " "}, "sentence1, got an empty"),
        ({"sentence2": 3}, "sentence2, got 3"),
        ({"sentence2": "a \ud800"}, "sentence2, got an unpaired surrogate"),
        ({"sentence2_binary_parse": "( a"}, "binary tree .* sentence2_binary_parse"),
        ({"sentence2_binary_parse": 1}, "sentence2_binary_parse, got 1"),
    ],
)
def test_snli_rejects_bad_lines(write, line, match):
    good = json.dumps(PAIR)
    line = line if isinstance(line, str) else json.dumps({**PAIR, **line})
    check_bad_line("snli", write("a.jsonl", good, "", line, good), 3, match, good=2)


# sst


def test_sst_training_nodes(write):
    path = write("a.txt", SST_LINE)
    examples, report = read("sst5", path, "train")
    assert [(example.texts[0], example.label) for example in examples] == [
        ("It", "neutral"),
        ("rocks", "negative"),
        ("!", "neutral"),
        ("rocks !", "very positive"),
        ("It rocks !", "positive"),
    ]
    assert str(examples[-1].trees[0]) == "( It ( rocks ! ) )"
    assert report.examples == 5
    examples, report = read("sst2", path, "train")
    assert [example.label for example in examples] == ["negative", "positive", "positive"]
    assert report.dropped == {"neutral": 2}


def test_sst_sentences(write):
    path = write("a.txt.gz", SST_LINE, "(2 (2 so) (1 so))", "(0 bad)")
    examples, report = read("sst2", path)
    assert [(example.texts[0], example.label) for example in examples] == [
        ("It rocks !", "positive"),
        ("bad", "negative"),
    ]
    assert report.dropped == {"neutral": 1}
    labels = [example.label for example in read("sst5", path)[0]]
    assert labels == ["positive", "neutral", "very negative"]


@given(st.integers(1, 12), st.integers(0, 10**6))
def test_sst_trees_match_the_nltk_reader(tmp_path_factory, count, seed):
    words = list("abcdefghijkl"[:count])
    tree = Tree.random(words, seed)
    text = tree.to_nltk("3")
    for word in words:
        text = text.replace(f" {word}", f" (1 {word})") if count > 1 else text
    path = tmp_path_factory.getbasetemp() / "sst.txt"
    path.write_text(text)
    (whole,), _ = read("sst5", path)
    assert whole.trees == (Tree.from_nltk(text),) == (tree,)
    nodes, _ = read("sst5", path, "train")
    spans = {*tree.spans, *((start, start + 1) for start in range(count))}
    assert sorted(node.texts[0] for node in nodes) == sorted(
        " ".join(words[start:end]) for start, end in spans
    )
    for node in nodes:
        (gold,) = node.trees
        start = words.index(gold.words[0])
        shifted = {(start + first, start + last) for first, last in gold.spans}
        end = start + len(gold)
        assert shifted == {span for span in tree.spans if start <= span[0] and span[1] <= end}


def test_sst_escapes(write):
    line = "(2 (2 -LRB-) (2 (2 and\\/or) (2 (2 \\*\\*) (2 (2 2\xa01\\/2) (2 -RRB-)))))"
    (whole,), _ = read("sst5", write("a.txt", line))
    assert whole.texts == ("( and/or ** 2-1/2 )",)
    assert whole.trees[0].words == ("(", "and/or", "**", "2-1/2", ")")


def test_sst_deep_tree(write):
    line = "(1 (2 a) " * 3_000 + "(3 b)" + ")" * 3_000
    (whole,), _ = read("sst5", write("a.txt", line))
    assert whole.trees[0].depth == 3_000


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("nice", "'nice' at character 1 "),
        ("(5 nice)", r"'\(' at character 1 "),
        ("(nice)", r"'\(' at character 1 "),
        ("(", r"'\(' at character 1 "),
        ("(3)", r"'\(' at character 1 "),
        ("(3 )", r"'\)' at character 4 "),
        ("(3 (2 a))", r"'\)' at character 9 "),
        ("(3 a b)", "'b' at character 6 "),
        ("(3 (2 a) b)", "'b' at character 10 "),
        ("(3 a (2 b))", r"'\(2' at character 6 "),
        ("(3 (2 a) (2 b) (2 c))", r"'\(2' at character 16 "),
        ("(3 (2 a) (2 b)", "end of the line with 1 open"),
        ("(3 a) (2 b)", r"'\(2' at character 7 "),
        ("(3 a) b", "'b' at character 7 "),
        ("(3 a))", r"'\)' at character 6 "),
    ],
)
def test_sst_rejects_bad_lines(write, line, match):
    check_bad_line("sst5", write("a.txt", SST_LINE, line, SST_LINE), 2, match, good=2)


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


def test_listops(write):
    lines = ["2\t( ( ( ( [SM 6 ) 5 ) 1 ) ] )", "9\t9", "3\t[MIN 3 4 ]"]
    examples, report = read("listops", write("a.tsv.gz", *lines))
    assert examples == [
        Example(("[SM 6 5 1 ]",), "2", (Tree.left_branching("[SM 6 5 1 ]"),)),
        Example(("9",), "9", (Tree("9", []),)),
        Example(("[MIN 3 4 ]",), "3", (Tree.left_branching("[MIN 3 4 ]"),)),
    ]
    assert report.examples == 3


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("9", "2 columns, got 1"),
        ("x\t9", "labels 0, 1, .*got 'x'"),
        ("8\t9", "value of '9', got 8"),
        ("8\t", "expression, got an empty"),
        ("8\t( ( [MIN 8 ) ]", "binary tree"),
        ("1\t[SM 1 2", "the end with 1 open bracket;"),
        ("1\t1 2", "'2' after its end, at token 2"),
        ("1\t]", r"'\]' at token 1"),
        ("1\t[SM ]", r"'\]' at token 2"),
        ("1\t[SM 10 ]", "'10' at token 2"),
        ("1\t()", "an empty text"),
    ],
)
def test_listops_rejects_bad_lines(write, line, match):
    check_bad_line("listops", write("a.tsv", "9\t9", line, "9\t9"), 2, match, good=2)


def test_listops_generator(write):
    examples = list(generate(300, seed=3))
    assert examples[:50] == list(generate(50, seed=3))
    assert examples[:50] != list(generate(50, seed=4))
    # identical on all machines and Python versions
    assert [(examples[place].texts[0], examples[place].label) for place in (0, 11)] == [
        ("[MAX 6 [SM 2 4 ] 4 1 ]", "6"),
        ("[MAX [SM 0 0 3 ] 9 9 0 0 ]", "9"),
    ]
    assert len({example.texts for example in examples}) == 300
    lines = [f"{example.label}\t{example.trees[0]}" for example in examples]
    assert read("listops", write("a.tsv", *lines))[0] == examples


def test_listops_generator_follows_the_published_distribution():
    generator = random.Random(0)
    drawn = [listops._expression(generator)[0] for _ in range(6_000)]
    operators = [token for tokens in drawn for token in tokens if token[0] == "["]
    digits = [token for tokens in drawn for token in tokens if token.isdigit()]
    # nodes at the maximum depth are digits, so the share is slightly below 0.25
    assert 0.23 < len(operators) / (len(operators) + len(digits)) < 0.255
    for operator in listops.OPERATORS:
        assert 0.23 < operators.count(operator) / len(operators) < 0.27
    for digit in listops.DIGITS:
        assert 0.09 < digits.count(digit) / len(digits) < 0.11
    depth, counts = 0, []
    for tokens in drawn:
        waiting = [0]
        for token in tokens:
            if token == "]":
                counts.append(waiting.pop())
                continue
            waiting[-1] += 1
            if token[0] == "[":
                waiting.append(0)
            depth = max(depth, len(waiting))
    assert depth == listops.MAX_DEPTH
    for count in (2, 3, 4, 5):
        assert 0.23 < counts.count(count) / len(counts) < 0.27


# sick


def test_sick(write, tmp_path):
    path = tmp_path / "a.tsv"
    path.write_bytes(b"\xef\xbb\xbfneutral\tA b\tC d\r\nENTAILMENT\te\tf")
    assert read("sick", path)[0] == [
        Example(("A b", "C d"), "neutral", (None, None)),
        Example(("e", "f"), "entailment", (None, None)),
    ]
    header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"
    path = write("SICK_train.txt", header, "1\tA b\tC d\t4.5\tCONTRADICTION")
    assert read("sick", path)[0] == [Example(("A b", "C d"), "contradiction", (None, None))]


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("neutral\ta", "3 columns, got 2"),
        ("neutral\ta\tb\tc", "3 columns, got 4"),
        ("neutrl\ta\tb", "got 'neutrl'.*mean 'neutral'"),
        ("neutral\t\tb", "premise, got an empty"),
        ("neutral\ta\t ", "hypothesis, got an empty"),
        ("\t\t", "one of the labels"),
    ],
)
def test_sick_rejects_bad_lines(write, line, match):
    good = "neutral\ta\tb"
    check_bad_line("sick", write("a.tsv", good, line, good), 2, match, good=2)


# table


def test_table_formats(write, tmp_path):
    task = Table(text="text")
    expected = [Example(("a, b",), "1", (None,)), Example(('c "d"',), "0", (None,))]
    tsv = write("a.tsv", "label\ttext", "1\ta, b", '0\tc "d"')
    rows = write("a.csv.gz", "text,label", '"a, b",1', "", '"c ""d""",0')
    records = [{"text": "a, b", "label": 1}, {"label": "0", "text": 'c "d"', "more": None}]
    jsonl = write("a.JSONL", *map(json.dumps, records))
    for path in (tsv, rows, jsonl):
        assert read(task, path)[0] == expected
    assert read(task, rows)[1].dropped == {"blank lines": 1}
    flags = write("b.jsonl", '{"text": "a", "label": true}')
    assert read(task, flags)[0][0].label == "true"
    numbers = write("c.jsonl", *(json.dumps({"text": "a", "label": x}) for x in (2.0, 2.5)))
    assert [example.label for example in read(task, numbers)[0]] == ["2", "2.5"]
    with pytest.raises(ValueError, match=r"a\.dat .*\.tsv, \.csv, \.jsonl"):
        read(task, tmp_path / "a.dat")
    with pytest.raises(ValueError, match=r"a\.xlsx is a spreadsheet; save it as CSV"):
        read(task, tmp_path / "a.xlsx")


def test_table_pairs_by_column_number(write):
    path = write("a.tsv", "x\ta b\tc", "y\td\te")
    assert read(Table(text="1", second="2", label="0"), path)[0] == [
        Example(("a b", "c"), "x", (None, None)),
        Example(("d", "e"), "y", (None, None)),
    ]
    with pytest.raises(BadLineError, match=r"line 1: .*column 3.* got 3 columns"):
        read(Table(text="3", label="0"), path, skip_bad=True)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"text": "text", "label": "0"}, "got text, 0"),
        ({"text": "text", "labels": ["a", "a"]}, "got a, a"),
    ],
)
def test_table_rejects_arguments(arguments, match):
    with pytest.raises(ValueError, match=match):
        Table(**arguments)


def test_table_labels(write):
    path = write("a.csv", "text,label", "a,yes", "b,maybe")
    check_bad_line(
        Table(text="text", labels=["yes", "no"]), path, 3, "yes, no, got 'maybe'", good=1
    )
    assert [example.label for example in read(Table(text="text"), path)[0]] == ["yes", "maybe"]


def test_table_quoted_newlines(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'text,label\r\n"a\r\nb\r\n\r\nc",1\r\nd,1,2\r\n"e\nf",\r\n')
    with pytest.raises(BadLineError, match=r"line 6: .*2 columns, got 3"):
        read(Table(text="text"), path)
    examples, report = read(Table(text="text"), path, skip_bad=True)
    assert [example.texts for example in examples] == [("a\nb\n\nc",)]
    assert report.bad == 2
    assert "line 7: " in report.first_bad[1]


def test_table_long_fields(write):
    path = write("a.csv", "text,label", f"{'x' * 131_073},1")
    pattern = "at most 131,072 characters, got .*shorten it, or pass --skip-bad$"
    with pytest.raises(BadLineError, match=pattern):
        read(Table(text="text"), path)


def test_table_stray_quotes(write):
    lines = ["text\tlabel", '"a\t1', "b\t1", '"c" d\t0', "e\t0"]
    path = write("a.tsv", *lines)
    with pytest.raises(BadLineError, match=r"line 2: .*--set quotes=false"):
        read(Table(text="text"), path)
    examples, report = read(Table(text="text"), path, skip_bad=True)
    assert [example.texts[0] for example in examples] == ["b", "e"]
    assert "train with --set quotes=false" in report.first_bad[0]
    assert report.bad == 2
    examples, _ = read(Table(text="text", quotes=False), path)
    assert [example.texts[0] for example in examples] == ['"a', "b", '"c" d', "e"]
    # a quote that is never closed does not swallow the rest of the file
    path = write("b.tsv", *lines[:2], *["b\t1"] * 50_000)
    examples, report = read(Table(text="text"), path, skip_bad=True)
    assert (len(examples), report.bad) == (50_000, 1)


def test_table_rejects_bare_carriage_returns(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"text,label\ra,1\rb,2\r")
    with pytest.raises(BadLineError, match=r"line 1: .*LF or CRLF"):
        read(Table(text="text"), path)


@pytest.mark.parametrize(
    ("record", "match"),
    [
        ({"text": "", "label": "a"}, "column 'text', got an empty"),
        ({"text": None, "label": "a"}, "column 'text', got None"),
        ({"txt": "a", "label": "a"}, "column 'text', got columns 'txt', 'label'.*mean 'txt'"),
        ({"text": "a", "label": None}, "label, got None"),
        ({"text": "a", "label": math.nan}, "label, got nan"),
        ({"text": "a", "label": [0.5]}, r"label, got \[0.5\]"),
        ({"text": "a", "label": " "}, "label, got an empty"),
        ([], r"JSON object, got '\[\]'"),
    ],
)
def test_table_rejects_bad_lines(write, record, match):
    path = write("a.jsonl", '{"text": "a", "label": 1}', json.dumps(record))
    check_bad_line(Table(text="text"), path, 2, match, good=1)


def test_table_lists_of_json_objects(write):
    records = [{"text": "a", "label": 1}, {"text": "b", "label": "x", "more": [1]}]
    pretty = write("a.json", json.dumps(records, indent=2))
    packed = write("b.json.gz", json.dumps(records))
    # some programs write JSON Lines to .json files
    lines = write("c.json", *map(json.dumps, records))
    single = write("d.json", json.dumps(records[0], indent=2))
    for path in (pretty, packed, lines):
        assert [x.label for x in read(Table(text="text"), path)[0]] == ["1", "x"]
    assert read(Table(text="text"), single)[0] == [Example(("a",), "1", (None,))]


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ('{"text": {"0": "a"}, "label": {"0": "b"}}', "a list of objects.*orient='records'"),
        ('{"data": [{"text": "a", "label": "b"}]}', "a list of objects.*orient='records'"),
        ('{"txt": "a", "label": "b"}', "row 1: .*'text', got columns 'txt', 'label'"),
        ("3", "a list of objects, one per row, got 3"),
        ('[{"text": "a",', r"a\.json is not valid JSON: .*line 1"),
        ('[{"text": "a", "label": "b"}, 4]', r"a\.json, row 2: expected an object, got 4"),
        ('[{"text": "a", "label": "b"}, {"text": "c", "label": null}]', "row 2: .*label, got None"),
        ('[{"txt": "a", "label": "b"}]', "row 1: .*'text', got columns 'txt', 'label'; .*--text"),
    ],
)  # fmt: skip
def test_table_rejects_bad_json(write, content, match):
    with pytest.raises(ValueError, match=match):
        read(Table(text="text"), write("a.json", content))


def test_table_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    columns = {"n": [1, 2, 3], "text": ["a", "b", "c"], "label": [4, None, 5]}
    parquet.write_table(pyarrow.table(columns), path)
    with pytest.raises(BadLineError, match=r"a\.parquet, row 2: .*label, got None.*--skip-bad"):
        read(Table(text="text"), path)
    examples, report = read(Table(text="text"), path, skip_bad=True)
    assert [(x.texts[0], x.label) for x in examples] == [("a", "4"), ("c", "5")]
    assert report.bad == 1
    path.write_bytes(b"not a table")
    with pytest.raises(ValueError, match=r"a\.parquet is not a valid Parquet file"):
        read(Table(text="text"), path)


def test_table_parquet_requires_pyarrow(write, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError) as error:
        read(Table(text="text"), write("a.parquet"))
    assert pip_command("pyarrow") in str(error.value)


@pytest.mark.parametrize(
    "separator", [";", "\t", "|", ","], ids=["semicolon", "tab", "bar", "comma"]
)
@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_table_separators(write, separator, name):
    rows = [["label", " text "], ["1", f'"a{separator} b, c; d"'], ["0", "e"]]
    path = write(name, "", *map(separator.join, rows))
    expected = [Example((f"a{separator} b, c; d",), "1", (None,)), Example(("e",), "0", (None,))]
    assert read(Table(text="text"), path)[0] == expected
    # without a header, the number of columns decides
    path = write(name, *map(separator.join, rows[1:]))
    assert read(Table(text="1", label="0"), path)[0] == expected


def test_table_separator_of_excel(write):
    path = write("a.csv", "sep=;", "text;label", "a, b;1")
    assert read(Table(text="text"), path)[0] == [Example(("a, b",), "1", (None,))]
    with pytest.raises(BadLineError, match=r"line 2: .*'txt', got columns 'text', 'label'"):
        read(Table(text="txt"), path)


def test_table_given_separators(write):
    path = write("a.csv", "text^label", "a, b^1,2")
    with pytest.raises(BadLineError, match=r"'text', got columns 'text\^label'.*--set separator="):
        read(Table(text="text"), path)
    table = Table(text="text", separator="^")
    assert read(table, path)[0] == [Example(("a, b",), "1,2", (None,))]
    tabs = write("b.csv", "text\tlabel", "a\tb")
    assert read(Table(text="text", separator="tab"), tabs)[0][0].label == "b"
    with pytest.raises(ValueError, match=r"`separator` must be one character.*got ';;'"):
        Table(text="text", separator=";;")


def test_table_lists_the_columns_of_a_semicolon_file(write):
    path = write("a.csv", "review;stars", "a, b, c, d;1")
    message = "line 1: expected a column 'text', got columns 'review', 'stars'; .*--text COLUMN"
    with pytest.raises(BadLineError, match=message):
        read(Table(text="text", label="stars"), path)
    twice = write("b.csv", "text,label,text", "a,b,c")
    with pytest.raises(BadLineError, match="one column 'text', got 2 of them; rename"):
        read(Table(text="text"), twice)


def test_table_explains_unquoted_separators(write):
    path = write("a.csv", "text,label", "well, yes,1", "no,0")
    check_bad_line(Table(text="text"), path, 2, "2 columns, got 3; put fields.*quotes", good=1)


def test_table_explains_other_encodings(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes("text,label\ncafé,1\n".encode("latin-1"))
    with pytest.raises(BadLineError, match=r"line 2: .*UTF-8.*iconv -f WINDOWS-1252.*Excel"):
        read(Table(text="text"), path)


def test_table_empty_labels_name_the_line_and_the_option(write):
    path = write("a.csv", "text,label", '"a', 'b",1', "c, ", "d,0")
    check_bad_line(Table(text="text"), path, 4, "label, got an empty.*--skip-bad", good=2)


# random division


def test_split():
    parts = split(1000, [0.8, 0.1, 0.1], seed=0)
    assert [len(part) for part in parts] == [800, 100, 100]
    assert parts == split(1000, [0.8, 0.1, 0.1], seed=0)
    assert parts != split(1000, [0.8, 0.1, 0.1], seed=1)
    assert all(part == sorted(part) for part in parts)
    assert 400 < statistics.mean(parts[1]) < 600
    assert [len(part) for part in split(7, [0.5, 0.25], seed=0)] == [4, 1]
    assert split(0, [1.0], seed=0) == [[]]


@pytest.mark.parametrize("fractions", [[-0.1], [float("nan")], [0.9, 0.2]])
def test_split_rejects_fractions(fractions):
    with pytest.raises(ValueError, match=f"{fractions[0]}"):
        split(5, fractions, seed=0)


@given(st.integers(0, 60), st.lists(st.floats(0, 1), min_size=1, max_size=5), st.integers())
def test_split_uses_each_example_once(count, shares, seed):
    fractions = [share / max(1, sum(shares)) for share in shares]
    chosen = list(itertools.chain(*split(count, fractions, seed)))
    assert len(set(chosen)) == len(chosen) == round(sum(fractions) * count)
