"""Gold trees of the tasks' files and of a user's."""

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
        # nodes of one child, and a root without label
        ("( (S (NP (NP (NN cats))) (VP sat)))", "cats sat", {(0, 2)}),
        # more than two children; words without a node of their own
        ("(S a b (X c d) e)", "a b c d e", {(2, 4), (0, 5)}),
        ("(NN cat)", "cat", set()),
        # a trace leaves no word, nor a node
        ("(S (NP (-NONE- *T*-1)) (VP (V go) (NP (-NONE- *) (N home))))", "go home", {(0, 2)}),
        (r"(S (-LRB- -LRB-) (CD 1\/2) (-RRB- -RRB-))", "( 1/2 )", {(0, 3)}),
        ("(3 (2 It) (4 (2 's) (3 fun)))", "It 's fun", {(1, 3), (0, 3)}),
    ],
)
def test_labelled_trees(text, words, spans):
    assert parse_brackets(text, labelled=True) == (words.split(), spans)
    assert parse_brackets(text, labelled=True, strict=True) == (words.split(), spans)
    assert gold.form_of(text) == "labelled"


@pytest.mark.parametrize(
    ("text", "words", "spans"),
    [
        ("( ( the cat ) sat )", "the cat sat", {(0, 2), (0, 3)}),
        ("( the ( cat sat ) )", "the cat sat", {(1, 3), (0, 3)}),
        ("( a b ( c d ) )", "a b c d", {(2, 4), (0, 4)}),
        ("cat", "cat", set()),
        ("( a -LRB- )", "a (", {(0, 2)}),
    ],
)
def test_plain_trees(text, words, spans):
    assert parse_brackets(text, labelled=False) == (words.split(), spans)
    assert gold.form_of(text) == "plain"


@pytest.mark.parametrize(
    ("text", "labelled", "message"),
    [
        ("(S (NP a) b", True, "expected 1 more '\\)', got the end of"),
        ("(S a)) ", True, "expected one tree a line, got '\\)' at character 5"),
        ("(S a) (S b)", True, "expected one tree a line, got '\\(' at character 6"),
        ("(S (NP) b)", True, "expected a word in every node, got none at character 6"),
        ("cat", True, "expected '\\(' and a label, got 'cat' at character 0"),
        (") a (", False, "expected '\\(' before '\\)'"),
        ("( a ( ) )", False, "expected a word in every node"),
        ("a b", False, "expected one tree a line, got 'b'"),
        ("(S (-NONE- *))", True, "expected a tree with words"),
    ],
)
def test_what_is_no_tree(text, labelled, message):
    with pytest.raises(MismatchError, match=message):
        parse_brackets(text, labelled)


def test_a_deep_tree_is_read():
    text = "(X a " * 20_000 + "b" + ")" * 20_000
    words, spans = parse_brackets(text, labelled=True)
    assert len(words) == len(spans) + 1 == 20_001


# files


def test_files_of_both_kinds(tmp_path):
    labelled = write(tmp_path, "(S (A a) (B (C b) (D c)))", "", "(X x)")
    report = Report()
    trees = read_trees(labelled, report=report)
    assert trees == [
        Gold(("a", "b", "c"), frozenset({(1, 3), (0, 3)}), f"{labelled}, line 1"),
        Gold(("x",), frozenset(), f"{labelled}, line 3"),
    ]
    assert report.examples == 2
    plain = tmp_path / "plain.txt.gz"
    plain.write_bytes(gzip.compress(b"( a ( b c ) )\nword\n"))
    assert [tree[:2] for tree in read_trees(plain)] == [trees[0][:2], (("word",), frozenset())]
    assert len(read_trees(plain, limit=1)) == 1


def test_files_that_could_be_read_in_two_ways(tmp_path):
    # without spaces these are labels to a reader of treebanks: words would be lost
    path = write(tmp_path, "((the cat) sat)")
    with pytest.raises(BadLineError, match=r"line 1: expected labels after.*--gold-format"):
        read_trees(path)
    assert read_trees(path, "plain")[0].words == ("the", "cat", "sat")
    assert read_trees(path, "labelled")[0].words == ("cat", "sat")
    path = write(tmp_path, "( a (b c) )")
    with pytest.raises(BadLineError, match="got both in"):
        read_trees(path)
    path = write(tmp_path, "( a b )", "(S (A a) (B b))")
    with pytest.raises(BadLineError, match="line 2: expected a plain tree, as before, got a label"):
        read_trees(path)
    with pytest.raises(ValueError, match="auto, labelled or plain, got 'ptb'"):
        read_trees(path, "ptb")


