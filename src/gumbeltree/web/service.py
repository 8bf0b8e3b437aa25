"""What the API does with a model. All of it runs in the worker's thread, for many requests at once.

Each function gets the texts of several requests and returns as many answers, each the JSON of one
answer or a `RefusedError`. JSON is made here, a text at a time, because it may be large and the
thread that talks to clients must not wait for it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from gumbeltree.analysis.trace import Trace, span_probabilities, trace_many
from gumbeltree.model import SentenceModel
from gumbeltree.web.limits import LIMITS
from gumbeltree.web.phrases import Phrases, example_sentences, phrase_words

if TYPE_CHECKING:
    from gumbeltree.analysis.index import Index

Item = TypeVar("Item")


class RefusedError(ValueError):
    """What a client sent cannot be used.

    Attributes:
        field: what is wrong; None is the text.
    """

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


Answers: TypeAlias = list[str | RefusedError]


@dataclass(frozen=True, eq=False, repr=False)
class Served:
    """A model under the name by which clients ask for it.

    Attributes:
        name: as clients know it.
        model: in evaluation mode.
        index: sentences to search, encoded by this model; None if there are none.
        sentences: from which phrases are taken.
    """

    name: str
    model: SentenceModel
    index: "Index | None" = None
    sentences: Sequence[str] = field(default_factory=example_sentences)

    @property
    def pair(self) -> bool:
        """Whether it classifies pairs."""
        return bool(self.model.head.sentences == 2)

    @property
    def has_trees(self) -> bool:
        """Whether it builds trees; the baselines do not."""
        return bool(self.model.encoder.builds_trees)

    @cached_property
    def phrases(self) -> Phrases:
        """Phrases to compare with, made when they are first wanted."""
        return Phrases(self.model, self.sentences)

    def about(self) -> dict[str, Any]:
        """Return what is known of it, for JSON."""
        config = self.model.config
        return {
            "name": self.name,
            "kind": config.head.kind,
            "sentences": self.model.head.sentences,
            "labels": list(self.model.labels),
            "trees": self.model.encoder.trees,
            "width": self.model.encoder.vector_dim,
            "vocabulary": self.model.tokenizer.get_vocab_size(),
            "max_words": config.max_words,
            "description": _description(self.model),
            "index": self.index is not None,
        }


def parse(
    served: Served, texts: list[str], seed: int | None, temperature: float, samples: int
) -> Answers:
    """Return the trace of each text, with the classes of the sentence and how sure each span is."""
    model = served.model

    def run(texts: list[str]) -> list[str]:
        traces = trace_many(model, texts, seed=seed, temperature=temperature)
        answers: list[dict[str, Any] | None] = [None] * len(texts)
        if not served.pair:
            answers = [answer.as_dict() for answer in model.predict(texts)]
        found = []
        for text, trace, answer in zip(texts, traces, answers, strict=True):
            spans = None
            if samples:
                _, shares = span_probabilities(
                    model, text, samples=samples, seed=seed or 0, temperature=temperature
                )
                spans = [[*span, share] for span, share in shares.items()]
            classes = (answer or {}).get("probabilities") if model.labels else None
            told = {"classes": classes, "answer": answer, "spans": spans}
            found.append(to_json({**trace.as_dict(), **told}))
        return found

    return _usable(model, texts, lambda text: [text], run)


def predict(served: Served, items: list[tuple[str, str | None]]) -> Answers:
    """Return the class of each text, or of each pair."""

    def run(items: list[tuple[str, str | None]]) -> list[str]:
        second = [second or "" for _, second in items] if served.pair else None
        predictions = served.model.predict([text for text, _ in items], second)
        return [to_json(x.as_dict()) for x in predictions]

    return _usable(served.model, items, lambda item: [x for x in item if x is not None], run)


def encode(served: Served, texts: list[str]) -> Answers:
    """Return the vector of each text."""

    def run(texts: list[str]) -> list[str]:
        return [to_json(vector) for vector in served.model.encode(texts).tolist()]

    return _usable(served.model, texts, lambda text: [text], run)


def similar_phrases(served: Served, items: list[tuple[str, list[int] | None, int]]) -> Answers:
    """Return the phrases that are most like a node of each text; without a span, like its root."""

    def run(items: list[tuple[str, list[int] | None, int]]) -> Answers:
        traces = trace_many(served.model, [text for text, _, _ in items])
        return [
            _like_node(served.phrases, trace, span, k)
            for trace, (_, span, k) in zip(traces, items, strict=True)
        ]

    return _usable(served.model, items, lambda item: [item[0]], run)


def similar_sentences(served: Served, items: list[tuple[str, int]]) -> Answers:
    """Return the sentences of the index that are most like each text, itself left out."""
    index = served.index
    if index is None:
        raise ValueError(f"{served.name} has no index")

    def run(items: list[tuple[str, int]]) -> list[str]:
        vectors = served.model.encode([text for text, _ in items])
        # one more, as the text itself may be among them
        rows, scores = index.search(vectors, max(k for _, k in items) + 1)
        found = []
        for (text, k), near, cosines in zip(items, rows.tolist(), scores.tolist(), strict=True):
            named = [
                {"text": other, "score": score}
                for other, score in zip(index.texts(near), cosines, strict=True)
                if other != text
            ]
            found.append(to_json(named[:k]))
        return found

    return _usable(served.model, items, lambda item: [item[0]], run)


def to_json(value: object) -> str:
    """Return JSON, which cannot hold NaN: that raises."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def _like_node(
    phrases: Phrases, trace: Trace, span: list[int] | None, k: int
) -> str | RefusedError:
    nodes = {node.span: number for number, node in enumerate(trace.nodes)}
    wanted = (0, len(trace.tree)) if span is None else (span[0], span[1])
    if wanted not in nodes:
        known = ", ".join(str(list(node)) for node in sorted(nodes))
        if len(known) > 200:
            known = f"{known[:200]}..."
        return RefusedError(f"expected a node of the sentence's tree: {known}", "span")
    found = phrases.nearest(trace.states[nodes[wanted]], phrase_words(trace, wanted), k)
    return to_json([{"text": text, "score": score} for text, score in found])


