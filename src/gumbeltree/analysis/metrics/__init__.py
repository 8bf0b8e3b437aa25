"""How alike trees are, and of what shape: unlabelled F1, self-F1, depth, branching, bins.

Trees are compared as sets of spans. Of two trees of a sentence with span sets A and B,
F1 = 2 |A and B| / (|A| + |B|).
"""

import itertools
import statistics
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from gumbeltree.nn.heads.class_evaluation import Bucket
from gumbeltree.tree import Span, Tree

BASELINES = ("left", "right", "balanced", "random")
"""Trees that look at nothing but the number of words."""

_SYMBOLS = frozenset("%&#@")


class Bracketing(NamedTuple):
    """The structure of one sentence, of two children a node or more.

    Attributes:
        length: words.
        spans: half-open word ranges of all nodes of two words or more, the root among them.
    """

    length: int
    spans: frozenset[Span]


class F1(NamedTuple):
    """Unlabelled agreement of trees with gold trees, or of trees with trees.

    Attributes:
        sentence: mean over sentences of their own F1; None if no sentence has a span to compare.
        corpus: F1 of the spans of all sentences together.
        precision: share of the spans of the first trees that the second ones have.
        recall: share of the spans of the second trees that the first ones have.
        sentences: that were compared.
        skipped: sentences in which neither tree has a span that counts.
    """

    sentence: float | None
    corpus: float | None
    precision: float | None
    recall: float | None
    sentences: int
    skipped: int


class TreeShape(NamedTuple):
    """What trees look like. None where there is nothing to count.

    Attributes:
        depth: mean over sentences of the edges between the root and the deepest word.
        left: share of nodes whose left child is a phrase and whose right child is a word, among
            the nodes of two children and three words or more.
        right: share of those nodes whose left child is a word and whose right child is a phrase.
        both: share of those nodes with two phrases.
    """

    depth: float | None
    left: float | None
    right: float | None
    both: float | None


class SelfF1(NamedTuple):
    """Agreement of several models with each other.

    Attributes:
        sentence: mean over pairs of models of the sentence-level F1.
        corpus: the same of the corpus-level F1.
        pairs: numbers of both models, and their agreement.
    """

    sentence: float | None
    corpus: float | None
    pairs: list[tuple[int, int, F1]]


def is_punctuation(word: str) -> bool:
    """Return whether a word is nothing but punctuation.

    Every character is of a Unicode class of punctuation, or a backquote, as in the opening quotes
    of treebanks. Signs that are read as words are none: %, &, #, @.
    """
    return all(
        char == "`" or (unicodedata.category(char)[0] == "P" and char not in _SYMBOLS)
        for char in word
    )


def bracketing(
    words: Sequence[str], spans: Iterable[Span], keep_punctuation: bool = False
) -> Bracketing:
    """Return what of a tree is compared.

    Without punctuation its words are taken out of the tree: nodes without words vanish, and nodes
    that then have the same words are one.

    Args:
        words: of the sentence.
        spans: of its nodes; the root may be left out, single words are ignored.
        keep_punctuation: whether punctuation stays.
    """
    if keep_punctuation:
        before = range(len(words) + 1)
    else:
        counts = itertools.accumulate((not is_punctuation(word) for word in words), initial=0)
        before = list(counts)  # type: ignore[assignment]
    length = before[len(words)]
    left = {(before[start], before[end]) for start, end in spans} | {(0, length)}
    return Bracketing(length, frozenset(span for span in left if span[1] - span[0] > 1))


def of_tree(tree: Tree, keep_punctuation: bool = False) -> Bracketing:
    """Return the bracketing of a binary tree."""
    return bracketing(tree.words, tree.spans, keep_punctuation)


