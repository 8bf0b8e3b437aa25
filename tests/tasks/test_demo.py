"""Synthetic reviews: labels worked out by hand, and properties of the generator."""

import doctest
import hashlib
import math
import statistics
from collections import Counter, defaultdict

import pytest

from gumbeltree.tasks import demo
from gumbeltree.tasks.demo import Demo, combine, evaluate, generate
from gumbeltree.tasks.task import Example
from gumbeltree.text.files import BadLineError, Report
from gumbeltree.tree import Tree

# worked out by hand; + is positive
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


@pytest.fixture(scope="module")
def reviews():
    return list(generate(4000, seed=0))


@pytest.mark.parametrize(("tree", "label"), WORKED, ids=[" ".join(t.words) for t, _ in WORKED])
def test_labels(tree, label):
    assert evaluate(tree) == label


def test_structure_determines_the_label(reviews):
    scopes = ["( ( not lovely ) ( but dull ) )", "( not ( lovely ( but dull ) ) )"]
    assert [evaluate(Tree.from_brackets(t)) for t in scopes] == ["negative", "positive"]
    labels = defaultdict(set)
    for example in reviews:
        labels[tuple(sorted(example.texts[0].split()))].add(example.label)
    # the same words with either label
    assert any(len(both) == 2 for both in labels.values())


def test_combine():
    signs = {"neutral": "0", "positive": "+", "negative": "-", "flips": "f", "drops": "d"}
    table = ["".join(signs[combine(left, right)] for right in signs) for left in signs]
    assert table == ["0+-fd", "++--d", "-+-+d", "f-+0d", "00000"]


@pytest.mark.parametrize("text", ["it", "( the dull )", "( not it )", "( ( the film ) . )"])
def test_evaluate_rejects_trees_without_sentiment(text):
    with pytest.raises(ValueError, match="`tree` must express a sentiment"):
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


def test_generator_is_reproducible(reviews):
    assert list(generate(1000, seed=0)) == reviews[:1000]
    assert list(generate(50, seed=1)) != reviews[:50]
    assert list(generate(0, seed=0)) == []
    # trained models depend on these very bytes
    lines = "".join(f"{review.label}\t{review.trees[0]}\n" for review in reviews[:1000])
    digest = "3fbfd5a5e4df84b6555640de057e031c1215c78328124b6bdc04051a4aecfb36"
    assert hashlib.sha256(lines.encode()).hexdigest() == digest


def test_generated_reviews(reviews):
    assert len({example.texts for example in reviews}) == 4000
    for first, second in zip(reviews[::2], reviews[1::2], strict=True):
        assert {first.label, second.label} == set(Demo.labels)
    for example in reviews[:500]:
        (tree,) = example.trees
        assert example == Example((" ".join(tree.words),), evaluate(tree), (tree,))
    lengths = [len(example.trees[0]) for example in reviews]
    assert (min(lengths), max(lengths)) == (4, demo.LONGEST)
    assert 10 < statistics.mean(lengths) < 12
    counts = Counter(word for example in reviews for word in example.texts[0].split())
    known = {word for rules in demo.GRAMMAR.values() for rule in rules for word in rule.split()}
    assert set(counts) == known - {"(", ")"} - set(demo.GRAMMAR)
    assert min(counts.values()) > 40


def test_words_alone_predict_little(reviews):
    # naive Bayes on the presence of words
    counts = {label: Counter() for label in Demo.labels}
    for example in reviews[:3000]:
        counts[example.label].update(set(example.texts[0].split()))
    odds = {
        word: math.log((counts["positive"][word] + 1) / (counts["negative"][word] + 1))
        for word in counts["positive"] | counts["negative"]
    }
    right = [
        (sum(odds[word] for word in set(example.texts[0].split())) > 0)
        == (example.label == "positive")
        for example in reviews[3000:]
    ]
    assert 0.45 < statistics.mean(right) < 0.6


# files


def read(path, skip_bad=False):
    report = Report()
    return list(Demo().read(path, "train", report, skip_bad)), report


def test_reader_reads_generated_reviews(tmp_path, reviews):
    path = tmp_path / "train.tsv"
    path.write_text("".join(f"{e.label}\t{e.trees[0]}\n" for e in reviews[:200]))
    assert Demo().splits(tmp_path) == {"train": path}
    examples, report = read(path)
    assert examples == reviews[:200]
    assert report.examples == 200


def test_reader_accepts_plain_sentences(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("positive\tAny  sentence goes .\n\n negative \t(so (do trees))\n")
    examples, report = read(path)
    assert examples == [
        Example(("Any sentence goes .",), "positive", (None,)),
        Example(("so do trees",), "negative", (Tree("so do trees", [1, 0]),)),
    ]
    assert report.dropped == {"blank lines": 1}


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("positive it is dull .", "2 columns, got 1"),
        ("positive\tit\tis", "2 columns, got 3"),
        ("positve\tit is", "got 'positve'"),
        ("positive\t ", "review, got an empty"),
        ("positive\t( it is dull )", "binary tree"),
        ("positive\tit is )", "binary tree"),
    ],
)
def test_reader_rejects_bad_lines(tmp_path, line, match):
    path = tmp_path / "a.tsv"
    path.write_text(f"negative\tit is bland .\n{line}\n")
    with pytest.raises(BadLineError, match=f"line 2: .*{match}"):
        read(path)
    examples, report = read(path, skip_bad=True)
    assert len(examples) == report.bad == 1
