"""Evaluate a model on labelled data; used by training, the command line and tests."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gumbeltree.data import Split, by_length
from gumbeltree.data.columns import examples_of
from gumbeltree.data.device_split import DeviceSplit
from gumbeltree.data.examples import Examples
from gumbeltree.device.graphs import Graphs, torch_settings
from gumbeltree.model import SentenceModel
from gumbeltree.nn.evaluation_mode import in_evaluation_mode
from gumbeltree.nn.heads.head import Evaluation, Part
from gumbeltree.states import Draw
from gumbeltree.tasks.task import Example
from gumbeltree.text.batches import BATCH_WORDS
from gumbeltree.text.ids import TextCounts, TextReader
from gumbeltree.text_model import TextModel
from gumbeltree.threads import in_threads, limited

Item = TypeVar("Item")
Result = TypeVar("Result")


def evaluate(
    model: TextModel,
    texts: Split | Iterable[str] | Iterable[tuple[str, str]],
    labels: Iterable[Any] | None = None,
    second: Iterable[str] | None = None,
    *,
    pretokenized: bool = False,
    words: int = BATCH_WORDS,
    rows: NDArray[np.int64] | None = None,
) -> Evaluation:
    """Evaluate a model on labelled texts, with greedy trees and without dropout.

    Example:
        >>> import gumbeltree
        >>> model = gumbeltree.load("sst2-100d")
        >>> evaluation = gumbeltree.evaluate(model, ["a gem .", "dull ."], ["positive", "negative"])
        >>> evaluation.accuracy
        1.0

    Args:
        model: a torch model; its mode does not matter and is left unchanged.
        texts: sentences, or (first, second) pairs for a pair model, in any iterable: lists, columns
            of data frames, arrays, generators. Alternatively, a split of prepared data, which
            contains its labels.
        labels: label of each sentence or pair; a list of tags for a model that predicts tags.
        second: the second sentences, if `texts` contains only the first ones.
        pretokenized: split texts at white space only, and undo Penn Treebank escapes.
        words: maximum number of words per batch, including padding.
        rows: distinct examples to evaluate on, all by default. Evaluations of disjoint rows can be
            added.

    Returns:
        The evaluation. `summary()` returns the main metrics in one line, `as_dict()` all of them,
        and `tables()` details such as the confusion matrix.
    """
    if isinstance(model, str | Path):
        name = str(model)
        raise TypeError(f"evaluation needs a model, got {name!r}; pass gumbeltree.load({name!r})")
    if not isinstance(model, SentenceModel):
        raise TypeError(
            f"evaluation needs a torch model, got {type(model).__name__}; load it with "
            'runtime="torch"'
        )
    if isinstance(texts, Split):
        if labels is not None or second is not None:
            raise ValueError("a split contains its texts and labels; omit `labels` and `second`")
        split = texts
    elif labels is None:
        raise ValueError("evaluation needs `labels`, one per text")
    else:
        columns = model._columns(texts, second)
        separator = getattr(model.config.head, "tag_separator", "")
        examples = examples_of(columns[0], labels, *columns[1:], tag_separator=separator)
        split = split_of(model, examples, pretokenized)
        if not len(split):
            raise ValueError("there are no texts to evaluate the model on; pass at least one")
    return Evaluator(model, split, words, rows)()


class Evaluator:
    """Evaluates a model repeatedly on one split, as training does.

    Scores stay on the model's device until the end, so that the host never waits between batches.
    On a CUDA device, batches are captured as graphs at the second evaluation. See `evaluate` for
    the arguments.
    """

    def __init__(
        self,
        model: SentenceModel,
        split: Split,
        words: int = BATCH_WORDS,
        rows: NDArray[np.int64] | None = None,
    ) -> None:
        self.model, self.size = model, len(split)
        model.head.check_columns(split.sentences.shape[1])
        if len(split):
            in_evaluation_mode(model.encoder).check_needs(split.batch([0]).sentences)
        self.rows = np.arange(len(split)) if rows is None else rows
        part = dataclasses.replace(
            split, sentences=split.sentences[self.rows], labels=split.labels[self.rows]
        )
        model.head.check_targets(part.labels)
        self.part = part
        # longest first, so that shorter batches reuse their memory
        self.batches = list(by_length(part, words, cost=model.encoder.batch_cost))[::-1]
        self.device = model.embedding.weight.device
        self.on_device: DeviceSplit | None = None
        captured = self.device.type == "cuda" and model.why_not_captured(sample=False) is None
        if captured:
            self.on_device = DeviceSplit(part, self.device, model.word_symbols())
            # one graph per batch: with fewer, each would be evicted before it is reused
            self.graphs = Graphs(self.device, max_graphs=len(self.batches))
            self.placed = [self.on_device.place(rows, rounded=False) for rows in self.batches]

    def __call__(self) -> Evaluation:
        """Evaluate the model with its current weights."""
        part, model = self.part, in_evaluation_mode(self.model)
        targets = torch.from_numpy(part.labels).to(self.device)
        loss = torch.zeros((), dtype=torch.float64, device=self.device)

        @torch.inference_mode()
        def outcome(number: int) -> tuple[Tensor, Tensor]:
            output = self._output(model, number)
            if output.dtype.itemsize < 4:
                output = output.float()
            target = targets[torch.from_numpy(self.batches[number]).to(self.device)]
            summed = model.head.loss(output, target).double().sum()
            # copy: replaying a graph overwrites its output
            return output.to(torch.float64, copy=True), summed

        outcomes = each_batch(self.model, outcome, range(len(self.batches)))
        for _, summed in outcomes:
            loss = loss + summed
        # a single transfer from the device
        outputs = [output for output, _ in outcomes]
        scores = torch.cat(outputs).cpu().numpy() if outputs else np.empty((0, 1))
        ordered = np.empty_like(scores)
        if outputs:
            ordered[np.concatenate(self.batches)] = scores
        mean = float(loss) / len(part) if len(part) else math.nan
        longest = part.lengths.max(axis=1, initial=1)
        evaluation: Evaluation = model.head.evaluation(
            Part(ordered, part.labels, mean, self.rows, self.size, longest)
        )
        return evaluation

    def _output(self, model: SentenceModel, number: int) -> Tensor:
        """Return the output of the head for a batch, `[B, ...]`, valid until the next call."""
        output: Tensor
        on_device = self.on_device
        if on_device is None:
            batch = self.part.batch(self.batches[number], self.device)
            output = model(batch.sentences, Draw()).output
            return output
        bounds, numbers = self.placed[number]
        model.encoder.prepare(bounds.T)

        def function(numbers: Tensor) -> Tensor:
            output: Tensor = model(on_device.read(numbers, bounds).sentences, Draw()).output
            return output

        output = self.graphs((bounds, torch_settings()), function, numbers)
        return output


def merge_orders(model: SentenceModel, split: Split, words: int = BATCH_WORDS) -> dict[str, Any]:
    """Return the greedy merges of each distinct sentence of a split.

    Args:
        model: a model; its mode does not matter and is left unchanged.
        split: the sentences to parse.
        words: maximum number of words per batch, including padding.

    Returns:
        Arrays for a file: `sentence`, the index in the split's table of sentences; `length`, its
        number of words; `order`, the merges of all sentences concatenated, length - 1 each.
    """
    model.check_builds_trees()
    sentences = np.unique(split.sentences).astype(np.int32)
    singles = dataclasses.replace(
        split, sentences=sentences[:, None], labels=np.zeros(len(sentences), np.int64)
    )
    device = model.embedding.weight.device
    orders: list[NDArray[np.uint16]] = [np.empty(0, np.uint16)] * len(sentences)
    lengths = singles.lengths[:, 0]
    copy = in_evaluation_mode(model)

    @torch.inference_mode()
    def merges(rows: NDArray[np.int64]) -> NDArray[np.uint16]:
        encoding = copy.encode_batch(singles.batch(rows, device).sentences, Draw())
        assert encoding.order is not None
        order: NDArray[np.uint16] = encoding.order.cpu().numpy().astype(np.uint16)
        return order

    groups = list(by_length(singles, words, cost=model.encoder.batch_cost))
    for rows, found in zip(groups, each_batch(model, merges, groups), strict=True):
        for row, order in zip(rows, found, strict=True):
            orders[row] = order[: lengths[row] - 1]
    return {
        "sentence": sentences,
        "length": lengths.astype(np.uint16),
        "order": np.concatenate([np.empty(0, np.uint16), *orders]),
    }


def each_batch(
    model: SentenceModel, function: Callable[[Item], Result], batches: Sequence[Item]
) -> list[Result]:
    """Return the results of `function` for each batch; on a CPU, threads share the batches."""
    one = limited(1)(function)
    return in_threads(one, batches) if model.parallel else list(map(one, batches))


def split_of(
    model: SentenceModel,
    examples: Examples | Iterable[Example],
    pretokenized: bool = False,
    counts: TextCounts | None = None,
) -> Split:
    """Convert labelled texts to ids of a model; a repeated sentence is stored once.

    Args:
        model: provides the tokenizer, the labels and the maximum number of words.
        examples: labelled sentences or pairs.
        pretokenized: see `SentenceModel.encode`.
        counts: updated with each distinct sentence.
    """
    examples = examples if isinstance(examples, Examples) else Examples(examples)
    pretokenized = pretokenized or examples.pretokenized
    reader = TextReader(model.tokenizer, model.config.max_words, pretokenized, counts)
    trees = "order" in model.encoder.needs
    return examples.split(reader, model.head.target, model.head.target_type, trees)
