"""How a model merged a sentence: every candidate, every choice, every node.

Legend: B sentences, T words of one, D width of the states.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gumbeltree.layout import Sentences
from gumbeltree.model import SentenceModel
from gumbeltree.nn.evaluation_mode import in_evaluation_mode
from gumbeltree.noise import gumbel_noise
from gumbeltree.states import VECTORS, Draw, Encoding, Keep
from gumbeltree.text.batches import as_texts, batches
from gumbeltree.text.ids import Sentence, TextReader
from gumbeltree.tree import Span, Tree

BATCH_CELLS = 2**22
"""Most scores that are kept at a time: sentences times words squared."""
COLDEST, HOTTEST = 1e-6, 1e6
"""Temperatures beyond choose as these do: the best merges, or any with the same chance."""


@dataclass(frozen=True)
class Layer:
    """The candidates of one step and what became of them.

    Attributes:
        scores: validity score of each candidate, left to right, without noise.
        probabilities: Eq. 12, softmax of the scores divided by the temperature of the trace.
        choice: position of the merge.
        runner_up: position of the most probable of the others, None if there was no other.
    """

    scores: tuple[float, ...]
    probabilities: tuple[float, ...]
    choice: int
    runner_up: int | None


@dataclass(frozen=True)
class Node:
    """A word or a merge.

    Attributes:
        span: half-open range of its words.
        children: numbers of its two children among the nodes, None for a word.
        step: the merge that made it, None for a word.
        score: its validity score, None for a word.
        probability: of its merge among the candidates of its layer, None for a word.
        classes: what the classifier says of this node alone, None for models of pairs.
    """

    span: Span
    children: tuple[int, int] | None
    step: int | None
    score: float | None
    probability: float | None
    classes: dict[str, float] | None


@dataclass(frozen=True)
class Trace:
    """A sentence, its tree and how it came about.

    Attributes:
        text: as it was tokenised.
        tree: the words and their merges.
        offsets: first character and the one after the last of each word in `text`.
        unknown: whether the vocabulary lacks each word.
        layers: one for each merge.
        nodes: the words, then the merges in their order, the root last.
        vector: of the sentence `[D]`; the root's h unless the encoder attends to all nodes.
        states: h of each node `[2T-1, D]`.
        sampled: whether merges were sampled, not the best ones taken.
        cut: whether the end of the text was left out.
        trees: the encoder's setting: learned, or which fixed trees it makes.
    """

    text: str
    tree: Tree
    offsets: tuple[Span, ...]
    unknown: tuple[bool, ...]
    layers: tuple[Layer, ...]
    nodes: tuple[Node, ...]
    vector: NDArray[np.float32]
    states: NDArray[np.float32]
    sampled: bool
    cut: bool
    trees: str = "learned"

    @property
    def scored(self) -> bool:
        """Whether there are merges that scores decided on; those of fixed trees say nothing."""
        return bool(self.layers) and self.trees == "learned"

    def as_dict(self) -> dict[str, Any]:
        """Return all but the vectors, for JSON."""
        return {
            "text": self.text,
            "words": list(self.tree.words),
            "order": list(self.tree.order),
            "brackets": str(self.tree),
            "offsets": [list(pair) for pair in self.offsets],
            "unknown": list(self.unknown),
            "sampled": self.sampled,
            "cut": self.cut,
            "trees": self.trees,
            "layers": [
                {
                    "scores": list(layer.scores),
                    "probabilities": list(layer.probabilities),
                    "choice": layer.choice,
                    "runner_up": layer.runner_up,
                }
                for layer in self.layers
            ],
            "nodes": [
                {
                    "span": list(node.span),
                    "children": None if node.children is None else list(node.children),
                    "step": node.step,
                    "score": node.score,
                    "probability": node.probability,
                    "classes": node.classes,
                }
                for node in self.nodes
            ],
        }


def trace(model: SentenceModel, text: str, **options: Any) -> Trace:
    """Return how a model merges one text; see `trace_many`."""
    if not isinstance(text, str):
        raise TypeError(f"expected one string, got {type(text).__name__}")
    return trace_many(model, [text], **options)[0]


def trace_many(
    model: SentenceModel,
    texts: Sequence[str],
    *,
    seed: int | None = None,
    temperature: float = 1.0,
    pretokenized: bool = False,
) -> list[Trace]:
    """Return how a model merges each text.

    Args:
        model: any with a tree; the baselines without one are refused.
        texts: sentences; of longer ones the first `max_words` words are read.
        seed: sample each merge as argmax(score / temperature + Gumbel noise), the same for the
            same seed, text and temperature whatever other texts there are; None takes the best.
        temperature: the higher, the less the scores say; 1 is as in training.
        pretokenized: see `SentenceModel.encode`.

    Raises:
        ValueError: If the model gives scores that are no numbers, among others.
    """
    model.check_builds_trees()
    check_temperature(temperature)
    sentences, cuts = _read(model, texts, pretokenized)
    trees = model.encoder.shape_of_trees
    unknown = TextReader(model.tokenizer, model.config.max_words).unknown
    found: dict[int, Trace] = {}
    for rows in _few(sentences):
        ids = [sentences[row].ids for row in rows]
        T = max(map(len, ids))
        noise = None
        if seed is not None:
            # argmax(score / temperature + g) is argmax(score + temperature g)
            noise = torch.zeros((len(rows), T - 1, T - 1))
            for i, row in enumerate(rows):
                size = len(sentences[row].ids) - 1
                noise[i, :size, :size] = temperature * _noise(1, size, seed)[0]
        encoding, classes = _encoded(model, ids, noise)
        for i, row in enumerate(rows):
            found[row] = _trace(
                sentences[row],
                cuts[row],
                unknown,
                temperature,
                # a seed changes no tree that is always the same
                seed is not None and model.encoder.draws_trees,
                encoding["order"][i],
                encoding["scores"][i],
                encoding["vector"][i],
                _own_nodes(encoding["h"][i], len(sentences[row].ids)),
                None if classes is None else _own_nodes(classes[i], len(sentences[row].ids)),
                model.labels,
                trees,
            )
    return [found[row] for row in range(len(sentences))]


def span_probabilities(
    model: SentenceModel,
    text: str,
    *,
    samples: int = 100,
    seed: int = 0,
    temperature: float = 1.0,
    pretokenized: bool = False,
) -> tuple[Tree, dict[Span, float]]:
    """Return the greedy tree and how often each span of two words or more is in a sampled tree.

    Args:
        model: as in `trace_many`.
        text: one sentence.
        samples: trees that are drawn.
        seed: of all of them together.
        temperature: as in `trace_many`.
        pretokenized: see `SentenceModel.encode`.
    """
    model.check_builds_trees()
    check_temperature(temperature)
    if samples < 1:
        raise ValueError(f"`samples` must be a whole number from 1 on, got {samples!r}")
    (sentence,), _ = _read(model, [text], pretokenized)
    T = len(sentence.ids)
    counts: Counter[Span] = Counter()
    step = max(1, BATCH_CELLS // (T * T))
    noise = temperature * _noise(samples, T - 1, seed)
    device = model.embedding.weight.device
    orders = []
    model = in_evaluation_mode(model)
    with torch.inference_mode():
        (greedy,) = _orders(model.encode_batch(Sentences.of([sentence.ids], device), Draw()))
        for start in range(0, samples, step):
            drawn = noise[start : start + step].to(device)
            many = Sentences.of([sentence.ids] * len(drawn), device)
            orders += _orders(model.encode_batch(many, Draw(drawn)))
    for order in orders:
        counts.update(Tree(sentence.words, order).spans)
    return Tree(sentence.words, greedy), {
        span: count / samples for span, count in sorted(counts.items())
    }


def check_temperature(temperature: float) -> None:
    """Raise unless noise of this temperature and scores can be added."""
    if not (isinstance(temperature, int | float) and COLDEST <= temperature <= HOTTEST):
        raise ValueError(
            f"the temperature must be a number from {COLDEST:f} to {HOTTEST:,.0f}, got "
            f"{temperature!r}; 1 is as in training, and without a seed the best merges are taken"
        )


def _read(
    model: SentenceModel, texts: Sequence[str], pretokenized: bool
) -> tuple[list[Sentence], list[bool]]:
    """Return the ids of texts, and which of them were cut."""
    reader = TextReader(model.tokenizer, model.config.max_words, pretokenized)
    sentences, cuts = [], []
    for number, text in enumerate(as_texts(texts)):
        before = reader.counts.cut
        sentences += reader.read([text], number, offsets=True)
        cuts.append(reader.counts.cut > before)
    return sentences, cuts


def _few(sentences: Sequence[Sentence]) -> list[list[int]]:
    """Return rows of sentences of similar lengths whose scores fit into memory together."""
    found = []
    for rows in batches([len(sentence.ids) for sentence in sentences], 256):
        longest = max(len(sentences[row].ids) for row in rows)
        size = max(1, BATCH_CELLS // (longest * longest))
        found += [rows[i : i + size].tolist() for i in range(0, len(rows), size)]
    return found


def _noise(count: int, size: int, seed: int) -> Tensor:
    """Return Gumbel noise `[count, size, size]` that depends on nothing but its size and seed."""
    generator = torch.Generator().manual_seed(seed % 2**63)
    return gumbel_noise((count, size, size), generator=generator)


def _orders(encoding: Encoding) -> list[list[int]]:
    assert encoding.order is not None
    orders: list[list[int]] = encoding.order.tolist()
    return orders


def _encoded(
    model: SentenceModel, ids: Sequence[Sequence[int]], noise: Tensor | None
) -> tuple[dict[str, NDArray[Any]], NDArray[np.float32] | None]:
    """Return what the encoder did, and the classes of each node if the model has single ones."""
    device = model.embedding.weight.device
    model = in_evaluation_mode(model)
    with torch.inference_mode():
        draw = Draw(None if noise is None else noise.to(device))
        encoding = model.encode_batch(Sentences.of(ids, device), draw, Keep(True, True))
        assert encoding.nodes is not None
        assert encoding.order is not None
        assert encoding.scores is not None
        h = encoding.nodes.h  # [B, 2T-1, D]
        classes = None
        if model.head.sentences == 1 and model.labels and model.head.keep == VECTORS:
            scores = model.head(Encoding(h.flatten(0, 1))).float()
            classes = scores.softmax(-1).unflatten(0, h.shape[:2]).cpu().numpy()
    arrays = {
        "order": encoding.order.cpu().numpy(),
        "scores": encoding.scores.double().cpu().numpy(),
        "vector": encoding.vector.float().cpu().numpy(),
        "h": h.float().cpu().numpy(),
    }
    return arrays, classes


def _own_nodes(rows: NDArray[np.float32], words: int) -> NDArray[np.float32]:
    """Return a sentence's own rows of `[2T-1, ...]`: its words, then its merges."""
    T = (len(rows) + 1) // 2
    own: NDArray[np.float32] = np.concatenate([rows[:words], rows[T : T + words - 1]])
    return own