def _usable(
    model: SentenceModel,
    items: list[Item],
    texts: Callable[[Item], list[str]],
    run: Callable[[list[Item]], Sequence[str | RefusedError]],
) -> Answers:
    """Return what `run` gives for the items whose texts can be used, and what is wrong with others.

    Args:
        model: whose tokenizer counts words.
        items: of several requests.
        texts: gives the texts of an item.
        run: gets those that can be used.
    """

    def answers(faults: list[RefusedError | None]) -> Answers:
        good = [item for item, fault in zip(items, faults, strict=True) if fault is None]
        found = iter(run(good) if good else [])
        return [next(found) if fault is None else fault for fault in faults]

    # no text has more words than characters, so that most need not be counted
    faults = [_fault(model, texts(item), LIMITS.words) for item in items]
    try:
        return answers(faults)
    except ValueError:
        # perhaps of a text in which the tokenizer finds no word
        stricter = [_fault(model, texts(item), 0) for item in items]
        if [fault is None for fault in stricter] == [fault is None for fault in faults]:
            raise
        return answers(stricter)


def _fault(model: SentenceModel, texts: list[str], trusted: int) -> RefusedError | None:
    """Return what is wrong with the first text that cannot be used; None if all can.

    Args:
        model: whose tokenizer counts words.
        texts: of one item.
        trusted: texts of so many characters are not counted.
    """
    for text in texts:
        if len(text) > trusted:
            words = len(model.tokenizer.encode(text).ids)
            if words == 0:
                return RefusedError("expected at least one word, got none")
            if words > LIMITS.words:
                return RefusedError(f"expected at most {LIMITS.words} words, got {words}")
    return None


def _description(model: SentenceModel) -> str:
    """Return what is recorded of a model, or else what it is."""
    recipe = model.provenance.get("recipe")
    recorded = recipe.get("description") if isinstance(recipe, Mapping) else None
    if isinstance(recorded, str) and recorded:
        return recorded
    what = "pairs of sentences" if model.head.sentences == 2 else "single sentences"
    return f"{model.encoder.vector_dim}D, reads {what}"
