import copy
import dataclasses
import doctest
import pickle
import re
from itertools import permutations
from textwrap import dedent
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gumbeltree.tree
from gumbeltree.tree import Tree

SENTENCE = (
    "in the early morning light the old fisherman who had lost his boat walked slowly along the "
    "empty beach and looked for driftwood that he could sell at the market"
)
LONG = [f"w{number}" for number in range(5000)]

# "RB" is left out because a word such as "-LRB-" reads back as "("
any_words = st.one_of(
    st.sampled_from(["the", "cat", "(", ")", ":-)", "f(x)", "don't", "喜欢", "cafe\u0301", "<&>"]),
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=5).filter(
        lambda word: word.split() == [word] and "RB" not in word
    ),
)
plain_words = st.text("abcdefgh", min_size=1, max_size=9)


@st.composite
def trees(draw, words=any_words, min_size=1, max_size=12):
    chosen = draw(st.lists(words, min_size=min_size, max_size=max_size))
    return Tree(chosen, [draw(st.integers(0, last)) for last in range(len(chosen) - 2, -1, -1)])


def spans_of(nested, start=0):
    """The end and the spans of a nested tree, recursively: slow but plain."""
    if isinstance(nested, str):
        return start + 1, set()
    middle, left = spans_of(nested[0], start)
    end, right = spans_of(nested[1], middle)
    return end, left | right | {(start, end)}


# a tree over four words, every form worked out by hand
WORDS = ("the", "cat", "sat", "down")
FORMS = [
    # order, spans, nested, brackets, nltk, depth
    (
        (0, 0, 0),
        ((0, 2), (0, 3), (0, 4)),
        ((("the", "cat"), "sat"), "down"),
        "( ( ( the cat ) sat ) down )",
        "(X (X (X the cat) sat) down)",
        3,
    ),
    (
        (0, 1, 0),
        ((0, 2), (2, 4), (0, 4)),
        (("the", "cat"), ("sat", "down")),
        "( ( the cat ) ( sat down ) )",
        "(X (X the cat) (X sat down))",
        2,
    ),
    (
        (1, 0, 0),
        ((1, 3), (0, 3), (0, 4)),
        (("the", ("cat", "sat")), "down"),
        "( ( the ( cat sat ) ) down )",
        "(X (X the (X cat sat)) down)",
        3,
    ),
    (
        (1, 1, 0),
        ((1, 3), (1, 4), (0, 4)),
        ("the", (("cat", "sat"), "down")),
        "( the ( ( cat sat ) down ) )",
        "(X the (X (X cat sat) down))",
        3,
    ),
    (
        (2, 1, 0),
        ((2, 4), (1, 4), (0, 4)),
        ("the", ("cat", ("sat", "down"))),
        "( the ( cat ( sat down ) ) )",
        "(X the (X cat (X sat down)))",
        3,
    ),
]


@pytest.mark.parametrize(("order", "spans", "nested", "brackets", "nltk", "depth"), FORMS)
def test_every_form_of_the_trees_over_four_words(order, spans, nested, brackets, nltk, depth):
    made = [
        Tree(WORDS, order),
        Tree.from_spans(WORDS, spans),
        Tree.from_nested(nested),
        Tree.from_brackets(brackets),
        Tree.from_nltk(nltk),
    ]
    for tree in made:
        assert tree.words == WORDS
        assert tree.order == order
        assert tree.spans == spans
        assert tree.nested == nested
        assert str(tree) == brackets
        assert repr(tree) == f"Tree({brackets!r})"
        assert tree.to_nltk() == nltk
        assert tree.depth == depth
        assert len(tree) == 4
    assert len(set(made)) == 1


def test_the_examples_in_the_docstrings():
    results = doctest.testmod(gumbeltree.tree)
    assert results.attempted > 5
    assert results.failed == 0