def test_bad_lines(tmp_path):
    path = write(tmp_path, "( a b )", "( a ( b", "( c d )")
    with pytest.raises(BadLineError, match=r"trees\.txt, line 2: expected 2 more"):
        read_trees(path)
    report = Report()
    assert len(read_trees(path, report=report, skip_bad=True)) == 2
    assert report.bad == 1
    path = write(tmp_path, "( a b )", "\t \t", "", "\u00a0", "( c d )")
    report = Report()
    assert len(read_trees(path, report=report)) == 2
    assert report.dropped["blank lines"] == 3
    (tmp_path / "empty.txt").touch()
    with pytest.raises(ValueError, match=r"empty\.txt: expected a tree a line, got none"):
        read_trees(tmp_path / "empty.txt")
    with pytest.raises(FileNotFoundError, match="expected a file"):
        read_trees(tmp_path / "tree.txt")


# tasks


def test_sst_gives_whole_sentences(tmp_path):
    lines = ["(3 (2 It) (4 (2 's) (3 fun)))", "(2 (2 so) (2 so))", r"(1 (2 -LRB-) (2 1\/2))"]
    path = write(tmp_path, *lines, name="train.txt")
    report = Report()
    found = read_examples(tree_task("sst2"), path, report=report)
    assert [each.trees[0].words for each in found] == [("It", "'s", "fun"), ("(", "1/2")]
    assert found[0].trees[0].spans == {(1, 3), (0, 3)}
    assert found[0].example.label == "positive"
    assert report.dropped["neutral"] == 1
    assert len(read_examples(tree_task("sst5"), path)) == 3
    assert len(read_examples(tree_task("sst5"), path, limit=2)) == 2
    with pytest.raises(ValueError, match="sst2 are binary"):
        read_examples(tree_task("sst2"), path, "full")
    with pytest.raises(ValueError, match="must be binary or full"):
        read_examples(tree_task("sst2"), path, "other")
    with pytest.raises(ValueError, match="sst2, sst5, snli, listops, got 'sick'"):
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
def test_both_parses_of_snli(tmp_path, form):
    lines = [PAIR, {**PAIR, "gold_label": "-"}, PAIR]
    if form == "jsonl":
        path = write(tmp_path, *map(json.dumps, lines), name="dev.jsonl")
    else:
        rows = ["\t".join(line.values()) for line in lines]
        path = write(tmp_path, "\t".join(PAIR), *rows, name="dev.txt")
    binary = read_examples(tree_task("snli"), path)
    full = read_examples(tree_task("snli"), path, "full")
    assert len(binary) == len(full) == 2
    assert (
        binary[0].trees[0].words == full[0].trees[0].words == ("Dogs", "run", "(", "fast", ")", ".")
    )
    assert binary[0].trees[1].spans == {(0, 2), (2, 4), (0, 4)}
    assert full[0].trees[0].spans == {(1, 5), (0, 6)}
    assert full[0].trees[1].spans == {(0, 2), (0, 4)}
    # the same tree twice is one
    assert len(gold.distinct(full)) == 2
    without = {key: value for key, value in PAIR.items() if "parse" not in key}
    path = write(tmp_path, json.dumps(without), name="bare.jsonl")
    for parses in ("binary", "full"):
        found = read_examples(tree_task("snli"), path, parses)
        assert found[0].trees == (None, None)
        assert gold.distinct(found) == []
    path = write(tmp_path, json.dumps({**PAIR, "sentence2_parse": "(ROOT (S"}), name="bad.jsonl")
    with pytest.raises(BadLineError, match=r"bad\.jsonl, line 1: expected 2 more"):
        read_examples(tree_task("snli"), path, "full")


def test_both_structures_of_listops(tmp_path):
    path = write(tmp_path, "8\t( ( ( [MAX 2 ) ( ( ( [MIN 8 ) 9 ) ] ) ) ] )", name="test.tsv")
    (binary,) = read_examples(tree_task("listops"), path)
    assert binary.trees[0].spans == {(0, 2), (2, 4), (2, 5), (2, 6), (0, 6), (0, 7)}
    (full,) = read_examples(tree_task("listops"), path, "full")
    assert full.trees[0].words == ("[MAX", "2", "[MIN", "8", "9", "]", "]")
    assert full.trees[0].spans == {(2, 6), (0, 7)}
    path = write(tmp_path, "8\t[MAX 2 8 ]", "3\t3", name="bare.tsv")
    bare = read_examples(tree_task("listops"), path)
    assert bare[0].trees == (None,)
    assert read_examples(tree_task("listops"), path, "full")[0].trees[0].spans == {(0, 4)}
