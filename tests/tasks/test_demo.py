"""The made-up reviews: labels and trees against a reader of its own, and by hand."""

import doctest
import itertools
import math
import statistics
from collections import Counter, defaultdict
from functools import reduce

import pytest

from gumbeltree.tasks import demo
from gumbeltree.tasks.demo import Demo, combine, evaluate, generate
from gumbeltree.tasks.task import Example
from gumbeltree.text.files import BadLineError, Report
from gumbeltree.tree import Tree

# worked by hand; + is positive
REVIEWS = """
+ ( ( it ( is charming ) ) . )
- ( ( it ( is ( not charming ) ) ) . )
+ ( ( ( the soup ) ( is ( never bland ) ) ) . )
- ( ( ( the plot ) ( is ( hardly ( very clever ) ) ) ) . )
+ ( ( ( the ( dull film ) ) ( is superb ) ) . )
+ ( ( ( the ( dull film ) ) ( is ( not bland ) ) ) . )
- ( ( ( the ( lovely cake ) ) ( is ( rather awful ) ) ) . )
+ ( ( it ( is ( anything ( but dull ) ) ) ) . )
- ( ( it ( is ( nothing ( but dull ) ) ) ) . )
- ( ( ( the menu ) ( is ( full ( of cliches ) ) ) ) . )
+ ( ( ( the menu ) ( is ( free ( of cliches ) ) ) ) . )
- ( ( ( the cast ) ( is ( without charm ) ) ) . )
+ ( ( ( the cast ) ( is ( not ( without charm ) ) ) ) . )
- ( ( ( the novel ) ( has flaws ) ) . )
- ( ( ( the novel ) ( lacks wit ) ) . )
+ ( ( ( the ending ) ( manages ( to please ) ) ) . )
+ ( ( ( the ending ) ( fails ( to bore ) ) ) . )
- ( ( ( the ( clever ending ) ) ( never ( fails ( to bore ) ) ) ) . )
- ( ( ( the ( novel ( that ( everyone loved ) ) ) ) ( is tedious ) ) . )
+ ( ( ( the ( novel ( that ( nobody loved ) ) ) ) ( is brilliant ) ) . )
- ( ( nobody ( enjoyed ( the ( charming film ) ) ) ) . )
- ( ( i ( mocked ( the ( film ( that ( nobody hated ) ) ) ) ) ) . )
+ ( ( i ( never ( hated it ) ) ) . )
+ ( ( ( the ( fans ( who ( hated it ) ) ) ) ( loved ( the cake ) ) ) . )
- ( ( ( the ( critics ( who ( loved it ) ) ) ) ( loathed ( the ( superb menu ) ) ) ) . )
+ ( ( nobody ( says ( that ( it ( is dull ) ) ) ) ) . )
- ( ( nobody ( doubts ( that ( it ( is dull ) ) ) ) ) . )
+ ( ( nobody ( doubts ( that ( it ( is ( not dull ) ) ) ) ) ) . )
- ( ( i ( doubt ( that ( it ( is ( anything ( but dull ) ) ) ) ) ) ) . )
+ ( ( ( the guests ) ( deny ( that ( nobody ( loved it ) ) ) ) ) . )
+ ( ( ( every ( claim ( that ( it ( is bland ) ) ) ) ) ( is false ) ) . )
- ( ( ( every ( claim ( that ( it ( is bland ) ) ) ) ) ( is ( not false ) ) ) . )
- ( ( ( every ( rumour ( that ( it ( has charm ) ) ) ) ) ( is ( not true ) ) ) . )
+ ( ( ( calling ( ( the ( lovely soup ) ) dreary ) ) ( is unfair ) ) . )
- ( ( ( calling ( it dreary ) ) ( is fair ) ) . )
- ( ( ( it ( is superb ) ) ( but ( nobody ( loved it ) ) ) ) . )
+ ( ( ( it ( is dull ) ) ( but ( everyone ( loved it ) ) ) ) . )
+ ( ( ( it ( is ( not superb ) ) ) ( but ( it ( is ( anything ( but dull ) ) ) ) ) ) . )
- ( ( ( although ( it ( is lovely ) ) ) ( , ( ( the cast ) ( is clumsy ) ) ) ) . )
+ ( ( ( ( the cast ) ( is ( not clumsy ) ) ) ( although ( it ( has faults ) ) ) ) . )
- ( ( ( despite ( its warmth ) ) ( , ( it ( fails ( to impress ) ) ) ) ) . )
+ ( ( ( ( the plot ) ( manages ( to impress ) ) ) ( despite ( its flaws ) ) ) . )
"""
WORKED = [
    (Tree.from_brackets(line[2:]), {"+": "positive", "-": "negative"}[line[0]])
    for line in REVIEWS.strip().splitlines()
]