def f1(first: Sequence[Bracketing], second: Sequence[Bracketing], keep_trivial: bool = False) -> F1:
    """Compare trees of the same sentences.

    Args:
        first: such as the trees of a model.
        second: such as gold trees.
        keep_trivial: whether the spans that every tree has count: each word, and the sentence.
    """
    if len(first) != len(second):
        raise ValueError(
            f"trees must be of the same sentences, got {len(first)} and {len(second)} of them; "
            "pass one tree a sentence on both sides"
        )
    each: list[float] = []
    hits = ours = theirs = 0
    for number, (a, b) in enumerate(zip(first, second, strict=True)):
        if a.length != b.length:
            raise ValueError(
                f"trees must be of the same sentences, got {a.length} and {b.length} words in "
                f"sentence {number}; pass trees over the same words"
            )
        # every tree has these
        free = _trivial(a.length)
        root = 1 if a.length > 1 else 0
        shared = len(a.spans & b.spans) - root
        sizes = len(a.spans) - root, len(b.spans) - root
        if keep_trivial:
            shared, sizes = shared + free, (sizes[0] + free, sizes[1] + free)
        if not sum(sizes):
            continue
        each.append(2 * shared / sum(sizes))
        hits, ours, theirs = hits + shared, ours + sizes[0], theirs + sizes[1]
    return F1(
        statistics.fmean(each) if each else None,
        2 * hits / (ours + theirs) if each else None,
        hits / ours if ours else None,
        hits / theirs if theirs else None,
        len(each),
        len(first) - len(each),
    )


def _trivial(length: int) -> int:
    """Return how many spans are a word or the sentence; the only word of a sentence is both."""
    return length + 1 if length > 1 else length


def best_f1(gold: Sequence[Bracketing], keep_trivial: bool = False) -> F1:
    """Return what the best binary trees reach: below 1 where gold nodes have many children."""
    best = [Bracketing(b.length, _completed(b)) for b in gold]
    return f1(best, gold, keep_trivial)


def _completed(gold: Bracketing) -> frozenset[Span]:
    """Return the spans of a binary tree that has all gold spans: more children fold to the left."""
    spans = set(gold.spans)
    for _, _, children in nodes(gold):
        start = children[0][0]
        spans |= {(start, child[1]) for child in children[1:]}
    return frozenset(spans)


def nodes(tree: Bracketing) -> Iterator[tuple[Span, int, list[Span]]]:
    """Yield span, height and children of every node of two words or more, from the bottom up.

    The height is the number of edges down to the deepest word; words are children, too.
    """
    done: list[tuple[Span, int]] = []
    spans = sorted(tree.spans, key=lambda span: (span[1], -span[0]))
    word = 0
    for start, end in spans:
        while word < end:
            done.append(((word, word + 1), 0))
            word += 1
        children: list[Span] = []
        height = 0
        while done and done[-1][0][0] >= start:
            child, below = done.pop()
            children.append(child)
            height = max(height, below + 1)
        done.append(((start, end), height))
        yield (start, end), height, children[::-1]


def shape(trees: Iterable[Bracketing]) -> TreeShape:
    """Return mean depth and branching of trees; sentences without words do not count."""
    depths: list[int] = []
    kinds = {"left": 0, "right": 0, "both": 0}
    for tree in trees:
        if not tree.length:
            continue
        deepest = 0
        for (start, end), height, children in nodes(tree):
            deepest = height
            if len(children) == 2 and end - start > 2:
                middle = children[1][0]
                kind = "left" if end - middle == 1 else "right" if middle - start == 1 else "both"
                kinds[kind] += 1
        # the root comes last
        depths.append(deepest)
    count = sum(kinds.values())
    shares = [kinds[kind] / count if count else None for kind in ("left", "right", "both")]
    return TreeShape(statistics.fmean(depths) if depths else None, *shares)


def depth(spans: Iterable[Span], length: int) -> int:
    """Return the edges between the root and the deepest word of one tree."""
    whole = frozenset({*spans, (0, length)})
    tree = Bracketing(length, frozenset(span for span in whole if span[1] - span[0] > 1))
    return max((height for _, height, _ in nodes(tree)), default=0)


