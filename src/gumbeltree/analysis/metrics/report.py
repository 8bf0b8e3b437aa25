"""Models, gold trees and baselines under one protocol, and all that is counted of them."""

import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gumbeltree.analysis import metrics
from gumbeltree.analysis.gold import Gold, GoldExample
from gumbeltree.analysis.metrics import F1, Bracketing, SelfF1, TreeShape
from gumbeltree.evaluate import evaluate, merge_orders, split_of
from gumbeltree.model import SentenceModel
from gumbeltree.nn.heads.class_evaluation import LONGEST, Bucket, ClassEvaluation
from gumbeltree.parts import ENCODERS
from gumbeltree.store import CONFIG, model_config
from gumbeltree.tasks.task import Task
from gumbeltree.text.files import shown
from gumbeltree.text.ids import TextCounts
from gumbeltree.tree import Span, Tree

DEEPEST = (3, 5, 7, 9, 12, 16, 24)
"""Deepest tree of each bin of depths but the last, which has no end."""
RANDOM_SEEDS = 5
CHUNK = 1024
"""Sentences parsed between two signs of progress."""
# what numpy raises for other files; a TypeError for an array alone, which is no context
_UNREADABLE = (
    *(OSError, ValueError, TypeError, KeyError, EOFError, NotImplementedError),
    *(zipfile.BadZipFile, zlib.error),
)


class ParsedSentence(NamedTuple):
    """The spans of a tree, and the words they are of."""

    words: tuple[str, ...]
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Row:
    """What was counted of one model or baseline, or of the gold trees.

    Attributes:
        name: of the model or baseline.
        kind: gold, model, baseline or bound.
        f1: against the gold trees, None without them and for themselves.
        shape: depth and branching, None for a bound.
        likeness: F1 with each baseline, by its name.
    """

    name: str
    kind: str
    f1: F1 | None
    shape: TreeShape | None
    likeness: dict[str, F1]

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "name": self.name,
            "kind": self.kind,
            "f1": self.f1 and self.f1._asdict(),
            "shape": self.shape and self.shape._asdict(),
            "f1_with": {name: found._asdict() for name, found in self.likeness.items()},
        }


@dataclass(frozen=True)
class Comparison:
    """Trees of models beside gold trees and baselines.

    Attributes:
        sentences: how many.
        keep_punctuation: whether punctuation counts.
        keep_trivial: whether words and whole sentences count.
        random_seeds: of the random trees.
        rows: gold trees, models, baselines.
        self_f1: agreement of the models, None of a single one.
        random_self_f1: agreement of random trees, None of a single seed.
    """

    sentences: int
    keep_punctuation: bool
    keep_trivial: bool
    random_seeds: int
    rows: list[Row]
    self_f1: SelfF1 | None
    random_self_f1: SelfF1 | None

    def of(self, kind: str) -> list[Row]:
        """Return the rows of one kind."""
        return [row for row in self.rows if row.kind == kind]

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        names = [row.name for row in self.of("model")]
        return {
            "sentences": self.sentences,
            "punctuation": "kept" if self.keep_punctuation else "dropped",
            "trivial_spans": "kept" if self.keep_trivial else "dropped",
            "random_seeds": self.random_seeds,
            "rows": [row.as_dict() for row in self.rows],
            "self_f1": self.self_f1 and _agreement(self.self_f1, names),
            "random_self_f1": self.random_self_f1
            and {"sentence": self.random_self_f1.sentence, "corpus": self.random_self_f1.corpus},
        }


def _agreement(found: SelfF1, names: Sequence[str]) -> dict[str, Any]:
    pairs = [
        {"first": names[i], "second": names[j], "sentence": each.sentence, "corpus": each.corpus}
        for i, j, each in found.pairs
    ]
    return {"sentence": found.sentence, "corpus": found.corpus, "pairs": pairs}