def _trace(
    sentence: Sentence,
    cut: bool,
    unknown: int,
    temperature: float,
    sampled: bool,
    order: NDArray[np.int64],
    scores: NDArray[np.float64],
    vector: NDArray[np.float32],
    states: NDArray[np.float32],
    classes: NDArray[np.float32] | None,
    labels: tuple[str, ...],
    trees: str,
) -> Trace:
    """Put together what belongs to one sentence."""
    T = len(sentence.ids)
    rows = [scores[step, : T - 1 - step] for step in range(T - 1)]
    if not all(np.isfinite(x).all() for x in (*rows, *([] if classes is None else classes))):
        raise ValueError(
            "the model gives NaN or infinite scores for this text; its weights are broken: train "
            "it anew, with a lower learning rate"
        )
    tree = Tree(sentence.words, order[: T - 1].tolist())

    def named(number: int) -> dict[str, float] | None:
        if classes is None:
            return None
        return dict(zip(labels, classes[number].tolist(), strict=True))

    layers = []
    nodes = [Node((i, i + 1), None, None, None, None, named(i)) for i in range(T)]
    present = list(range(T))
    for step, (choice, span, row) in enumerate(zip(tree.order, tree.spans, rows, strict=True)):
        weights = np.exp((row - row.max()) / temperature)
        probabilities = (weights / weights.sum()).tolist()
        others = [j for j in range(len(row)) if j != choice]
        runner_up = max(others, key=lambda j: row[j], default=None)
        layers.append(Layer(tuple(row.tolist()), tuple(probabilities), choice, runner_up))
        children = (present[choice], present[choice + 1])
        present[choice : choice + 2] = [T + step]
        nodes.append(
            Node(span, children, step, float(row[choice]), probabilities[choice], named(T + step))
        )
    return Trace(
        sentence.text,
        tree,
        tuple((start, end) for start, end in sentence.offsets),
        tuple(word == unknown for word in sentence.ids),
        tuple(layers),
        tuple(nodes),
        vector,
        states,
        sampled,
        cut,
        trees,
    )
