"""Compare trees and describe their shape: unlabelled F1, self-F1, depth and branching.

Trees are compared as sets of spans. For span sets A and B over the same sentence,
F1 = 2 |A and B| / (|A| + |B|).
"""

import dataclasses
import itertools
import statistics
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from gumbeltree.tree import Span, Tree

BASELINES = ("left", "right", "balanced", "random")
"""Trees that depend only on the number of words."""

_SYMBOLS = frozenset("%&#@")
_FIXED = {"left": Tree.left_branching, "right": Tree.right_branching, "balanced": Tree.balanced}
_Result = TypeVar("_Result", "F1", "TreeShape")


class Bracketing(NamedTuple):
    """The structure of one sentence; nodes may have more than two children.

    Attributes:
        length: number of words.
        spans: half-open word ranges of all nodes with two or more words, including the root.
    """

    length: int
    spans: frozenset[Span]


@dataclasses.dataclass(frozen=True)
class F1:
    """Unlabelled agreement of two sets of trees; scores are None if there are no spans to compare.

    Attributes:
        sentence: mean of the F1 of each sentence.
        corpus: F1 of the spans of all sentences pooled.
        precision: share of the first trees' spans that the second trees contain.
        recall: share of the second trees' spans that the first trees contain.
        sentences: number of sentences compared.
        skipped: number of sentences in which neither tree has a span to compare.
    """

    sentence: float | None
    corpus: float | None
    precision: float | None
    recall: float | None
    sentences: int
    skipped: int


@dataclasses.dataclass(frozen=True)
class TreeShape:
    """Depth and branching of trees; None where there is nothing to count.

    The shares refer to nodes with two children and at least three words.

    Attributes:
        depth: mean number of edges from the root to the deepest word.
        left: share of nodes whose left child is a phrase and whose right child is a word.
        right: share of nodes whose left child is a word and whose right child is a phrase.
        both: share of nodes whose children are both phrases.
    """

    depth: float | None
    left: float | None
    right: float | None
    both: float | None


@dataclasses.dataclass(frozen=True)
class Pair:
    """Agreement of two models.

    Attributes:
        first: name of the first model.
        second: name of the second model.
        sentence: mean of the F1 of each sentence.
        corpus: F1 of the spans of all sentences pooled.
    """

    first: str
    second: str
    sentence: float | None
    corpus: float | None


@dataclasses.dataclass(frozen=True)
class SelfF1:
    """Agreement of several models.

    Attributes:
        sentence: mean of the pairs' `sentence`.
        corpus: mean of the pairs' `corpus`.
        pairs: agreement of each pair of models.
    """

    sentence: float | None
    corpus: float | None
    pairs: list[Pair]


def is_punctuation(word: str) -> bool:
    """Return whether a word consists of punctuation only.

    That is Unicode punctuation and the backquote, which treebanks use for opening quotes. The
    symbols %, &, # and @ are read aloud and count as words.
    """
    return all(
        char == "`" or (unicodedata.category(char)[0] == "P" and char not in _SYMBOLS)
        for char in word
    )


def bracketing(
    words: Sequence[str], spans: Iterable[Span], keep_punctuation: bool = False
) -> Bracketing:
    """Return the spans of a tree to compare, by default with punctuation removed.

    Removing punctuation deletes nodes that have no words left and merges nodes that cover the same
    words.

    Args:
        words: words of the sentence.
        spans: spans of its nodes; the root is optional, single words are ignored.
        keep_punctuation: whether to keep punctuation.
    """
    counted = (keep_punctuation or not is_punctuation(word) for word in words)
    before = list(itertools.accumulate(counted, initial=0))
    length = before[-1]
    kept = {(before[start], before[end]) for start, end in spans} | {(0, length)}
    return Bracketing(length, frozenset(span for span in kept if span[1] - span[0] > 1))


def f1(first: Sequence[Bracketing], second: Sequence[Bracketing], keep_trivial: bool = False) -> F1:
    """Compare two sets of trees over the same sentences.

    Args:
        first: for example the trees of a model.
        second: for example gold trees.
        keep_trivial: whether to count the spans that all trees share: words and whole sentences.
    """
    for number, (a, b) in enumerate(zip(first, second, strict=True)):
        if a.length != b.length:
            raise ValueError(
                f"sentence {number} has {a.length} words in one tree and {b.length} in the other; "
                "pass trees over the same words"
            )
    counts = [
        (a.length, len(a.spans & b.spans), len(a.spans), len(b.spans))
        for a, b in zip(first, second, strict=True)
    ]
    return _score(counts, keep_trivial)


