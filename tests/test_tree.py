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
    """Return the end and the spans of a nested tree, recursively: slow but plain."""
    if isinstance(nested, str):
        return start + 1, set()
    middle, left = spans_of(nested[0], start)
    end, right = spans_of(nested[1], middle)
    return end, left | right | {(start, end)}


# every tree over four words, worked out by hand
WORDS = ("the", "cat", "sat", "down")
FORMS = [
    # order, spans, brackets, depth
    ((0, 0, 0), ((0, 2), (0, 3), (0, 4)), "( ( ( the cat ) sat ) down )", 3),
    ((0, 1, 0), ((0, 2), (2, 4), (0, 4)), "( ( the cat ) ( sat down ) )", 2),
    ((1, 0, 0), ((1, 3), (0, 3), (0, 4)), "( ( the ( cat sat ) ) down )", 3),
    ((1, 1, 0), ((1, 3), (1, 4), (0, 4)), "( the ( ( cat sat ) down ) )", 3),
    ((2, 1, 0), ((2, 4), (1, 4), (0, 4)), "( the ( cat ( sat down ) ) )", 3),
]


@pytest.mark.parametrize(("order", "spans", "brackets", "depth"), FORMS)
def test_forms_of_the_trees_over_four_words(order, spans, brackets, depth):
    nltk = brackets.replace("( ", "(X ").replace(" )", ")")
    made = [
        Tree(WORDS, order),
        Tree.from_spans(WORDS, spans),
        Tree.from_brackets(brackets),
        Tree.from_nltk(nltk),
    ]
    for tree in made:
        assert (tree.words, tree.order, tree.spans) == (WORDS, order, spans)
        assert (str(tree), repr(tree)) == (brackets, f"Tree({brackets!r})")
        assert tree.to_nltk() == nltk
        assert (len(tree), tree.depth) == (4, depth)
    assert len(set(made)) == 1


def test_nested_pairs():
    nested = ("the", (("cat", "sat"), "down"))
    tree = Tree.from_nested(nested)
    assert str(tree) == "( the ( ( cat sat ) down ) )"
    assert tree.nested == nested


def test_docstring_examples():
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
        *(Tree.from_spans("the", spans) for spans in ([], [(0, 1)])),
        *(Tree.from_nested("the"), Tree.from_brackets("the"), Tree.from_nltk("(NP the)")),
        *(Tree.left_branching("the"), Tree.right_branching("the")),
        *(Tree.balanced("the"), Tree.random("the", 0)),
    ]
    assert all(other == tree for other in others)


def test_words_come_from_a_string_or_an_iterable():
    assert Tree("  the\tcat\nsat ", [0, 0]).words == ("the", "cat", "sat")
    assert Tree(iter(["the", "cat"]), iter([0])) == Tree("the cat", [0])


def test_equality_ignores_the_order_of_independent_merges():
    right_first, left_first = Tree(WORDS, [2, 0, 0]), Tree(WORDS, [0, 1, 0])
    assert right_first.order == (2, 0, 0)
    assert right_first.spans == ((2, 4), (0, 2), (0, 4))
    assert right_first == left_first
    assert hash(right_first) == hash(left_first)
    assert right_first != Tree(WORDS, [0, 0, 0])
    assert right_first != Tree("the cat sat up", [2, 0, 0])
    assert right_first != str(right_first)


def test_trees_are_immutable_and_can_be_copied():
    tree = Tree(WORDS, [2, 0, 0])
    with pytest.raises(dataclasses.FrozenInstanceError):
        tree.order = (0, 0, 0)
    for other in (pickle.loads(pickle.dumps(tree)), copy.deepcopy(tree)):
        assert other == tree
        assert other.order == tree.order


def test_spans_can_come_in_any_order_without_root_or_with_single_words():
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
def test_reads_nltk(text, binarize, expected):
    tree = Tree.from_nltk(text, binarize)
    assert str(tree) == expected
    assert tree.order == Tree.from_brackets(expected).order


