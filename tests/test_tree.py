import copy
import dataclasses
import doctest
import pickle
import re
from textwrap import dedent
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gumbeltree.tree
from gumbeltree.drawing import clean
from gumbeltree.tree import Tree

SENTENCE = (
    "in the early morning light the old fisherman who had lost his boat walked slowly along the "
    "empty beach and looked for driftwood that he could sell at the market"
)

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


def test_docstring_examples():
    results = doctest.testmod(gumbeltree.tree)
    assert results.attempted > 5
    assert results.failed == 0


def test_one_word():
    tree = Tree("the", [])
    assert tree.order == tree.spans == ()
    assert tree.nested == str(tree) == tree.draw() == "the"
    assert tree.depth == 0
    others = [
        *(Tree.from_spans("the", []), Tree.from_brackets("the"), Tree.from_nltk(tree.to_nltk())),
        *(Tree.left_branching("the"), Tree.right_branching(["the"])),
        *(Tree.balanced(iter(["the"])), Tree.random(" the\n", 0), Tree.from_nested("the")),
    ]
    assert all(other == tree for other in others)


def test_equality_ignores_the_order_of_independent_merges():
    right_first, left_first = Tree(WORDS, [2, 0, 0]), Tree(WORDS, [0, 1, 0])
    assert right_first.order == (2, 0, 0)
    assert right_first.spans == ((2, 4), (0, 2), (0, 4))
    assert right_first == left_first
    assert hash(right_first) == hash(left_first)
    assert right_first != Tree(WORDS, [0, 0, 0])
    assert right_first != Tree("the cat sat up", [2, 0, 0])


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
    assert str(Tree.from_brackets("\n((the cat)\tsat)  ")) == "( ( the cat ) sat )"


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
        ("(NP (NN cat))", None, "cat"),
        ("( (S (NP (DT the) (NN cat)) (VP (VBD sat))))", None, "( ( the cat ) sat )"),
        ("( S\n  ( NP a b )\n  c )", None, "( ( a b ) c )"),
        ("(A (B (C (D a) (E (F b)))) c)", None, "( ( a b ) c )"),
        ("(S a (T b c d) (U e))", "right", "( a ( ( b ( c d ) ) e ) )"),
        ("(S a (T b c d) (U e))", "left", "( ( a ( ( b c ) d ) ) e )"),
        ("(S (T (U a)))", "left", "a"),
        ("(S (NP (-NONE- *T*-1)) (VP (V go) (NP (-NONE- *) (N home))))", None, "( go home )"),
    ],
)
def test_reads_nltk(text, binarize, expected):
    tree = Tree.from_nltk(text, binarize)
    assert str(tree) == expected
    assert tree.order == Tree.from_brackets(expected).order


@given(trees())
def test_round_trips_end_in_the_canonical_order(tree):
    assert str(Tree(tree.words, tree.order)) == str(tree)
    read = [
        Tree.from_brackets(str(tree)),
        Tree.from_spans(tree.words, tree.spans),
        Tree.from_spans(tree.words, tree.spans[:-1]),
        Tree.from_nested(tree.nested),
        *(Tree.from_nltk(tree.to_nltk("NP|2"), side) for side in (None, "left", "right")),
    ]
    assert all(other == tree for other in read)
    assert len({other.order for other in read}) == 1
    assert list(read[0].spans) == sorted(tree.spans, key=lambda span: (span[1], -span[0]))
    assert spans_of(tree.nested) == (len(tree), set(tree.spans))