def compare(
    models: Mapping[str, Sequence[ParsedSentence]],
    gold: Sequence[Gold] | None = None,
    keep_punctuation: bool = False,
    keep_trivial: bool = False,
    random_seeds: int = RANDOM_SEEDS,
) -> Comparison:
    """Compare the trees of models with gold trees, with baselines and with each other.

    Args:
        models: trees of the same sentences, by the name of the model; see `parse_gold`.
        gold: gold trees of these sentences.
        keep_punctuation: see `metrics.bracketing`.
        keep_trivial: see `metrics.f1`.
        random_seeds: how many random trees a sentence gets; their figures are averaged.
    """
    if random_seeds < 1:
        raise ValueError(f"`random_seeds` must be at least 1, got {random_seeds}; pass such as 5")
    if not models and gold is None:
        raise ValueError("expected trees of a model or gold trees, got neither; pass some")
    words = [x.words for x in (gold if gold is not None else next(iter(models.values())))]
    made = {
        name: [metrics.bracketing(*tree, keep_punctuation) for tree in trees]
        for name, trees in models.items()
    }
    fixed = {
        kind: metrics.baseline(kind, words, keep_punctuation)
        for kind in metrics.BASELINES
        if kind != "random"
    }
    drawn = [
        metrics.baseline("random", words, keep_punctuation, seed) for seed in range(random_seeds)
    ]

    def against(trees: Sequence[Bracketing], other: Sequence[Bracketing]) -> F1:
        return metrics.f1(trees, other, keep_trivial)

    def likeness(trees: Sequence[Bracketing]) -> dict[str, F1]:
        found = {kind: against(trees, other) for kind, other in fixed.items()}
        found["random"] = metrics.mean_f1([against(trees, other) for other in drawn])
        return found

    truth = None
    rows: list[Row] = []
    if gold is not None:
        truth = [metrics.bracketing(tree.words, tree.spans, keep_punctuation) for tree in gold]
        rows.append(Row("gold", "gold", None, metrics.shape(truth), likeness(truth)))
    for name, trees in made.items():
        found = None if truth is None else against(trees, truth)
        rows.append(Row(name, "model", found, metrics.shape(trees), likeness(trees)))
    for name, trees in fixed.items():
        found = None if truth is None else against(trees, truth)
        rows.append(Row(name, "baseline", found, metrics.shape(trees), {}))
    found = None if truth is None else metrics.mean_f1([against(x, truth) for x in drawn])
    shape = metrics.mean_shape([metrics.shape(trees) for trees in drawn])
    rows.append(Row("random", "baseline", found, shape, {}))
    if truth is not None:
        best = metrics.best_f1(truth, keep_trivial)
        rows.append(Row("best binary tree", "bound", best, None, {}))
    return Comparison(
        len(words),
        keep_punctuation,
        keep_trivial,
        random_seeds,
        rows,
        metrics.self_f1(list(made.values()), keep_trivial) if len(made) > 1 else None,
        metrics.self_f1(drawn, keep_trivial) if random_seeds > 1 else None,
    )


def parse_gold(
    model: SentenceModel,
    gold: Sequence[Gold],
    name: str = "the model",
    advance: Callable[[int], None] = lambda count: None,
    counts: TextCounts | None = None,
) -> list[ParsedSentence]:
    """Return a model's greedy trees over the words of gold trees.

    Args:
        model: reads the words as they are, split nowhere else.
        gold: the gold trees.
        name: of the model, for messages.
        advance: is told how many sentences more are done.
        counts: what to add to.

    Raises:
        ValueError: If the model reads other words, because the sentence is too long for it, say.
    """
    model.check_builds_trees(name)
    counts = TextCounts() if counts is None else counts
    sentences: list[ParsedSentence] = []
    for start in range(0, len(gold), CHUNK):
        part = gold[start : start + CHUNK]
        texts = [" ".join(tree.words) for tree in part]
        for tree, found in zip(
            part, model.parse_many(texts, pretokenized=True, counts=counts), strict=True
        ):
            if found.words != tree.words:
                raise ValueError(_difference(tree, found, name, model.config.max_words))
            sentences.append(ParsedSentence(found.words, found.spans))
        advance(len(part))
    return sentences