GOOD = {
    *("charming", "superb", "lovely", "clever", "brilliant", "delightful", "charm", "wit"),
    *("warmth", "please", "impress", "delight", "loved", "adored", "enjoyed"),
}
BAD = {
    *("dull", "awful", "bland", "tedious", "dreary", "clumsy", "flaws", "faults", "cliches"),
    *("bore", "annoy", "disappoint", "hated", "loathed", "mocked"),
}
NEGATIONS = {
    *("not", "never", "hardly", "nobody", "anything", "without", "free", "lacks", "fails"),
    *("doubt", "doubts", "deny", "false", "unfair"),
}
REPORTS = {"think", "doubt", "says", "doubts", "say", "deny"}


def pairs(*parts):
    """Nest to the right."""
    return reduce(lambda right, left: (left, right), reversed(parts))


def sign(words):
    """-1 for an odd number of negations."""
    return (-1) ** sum(word in NEGATIONS for word in words)


def noun_phrase(words):
    """Give the noun phrase at the start, and the words behind it."""
    if words[0] != "the":
        return words[0], words[1:]
    if words[1] in GOOD | BAD:
        return pairs("the", *words[1:3]), words[3:]
    if words[2:3] in (["who"], ["that"]):
        return pairs("the", *words[1:5]), words[5:]
    return pairs("the", words[1]), words[2:]


def fact(words):
    subject, words = noun_phrase(words)
    [(place, said)] = [
        (i, 1 if word in GOOD else -1)
        for i, word in enumerate(words)
        if word in GOOD | BAD and "the" not in words[:i]
    ]
    parts = words[: place + 1]
    if words[place + 1 :]:
        thing, rest = noun_phrase(words[place + 1 :])
        assert not rest
        parts = [*parts, thing]
    return (subject, pairs(*parts)), said * sign([subject, *words[:place]])


def clause(words):
    if words[0] in ("every", "calling"):
        last = max(i for i, word in enumerate(words) if word == "is")
        verdict = words[last:]
        if words[0] == "every":
            node, said = fact(words[3:last])
            node = pairs(*words[:3], node)
        else:
            thing, [adjective] = noun_phrase(words[1:last])
            node, said = ("calling", (thing, adjective)), 1 if adjective in GOOD else -1
        return (node, pairs(*verdict)), said * sign(verdict)
    subject, rest = noun_phrase(words)
    if rest[0] not in REPORTS:
        return fact(words)
    node, said = fact(rest[2:])
    return pairs(subject, *rest[:2], node), said * sign([subject, rest[0]])


def aside(words):
    """Read what does not count, with `although` or `despite` before it."""
    return (words[0], clause(words[1:])[0] if words[0] == "although" else pairs(*words[1:]))


def read_review(text):
    """Read a review by its words alone, without `demo`."""
    *words, end = text.split()
    assert end == "."
    if words[0] in ("although", "despite"):
        comma = words.index(",")
        node, said = clause(words[comma + 1 :])
        node = (aside(words[:comma]), (",", node))
    else:
        joints = [
            i
            for i, word in enumerate(words)
            if word in ("although", "despite")
            or (word == "but" and words[i - 1] not in ("anything", "nothing"))
        ]
        assert len(joints) <= 1
        joint = joints[0] if joints else len(words)
        node, said = clause(words[:joint])
        if words[joint:][:1] == ["but"]:
            second, said = clause(words[joint + 1 :])
            node = (node, ("but", second))
        elif joints:
            node = (node, aside(words[joint:]))
    return Tree.from_nested((node, ".")), "positive" if said > 0 else "negative"


@pytest.fixture(scope="module")
def made():
    return list(generate(4000, seed=0))


@pytest.mark.parametrize(("tree", "label"), WORKED, ids=[" ".join(t.words) for t, _ in WORKED])
def test_worked_reviews(tree, label):
    assert evaluate(tree) == label
    assert read_review(" ".join(tree.words)) == (tree, label)


def test_labels_and_trees(made):
    for example in made:
        tree, label = read_review(example.texts[0])
        assert example == Example((" ".join(tree.words),), label, (tree,))


def test_structure_decides():
    scopes = ["( ( not good ) ( but dull ) )", "( not ( good ( but dull ) ) )"]
    trees = [Tree.from_brackets(text.replace("good", "lovely")) for text in scopes]
    assert [evaluate(tree) for tree in trees] == ["negative", "positive"]
    labels = defaultdict(set)
    for example in generate(10_000, seed=3):
        labels[tuple(sorted(example.texts[0].split()))].add(example.label)
    assert sum(len(both) == 2 for both in labels.values()) > 10


def test_meanings_of_pairs():
    signs = {"neutral": "0", "positive": "+", "negative": "-", "flips": "f", "drops": "d"}
    table = ["".join(signs[combine(left, right)] for right in signs) for left in signs]
    assert table == ["0+-fd", "++--d", "-+-+d", "f-+0d", "00000"]


