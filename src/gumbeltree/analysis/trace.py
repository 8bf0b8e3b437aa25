"""Traces of how a model merges a sentence: every candidate, every choice, every node.

Shapes: B sentences, T words per sentence, D state size.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gumbeltree.answers import softmax
from gumbeltree.encoded import VECTORS, Encoded, Keep
from gumbeltree.text.batches import as_texts, batches
from gumbeltree.text.ids import Sentence, TextReader
from gumbeltree.text_model import TextModel
from gumbeltree.tree import Span, Tree

BATCH_WORDS = 4096
"""The number of words to encode at a time; memory for their scores grows at most quadratically."""
COLDEST, HOTTEST = 1e-6, 1e6
"""At lower temperatures sampling is effectively greedy; at higher ones, uniform."""


@dataclass(frozen=True)
class Layer:
    """The candidates of one step and the choice among them.

    Attributes:
        scores: The validity score of each candidate, left to right, without noise.
        probabilities: Eq. 12, the softmax of the scores divided by the temperature.
        choice: The position of the merge.
        runner_up: The position of the most probable other candidate, None if there is no other.
    """

    scores: tuple[float, ...]
    probabilities: tuple[float, ...]
    choice: int
    runner_up: int | None


@dataclass(frozen=True)
class Node:
    """A word or a merge. For words, all attributes except `span` and `classes` are None.

    Attributes:
        span: The half-open range of its words.
        children: The indices of its two children among the nodes.
        step: The index of the merge that created it.
        score: The validity score of that merge.
        probability: The probability of that merge among the candidates of its layer.
        classes: The class probabilities of this node alone; None for pair models.
    """

    span: Span
    children: tuple[int, int] | None
    step: int | None
    score: float | None
    probability: float | None
    classes: dict[str, float] | None


@dataclass(frozen=True)
class Trace:
    """A sentence, its tree and how the tree was built.

    Attributes:
        text: The text that was tokenized.
        tree: The words and their merges.
        offsets: The half-open range of each word's characters in `text`.
        unknown: Whether each word is out of the vocabulary.
        layers: One per merge.
        nodes: The words, then the merges in their order; the root is last.
        vector: The sentence vector `[D]`; the root's h unless the encoder pools by attention.
        states: h of each node `[2T-1, D]`.
        sampled: Whether merges were sampled instead of taking the best.
        cut: Whether the text was truncated.
        trees: "learned", or the kind of fixed trees that the encoder builds.
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
        """Whether scores determined the merges; False for fixed trees and single words."""
        return bool(self.layers) and self.trees == "learned"

    def as_dict(self) -> dict[str, Any]:
        """Return everything except the vectors, ready for JSON."""
        return {
            "text": self.text,
            "words": self.tree.words,
            "order": self.tree.order,
            "brackets": str(self.tree),
            "offsets": self.offsets,
            "unknown": self.unknown,
            "sampled": self.sampled,
            "cut": self.cut,
            "trees": self.trees,
            "layers": [dict(vars(layer)) for layer in self.layers],
            "nodes": [dict(vars(node)) for node in self.nodes],
        }


def trace(model: TextModel, text: str, **options: Any) -> Trace:
    """Trace how a model merges one text.

    Args:
        model: A model that builds trees.
        text: A sentence.
        options: `seed`, `temperature` and `pretokenized`, as in `trace_many`.
    """
    return trace_many(model, [text], **options)[0]


def trace_many(
    model: TextModel,
    texts: Sequence[str],
    *,
    seed: int | None = None,
    temperature: float = 1.0,
    pretokenized: bool = False,
) -> list[Trace]:
    """Trace how a model merges each text.

    Args:
        model: A model that builds trees.
        texts: Sentences; those longer than `max_words` are truncated.
        seed: Sample each merge as argmax(score / temperature + Gumbel noise). The result depends
            on the seed, the text and the temperature, not on other texts. None merges the best.
        temperature: Higher values make sampling more random; training uses 1.
        pretokenized: See `TextModel.encode`.
    """
    sentences, cuts = _read(model, texts, temperature, pretokenized)
    unknown = TextReader(model.tokenizer, model.config.max_words).unknown
    # a seed has no effect on fixed trees
    sampled = seed is not None and model.encoder.draws_trees
    traces: dict[int, Trace] = {}
    for rows in batches([len(sentence.ids) for sentence in sentences], 256, BATCH_WORDS):
        ids = [sentences[row].ids for row in rows]
        noise = None if seed is None else _padded_noise(ids, seed, temperature)
        encoding = model.as_numpy(model.encode_ids(ids, Keep(True, True), noise))
        classes = _classes(model, encoding)
        assert encoding.nodes is not None
        assert encoding.order is not None
        assert encoding.scores is not None
        T = max(map(len, ids))
        for i, row in enumerate(rows.tolist()):
            sentence, words = sentences[row], len(ids[i])
            own = [*range(words), *range(T, T + words - 1)]
            tree = Tree(sentence.words, encoding.order[i, : words - 1].tolist())
            scores = encoding.scores[i].astype(np.float64)
            shares = [None if classes is None else classes[i][node] for node in own]
            layers, nodes = _layers_and_nodes(tree, scores, temperature, shares)
            traces[row] = Trace(
                text=sentence.text,
                tree=tree,
                offsets=tuple(sentence.offsets),
                unknown=tuple(word == unknown for word in sentence.ids),
                layers=layers,
                nodes=nodes,
                vector=encoding.vector[i].astype(np.float32),
                states=encoding.nodes[i, own].astype(np.float32),
                sampled=sampled,
                cut=cuts[row],
                trees=model.encoder.shape_of_trees,
            )
    return [traces[row] for row in range(len(sentences))]