def test_writes_nltk_labels():
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
def test_all_readers_use_the_canonical_order(tree):
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


def test_five_words_have_fourteen_trees():
    # a merge closes the gap between two words; try the gaps in every order
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
    counts = dict.fromkeys((form[2] for form in FORMS), 0)
    for seed in range(3000):
        counts[str(Tree.random(WORDS, seed))] += 1
    for brackets, count in counts.items():
        expected = 1000 if brackets == "( ( the cat ) ( sat down ) )" else 500
        assert abs(count - expected) < 120


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Tree(WORDS, [0] * 5), "3 merges for 4 words, got 5"),
        (lambda: Tree(WORDS, [0, 2, 0]), "`order[1]` must lie in 0..1, got 2"),
        (lambda: Tree(WORDS, [0, -1, 0]), "`order[1]` must lie in 0..1, got -1"),
        (lambda: Tree("a b", [0.0]), "`order` must hold integers: 'float'"),
        (lambda: Tree([], []), "at least one word"),
        (lambda: Tree.left_branching(" "), "at least one word"),
        (lambda: Tree.balanced([]), "at least one word"),
        (lambda: Tree(["a", ""], [0]), "`words[1]` must be a non-empty str"),
        (lambda: Tree(["a b", "c"], [0]), "without whitespace, got 'a b'"),
        (lambda: Tree(["a", 3], [0]), "`words[1]` must be a non-empty str"),
        (lambda: Tree.from_spans("a b c", [(0, 2), (1, 3)]), "(0, 2) and (1, 3), which cross"),
        (lambda: Tree.from_spans("a b c", [(0, 4)]), "<= 3, got (0, 4)"),
        (lambda: Tree.from_spans("a b c", [(2, 2)]), "<= 3, got (2, 2)"),
        (lambda: Tree.from_spans("a b c", [(-1, 2)]), "<= 3, got (-1, 2)"),
        (lambda: Tree.from_spans("a b c d", [(1, 4)]), "3 parts in (1, 4): (1, 2), (2, 3), (3, 4)"),
        (lambda: Tree.from_spans("a b c d e f", [(0, 2)]), "5 parts in (0, 6)"),
        (lambda: Tree.from_nested(("a", ("b", "c", "d"))), "got ('b', 'c', 'd') after 1 words"),
        (lambda: Tree.from_nested(("a", 7)), "got 7 after 1 words"),
        (lambda: Tree.from_nested("a b"), "`words[0]` must be a non-empty str"),
        (lambda: Tree("a", []).to_nltk("a b"), "`label` must be one word"),
        (lambda: Tree("a", []).to_nltk("a)"), "`label` must be one word"),
        (lambda: Tree.from_nltk("(S a)", binarize="both"), "`binarize` must be 'left'"),
        (lambda: Tree("a b", [0]).draw(0), "`width` must be at least 1, got 0"),
    ],
)
def test_rejects_invalid_arguments(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a word or '(' at character 0, got the end of the text"),
        (")", "a word or '(' at character 0, got ')'"),
        ("()", "character 1, got ')'; the '(' at character 0 needs two children"),
        ("( a )", "a word or '(' at character 4, got ')'"),
        ("( a b", "')' at character 5, got the end of the text"),
        ("( a ( b", "character 7, got the end of the text; the '(' at character 4 needs"),
        ("( a b c )", "')' at character 6, got 'c'"),
        ("( a b ( c d ) )", "')' at character 6, got '('"),
        ("( a b ) )", "the end of the text at character 8, got ')'"),
        ("( a b ) ( c d )", "the end of the text at character 8, got '('"),
        ("the cat", "the end of the text at character 4, got 'cat'"),
        ("( a b " + "9" * 5_000 + " )", f"got '{'9' * 40}'...;"),
    ],
)
def test_rejects_malformed_brackets(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Tree.from_brackets(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'(' at character 0, got the end of the text"),
        ("cat", "'(' at character 0, got 'cat'"),
        ("(cat)", "character 4, got ')'; the '(' at character 0 needs a child"),
        ("(S (NP a) (VP))", "a word or '(' at character 13, got ')'"),
        ("(S a", "a word or '(' or ')' at character 4, got the end of the text"),
        ("(S a) b", "the end of the text at character 6, got 'b'"),
        ("(R (S a b c) d)", "got 3 at character 3, '(S a b c)'; pass binarize="),
    ],
)
def test_rejects_malformed_nltk(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Tree.from_nltk(text)


@pytest.mark.parametrize("make", [Tree.right_branching, lambda words: Tree.random(words, 0)])
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
    ],
)
def test_draws_in_the_terminal(brackets, width, drawing):
    assert Tree.from_brackets(brackets).draw(width) == dedent(drawing).strip("\n")


