"""Gold trees of the tasks' files and of a user's file."""

import gzip
import json

import pytest

from gumbeltree.analysis import gold
from gumbeltree.analysis.gold import Gold, parse_brackets, read_examples, read_trees, tree_task
from gumbeltree.text.files import BadLineError, MismatchError, Report


def write(folder, *lines, name="trees.txt"):
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "words", "spans"),
    [
        ("(S (NP (DT the) (NN cat)) (VP (VBD sat)))", "the cat sat", {(0, 2), (0, 3)}),
        # nodes with one child, and a root without a label
        ("( (S (NP (NP (NN cats))) (VP sat)))", "cats sat", {(0, 2)}),
        # more than two children; words without a node of their own
        ("(S a b (X c d) e)", "a b c d e", {(2, 4), (0, 5)}),
        ("(NN cat)", "cat", set()),
        # a trace leaves neither a word nor a node
        ("(S (NP (-NONE- *T*-1)) (VP (V go) (NP (-NONE- *) (N home))))", "go home", {(0, 2)}),
        ("(3 (2 It) (4 (2 's) (3 fun)))", "It 's fun", {(1, 3), (0, 3)}),
        # without labels
        ("( ( the cat ) sat )", "the cat sat", {(0, 2), (0, 3)}),
        ("( a b ( c d ) )", "a b c d", {(2, 4), (0, 4)}),
        ("cat", "cat", set()),
    ],
)
def test_parse_brackets(text, words, spans):
    assert parse_brackets(text) == (words.split(), spans)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(S a) (S b)", r"unexpected '\(' at character 6"),
        # read as labels, these words would be lost
        ("((the cat) sat)", r"space after every '\('"),
        ("( a (b c) )", "both in"),
    ],
)
def test_rejects_malformed_trees(text, message):
    with pytest.raises(MismatchError, match=message):
        parse_brackets(text)


# files


def test_reads_labelled_and_plain_files(tmp_path):
    labelled = write(tmp_path, r"(S (A -LRB-) (B (C 1\/2) (D c)))", "", "\t\u00a0", "(X x)")
    report = Report()
    trees = read_trees(labelled, report=report)
    assert trees == [
        Gold(("(", "1/2", "c"), frozenset({(1, 3), (0, 3)}), f"{labelled}, line 1"),
        Gold(("x",), frozenset(), f"{labelled}, line 4"),
    ]
    assert (report.examples, report.dropped["blank lines"]) == (2, 2)
    plain = tmp_path / "plain.txt.gz"
    plain.write_bytes(gzip.compress(b"( -LRB- ( 1\\/2 c ) )\nword\n"))
    assert [tree[:2] for tree in read_trees(plain)] == [trees[0][:2], (("word",), frozenset())]
    assert len(read_trees(plain, limit=1)) == 1


def test_malformed_lines_raise_or_are_skipped(tmp_path):
    path = write(tmp_path, "( a b )", "( a ( b", "( c d )")
    with pytest.raises(BadLineError, match=r"trees\.txt, line 2: "):
        read_trees(path)
    report = Report()
    assert len(read_trees(path, report=report, skip_bad=True)) == 2
    assert report.bad == 1
    (tmp_path / "empty.txt").touch()
    with pytest.raises(ValueError, match=r"empty\.txt contains no trees"):
        read_trees(tmp_path / "empty.txt")


# tasks


def test_sst_yields_whole_sentences(tmp_path):
    lines = ["(3 (2 It) (4 (2 's) (3 fun)))", "(2 (2 so) (2 so))", r"(1 (2 -LRB-) (2 1\/2))"]
    path = write(tmp_path, *lines, name="train.txt")
    report = Report()
    examples = read_examples(tree_task("sst2"), path, report=report)
    assert [example.trees[0].words for example in examples] == [("It", "'s", "fun"), ("(", "1/2")]
    assert examples[0].trees[0].spans == {(1, 3), (0, 3)}
    assert examples[0].example.label == "positive"
    assert report.dropped["neutral"] == 1
    assert len(read_examples(tree_task("sst5"), path)) == 3
    assert len(read_examples(tree_task("sst5"), path, limit=2)) == 2
    with pytest.raises(ValueError, match="sst2 has only binary trees"):
        read_examples(tree_task("sst2"), path, "full")
    with pytest.raises(ValueError, match="'sick' has no gold trees"):
        tree_task("sick")