def span_probabilities(
    model: TextModel,
    text: str,
    *,
    samples: int = 100,
    seed: int = 0,
    temperature: float = 1.0,
    pretokenized: bool = False,
) -> tuple[Tree, dict[Span, float]]:
    """Return the greedy tree, and the share of sampled trees that contain each span.

    Args:
        model: As in `trace_many`.
        text: One sentence.
        samples: The number of trees to sample.
        seed: A single seed for all samples.
        temperature: As in `trace_many`.
        pretokenized: See `TextModel.encode`.
    """
    if samples < 1:
        raise ValueError(f"`samples` must be at least 1, got {samples}")
    (sentence,), _ = _read(model, [text], temperature, pretokenized)
    T = len(sentence.ids)
    noise = temperature * _noise(samples, T - 1, seed)

    def orders(count: int, noise: NDArray[np.float32] | None = None) -> list[list[int]]:
        encoding = model.encode_ids([sentence.ids] * count, noise=noise)
        order = model.as_numpy(encoding).order
        assert order is not None
        drawn: list[list[int]] = order.tolist()
        return drawn

    counts: Counter[Span] = Counter()
    (greedy,) = orders(1)
    most = max(1, BATCH_WORDS // T)
    for start in range(0, samples, most):
        part = noise[start : start + most]
        for order in orders(len(part), part):
            counts.update(Tree(sentence.words, order).spans)
    shares = {span: count / samples for span, count in sorted(counts.items())}
    return Tree(sentence.words, greedy), shares


def check_temperature(temperature: float) -> None:
    """Raise unless the temperature is in the range that float32 supports."""
    if not (isinstance(temperature, int | float) and COLDEST <= temperature <= HOTTEST):
        raise ValueError(
            f"the temperature must be a number from {COLDEST:f} to {HOTTEST:,.0f}, got "
            f"{temperature!r}; training uses 1"
        )


def _read(
    model: TextModel, texts: Sequence[str], temperature: float, pretokenized: bool
) -> tuple[list[Sentence], list[bool]]:
    """Check the arguments, and return the ids of the texts and which texts were truncated."""
    model.check_builds_trees()
    check_temperature(temperature)
    reader = TextReader(model.tokenizer, model.config.max_words, pretokenized)
    sentences, cuts = [], []
    for number, text in enumerate(as_texts(texts)):
        before = reader.counts.cut
        sentences += reader.read([text], number, offsets=True)
        cuts.append(reader.counts.cut > before)
    return sentences, cuts


def _noise(count: int, size: int, seed: int) -> NDArray[np.float32]:
    """Draw Gumbel noise `[count, size, size]` that depends only on its size and the seed.

    The uniform numbers are those that torch draws with the same seed on a CPU.
    """
    twister = np.random.RandomState(seed % 2**32)
    bits = twister.randint(2**32, size=(count, size, size), dtype=np.uint32)
    u = (bits & 0xFF_FFFF).astype(np.float32) * np.float32(2**-24)
    # Eqs. S9 and S10
    tiny = np.float32(1e-20)
    noise: NDArray[np.float32] = -np.log(-np.log(u + tiny) + tiny)
    return noise


def _padded_noise(
    ids: Sequence[Sequence[int]], seed: int, temperature: float
) -> NDArray[np.float32]:
    """Return the noise of each sentence, padded to `[B, T-1, T-1]`."""
    sizes = [len(words) - 1 for words in ids]
    noise = np.zeros((len(ids), max(sizes), max(sizes)), np.float32)
    for i, size in enumerate(sizes):
        # argmax(score / temperature + g) is argmax(score + temperature g)
        noise[i, :size, :size] = temperature * _noise(1, size, seed)[0]
    return noise


def _classes(model: TextModel, encoding: Encoded) -> list[list[dict[str, float]]] | None:
    """Return the class probabilities of each node of each sentence; None for pair models."""
    if model.head.sentences != 1 or not model.labels or model.head.keep != VECTORS:
        return None
    assert encoding.nodes is not None
    h = encoding.nodes  # [B, 2T-1, D]
    shares = softmax(model.output_of(h.reshape(-1, h.shape[-1]))).reshape(*h.shape[:2], -1)
    return [
        [dict(zip(model.labels, node, strict=True)) for node in nodes] for nodes in shares.tolist()
    ]


def _layers_and_nodes(
    tree: Tree,
    scores: NDArray[np.float64],
    temperature: float,
    classes: Sequence[dict[str, float] | None],
) -> tuple[tuple[Layer, ...], tuple[Node, ...]]:
    """Return the layers of one sentence, and its nodes with their classes."""
    T = len(tree)
    layers: list[Layer] = []
    nodes = [Node((i, i + 1), None, None, None, None, classes[i]) for i in range(T)]
    present = list(range(T))
    for step, (choice, span) in enumerate(zip(tree.order, tree.spans, strict=True)):
        row = scores[step, : T - 1 - step]
        weights = np.exp((row - row.max()) / temperature)
        probabilities = (weights / weights.sum()).tolist()
        others = [j for j in range(len(row)) if j != choice]
        runner_up = max(others, key=row.__getitem__, default=None)
        layers.append(Layer(tuple(row.tolist()), tuple(probabilities), choice, runner_up))
        children = (present[choice], present[choice + 1])
        present[choice : choice + 2] = [T + step]
        score, probability = float(row[choice]), probabilities[choice]
        nodes.append(Node(span, children, step, score, probability, classes[T + step]))
    return tuple(layers), tuple(nodes)