def test_draws_as_wide_as_the_terminal(monkeypatch):
    tree = Tree.from_brackets("( good movie )")
    monkeypatch.setenv("COLUMNS", "10")
    assert tree.draw() == tree.draw(10)
    monkeypatch.setenv("COLUMNS", "9")
    assert tree.draw() == tree.draw(9) != tree.draw(10)


def read_upright(drawing):
    """Return the spans of an upright drawing of ASCII words, read from the brackets upwards."""
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
def test_upright_drawings_show_the_tree(tree):
    drawing = tree.draw(10_000)
    lines = drawing.split("\n")
    assert lines[-1] == " ".join(tree.words)
    assert len(lines) == tree.depth + 1
    assert all(line == line.rstrip() for line in lines)
    assert max(map(len, lines)) == len(lines[-1])
    assert read_upright(drawing) == set(tree.spans)


def read_sideways(drawing):
    """Return the spans of a sideways drawing: the leftmost corner of a range is its split."""
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
def test_sideways_drawings_show_the_tree(tree, width):
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
def test_draws_any_words(tree, width):
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


# SVG


def test_svg_is_safe_and_accessible():
    tree = Tree(["<b>", "AT&T", "(", "\x1b[31m", "w" * 30], [0, 0, 0, 0])
    text = tree.svg()
    assert tree._repr_svg_() == text
    assert "\x1b" not in text
    root = ElementTree.fromstring(text)
    assert root.get("role") == "img"
    assert root.find("{*}title").text == str(tree).replace("\x1b", "\ufffd")
    words = [element.text for element in root.iterfind(".//{*}text")]
    assert words == ["<b>", "AT&T", "(", "\ufffd[31m", "w" * 23 + "…"]
    assert "currentColor" in text
    assert "prefers-color-scheme:dark" in text


@given(trees(plain_words, min_size=2, max_size=30))
def test_svg_shows_the_tree_inside_its_frame(tree):
    root = ElementTree.fromstring(tree.svg())
    paths = [path.get("d") for path in root.iterfind(".//{*}path")]
    numbers = [list(map(float, re.findall(r"[\d.]+", path))) for path in paths]
    ends = [(tuple(path[:2]), tuple(path[-2:])) for path in numbers]
    base = max(y for pair in ends for _, y in pair)
    feet = sorted({end for pair in ends for end in pair if end[1] == base})
    nodes = {foot: (place, place + 1) for place, foot in enumerate(feet)}
    spans = []
    for (left, right), circle in zip(ends, root.iterfind(".//{*}circle"), strict=True):
        x, y = float(circle.get("cx")), float(circle.get("cy"))
        assert 0 < left[0] < x < right[0] < float(root.get("width"))
        assert 0 < y < min(left[1], right[1]) <= base < float(root.get("height"))
        (start, middle), (other, end) = nodes.pop(left), nodes.pop(right)
        assert middle == other
        nodes[x, y] = start, end
        spans.append((start, end))
    assert tuple(spans) == tree.spans


def test_svg_turns_the_words_of_long_sentences():
    short, long = Tree.balanced("the cat sat"), Tree.balanced(f"{SENTENCE} {SENTENCE}")
    assert "rotate(90" not in short.svg()
    assert long.svg().count("rotate(90") == 60
    assert float(ElementTree.fromstring(long.svg()).get("width")) < 1200
