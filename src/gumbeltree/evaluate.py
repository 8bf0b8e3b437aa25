"""How good a model is on labelled data: one function for training, command line and tests."""

import dataclasses
import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gumbeltree.data import Split, by_length
from gumbeltree.data.device_split import DeviceSplit
from gumbeltree.device.graphs import Graphs, torch_settings
from gumbeltree.model import SentenceModel, in_evaluation_mode
from gumbeltree.nn.heads.head import Evaluation, Part
from gumbeltree.states import Draw
from gumbeltree.tasks.task import Example
from gumbeltree.text.ids import TextCounts, TextReader, chunks


class ScoreError(ValueError):
    """A model gives scores that are no numbers."""


def evaluate(
    model: SentenceModel,
    split: Split,
    words: int = 16_384,
    rows: NDArray[np.int64] | None = None,
) -> Evaluation:
    """Compare a model with the examples of a split, greedy trees, without dropout.

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
        model.head.check_columns(split.sentences.shape[1])
        if len(split):
            model.encoder.check_needs(split.batch([0]).sentences)
        self.rows = np.arange(len(split)) if rows is None else _checked_rows(rows, len(split))
        part = dataclasses.replace(
            split, sentences=split.sentences[self.rows], labels=split.labels[self.rows]
        )
        model.head.check_targets(part.labels)
        self.part = part
        # the longest first: what they leave of memory is enough for the others
        self.batches = list(by_length(part, words))[::-1]
        self.device = model.embedding.weight.device
        self.on_device: DeviceSplit | None = None
        captured = self.device.type == "cuda" and model.why_not_captured(sample=False) is None
        if captured and split.orders is None:
            self.on_device = DeviceSplit(part, self.device)
            # they come in the same order each time: with fewer graphs each would be dropped
            # before it is used again
            self.graphs = Graphs(self.device, most=len(self.batches))
            self.placed = [self.on_device.place(rows, rounded=False) for rows in self.batches]

    def __call__(self) -> Evaluation:
        """Evaluate the model as it now is."""
        part = self.part
        targets = torch.from_numpy(part.labels).to(self.device)
        model = in_evaluation_mode(self.model)
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        outputs = []
        with torch.inference_mode():
            for number, chosen in enumerate(self.batches):
                output = self._output(model, number)  # [B, ...]
                if output.dtype.itemsize < 4:
                    output = output.float()
                target = targets[torch.from_numpy(chosen).to(self.device)]
                loss = loss + model.head.loss(output, target).double().sum()
                # a graph overwrites its own
                outputs.append(output.to(torch.float64, copy=True))
            if not outputs:
                return self._of_nothing(model)
            # one transfer for all of it
            found = torch.cat(outputs).cpu().numpy()
        wrong = int((~np.isfinite(found)).reshape(len(found), -1).any(1).sum())
        if wrong:
            raise ScoreError(
                f"the model gives NaN or infinite scores for {wrong} of {len(part)} examples; its "
                "weights are broken: train it anew, with a lower learning rate"
            )
        ordered = np.empty_like(found)
        ordered[np.concatenate(self.batches)] = found
        longest = part.lengths.max(axis=1, initial=1)
        mean = float(loss) / len(part)
        evaluation: Evaluation = model.head.evaluation(
            Part(ordered, part.labels, mean, self.rows, len(self.split), longest)
        )
        return evaluation

    def _of_nothing(self, model: SentenceModel) -> Evaluation:
        nothing, longest = np.empty((0, 1)), np.empty(0, np.int64)
        evaluation: Evaluation = model.head.evaluation(
            Part(nothing, self.part.labels, math.nan, self.rows, len(self.split), longest)
        )
        return evaluation

    def _output(self, model: SentenceModel, number: int) -> Tensor:
        """Return the head's output of a batch `[B, ...]`; the next call may overwrite it."""
        on_device = self.on_device
        if on_device is None:
            batch = self.part.batch(self.batches[number], self.device)
            output: Tensor = model(batch.sentences, Draw()).output
            return output
        bounds, numbers = self.placed[number]
        model.encoder.prepare(bounds.T)

        def function(numbers: Tensor) -> Tensor:
            found: Tensor = model(on_device.read(numbers, bounds).sentences, Draw()).output
            return found

        output = self.graphs((bounds, torch_settings()), function, numbers)
        return output


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
            encoding = model.encode_batch(alone.batch(rows, device).sentences, Draw())
            assert encoding.order is not None
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
    for example in examples:
        labels.append(model.head.target(example.label))
        rows.append([places.setdefault(text, len(places)) for text in example.texts])
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
        np.array(labels, dtype=model.head.target_type),
    )


def _checked_rows(rows: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    rows = np.asarray(rows, dtype=np.int64)
    inside = len(rows) == 0 or 0 <= rows.min() <= rows.max() < count
    if rows.ndim != 1 or not inside or len(np.unique(rows)) < len(rows):
        raise ValueError(
            f"`rows` must be different numbers in 0..{count - 1}, got {rows}; pass examples of "
            "the split, each once"
        )
    return rows