def self_f1(models: Sequence[Sequence[Bracketing]], keep_trivial: bool = False) -> SelfF1:
    """Return how much models agree, as the mean over all pairs of them.

    Args:
        models: the trees of each, of the same sentences.
        keep_trivial: see `f1`.
    """
    if len(models) < 2:
        raise ValueError(
            f"agreement is that of two models or more, got {len(models)}; pass another one"
        )
    pairs = [
        (i, j, f1(models[i], models[j], keep_trivial))
        for i, j in itertools.combinations(range(len(models)), 2)
    ]
    return SelfF1(
        mean(found.sentence for _, _, found in pairs),
        mean(found.corpus for _, _, found in pairs),
        pairs,
    )


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean, None if one of the values is None."""
    known = list(values)
    if not known or None in known:
        return None
    return statistics.fmean(known)  # type: ignore[arg-type]


def mean_f1(found: Sequence[F1]) -> F1:
    """Return the mean of what several trees of the same sentences reach."""
    return F1(
        mean(each.sentence for each in found),
        mean(each.corpus for each in found),
        mean(each.precision for each in found),
        mean(each.recall for each in found),
        found[0].sentences,
        found[0].skipped,
    )


def mean_shape(found: Sequence[TreeShape]) -> TreeShape:
    """Return the mean of several shapes."""
    return TreeShape(*(mean(each[i] for each in found) for i in range(4)))


def baseline(
    kind: str, sentences: Iterable[Sequence[str]], keep_punctuation: bool = False, seed: int = 0
) -> list[Bracketing]:
    """Return baseline trees of sentences: built over all words, punctuation taken out after.

    Args:
        kind: left, right, balanced or random.
        sentences: their words.
        keep_punctuation: see `bracketing`.
        seed: of random trees, which merge at a random place at each step.
    """
    if kind not in BASELINES:
        raise ValueError(f"`kind` must be one of {', '.join(BASELINES)}, got {kind!r}")
    trees = []
    for number, words in enumerate(sentences):
        # sentences of one length must not share their random tree
        drawn = seed * 1_000_003 + number if kind == "random" else None
        trees.append(bracketing(words, _spans(kind, len(words), drawn), keep_punctuation))
    return trees


@lru_cache(4096)
def _spans(kind: str, length: int, seed: int | None) -> tuple[Span, ...]:
    words = ["x"] * length
    if seed is not None:
        return Tree.random(words, seed).spans
    makers = {
        "left": Tree.left_branching,
        "right": Tree.right_branching,
        "balanced": Tree.balanced,
    }
    return makers[kind](words).spans


def binned(
    values: Sequence[int], correct: Sequence[bool], ends: Sequence[int], first: int = 0
) -> list[Bucket]:
    """Count examples and correct ones by a number that each has; empty bins are left out.

    Args:
        values: such as the depth of each example's tree.
        correct: whether each was classified correctly.
        ends: the largest value of each bin but the last, which has no end.
        first: the smallest value of the first bin.
    """
    if len(values) != len(correct):
        raise ValueError(
            f"`values` and `correct` must be of one length, got {len(values)} and {len(correct)}"
        )
    counts = [[0, 0] for _ in range(len(ends) + 1)]
    for value, right in zip(values, correct, strict=True):
        place = sum(value > end for end in ends)
        counts[place][0] += 1
        counts[place][1] += bool(right)
    starts = [first, *(end + 1 for end in ends)]
    buckets = [
        Bucket(start, end, *count)
        for start, end, count in zip(starts, [*ends, None], counts, strict=True)
    ]
    return [bucket for bucket in buckets if bucket.examples]


def bins_as_dicts(buckets: Iterable[Bucket]) -> list[dict[str, Any]]:
    """Return bins for JSON."""
    return [
        {**bucket._asdict(), "accuracy": bucket.correct / bucket.examples} for bucket in buckets
    ]