@pytest.mark.parametrize("text", ["it", "( the dull )", "( not it )", "( ( the film ) . )"])
def test_evaluate_refuses_what_has_no_say(text):
    with pytest.raises(ValueError, match=r"`tree` must be positive or negative, got a \w+ one"):
        evaluate(Tree.from_brackets(text))


def test_docstrings():
    results = doctest.testmod(demo)
    assert results.attempted
    assert not results.failed
    shown = [line.split(maxsplit=1) for line in demo.__doc__.splitlines() if line[:4] == "    "]
    assert len(shown) == 4
    for label, brackets in shown:
        assert (Tree.from_brackets(brackets), label) in WORKED


# generator


def test_generator_is_reproducible(made):
    assert list(generate(1000, seed=0)) == made[:1000]
    assert list(generate(50, seed=1)) != made[:50]
    # these stay the same in all versions of Python
    assert [(example.label, str(example.trees[0])) for example in itertools.islice(made, 2)] == [
        (
            "positive",
            "( ( ( ( the novel ) ( is ( free ( of wit ) ) ) ) ( but ( ( the ( ending ( that "
            "( i loathed ) ) ) ) ( fails ( to bore ) ) ) ) ) . )",
        ),
        (
            "negative",
            "( ( ( despite ( its cliches ) ) ( , ( ( the ( critics ( who ( loathed it ) ) ) ) "
            "( deny ( that ( ( the film ) ( never ( fails ( to delight ) ) ) ) ) ) ) ) ) . )",
        ),
    ]
    assert Demo.generate is generate
    assert next(generate(1, seed=-5)).label in Demo.labels


def test_generator_counts():
    assert list(generate(0, seed=0)) == []
    with pytest.raises(ValueError, match="`count` must be at least 0, got -1; pass a larger one"):
        generate(-1, seed=0)


def test_generator_statistics(made):
    assert len({example.texts for example in made}) == 4000
    for first, second in zip(made[::2], made[1::2], strict=True):
        assert {first.label, second.label} == set(Demo.labels)
    lengths = [len(example.trees[0]) for example in made]
    assert min(lengths) == 4
    assert max(lengths) == demo.LONGEST
    assert 10 < statistics.mean(lengths) < 12
    counts = Counter(word for example in made for word in example.texts[0].split())
    known = {word for rules in demo.GRAMMAR.values() for rule in rules for word in rule.split()}
    assert set(counts) == known - {"(", ")"} - set(demo.GRAMMAR)
    assert min(counts.values()) > 40
    assert all(word == word.lower() for word in counts)


def test_words_alone_say_little(made):
    # naive Bayes on whether a word is there
    counts = {label: Counter() for label in Demo.labels}
    for example in made[:3000]:
        counts[example.label].update(set(example.texts[0].split()))
    odds = {
        word: math.log((counts["positive"][word] + 1) / (counts["negative"][word] + 1))
        for word in counts["positive"] | counts["negative"]
    }
    right = [
        (sum(odds[word] for word in set(example.texts[0].split())) > 0)
        == (example.label == "positive")
        for example in made[3000:]
    ]
    assert 0.45 < statistics.mean(right) < 0.6


# files


def read(path, skip_bad=False):
    report = Report()
    return list(Demo().read(path, "train", report, skip_bad)), report


def test_generator_writes_what_the_reader_reads(tmp_path, made):
    path = tmp_path / "train.tsv"
    path.write_text("".join(f"{e.label}\t{e.trees[0]}\n" for e in made[:200]))
    assert Demo().splits(tmp_path) == {"train": path}
    examples, report = read(path)
    assert examples == made[:200]
    assert report.examples == 200


def test_reader_takes_plain_sentences(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("positive\tAny  sentence goes .\n\n negative \t(so (do trees))\n")
    examples, report = read(path)
    assert examples == [
        Example(("Any sentence goes .",), "positive", (None,)),
        Example(("so do trees",), "negative", (Tree("so do trees", [1, 0]),)),
    ]
    assert report.dropped == {"blank lines": 1}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("positive it is dull .", "expected 2 columns, got 1"),
        ("positive\tit\tis", "expected 2 columns, got 3"),
        ("positve\tit is", "one of the labels negative, positive, got 'positve'; .*did you mean"),
        ("positive\t ", "expected text as review, got an empty one"),
        ("positive\t( it is dull )", r"expected a binary tree such as \( \( a b \) c \) as review"),
        ("positive\tit is )", "expected a binary tree"),
    ],
)
def test_reader_refuses(tmp_path, line, message):
    path = tmp_path / "a.tsv"
    path.write_text(f"negative\tit is bland .\n{line}\n")
    with pytest.raises(BadLineError, match=f"line 2: .*{message}"):
        read(path)
    examples, report = read(path, skip_bad=True)
    assert len(examples) == report.bad == 1
