"""How good a model is on labelled data: one function for training, command line and tests."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gumbeltree.data import Split, by_length
from gumbeltree.data.rows import RowData
from gumbeltree.graphs import Graphs, torch_settings
from gumbeltree.model import SentenceModel, in_evaluation_mode
from gumbeltree.tasks.example import Example
from gumbeltree.text.ids import TextCounts, TextReader, chunks

LONGEST = (5, 10, 15, 20, 30, 40, 60)
"""Most words of each bucket of lengths but the last, which has no end."""


class ScoreError(ValueError):
    """A model gives scores that are no numbers."""


class Bucket(NamedTuple):
    """Examples whose longest sentence has `shortest` to `longest` words."""

    shortest: int
    longest: int | None
    """None: no end."""
    examples: int
    correct: int

    @property
    def name(self) -> str:
        """Such as "6-10", or "61+"."""
        return f"{self.shortest}+" if self.longest is None else f"{self.shortest}-{self.longest}"


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation:
    """Results of a model on labelled examples; parts of one split add up.

    Attributes:
        loss: mean cross entropy, NaN without examples.
        confusion: examples by gold class (rows) and predicted class (columns), int64 `[C, C]`.
        predictions: predicted class of each example of the split, int64 `[examples]`, -1 where an
            example was left out.
        by_length: accuracy by the words of an example's longest sentence; no empty buckets.
    """

    loss: float
    confusion: NDArray[np.int64]
    predictions: NDArray[np.int64]
    by_length: list[Bucket]

    @property
    def count(self) -> int:
        """Examples evaluated."""
        return int(self.confusion.sum())

    @property
    def correct(self) -> int:
        """Examples whose highest score is that of the gold class."""
        return int(self.confusion.trace())

    @property
    def accuracy(self) -> float:
        """Share of examples that are correct, NaN without examples."""
        return self.correct / self.count if self.count else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Ends of the 95 % interval of the accuracy; see `wilson`."""
        return wilson(self.correct, self.count)

    def __add__(self, other: "Evaluation") -> "Evaluation":
        """Combine two parts of one split, such as those of two processes."""
        if self.predictions.shape != other.predictions.shape:
            raise ValueError(
                f"parts must come from one split, got {len(self.predictions)} and "
                f"{len(other.predictions)} examples; add evaluations of the same split"
            )
        twice = np.flatnonzero((self.predictions >= 0) & (other.predictions >= 0))
        if len(twice):
            raise ValueError(
                f"parts must have no example in common, got example {twice[0]} in both; pass "
                "different `rows` to `evaluate`"
            )
        # a part without examples has no loss
        losses = [part.loss * part.count for part in (self, other) if part.count]
        count = self.count + other.count
        buckets: dict[tuple[int, int | None], Bucket] = {}
        for bucket in sorted(self.by_length + other.by_length):
            before = buckets.get(bucket[:2], Bucket(*bucket[:2], 0, 0))
            buckets[bucket[:2]] = Bucket(
                *bucket[:2], bucket.examples + before.examples, bucket.correct + before.correct
            )
        return Evaluation(
            sum(losses) / count if count else math.nan,
            self.confusion + other.confusion,
            np.maximum(self.predictions, other.predictions),
            list(buckets.values()),
        )

    def as_dict(self, labels: Sequence[str]) -> dict[str, Any]:
        """Return everything but the single predictions, for JSON.

        Args:
            labels: names of the classes.
        """
        if len(labels) != len(self.confusion):
            raise ValueError(
                f"`labels` must name {len(self.confusion)} classes, got {len(labels)}; pass the "
                "model's labels"
            )
        return {
            "examples": self.count,
            "correct": self.correct,
            # JSON has no NaN
            "accuracy": self.accuracy if self.count else None,
            "interval_95": list(self.interval),
            "loss": self.loss if self.count else None,
            "labels": list(labels),
            "confusion": self.confusion.tolist(),
            "by_length": [
                {**bucket._asdict(), "accuracy": bucket.correct / bucket.examples}
                for bucket in self.by_length
            ],
        }


def evaluate(
    model: SentenceModel,
    split: Split,
    words: int = 16_384,
    rows: NDArray[np.int64] | None = None,
) -> Evaluation:
    """Classify the examples of a split, greedy trees, without dropout.

    Args:
        model: its mode does not matter and is not changed.
        split: labelled ids.
        words: most words of a batch, padding included.
        rows: which examples, each once; None: all. Parts of several processes add up.

    Raises:
        ValueError: If a score is NaN or infinite, or if labels or rows do not fit.
    """
    return Evaluator(model, split, words, rows)()


