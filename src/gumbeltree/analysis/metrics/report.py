"""Compare models with gold trees and baselines, and break their accuracy down by tree depth."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from gumbeltree.analysis import metrics
from gumbeltree.analysis.gold import Gold, GoldExample
from gumbeltree.analysis.metrics import F1, Bracketing, SelfF1, TreeShape, bracketing
from gumbeltree.evaluation import evaluate, split_of
from gumbeltree.model import SentenceModel
from gumbeltree.nn.heads.class_evaluation import Bucket, ClassEvaluation, buckets_of
from gumbeltree.tasks.task import Task
from gumbeltree.text.files import shown
from gumbeltree.text.ids import TextCounts
from gumbeltree.tree import Tree

DEEPEST = (3, 5, 7, 9, 12, 16, 24)
"""Upper bounds of the depth bins; one more bin holds all deeper trees."""
RANDOM_SEEDS = 5
"""Random trees per sentence; their results are averaged."""
CHUNK = 1024
"""Sentences parsed between two updates of the progress bar."""


Samples: TypeAlias = Sequence[Sequence[Bracketing]]
"""The trees of all sentences, once per sample; only random trees have several samples."""


@dataclass(frozen=True)
class Row:
    """Results of one model or baseline, or of the gold trees.

    Attributes:
        name: name of the model or baseline.
        kind: gold, model, baseline or bound.
        f1: F1 with the gold trees, None without gold trees and for the gold trees themselves.
        shape: depth and branching, None for a bound.
        f1_with: F1 with each baseline, for models and gold trees.
    """

    name: str
    kind: str
    f1: F1 | None
    shape: TreeShape | None
    f1_with: dict[str, F1]


@dataclass(frozen=True)
class Comparison:
    """Trees of models beside gold trees and baselines.

    Attributes:
        sentences: number of sentences.
        keep_punctuation: whether punctuation counts.
        keep_trivial: whether single words and whole sentences count.
        rows: results of gold trees, models, baselines and the best binary tree.
        self_f1: agreement of the models, None for a single one.
        random_self_f1: agreement of random trees.
    """

    sentences: int
    keep_punctuation: bool
    keep_trivial: bool
    rows: list[Row]
    self_f1: SelfF1 | None
    random_self_f1: SelfF1

    def of(self, kind: str) -> list[Row]:
        """Return the rows of one kind.

        Args:
            kind: "gold", "model", "baseline" or "bound".
        """
        return [row for row in self.rows if row.kind == kind]


def compare(
    models: Mapping[str, Sequence[Tree]],
    gold: Sequence[Gold] | None = None,
    keep_punctuation: bool = False,
    keep_trivial: bool = False,
) -> Comparison:
    """Compare the trees of models with gold trees, with baselines and with each other.

    Args:
        models: trees over the same sentences, by model name; see `parse_gold`.
        gold: gold trees of these sentences.
        keep_punctuation: see `metrics.bracketing`.
        keep_trivial: see `metrics.f1`.
    """

    def brackets(trees: Sequence[Tree] | Sequence[Gold]) -> list[Bracketing]:
        return [bracketing(tree.words, tree.spans, keep_punctuation) for tree in trees]

    def f1_with(samples: Samples, others: Samples) -> F1:
        pairs = itertools.product(samples, others)
        return metrics.average([metrics.f1(a, b, keep_trivial) for a, b in pairs])

    def row(name: str, kind: str, samples: Samples) -> Row:
        gold_f1 = f1_with(samples, [truth]) if truth and kind != "gold" else None
        shape = metrics.average([metrics.shape(trees) for trees in samples])
        others = {} if kind == "baseline" else baselines
        return Row(
            name, kind, gold_f1, shape, {key: f1_with(samples, x) for key, x in others.items()}
        )

    words = [tree.words for tree in (gold or next(iter(models.values())))]
    truth = brackets(gold or ())
    parsed = {name: brackets(trees) for name, trees in models.items()}
    baselines = {
        kind: [
            metrics.baseline(kind, words, keep_punctuation, seed)
            for seed in range(RANDOM_SEEDS if kind == "random" else 1)
        ]
        for kind in metrics.BASELINES
    }
    rows = [row("gold", "gold", [truth])] if truth else []
    rows += [row(name, "model", [trees]) for name, trees in parsed.items()]
    rows += [row(kind, "baseline", samples) for kind, samples in baselines.items()]
    if truth:
        bound = metrics.best_f1(truth, keep_trivial)
        rows.append(Row("best binary tree", "bound", bound, None, {}))
    random = {str(seed): trees for seed, trees in enumerate(baselines["random"])}
    return Comparison(
        len(words),
        keep_punctuation,
        keep_trivial,
        rows,
        metrics.self_f1(parsed, keep_trivial) if len(parsed) > 1 else None,
        metrics.self_f1(random, keep_trivial),
    )


def parse_gold(
    model: SentenceModel,
    gold: Sequence[Gold],
    name: str = "the model",
    advance: Callable[[int], None] = lambda count: None,
) -> list[Tree]:
    """Return a model's greedy trees over the words of gold trees.

    Args:
        model: a model that builds trees; the words are not tokenized further.
        gold: the gold trees.
        name: name of the model in error messages.
        advance: called with the number of sentences just parsed.

    Raises:
        ValueError: If the model cannot read a sentence as it is, for example because of its length.
    """
    model.check_builds_trees(name)
    trees: list[Tree] = []
    for start in range(0, len(gold), CHUNK):
        part = gold[start : start + CHUNK]
        texts = [" ".join(tree.words) for tree in part]
        # separate counts avoid the warning about long texts; the check below replaces it
        parsed = model.parse_many(texts, pretokenized=True, counts=TextCounts())
        for expected, tree in zip(part, parsed, strict=True):
            if tree.words != expected.words:
                raise ValueError(
                    f"{expected.place}: {name} does not keep the {len(expected.words)} words of "
                    f"this tree but reads {shown(' '.join(tree.words))}; remove the tree, "
                    f"or pass --skip-bad to skip trees of more than {model.config.max_words} words"
                )
        trees += parsed
        advance(len(part))
    return trees


def short_names(names: Sequence[str]) -> list[str]:
    """Remove the leading and trailing folders that all names share.

    Example:
        >>> short_names(["runs/a/seed-0/dev_orders.npz", "runs/a/seed-1/dev_orders.npz"])
        ['seed-0', 'seed-1']
    """
    if len(names) < 2:
        return list(names)
    parts = [Path(name).parts for name in names]
    for end, rest in ((0, slice(1, None)), (-1, slice(-1))):
        while min(map(len, parts)) > 1 and len({path[end] for path in parts}) == 1:
            parts = [path[rest] for path in parts]
    return ["/".join(path) for path in parts]


def read_orders(paths: Iterable[Path | str]) -> list[list[Tree]]:
    """Read the merges of runs on the same development sentences (`dev_orders.npz`).

    The files contain no words, so every word of the trees is an x.

    Args:
        paths: one file per run.
    """
    runs: list[list[Tree]] = []
    first: tuple[Path | str, list[int]] | None = None
    for path in paths:
        with open(path, "rb") as file:
            try:
                with np.load(file, allow_pickle=False) as arrays:
                    numbers, lengths, order = (
                        arrays[key].astype(np.int64, casting="safe")
                        for key in ("sentence", "length", "order")
                    )
                orders = np.split(order, np.cumsum(lengths - 1)[:-1])
                trees = [
                    Tree(["x"] * length, merges.tolist())
                    for length, merges in zip(lengths.tolist(), orders, strict=True)
                ]
            except Exception as error:
                # damaged archives raise many types of exceptions
                raise ValueError(
                    f"{path} is damaged or not a dev_orders.npz file of a training run: {error}"
                ) from error
        sentences = [*numbers.tolist(), *lengths.tolist()]
        first = first or (path, sentences)
        if sentences != first[1]:
            raise ValueError(
                f"{path} and {first[0]} contain trees of different sentences; pass runs that were "
                "evaluated on the same data"
            )
        runs.append(trees)
    return runs


@dataclass(frozen=True)
class Accuracy:
    """Accuracy of a model by sentence length and tree depth.

    For pairs, the longer sentence and the deeper tree count.

    Attributes:
        model: name of the model.
        examples: number of examples.
        correct: number of examples that the model classifies correctly.
        by_length: counts by number of words.
        by_depth: counts by the depth of the model's own tree.
        by_gold_depth: counts by the depth of the gold tree, empty if an example has none.
    """

    model: str
    examples: int
    correct: int
    by_length: list[Bucket]
    by_depth: list[Bucket]
    by_gold_depth: list[Bucket]

    def as_dict(self) -> dict[str, Any]:
        """Return the counts and accuracies for JSON."""
        bins = {
            key: [{**x._asdict(), "accuracy": x.correct / x.examples} for x in getattr(self, key)]
            for key in ("by_length", "by_depth", "by_gold_depth")
        }
        return {**vars(self), "accuracy": self.correct / self.examples, **bins}


def accuracy(
    model: SentenceModel, task: Task, examples: Sequence[GoldExample], name: str = "model"
) -> Accuracy:
    """Classify labelled examples and count correct ones by length and depth.

    Args:
        model: a classifier with the labels of the task.
        task: determines whether texts are pre-tokenized.
        examples: see `gold.read_examples`.
        name: name of the model.
    """
    split = split_of(model, [example.example for example in examples], task.pretokenized)
    evaluation = evaluate(model, split)
    assert isinstance(evaluation, ClassEvaluation)
    correct = evaluation.predictions == split.labels
    texts = list(dict.fromkeys(text for example in examples for text in example.example.texts))
    parsed = model.parse_many(texts, pretokenized=task.pretokenized, counts=TextCounts())
    depths = {text: tree.depth for text, tree in zip(texts, parsed, strict=True)}
    own = [max(depths[text] for text in example.example.texts) for example in examples]
    gold = [
        max(
            metrics.depth(bracketing(tree.words, tree.spans, True))
            for tree in example.trees
            if tree
        )
        for example in examples
        if None not in example.trees
    ]
    return Accuracy(
        name,
        evaluation.count,
        evaluation.correct,
        evaluation.by_length,
        buckets_of(np.array(own), correct, DEEPEST, first=0),
        buckets_of(np.array(gold), correct, DEEPEST, first=0) if len(gold) == len(own) else [],
    )