def test_one_word():
    tree = Tree("the", [])
    assert tree.words == ("the",)
    assert tree.order == tree.spans == ()
    assert tree.nested == str(tree) == tree.draw() == "the"
    assert tree.depth == 0
    assert tree.to_nltk("NP") == "(NP the)"
    assert repr(tree) == "Tree('the')"
    others = [
        Tree.from_spans("the", []),
        Tree.from_spans("the", [(0, 1)]),
        Tree.from_nested("the"),
        Tree.from_brackets("the"),
        Tree.from_nltk("(NP the)"),
        Tree.left_branching("the"),
        Tree.right_branching("the"),
        Tree.balanced("the"),
        Tree.random("the", 0),
    ]
    assert all(other == tree for other in others)


def test_words_are_split_from_a_string_or_taken_from_an_iterable():
    assert Tree("  the\tcat\nsat ", [0, 0]).words == ("the", "cat", "sat")
    assert Tree(iter(["the", "cat"]), iter([0])) == Tree("the cat", [0])


def test_order_is_kept_as_given_and_does_not_count_for_equality():
    right_first, left_first = Tree(WORDS, [2, 0, 0]), Tree(WORDS, [0, 1, 0])
    assert right_first.order == (2, 0, 0)
    assert right_first.spans == ((2, 4), (0, 2), (0, 4))
    assert right_first == left_first
    assert hash(right_first) == hash(left_first)
    assert right_first != Tree(WORDS, [0, 0, 0])
    assert right_first != Tree("the cat sat up", [2, 0, 0])
    assert right_first != str(right_first)


def test_a_tree_is_frozen_and_copies():
    tree = Tree(WORDS, [2, 0, 0])
    with pytest.raises(dataclasses.FrozenInstanceError):
        tree.order = (0, 0, 0)
    for other in (pickle.loads(pickle.dumps(tree)), copy.deepcopy(tree)):
        assert other == tree
        assert other.order == tree.order


def test_spans_in_any_order_with_or_without_root_and_single_words():
    expected = Tree.from_brackets("( ( the cat ) ( sat down ) )")
    assert Tree.from_spans(WORDS, [(2, 4), (0, 2)]) == expected
    assert Tree.from_spans(WORDS, [(0, 4), (2, 4), (0, 2), (2, 4), (1, 2)]) == expected
    assert Tree.from_spans(WORDS, {(2, 4), (0, 2)}).order == (0, 1, 0)
    assert str(Tree.from_spans("the cat", [])) == "( the cat )"


def test_brackets_need_no_spaces():
    assert str(Tree.from_brackets("((the cat)sat)")) == "( ( the cat ) sat )"
    assert str(Tree.from_brackets("\n(the(cat\tsat))  ")) == "( the ( cat sat ) )"


def test_parentheses_in_words():
    tree = Tree(["(", "f(x)", ":-)"], [0, 0])
    assert str(tree) == "( ( -LRB- f-LRB-x-RRB- ) :--RRB- )"
    assert tree.to_nltk() == "(X (X -LRB- f-LRB-x-RRB-) :--RRB-)"
    assert Tree.from_brackets(str(tree)).words == ("(", "f(x)", ":-)")
    assert Tree.from_nltk(tree.to_nltk()).words == ("(", "f(x)", ":-)")


@pytest.mark.parametrize(
    ("text", "binarize", "expected"),
    [
        ("(S (NP the cat) (VP sat))", None, "( ( the cat ) sat )"),
        ("(3 (2 It) (4 works))", None, "( It works )"),
        ("(NP (NN cat))", None, "cat"),
        ("( (S (NP (DT the) (NN cat)) (VP (VBD sat))))", None, "( ( the cat ) sat )"),
        ("((S a b))", None, "( a b )"),
        ("( S\n  ( NP a b )\n  c )", None, "( ( a b ) c )"),
        ("(A (B (C (D a) (E (F b)))) c)", None, "( ( a b ) c )"),
        ("(S a b c d)", "right", "( a ( b ( c d ) ) )"),
        ("(S a b c d)", "left", "( ( ( a b ) c ) d )"),
        ("(S a (T b c d) (U e))", "right", "( a ( ( b ( c d ) ) e ) )"),
        ("(S a (T b c d) (U e))", "left", "( ( a ( ( b c ) d ) ) e )"),
        ("(S (T (U a)))", "left", "a"),
    ],
)
def test_nltk(text, binarize, expected):
    tree = Tree.from_nltk(text, binarize)
    assert str(tree) == expected
    assert tree.order == Tree.from_brackets(expected).order