class Evaluator:
    """Evaluates a model on one split again and again, as training does.

    Scores stay on the model's device until the end, so that nothing waits for it before. On a CUDA
    device a batch is captured as a graph when it comes again. Arguments are those of `evaluate`.
    """

    def __init__(
        self,
        model: SentenceModel,
        split: Split,
        words: int = 16_384,
        rows: NDArray[np.int64] | None = None,
    ) -> None:
        self.model, self.split = model, split
        classes = len(model.labels)
        self.rows = np.arange(len(split)) if rows is None else _checked_rows(rows, len(split))
        part = dataclasses.replace(
            split, sentences=split.sentences[self.rows], labels=split.labels[self.rows]
        )
        if len(part) and not 0 <= part.labels.min() <= part.labels.max() < classes:
            raise ValueError(
                f"labels must lie in 0..{classes - 1} for {', '.join(model.labels)}, got "
                f"{part.labels.min()}..{part.labels.max()}; number them by the model's labels"
            )
        self.part = part
        # the longest first: what they leave of memory is enough for the others
        self.batches = list(by_length(part, words))[::-1]
        self.device = model.embedding.weight.device
        self.row_data: RowData | None = None
        if self.device.type == "cuda" and model.why_not_rows(sample=False) is None:
            self.row_data = RowData(part, self.device)
            # they come in the same order each time: with fewer graphs each would be dropped
            # before it is used again
            self.graphs = Graphs(self.device, most=len(self.batches))
            self.placed = [self.row_data.place(rows, rounded=False) for rows in self.batches]

    def __call__(self) -> Evaluation:
        """Evaluate the model as it now is."""
        part, classes = self.part, len(self.model.labels)
        loss = torch.zeros(1, dtype=torch.float64, device=self.device)
        wrong = torch.zeros(1, dtype=torch.int64, device=self.device)
        labels = torch.from_numpy(part.labels).to(self.device)
        predicted = [loss.new_empty(0)]
        model = in_evaluation_mode(self.model)
        with torch.inference_mode():
            for number, chosen in enumerate(self.batches):
                logits = self._scores(model, number).double()  # [B, C]
                gold = labels[torch.from_numpy(chosen).to(self.device)]
                loss = loss + model.head.loss(logits, gold).sum()
                wrong = wrong + (~logits.isfinite()).any(-1).sum()
                predicted.append(logits.argmax(-1).double())
            # one transfer for all of it
            results = torch.cat([loss, wrong.double(), *predicted]).cpu().numpy()
        if results[1]:
            raise ScoreError(
                f"the model gives NaN or infinite scores for {results[1]:.0f} of {len(part)} "
                "examples; its weights are broken: train it anew, with a lower learning rate"
            )
        order = np.concatenate([np.empty(0, np.int64), *self.batches])
        classified = np.empty(len(part), dtype=np.int64)
        classified[order] = results[2:].astype(np.int64)
        confusion = np.zeros((classes, classes), dtype=np.int64)
        np.add.at(confusion, (part.labels, classified), 1)
        predictions = np.full(len(self.split), -1, dtype=np.int64)
        predictions[self.rows] = classified
        mean = float(results[0]) / len(part) if len(part) else math.nan
        return Evaluation(mean, confusion, predictions, _buckets(part, classified))

    def _scores(self, model: SentenceModel, number: int) -> Tensor:
        """Return the class scores of a batch `[B, C]`; the next call may overwrite them."""
        rows = self.row_data
        if rows is None:
            batch = self.part.batch(self.batches[number]).to(self.device)
            columns = zip(batch.ids, batch.lengths, strict=True)
            scores: Tensor = model(*(x for column in columns for x in column))
            return scores
        shape, numbers = self.placed[number]

        def function(numbers: Tensor) -> Tensor:
            batch = rows.read(numbers, shape)
            return model.score_rows(batch.ids, batch.layout)

        found: Tensor = self.graphs((shape, torch_settings()), function, numbers)
        return found