def _difference(gold: Gold, tree: Tree, name: str, most: int) -> str:
    if len(gold.words) > most:
        return (
            f"{gold.place}: expected a tree of at most {most} words, which is what {name} reads, "
            f"got {len(gold.words)}; leave it out, as --skip-bad does"
        )
    words = zip(gold.words, tree.words, strict=False)
    differ = [(place, a, b) for place, (a, b) in enumerate(words) if a != b]
    place, a, b = differ[0] if differ else (min(len(gold.words), len(tree.words)), "", "")
    return (
        f"{gold.place}: expected that {name} reads the words of the tree, got {shown(b)} for "
        f"{shown(a)} at word {place}, and {len(tree.words)} words for {len(gold.words)}; write "
        "each word without white space or control characters in it"
    )


def short_names(names: Sequence[str]) -> list[str]:
    """Return names of files and folders without the folders that all of them share.

    Example:
        >>> short_names(["runs/a/seed-0/dev_orders.npz", "runs/a/seed-1/dev_orders.npz"])
        ['seed-0', 'seed-1']
        >>> short_names(["runs/a/model"])
        ['runs/a/model']
    """
    parts = [Path(name).parts for name in names]
    if len(names) < 2 or len(set(parts)) < len(parts):
        return list(names)
    for end in (0, -1):
        # a part that is the only one left is a name
        while min(map(len, parts)) > 1 and len({each[end] for each in parts}) == 1:
            parts = [each[1:] if end == 0 else each[:-1] for each in parts]
    return ["/".join(each) for each in parts]


def read_orders(path: Path | str) -> tuple[list[int], list[ParsedSentence]]:
    """Read the merges that a run made of its development sentences (`dev_orders.npz`).

    The file has no words: each is an x, so that punctuation cannot be told from other words.

    Returns:
        The number of each sentence in the run's data, and the trees.

    Raises:
        ValueError: If the file holds no merges, or if the model beside it makes none.
    """
    path = Path(path)
    _check_made_trees(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            numbers, lengths, order = (file[key] for key in ("sentence", "length", "order"))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path}: expected a file of merges, got nothing there; pass dev_orders.npz of a run"
        ) from None
    except _UNREADABLE as error:
        raise ValueError(
            f"{path}: expected merges as `gumbeltree train` writes them to dev_orders.npz, got "
            f"something else ({error}); pass such a file"
        ) from error
    if any(x.ndim != 1 or x.dtype.kind not in "iu" for x in (numbers, lengths, order)):
        found = ", ".join(f"{x.dtype} {list(x.shape)}" for x in (numbers, lengths, order))
        raise ValueError(
            f"{path}: expected rows of whole numbers for sentence, length and order, got {found}; "
            "pass dev_orders.npz of a run"
        )
    if not len(lengths):
        raise ValueError(f"{path}: expected merges of sentences, got none; pass another run's")
    if len(numbers) != len(lengths) or int(lengths.sum()) - len(lengths) != len(order):
        raise ValueError(
            f"{path}: expected a merge less than words in each sentence, got {len(order)} merges "
            f"for {len(lengths)} sentences of {int(lengths.sum())} words; the file is damaged"
        )
    ends = np.cumsum(lengths.astype(np.int64) - 1).tolist()
    merges = order.tolist()
    sentences = []
    for length, end in zip(lengths.tolist(), ends, strict=True):
        try:
            tree = Tree(["x"] * length, merges[end - length + 1 : end])
        except ValueError as error:
            raise ValueError(f"{path}: expected merges of words, but {error}") from error
        sentences.append(ParsedSentence(tree.words, tree.spans))
    return numbers.tolist(), sentences


def _check_made_trees(path: Path) -> None:
    """Raise if the model of the run's folder is one without trees, for which files were written."""
    folder = path.parent / "model"
    # by this name alone is it a run's
    if path.name == "dev_orders.npz" and path.is_file() and (folder / CONFIG).is_file():
        kind = model_config(folder).encoder.kind
        if ENCODERS[kind].trees == "none":
            raise ValueError(
                f"{path}: expected merges of a model that builds trees, got those of a run with "
                f"the encoder {kind!r}, which mean nothing; leave the file out"
            )