PAIR = {
    "gold_label": "neutral",
    "sentence1": "Dogs run (fast).",
    "sentence2": "A dog runs.",
    "sentence1_binary_parse": "( Dogs ( run ( -LRB- ( fast ( -RRB- . ) ) ) ) )",
    "sentence2_binary_parse": "( ( A dog ) ( runs . ) )",
    "sentence1_parse": "(ROOT (S (NP (NNS Dogs)) (VP (VBP run) (-LRB- -LRB-) (RB fast) "
    "(-RRB- -RRB-)) (. .)))",
    "sentence2_parse": "(ROOT (S (NP (DT A) (NN dog)) (VP (VBZ runs)) (. .)))",
}


@pytest.mark.parametrize("form", ["jsonl", "txt"])
def test_snli_has_binary_and_full_parses(tmp_path, form):
    lines = [PAIR, {**PAIR, "gold_label": "-"}, PAIR]
    if form == "jsonl":
        path = write(tmp_path, *map(json.dumps, lines), name="dev.jsonl")
    else:
        rows = ["\t".join(line.values()) for line in lines]
        path = write(tmp_path, "\t".join(PAIR), *rows, name="dev.txt")
    binary = read_examples(tree_task("snli"), path)
    full = read_examples(tree_task("snli"), path, "full")
    assert len(binary) == len(full) == 2
    words = ("Dogs", "run", "(", "fast", ")", ".")
    assert binary[0].trees[0].words == full[0].trees[0].words == words
    assert binary[0].trees[1].spans == {(0, 2), (2, 4), (0, 4)}
    assert full[0].trees[0].spans == {(1, 5), (0, 6)}
    assert full[0].trees[1].spans == {(0, 2), (0, 4)}
    assert len(gold.distinct(full)) == 2


def test_snli_without_parses(tmp_path):
    bare = {key: value for key, value in PAIR.items() if "parse" not in key}
    path = write(tmp_path, json.dumps(bare), name="bare.jsonl")
    for parses in ("binary", "full"):
        examples = read_examples(tree_task("snli"), path, parses)
        assert examples[0].trees == (None, None)
        assert gold.distinct(examples) == []
    path = write(tmp_path, json.dumps({**PAIR, "sentence2_parse": "(ROOT (S"}), name="bad.jsonl")
    with pytest.raises(BadLineError, match=r"bad\.jsonl, line 1: "):
        read_examples(tree_task("snli"), path, "full")


def test_listops_has_trees_with_and_without_brackets(tmp_path):
    lines = ["8\t( ( ( [MAX 2 ) ( ( ( [MIN 8 ) 9 ) ] ) ) ] )", "8\t[MAX 2 8 ]"]
    binary, bare = read_examples(tree_task("listops"), write(tmp_path, *lines, name="test.tsv"))
    assert binary.trees[0].spans == {(0, 2), (2, 4), (2, 5), (2, 6), (0, 6), (0, 7)}
    assert bare.trees[0].spans == {(0, 2), (0, 3), (0, 4)}


def test_logic_has_trees_of_its_brackets(tmp_path):
    path = write(tmp_path, "<\t( a ( and b ) )\ta", name="test.tsv")
    (example,) = read_examples(tree_task("logic"), path)
    # the inner group has the words 2 to 5
    assert {(3, 5), (2, 5), (2, 6), (1, 6), (0, 6), (0, 7)} == example.trees[0].spans