def test_nltk_label():
    assert Tree.from_brackets("( ( a b ) c )").to_nltk(label="NP|2") == "(NP|2 (NP|2 a b) c)"


@given(trees())
def test_round_trips(tree):
    brackets = str(tree)
    read = Tree.from_brackets(brackets)
    assert read == tree
    assert str(Tree(read.words, read.order)) == brackets
    assert str(Tree(tree.words, tree.order)) == brackets
    assert Tree.from_spans(tree.words, tree.spans) == tree
    assert Tree.from_spans(tree.words, tree.spans[:-1]) == tree
    assert Tree.from_nested(tree.nested) == tree
    assert Tree.from_nltk(tree.to_nltk()) == tree
    assert spans_of(tree.nested) == (len(tree), set(tree.spans))


@given(trees())
def test_all_readers_give_the_same_canonical_order(tree):
    orders = {
        Tree.from_brackets(str(tree)).order,
        Tree.from_spans(tree.words, tree.spans).order,
        Tree.from_nested(tree.nested).order,
        Tree.from_nltk(tree.to_nltk()).order,
        Tree.from_nltk(tree.to_nltk(), "left").order,
        Tree.from_nltk(tree.to_nltk(), "right").order,
    }
    assert len(orders) == 1
    spans = Tree(tree.words, orders.pop()).spans
    assert list(spans) == sorted(spans, key=lambda span: (span[1], -span[0]))


@given(trees(max_size=6), trees(max_size=6))
def test_equality_is_that_of_the_brackets(first, second):
    second = Tree([f"{position}" for position in range(len(second))], second.order)
    first = Tree([f"{position}" for position in range(len(first))], first.order)
    assert (first == second) == (str(first) == str(second))
    if first == second:
        assert hash(first) == hash(second)


def test_merge_orders_of_five_words_give_fourteen_trees():
    # the merges of a tree in the order of the gaps between words they close
    found = set()
    for gaps in permutations(range(4)):
        order = [
            gap - sum(earlier < gap for earlier in gaps[:step]) for step, gap in enumerate(gaps)
        ]
        found.add(Tree("a b c d e", order))
    assert len(found) == 14


def test_constructors():
    assert str(Tree.left_branching("a b c d")) == "( ( ( a b ) c ) d )"
    assert str(Tree.right_branching("a b c d")) == "( a ( b ( c d ) ) )"
    assert str(Tree.balanced("a b c")) == "( ( a b ) c )"
    assert str(Tree.balanced("a b c d e f g")) == "( ( ( a b ) ( c d ) ) ( ( e f ) g ) )"
    for make in (Tree.left_branching, Tree.right_branching, Tree.balanced):
        tree = make("a b c d e f g")
        assert tree.order == Tree.from_brackets(str(tree)).order