def same_sentences(files: Iterable[Path | str]) -> dict[str, list[ParsedSentence]]:
    """Read the merges of several runs; raise unless they are of the same sentences."""
    found: dict[str, list[ParsedSentence]] = {}
    first: tuple[str, list[int], list[int]] | None = None
    for path in files:
        numbers, sentences = read_orders(path)
        lengths = [len(sentence.words) for sentence in sentences]
        if first is None:
            first = str(path), numbers, lengths
        elif (numbers, lengths) != first[1:]:
            raise ValueError(
                f"{path}: expected merges of the same sentences as {first[0]}, got others "
                f"({len(lengths)} against {len(first[2])} sentences, or of other lengths); pass "
                "runs on the same data"
            )
        found[str(path)] = sentences
    return found


@dataclass(frozen=True)
class Accuracy:
    """How often a model is right, by what its sentences are like.

    For pairs, the longer sentence and the deeper tree of the two count.

    Attributes:
        name: of the model.
        examples: how many.
        correct: how many of them the model classifies correctly.
        by_length: by words, as the model reads them.
        by_depth: by the depth of the model's own tree.
        by_gold_depth: by the depth of the gold tree, empty where examples have none.
    """

    name: str
    examples: int
    correct: int
    by_length: list[Bucket]
    by_depth: list[Bucket]
    by_gold_depth: list[Bucket]

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "model": self.name,
            "examples": self.examples,
            "correct": self.correct,
            "accuracy": self.correct / self.examples,
            "by_length": metrics.bins_as_dicts(self.by_length),
            "by_depth": metrics.bins_as_dicts(self.by_depth),
            "by_gold_depth": metrics.bins_as_dicts(self.by_gold_depth),
        }


def why_no_accuracy(model: SentenceModel, task: Task) -> str | None:
    """Return why a model cannot classify what a task reads, or None if it can."""
    kinds = {True: "pairs", False: "single sentences"}
    pair = model.head.sentences == 2
    if pair != task.pair:
        return f"it classifies {kinds[pair]}, {task.name} has {kinds[task.pair]}"
    if not model.labels or not set(task.labels or ()) <= set(model.labels):
        return f"{task.name} has labels that it does not know"
    return None


def accuracy(
    model: SentenceModel, task: Task, examples: Sequence[GoldExample], name: str = "model"
) -> Accuracy:
    """Classify labelled examples, and count by length and depth.

    Args:
        model: of the task's labels; see `why_no_accuracy`.
        task: says whether texts are words already.
        examples: of `gold.read_examples`.
        name: of the model.
    """
    if not examples:
        raise ValueError("expected labelled examples, got none; pass some")
    model.check_builds_trees(name)
    split = split_of(model, [each.example for each in examples], task.pretokenized)
    evaluation = evaluate(model, split)
    assert isinstance(evaluation, ClassEvaluation)
    correct = (evaluation.predictions == split.labels).tolist()
    merges = merge_orders(model, split)
    ends = np.cumsum(merges["length"].astype(np.int64) - 1)
    depths = np.zeros(int(merges["sentence"].max()) + 1, dtype=np.int64)
    for number, length, end in zip(
        merges["sentence"].tolist(), merges["length"].tolist(), ends.tolist(), strict=True
    ):
        tree = Tree(["x"] * length, merges["order"][end - length + 1 : end].tolist())
        depths[number] = tree.depth
    own = depths[split.sentences].max(axis=1).tolist()
    gold = [
        [metrics.depth(tree.spans, len(tree.words)) for tree in each.trees if tree is not None]
        for each in examples
    ]
    has_gold = all(
        len(found) == len(each.trees) for found, each in zip(gold, examples, strict=True)
    )
    return Accuracy(
        name,
        evaluation.count,
        evaluation.correct,
        metrics.binned(split.lengths.max(axis=1).tolist(), correct, LONGEST, first=1),
        metrics.binned(own, correct, DEEPEST),
        metrics.binned([max(x) for x in gold], correct, DEEPEST) if has_gold else [],
    )