def best_f1(gold: Sequence[Bracketing], keep_trivial: bool = False) -> F1:
    """Return the F1 of the best binary trees, below 1 if gold nodes have more than two children.

    Args:
        gold: gold trees.
        keep_trivial: see `f1`.
    """
    # a binary tree over n words has n - 1 spans, and the best one contains all gold spans
    counts = [(b.length, len(b.spans), max(b.length - 1, 0), len(b.spans)) for b in gold]
    return _score(counts, keep_trivial)


def _score(counts: Iterable[tuple[int, int, int, int]], keep_trivial: bool) -> F1:
    """Return the F1 for the words, shared spans, first spans and second spans per sentence."""
    scores: list[float] = []
    skipped = hits = ours = theirs = 0
    for length, *spans in counts:
        # spans include the root if it has two or more words, but never single words
        extra = length if keep_trivial else -int(length > 1)
        shared, a, b = (count + extra for count in spans)
        if a + b == 0:
            skipped += 1
            continue
        scores.append(2 * shared / (a + b))
        hits, ours, theirs = hits + shared, ours + a, theirs + b
    return F1(
        statistics.fmean(scores) if scores else None,
        2 * hits / (ours + theirs) if scores else None,
        hits / ours if ours else None,
        hits / theirs if theirs else None,
        len(scores),
        skipped,
    )


def self_f1(models: Mapping[str, Sequence[Bracketing]], keep_trivial: bool = False) -> SelfF1:
    """Return the agreement of two or more models, averaged over all pairs.

    Args:
        models: trees over the same sentences, by model name.
        keep_trivial: see `f1`.
    """
    scores = {
        (a, b): f1(models[a], models[b], keep_trivial) for a, b in itertools.combinations(models, 2)
    }
    mean = average(list(scores.values()))
    pairs = [Pair(a, b, score.sentence, score.corpus) for (a, b), score in scores.items()]
    return SelfF1(mean.sentence, mean.corpus, pairs)


def average(results: Sequence[_Result]) -> _Result:
    """Return the field-wise mean of results, None where a value is None."""
    columns = zip(*map(dataclasses.astuple, results), strict=True)
    values: list[Any] = [None if None in column else statistics.mean(column) for column in columns]
    return type(results[0])(*values)


def depth(tree: Bracketing) -> int:
    """Return the number of edges from the root to the deepest word."""
    changes = [0] * (tree.length + 1)
    for start, end in tree.spans:
        changes[start] += 1
        changes[end] -= 1
    return max(itertools.accumulate(changes))


def shape(trees: Iterable[Bracketing]) -> TreeShape:
    """Return mean depth and branching of trees, ignoring sentences without words."""
    depths: list[int] = []
    left = right = both = 0
    for tree in trees:
        if not tree.length:
            continue
        depths.append(depth(tree))
        for start, end in tree.spans:
            if end - start == 2:
                continue
            if (start, end - 1) in tree.spans:
                left += 1
            elif (start + 1, end) in tree.spans:
                right += 1
            else:
                both += any(
                    (start, middle) in tree.spans and (middle, end) in tree.spans
                    for middle in range(start + 2, end - 1)
                )
    total = left + right + both
    shares = [count / total if total else None for count in (left, right, both)]
    return TreeShape(statistics.fmean(depths) if depths else None, *shares)


def baseline(
    kind: str, sentences: Iterable[Sequence[str]], keep_punctuation: bool = False, seed: int = 0
) -> list[Bracketing]:
    """Return baseline trees, built over all words before punctuation is removed.

    Args:
        kind: left, right, balanced or random.
        sentences: words of each sentence.
        keep_punctuation: see `bracketing`.
        seed: seed of random trees, which merge at a random position at each step.
    """
    trees = [
        # sentences of the same length get different random trees
        Tree.random(words, seed * 1_000_003 + number) if kind == "random" else _FIXED[kind](words)
        for number, words in enumerate(sentences)
    ]
    return [bracketing(tree.words, tree.spans, keep_punctuation) for tree in trees]
