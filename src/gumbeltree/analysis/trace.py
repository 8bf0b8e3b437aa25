"""Traces of how a model merges a sentence: every candidate, every choice, every node.

Shapes: B sentences, T words per sentence, D state size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gumbeltree.answers import softmax
from gumbeltree.encoded import VECTORS, Encoded, Keep
from gumbeltree.fixed_orders import fixed_orders
from gumbeltree.text.batches import as_texts, batches
from gumbeltree.text.ids import Sentence, TextReader
from gumbeltree.text_model import TextModel
from gumbeltree.tree import Span, Tree

BATCH_WORDS = 4096
"""The number of words to encode at a time; memory for their scores grows at most quadratically."""
COLDEST, HOTTEST = 1e-6, 1e6
"""At lower temperatures sampling is effectively greedy; at higher ones, uniform."""
NEAR_TIE = 0.2
"""Merges that lead by less are near ties: of 100 draws between the two candidates at temperature 1,
at least 45 pick the runner-up, because 1 / (1 + exp(0.2)) = 0.45."""
FIXED = ("left", "right", "balanced")
"""Trees that a model can follow, besides its own and bracketings."""
FORCED = np.float32(1e30)
"""Noise that outweighs any score, to force a merge."""


@dataclass(frozen=True)
class Layer:
    """The candidates of one step and the choice among them.

    Attributes:
        scores: The validity score of each candidate, left to right, without noise.
        probabilities: Eq. 12, the softmax of the scores divided by the temperature.
        choice: The position of the merge.
        runner_up: The position of the best other candidate, None if there is no other.
        lead: The score of the choice minus that of the runner-up, which is the log-odds between
            the two at temperature 1. Negative if a sampled or given choice is not the best. None
            if there is no other candidate, or no scores.
    """

    scores: tuple[float, ...]
    probabilities: tuple[float, ...]
    choice: int
    runner_up: int | None
    lead: float | None

    @property
    def near_tie(self) -> bool:
        """Whether the choice and the runner-up differ by less than `NEAR_TIE`."""
        return self.lead is not None and abs(self.lead) < NEAR_TIE

    def as_dict(self) -> dict[str, Any]:
        """Return all fields and `near_tie`, ready for JSON."""
        return {**vars(self), "near_tie": self.near_tie}


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
        trees: "learned", "soft", or the kind of fixed trees that the encoder builds.
        greedy: Whether the tree is the one that the model builds by itself.
        answer: The prediction for this tree, as of `TextModel.predict`; None for pair models.
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
    greedy: bool = True
    answer: Any = None

    @property
    def scored(self) -> bool:
        """Whether scores determined the merges; False for fixed trees and single words."""
        return bool(self.layers) and self.trees == "learned"

    def _repr_html_(self) -> str:
        # the view is a layer above
        from gumbeltree.analysis.steps import step_view

        return step_view([("", self)])

    def as_dict(self) -> dict[str, Any]:
        """Return everything except the vectors, ready for JSON."""
        return {
            "text": self.text,
            "words": self.tree.words,
            "order": self.tree.order,
            "brackets": str(self.tree),
            "offsets": self.offsets,
            "unknown": self.unknown,
            "unknown_share": sum(self.unknown) / len(self.unknown),
            "sampled": self.sampled,
            "greedy": self.greedy,
            "cut": self.cut,
            "trees": self.trees,
            "layers": [layer.as_dict() for layer in self.layers],
            "nodes": [dict(vars(node)) for node in self.nodes],
            "answer": None if self.answer is None else self.answer.as_dict(),
        }


def trace(model: TextModel, text: str, **options: Any) -> Trace:
    """Trace how a model merges one text.

    Args:
        model: A model that builds trees.
        text: A sentence.
        options: `seed`, `temperature`, `tree`, `prefix` and `pretokenized`, as in `trace_many`.
    """
    return trace_many(model, [text], **options)[0]


def trace_many(
    model: TextModel,
    texts: Sequence[str],
    *,
    seed: int | None = None,
    temperature: float = 1.0,
    tree: str = "model",
    prefix: Sequence[int] = (),
    pretokenized: bool = False,
) -> list[Trace]:
    """Trace how a model merges each text.

    Args:
        model: A model that builds trees.
        texts: Sentences; those longer than `max_words` are truncated.
        seed: Sample each merge as argmax(score / temperature + Gumbel noise). The result depends
            on the seed, the text and the temperature, not on other texts. None merges the best.
        temperature: Higher values make sampling more random; training uses 1.
        tree: "model" for the tree that the model chooses, or a tree that it must follow: "left",
            "right", "balanced", or a bracketing of its words such as "( ( a b ) c )".
        prefix: Positions of the first merges; the model chooses the others.
        pretokenized: See `TextModel.encode`.

    Raises:
        GivenTreeError: If the model cannot follow `tree` or `prefix`.
    """
    sentences, cuts = read_sentences(model, texts, temperature, pretokenized)
    unknown = TextReader(model.tokenizer, model.config.max_words).unknown
    given = [given_order(model, sentence.words, tree, prefix) for sentence in sentences]
    # a seed has no effect on fixed trees
    sampled = seed is not None and model.encoder.draws_trees and tree == "model"
    traces: dict[int, Trace] = {}
    costs = model.encoder.batch_cost(np.array([len(sentence.ids) for sentence in sentences]))
    for rows in batches(costs, 256, BATCH_WORDS):
        ids = [sentences[row].ids for row in rows]
        noise = padded_noise(ids, seed, temperature, [given[row] for row in rows])
        encoding = model.encode_ids(ids, Keep(True, True), noise)
        answers: Sequence[Any] = [None] * len(ids)
        if model.head.sentences == 1:
            answers = model.head.answers(model.head_output(encoding))
        encoding = model.as_numpy(encoding)
        own_order = encoding.order if noise is None else model.as_numpy(model.encode_ids(ids)).order
        classes = _classes(model, encoding)
        assert encoding.nodes is not None
        assert encoding.order is not None
        assert encoding.scores is not None
        assert own_order is not None
        T = max(map(len, ids))
        for i, row in enumerate(rows.tolist()):
            sentence, words = sentences[row], len(ids[i])
            own = [*range(words), *range(T, T + words - 1)]
            merged, greedy = (
                Tree(sentence.words, order[i, : words - 1].tolist())
                for order in (encoding.order, own_order)
            )
            scores = encoding.scores[i].astype(np.float64)
            shares = [None if classes is None else classes[i][node] for node in own]
            scored = model.encoder.trees == "sampled"
            layers, nodes = _layers_and_nodes(merged, scores, temperature, shares, scored)
            traces[row] = Trace(
                text=sentence.text,
                tree=merged,
                offsets=tuple(sentence.offsets),
                unknown=tuple(word == unknown for word in sentence.ids),
                layers=layers,
                nodes=nodes,
                vector=encoding.vector[i].astype(np.float32),
                states=encoding.nodes[i, own].astype(np.float32),
                sampled=sampled,
                cut=cuts[row],
                trees=model.encoder.shape_of_trees,
                greedy=merged == greedy,
                answer=answers[i],
            )
    return [traces[row] for row in range(len(sentences))]


class GivenTreeError(ValueError):
    """A tree or the beginning of one that a model cannot follow.

    Attributes:
        field: The argument with the error, "tree" or "prefix".
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field, self.message = field, message