def test_constructors():
    assert str(Tree.left_branching("a b c d")) == "( ( ( a b ) c ) d )"
    assert str(Tree.right_branching("a b c d")) == "( a ( b ( c d ) ) )"
    assert str(Tree.balanced("a b c")) == "( ( a b ) c )"
    assert str(Tree.balanced("a b c d e f g")) == "( ( ( a b ) ( c d ) ) ( ( e f ) g ) )"


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
        (lambda: Tree("a b", [0.0]), "`order` must contain integers: 'float'"),
        (lambda: Tree([], []), "at least one word"),
        (lambda: Tree(["a", ""], [0]), "`words[1]` must be a non-empty str"),
        (lambda: Tree(["a b", "c"], [0]), "without whitespace, got 'a b'"),
        (lambda: Tree.from_spans("a b c", [(0, 2), (1, 3)]), "(0, 2) and (1, 3), which cross"),
        (lambda: Tree.from_spans("a b c", [(0, 4)]), "<= 3, got (0, 4)"),
        (lambda: Tree.from_spans("a b c d", [(1, 4)]), "3 parts in (1, 4)"),
        (lambda: Tree.from_nested(("a", ("b", "c", "d"))), "got ('b', 'c', 'd') after 1 words"),
        (lambda: Tree("a", []).to_nltk("a b"), "`label` must be one word"),
        (lambda: Tree.from_nltk("(S a)", binarize="both"), "`binarize` must be 'left'"),
        (lambda: Tree("a b", [0]).draw(0), "`width` must be at least 1, got 0"),
    ],
)
def test_rejects_invalid_arguments(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (Tree.from_brackets, "", "no words"),
        (Tree.from_brackets, ")", "unexpected ')' at character 0"),
        (Tree.from_brackets, "()", "no children"),
        (Tree.from_brackets, "( a )", "two children, got 1 in 'a'"),
        (Tree.from_brackets, "( a ( b", "2 ')' missing"),
        (Tree.from_brackets, "( a b ( c d ) )", "two children, got 3 in 'a b c d'"),
        (Tree.from_brackets, "( a b ) ( c d )", "unexpected '(' at character 8"),
        (Tree.from_brackets, "the cat", "unexpected 'cat' at character 4"),
        (Tree.from_nltk, "(S (NP a) (VP))", "ends at character 13 has no children"),
        (Tree.from_nltk, "(S a", "1 ')' missing"),
        (Tree.from_nltk, "(S a) b", "unexpected 'b' at character 6"),
        (Tree.from_nltk, "((the cat) sat)", "no label"),
        (Tree.from_nltk, "(S (-NONE- *))", "no words"),
        (Tree.from_nltk, "(R (S a b c) d)", "3 children: 'a b c'; pass binarize="),
    ],
)
def test_rejects_malformed_text(read, text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        read(text)


def test_long_sentences_do_not_recurse():
    tree = Tree.right_branching([f"w{number}" for number in range(3000)])
    assert tree.depth == 2999
    assert Tree.from_brackets(str(tree)) == tree
    assert Tree.from_nltk(tree.to_nltk()) == tree
    assert Tree.from_nested(tree.nested) == tree
    assert pickle.loads(pickle.dumps(tree)) == tree
    lines = tree.draw(80).split("\n")
    assert len(lines) == 3000
    assert max(map(len, lines)) <= 80
    assert len(ElementTree.fromstring(tree.svg()).findall(".//{*}circle")) == 2999


@pytest.mark.parametrize(
    ("brackets", "width", "drawing"),
    [
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


@pytest.mark.parametrize(
    ("width", "drawing"),
    [
        (
            80,
            """
               ┌──┴──┐
             ┌─≈─┐   │
            the cat sat
            """,
        ),
        (
            10,
            """
            ┬─≈─ the
            │ └─ cat
            └─── sat
            """,
        ),
    ],
)
def test_drawings_can_mark_merges(width, drawing):
    tree = Tree.from_brackets("( ( the cat ) sat )")
    assert tree.draw(width, marked=[0]) == dedent(drawing).strip("\n")
    assert tree.draw(width, marked=[0, 1]).count("≈") == 2


def test_draws_as_wide_as_the_terminal(monkeypatch):
    tree = Tree.from_brackets("( good movie )")
    for columns in (9, 10):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert tree.draw() == tree.draw(columns)


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


# SVG


def test_svg_is_safe_and_accessible():
    tree = Tree(["<b>", "AT&T", "(", "\x1b[31m", "w" * 30], [0, 0, 0, 0])
    text = tree.svg()
    assert tree._repr_svg_() == text
    assert "\x1b" not in text
    root = ElementTree.fromstring(text)
    assert root.get("role") == "img"
    assert root.find("{*}title").text == str(tree).replace("\x1b", "\u241b")
    words = [element.text for element in root.iterfind(".//{*}text")]
    assert words == ["<b>", "AT&T", "(", "\u241b[31m", "w" * 23 + "…"]
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


def test_invisible_characters_are_shown_as_marks():
    shown = {
        "a\x07b\x7f": "a\u2407b\u2421",
        "\x85": "<U+0085>",
        "\u202egood\u200b": "<U+202E>good<U+200B>",
        "\ud800\ufffe\u3164\U000e0061": "<U+D800><U+FFFE><U+3164><U+E0061>",
        # a joiner between letters or emoji belongs to them
        "\u0644\u200c\u0627": "\u0644\u200c\u0627",
        "\U0001f469\u200d\U0001f4bb": "\U0001f469\u200d\U0001f4bb",
        "a\u200d": "a<U+200D>",
        # the flag of England
        "\U0001f3f4\U000e0067\U000e0062\U000e007f": "\U0001f3f4\U000e0067\U000e0062\U000e007f",
        "caf\u00e9 \u4e2d": "caf\u00e9 \u4e2d",
    }
    assert {text: clean(text) for text in shown} == shown
    drawn = Tree(["\u202ea", "b"], [0]).draw(80)
    assert drawn.splitlines()[-1] == "<U+202E>a b"