def merge_orders(model: SentenceModel, split: Split, words: int = 16_384) -> dict[str, Any]:
    """Return the merges that a model makes in each sentence of a split, greedy.

    Args:
        model: its mode does not matter and is not changed.
        split: of which each sentence is read once, however many examples it is in.
        words: most words of a batch, padding included.

    Returns:
        Arrays for a file: `sentence`, the place in the split's table of sentences; `length`, its
        words; `order`, the merges of all of them, one after the other, length - 1 each.
    """
    model.check_builds_trees()
    sentences = np.unique(split.sentences).astype(np.int32)
    alone = dataclasses.replace(
        split, sentences=sentences[:, None], labels=np.zeros(len(sentences), np.int64)
    )
    device = model.embedding.weight.device
    orders: list[NDArray[np.uint16]] = [np.empty(0, np.uint16)] * len(sentences)
    lengths = alone.lengths[:, 0]
    model = in_evaluation_mode(model)
    with torch.inference_mode():
        for rows in by_length(alone, words):
            batch = alone.batch(rows).to(device)
            encoding = model.encoder(model.embed(batch.ids[0]), batch.lengths[0])
            found = encoding.order.cpu().numpy().astype(np.uint16)
            for row, order in zip(rows, found, strict=True):
                orders[row] = order[: lengths[row] - 1]
    return {
        "sentence": sentences,
        "length": lengths.astype(np.uint16),
        "order": np.concatenate([np.empty(0, np.uint16), *orders]),
    }


def split_of(
    model: SentenceModel,
    examples: Iterable[Example],
    pretokenized: bool = False,
    counts: TextCounts | None = None,
) -> Split:
    """Turn labelled texts into the ids of a model; a sentence that repeats is kept once.

    Args:
        model: gives tokenizer, labels and the most words of a text.
        examples: of one text each, or of two.
        pretokenized: see `SentenceModel.encode`.
        counts: what to add to; a sentence counts once, however often it comes.
    """
    reader = TextReader(model.tokenizer, model.config.max_words, pretokenized, counts)
    places: dict[str, int] = {}
    rows, labels = [], []
    classes = {label: place for place, label in enumerate(model.labels)}
    for example in examples:
        if example.label not in classes:
            raise ValueError(
                f"labels must be among the model's, {', '.join(classes)}, got {example.label!r}; "
                "pass another model, or correct the label"
            )
        rows.append([places.setdefault(text, len(places)) for text in example.texts])
        labels.append(classes[example.label])
    texts = list(places)
    words, lengths = [np.empty(0, np.uint32)], [0]
    for chunk in chunks([texts]):
        ids = [sentence.ids for sentence in reader.read(texts[chunk], chunk.start)]
        lengths += map(len, ids)
        words.append(np.fromiter(itertools.chain.from_iterable(ids), dtype=np.uint32))
    return Split(
        np.concatenate(words),
        np.cumsum(lengths, dtype=np.int64),
        np.array(rows, dtype=np.int32).reshape(len(rows), -1 if rows else 1),
        np.array(labels, dtype=np.int64),
    )


def wilson(correct: int, count: int) -> tuple[float, float]:
    """Return the ends of the 95 % Wilson score interval of a share of `count` trials.

    Example:
        >>> [round(end, 3) for end in wilson(9, 10)]
        [0.596, 0.982]
    """
    if not count:
        return 0.0, 1.0
    z = 1.959963984540054
    share = correct / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    spread = math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    half = z * spread / (1 + z * z / count)
    # none and all are exact ends, whatever rounding says
    low = 0.0 if correct == 0 else middle - half
    high = 1.0 if correct == count else middle + half
    return low, high


def _buckets(part: Split, classified: NDArray[np.int64]) -> list[Bucket]:
    longest = part.lengths.max(axis=1, initial=1)
    place = np.searchsorted(LONGEST, longest)
    size = len(LONGEST) + 1
    counts = np.bincount(place, minlength=size).tolist()
    correct = np.bincount(place[classified == part.labels], minlength=size).tolist()
    starts = [1, *(end + 1 for end in LONGEST)]
    ends = [*LONGEST, None]
    buckets = map(Bucket, starts, ends, counts, correct)
    return [bucket for bucket in buckets if bucket.examples]


def _checked_rows(rows: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    rows = np.asarray(rows, dtype=np.int64)
    inside = len(rows) == 0 or 0 <= rows.min() <= rows.max() < count
    if rows.ndim != 1 or not inside or len(np.unique(rows)) < len(rows):
        raise ValueError(
            f"`rows` must be different numbers in 0..{count - 1}, got {rows}; pass examples of "
            "the split, each once"
        )
    return rows