def given_order(
    model: TextModel, words: Sequence[str], tree: str = "model", prefix: Sequence[int] = ()
) -> list[int]:
    """Return the merges that a model must begin with; none if it chooses all by itself.

    Args:
        model: A model that builds trees.
        words: The words of the sentence.
        tree: See `trace_many`.
        prefix: See `trace_many`.
    """
    field = "prefix" if tree == "model" else "tree"
    if tree == "model" and not prefix:
        return []
    if prefix and tree != "model":
        raise GivenTreeError("prefix", f'needs the tree "model", got {tree!r:.60}; pass only one')
    if model.encoder.trees != "sampled":
        kind = model.encoder.shape_of_trees
        raise GivenTreeError(field, f"this model cannot follow another tree: its trees are {kind}")
    if tree in FIXED:
        return [*fixed_orders(tree, np.array([len(words)]), len(words))[0].tolist()]
    if tree == "model":
        for step, position in enumerate(prefix):
            last = len(words) - 2 - step
            if not 0 <= position <= last:
                raise GivenTreeError(
                    field,
                    f"position {position} of merge {step + 1} does not exist: "
                    + (f"must lie in 0..{last}" if last >= 0 else "all words are merged by then"),
                )
        return list(prefix)
    try:
        given = Tree.from_brackets(tree)
    except ValueError as error:
        names = ", ".join(FIXED)
        raise GivenTreeError(field, f"must be model, {names} or brackets: {error}") from None
    # compare as written, because brackets cannot tell "(" from "-LRB-"
    if len(given) != len(words) or str(Tree(words, given.order)) != str(given):
        raise GivenTreeError(
            field,
            f"must bracket the words of the sentence, {' '.join(words)!r:.80}, "
            f"got {' '.join(given.words)!r:.80}",
        )
    return list(given.order)