def test_random_is_repeatable_and_uniform_over_merge_orders():
    assert Tree.random(SENTENCE, 3).order == Tree.random(SENTENCE, 3).order
    assert Tree.random(SENTENCE, 3) != Tree.random(SENTENCE, 4)
    # two of the six merge orders of four words give the balanced tree, one each other tree
    counts = dict.fromkeys((form[3] for form in FORMS), 0)
    for seed in range(3000):
        counts[str(Tree.random(WORDS, seed))] += 1
    for brackets, count in counts.items():
        expected = 1000 if brackets == "( ( the cat ) ( sat down ) )" else 500
        assert abs(count - expected) < 120


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Tree(WORDS, [0] * 5),
            "`order` must have 3 merges for 4 words, got 5; pass one position per merge",
        ),
        (
            lambda: Tree(WORDS, [0, 2, 0]),
            "`order[1]` must lie in 0..1, got 2; pass a position among the nodes present",
        ),
        (lambda: Tree(WORDS, [0, -1, 0]), "`order[1]` must lie in 0..1, got -1"),
        (lambda: Tree("a b", [0.0]), "`order` must hold integers, but 'float' object"),
        (
            lambda: Tree([], []),
            "`words` must have at least one word, got none; leave out empty sentences",
        ),
        (lambda: Tree.left_branching(" "), "`words` must have at least one word"),
        (lambda: Tree.right_branching(""), "`words` must have at least one word"),
        (lambda: Tree.balanced([]), "`words` must have at least one word"),
        (lambda: Tree.random([], 0), "`words` must have at least one word"),
        (
            lambda: Tree(["a", ""], [0]),
            "`words[1]` must be a non-empty str without whitespace, got ''; split the sentence",
        ),
        (lambda: Tree(["a b", "c"], [0]), "`words[0]` must be a non-empty str without whitespace"),
        (lambda: Tree(["a", "c\n"], [0]), r"`words[1]` must be a non-empty str without"),
        (lambda: Tree(["a", 3], [0]), "`words[1]` must be a non-empty str without whitespace, got"),
        (
            lambda: Tree.from_spans("a b c", [(0, 2), (1, 3)]),
            "`spans` must nest, got (0, 2) and (1, 3), which cross; remove one of them",
        ),
        (
            lambda: Tree.from_spans("a b c", [(0, 4)]),
            "`spans` must be ranges with 0 <= start < end <= 3, got (0, 4); pass half-open",
        ),
        (lambda: Tree.from_spans("a b c", [(2, 2)]), "start < end <= 3, got (2, 2)"),
        (lambda: Tree.from_spans("a b c", [(-1, 2)]), "start < end <= 3, got (-1, 2)"),
        (
            lambda: Tree.from_spans("a b c d", [(1, 4)]),
            "`spans` must split every node in two, got 3 parts in (1, 4): (1, 2), (2, 3), (3, 4); "
            "add the missing spans",
        ),
        (
            lambda: Tree.from_spans("a b c d e f", [(0, 2)]),
            "got 5 parts in (0, 6): (0, 2), (2, 3), (3, 4), (4, 5), ...; add",
        ),
        (
            lambda: Tree.from_nested(("a", ("b", "c", "d"))),
            "`nested` must be a word or a pair of nodes, got a tuple of 3 after 1 words; "
            "pass 2-tuples of str",
        ),
        (lambda: Tree.from_nested(("a",)), "got a tuple of 1 after 0 words"),
        (lambda: Tree.from_nested(("a", 7)), "got 7 after 1 words"),
        (lambda: Tree.from_nested("a b"), "`words[0]` must be a non-empty str"),
        (lambda: Tree("a", []).to_nltk(""), "`label` must be one word without parentheses, got ''"),
        (lambda: Tree("a", []).to_nltk("a b"), "`label` must be one word without parentheses"),
        (lambda: Tree("a", []).to_nltk("a)"), "`label` must be one word without parentheses"),
        (
            lambda: Tree.from_nltk("(S a)", binarize="both"),
            "`binarize` must be 'left', 'right' or None, got 'both'; pass one of them",
        ),
        (lambda: Tree("a b", [0]).draw(0), "`width` must be at least 1, got 0; pass None"),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "`text` must have a word or '(' at character 0, got the end of the text; pass one"),
        ("  ", "must have a word or '(' at character 2, got the end of the text"),
        (")", "must have a word or '(' at character 0, got ')'; pass one whole tree"),
        ("()", "must have a word or '(' at character 1, got ')'; give the '(' at character 0 two"),
        ("( a )", "must have a word or '(' at character 4, got ')'; give the '(' at character 0"),
        ("( a b", "must have ')' at character 5, got the end of the text; give the '(' at"),
        ("( a ( b", "must have a word or '(' at character 7, got the end of the text; give the "
         "'(' at character 4 two children and a ')'"),
        ("( a b c )", "must have ')' at character 6, got 'c'; give the '(' at character 0"),
        ("( a b ( c d ) )", "must have ')' at character 6, got '('"),
        ("( a b ) c", "must have the end of the text at character 8, got 'c'; pass one whole tree"),
        ("( a b ) )", "must have the end of the text at character 8, got ')'"),
        ("( a b ) ( c d )", "must have the end of the text at character 8, got '('"),
        ("the cat", "must have the end of the text at character 4, got 'cat'"),
    ],
)  # fmt: skip
def test_bracket_errors(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Tree.from_brackets(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "`text` must have '(' at character 0, got the end of the text; pass one whole tree"),
        ("cat", "must have '(' at character 0, got 'cat'"),
        ("()", "must have a word or '(' at character 1, got ')'"),
        ("(cat)", "must have a word or '(' at character 4, got ')'; give the '(' at character 0 a "
         "child and a ')'"),
        ("(S (NP a) (VP))", "must have a word or '(' at character 13, got ')'"),
        ("(S", "must have a word or '(' at character 2, got the end of the text"),
        ("(S a", "must have a word or '(' or ')' at character 4, got the end of the text"),
        ("(S a) b", "must have the end of the text at character 6, got 'b'"),
        ("(S a))", "must have the end of the text at character 5, got ')'"),
        ("(R (S a b c) d)", "`text` must have nodes of one or two children, got 3 at character 3, "
         "'(S a b c)'; binarise the tree first, or pass binarize='left' or 'right'"),
    ],
)  # fmt: skip
def test_nltk_errors(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Tree.from_nltk(text)


@pytest.mark.parametrize(
    "make",
    [
        Tree.left_branching,
        Tree.right_branching,
        Tree.balanced,
        lambda words: Tree.random(words, 0),
    ],
)
def test_long_sentences_do_not_recurse(make):
    tree = make(LONG)
    assert len(tree) == 5000
    assert tree.depth >= 13
    assert Tree.from_brackets(str(tree)) == tree
    assert Tree.from_nltk(tree.to_nltk()) == tree
    assert Tree.from_spans(LONG, tree.spans) == tree
    assert Tree.from_nested(tree.nested) == tree
    assert len({tree, make(LONG)}) == 1
    assert pickle.loads(pickle.dumps(tree)) == tree
    assert len(repr(tree)) > 25000
    lines = tree.draw(80).split("\n")
    assert len(lines) == 5000
    assert max(map(len, lines)) <= 80
    assert len(ElementTree.fromstring(tree.svg()).findall(".//{*}circle")) == 4999


@pytest.mark.parametrize(
    ("brackets", "width", "drawing"),
    [
        (
            "( good movie )",
            10,
            """
             ┌──┴──┐
            good movie
            """,
        ),
        (
            "( good movie )",
            9,
            """
            ┬─ good
            └─ movie
            """,
        ),
        (
            "( ( the ( cat sat ) ) ( down quietly ) )",
            24,
            """
                ┌─────┴─────┐
             ┌──┴──┐        │
             │   ┌─┴─┐   ┌──┴───┐
            the cat sat down quietly
            """,
        ),
        (
            "( ( the ( cat sat ) ) ( down quietly ) )",
            23,
            """
            ┬─┬─── the
            │ └─┬─ cat
            │   └─ sat
            └───┬─ down
                └─ quietly
            """,
        ),
        (
            "( a ( b ( c d ) ) )",
            7,
            """
            ┌┴─┐
            │ ┌┴─┐
            │ │ ┌┴┐
            a b c d
            """,
        ),
        # two columns per level take 6 + 1 + 4
        (
            "( aaaa ( bbbb ( cccc dddd ) ) )",
            11,
            """
            ┬───── aaaa
            └─┬─── bbbb
              └─┬─ cccc
                └─ dddd
            """,
        ),
        # one column per level takes 4 + 1 + 4
        (
            "( aaaa ( bbbb ( cccc dddd ) ) )",
            10,
            """
            ┬─── aaaa
            └┬── bbbb
             └┬─ cccc
              └─ dddd
            """,
        ),
        # below that, the levels next to the root are cut
        (
            "( aaaa ( bbbb ( cccc dddd ) ) )",
            8,
            """
            …── aaaa
            …── bbbb
            …┬─ cccc
             └─ dddd
            """,
        ),
        (
            "( ( ( aaaa bbbb ) cccc ) dddd )",
            1,
            """
            … aaaa
            … bbbb
            … cccc
            … dddd
            """,
        ),
        # wide characters take two columns, combining ones none
        (
            "( ( 喜欢 cafe\u0301 ) x )",
            11,
            """
               ┌──┴───┐
             ┌─┴──┐   │
            喜欢 cafe\u0301 x
            """,
        ),
        (
            "( ( 喜欢 cafe\u0301 ) x )",
            10,
            """
            ┬─┬─ 喜欢
            │ └─ cafe\u0301
            └─── x
            """,
        ),
    ],
)
def test_drawings(brackets, width, drawing):
    assert Tree.from_brackets(brackets).draw(width) == dedent(drawing).strip("\n")


def test_the_default_width_is_that_of_the_terminal(monkeypatch):
    tree = Tree.from_brackets("( good movie )")
    monkeypatch.setenv("COLUMNS", "10")
    assert tree.draw() == tree.draw(10)
    monkeypatch.setenv("COLUMNS", "9")
    assert tree.draw() == tree.draw(9) != tree.draw(10)


def read_upright(drawing):
    """The spans of an upright drawing of ASCII words, read from the brackets upwards."""
    *levels, line = drawing.split("\n")
    words = list(re.finditer(r"\S+", line))
    nodes = {
        word.start() + (len(word.group()) - 1) // 2: (place, place + 1)
        for place, word in enumerate(words)
    }
    spans = set()
    for level in reversed(levels):
        merged = {}
        for bracket in re.finditer("┌─*┴─*┐", level):
            left, right = nodes.pop(bracket.start()), nodes.pop(bracket.end() - 1)
            assert left[1] == right[0]
            merged[level.index("┴", bracket.start())] = (left[0], right[1])
        # what the level does not merge, it carries upwards
        stems = {place for place, character in enumerate(level) if character == "│"}
        assert stems == set(nodes)
        nodes |= merged
        spans |= set(merged.values())
    assert len(nodes) == 1
    return spans


@given(trees(plain_words))
def test_the_upright_form_shows_the_tree(tree):
    drawing = tree.draw(10_000)
    lines = drawing.split("\n")
    assert lines[-1] == " ".join(tree.words)
    assert len(lines) == tree.depth + 1
    assert all(line == line.rstrip() for line in lines)
    assert max(map(len, lines)) == len(lines[-1])
    assert read_upright(drawing) == set(tree.spans)


def read_sideways(drawing):
    """The spans of a sideways drawing: the leftmost corner of a range is its split."""
    lines = drawing.split("\n")
    corners = [line.find("└") for line in lines]
    assert corners[0] == -1
    assert lines[0].startswith("┬")
    for place, corner in enumerate(corners[1:], start=1):
        above = place - 1
        while lines[above][corner] == "│":
            above -= 1
        assert lines[above][corner] == "┬"
    spans, pending = set(), [(0, len(lines))]
    while pending:
        start, end = pending.pop()
        if end - start > 1:
            split = min(range(start + 1, end), key=corners.__getitem__)
            assert corners[split + 1 : end].count(corners[split]) == 0
            spans.add((start, end))
            pending += [(start, split), (split, end)]
    return spans


@given(trees(plain_words, min_size=2), st.integers(1, 40))
def test_the_sideways_form_shows_the_tree(tree, width):
    width = min(width, sum(map(len, tree.words)) + len(tree) - 2)
    drawing = tree.draw(width)
    lines = drawing.split("\n")
    longest = max(map(len, tree.words))
    assert max(map(len, lines)) <= max(width, longest + 2)
    assert [line.split()[-1] for line in lines] == list(tree.words)
    assert len({len(line) - len(word) for line, word in zip(lines, tree.words, strict=True)}) == 1
    if width >= tree.depth + 2 + longest:
        assert read_sideways(drawing) == set(tree.spans)
    else:
        assert "…" in drawing


@given(trees(), st.integers(1, 40))
def test_any_words_can_be_drawn(tree, width):
    lines = tree.draw(width).split("\n")
    if lines[-1] != " ".join(tree.words):
        for line, word in zip(lines, tree.words, strict=True):
            assert line.endswith(f" {word}")


def test_thirty_words_fit_eighty_columns():
    assert len(SENTENCE.split()) == 30
    makes = (Tree.left_branching, Tree.right_branching, Tree.balanced)
    for tree in [make(SENTENCE) for make in makes] + [Tree.random(SENTENCE, 1)]:
        drawing = tree.draw(80)
        assert "…" not in drawing
        assert max(map(len, drawing.split("\n"))) <= 80
        assert read_sideways(drawing) == set(tree.spans)


def test_svg():
    tree = Tree(["<b>", "AT&T", "(", '"'], [2, 0, 0])
    text = tree.svg()
    assert "&lt;b&gt;</text>" in text
    assert "AT&amp;T" in text
    assert tree._repr_svg_() == text
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root.get("role") == "img"
    assert root[0].tag == "{http://www.w3.org/2000/svg}title"
    assert root[0].text == str(tree) == '( ( <b> AT&T ) ( -LRB- " ) )'
    assert [node.text for node in root.iterfind(".//{*}text")] == list(tree.words)
    assert len(root.findall(".//{*}circle")) == 3
    assert "currentColor" in text
    assert "svg:root{color:#767676}" in text


@given(trees(max_size=30))
def test_svg_shows_the_tree_inside_its_frame(tree):
    root = ElementTree.fromstring(tree.svg())
    width, height = int(root.get("width")), int(root.get("height"))
    assert root.get("viewBox") == f"0 0 {width} {height}"
    texts = root.findall(".//{*}text")
    centres = [int(text.get("x")) for text in texts]
    assert centres == sorted(set(centres))
    floor = int(texts[0].get("y")) - (6 if texts[0].get("transform") else 18)
    by_centre = {centre: (place, place + 1) for place, centre in enumerate(centres)}
    tops = dict.fromkeys(by_centre.values(), floor)
    circles = root.findall(".//{*}circle")
    edges = re.findall(r"M(\d+) (\d+)V(\d+)H(\d+)V(\d+)", root.find("{*}path").get("d"))
    spans = []
    for circle, edge in zip(circles, edges, strict=True):
        left_centre, left_top, top, right_centre, right_top = map(int, edge)
        left, right = by_centre.pop(left_centre), by_centre.pop(right_centre)
        assert left[1] == right[0]
        assert (tops[left], tops[right]) == (left_top, right_top)
        assert 0 < top < min(left_top, right_top) <= floor < height
        assert left_centre < int(circle.get("cx")) < right_centre < width
        assert int(circle.get("cy")) == top
        spans.append((left[0], right[1]))
        by_centre[int(circle.get("cx"))] = spans[-1]
        tops[spans[-1]] = top
    assert tuple(spans) == tree.spans


def test_svg_of_long_sentences_turns_the_words():
    short, long = Tree.balanced("the cat sat"), Tree.balanced(SENTENCE + " " + SENTENCE)
    assert "rotate(90" not in short.svg()
    assert long.svg().count("rotate(90") == 60
    assert int(ElementTree.fromstring(long.svg()).get("width")) == 1200


def test_a_long_word_in_the_wrong_place_is_shown_in_part():
    with pytest.raises(ValueError, match=r"got '9{40}'\.\.\.; give the") as caught:
        Tree.from_brackets("( a b " + "9" * 5_000 + " )")
    assert len(str(caught.value)) < 200