def check_temperature(temperature: float) -> None:
    """Raise unless the temperature is in the range that float32 supports."""
    if not (isinstance(temperature, int | float) and COLDEST <= temperature <= HOTTEST):
        raise ValueError(
            f"the temperature must be a number from {COLDEST:f} to {HOTTEST:,.0f}, got "
            f"{temperature!r}; training uses 1"
        )


def read_sentences(
    model: TextModel, texts: Sequence[str], temperature: float, pretokenized: bool = False
) -> tuple[list[Sentence], list[bool]]:
    """Check the arguments, and return the ids of the texts and which texts were truncated."""
    model.check_builds_trees()
    check_temperature(temperature)
    check = model.text_check(pretokenized)
    reader = TextReader(model.tokenizer, model.config.max_words, pretokenized, check=check)
    sentences, cuts = [], []
    for number, text in enumerate(as_texts(texts)):
        before = reader.counts.cut
        sentences += reader.read([text], number, offsets=True)
        cuts.append(reader.counts.cut > before)
    return sentences, cuts


def noise_source(seed: int) -> np.random.RandomState:
    """Return a source for `gumbel_noise`."""
    return np.random.RandomState(seed % 2**32)


def gumbel_noise(count: int, size: int, source: np.random.RandomState) -> NDArray[np.float32]:
    """Draw Gumbel noise `[count, size, size]`.

    The uniform numbers are those that torch draws with the same seed on a CPU.
    """
    bits = source.randint(2**32, size=(count, size, size), dtype=np.uint32)
    u = (bits & 0xFF_FFFF).astype(np.float32) * np.float32(2**-24)
    # Eqs. S9 and S10
    tiny = np.float32(1e-20)
    noise: NDArray[np.float32] = -np.log(-np.log(u + tiny) + tiny)
    return noise


def padded_noise(
    ids: Sequence[Sequence[int]],
    seed: int | None,
    temperature: float,
    given: Sequence[Sequence[int]],
) -> NDArray[np.float32] | None:
    """Return the noise of each sentence with its given merges, padded to `[B, T-1, T-1]`.

    Args:
        ids: Word ids of each sentence.
        seed: See `trace_many`.
        temperature: See `trace_many`.
        given: The first merges of each sentence; see `given_order`.

    Returns:
        None if nothing is sampled or given, for greedy trees.
    """
    if seed is None and not any(given):
        return None
    sizes = [len(words) - 1 for words in ids]
    noise = np.zeros((len(ids), max(sizes), max(sizes)), np.float32)
    for i, size in enumerate(sizes):
        if seed is not None:
            # argmax(score / temperature + g) is argmax(score + temperature g)
            noise[i, :size, :size] = temperature * gumbel_noise(1, size, noise_source(seed))[0]
        noise[i, range(len(given[i])), given[i]] = FORCED
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
    scored: bool = True,
) -> tuple[tuple[Layer, ...], tuple[Node, ...]]:
    """Return the layers of one sentence, and its nodes with their classes.

    Args:
        tree: The words and their merges.
        scores: Scores of the candidates of each layer `[T-1, T-1]`.
        temperature: See `trace_many`.
        classes: The class probabilities of each node.
        scored: Whether the scores mean anything.
    """
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
        lead = None if runner_up is None or not scored else float(row[choice] - row[runner_up])
        layers.append(Layer(tuple(row.tolist()), tuple(probabilities), choice, runner_up, lead))
        children = (present[choice], present[choice + 1])
        present[choice : choice + 2] = [T + step]
        score, probability = float(row[choice]), probabilities[choice]
        nodes.append(Node(span, children, step, score, probability, classes[T + step]))
    return tuple(layers), tuple(nodes)
