"""Run models for the API, on batches of texts from several requests.

Each function returns one result per item: its JSON, or a `RefusedError`. Everything here runs in
the worker's thread, including JSON encoding, so that large results do not block the event loop.
"""

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from gumbeltree.analysis.samples import Samples, predict_trees, sampling, searching
from gumbeltree.analysis.trace import GivenTreeError, Trace, trace_many
from gumbeltree.describe import measured, without_published
from gumbeltree.text.files import MismatchError
from gumbeltree.text.lines import Check
from gumbeltree.text_model import TextModel
from gumbeltree.web.limits import LIMITS
from gumbeltree.web.phrases import Phrases, example_sentences, phrase_words

if TYPE_CHECKING:
    from gumbeltree.analysis.index import Index

Item = TypeVar("Item")


class RefusedError(ValueError):
    """An item that cannot be processed.

    Attributes:
        field: the invalid field; None means the text.
    """

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


Answers: TypeAlias = list[str | RefusedError]


@dataclass(frozen=True, eq=False, repr=False)
class Served:
    """A model that is served.

    Attributes:
        name: its name in requests.
        model: the model, in evaluation mode.
        index: sentences encoded by this model, to search for neighbours.
    """

    name: str
    model: TextModel
    index: "Index | None" = None

    @property
    def pair(self) -> bool:
        """Whether the model classifies pairs."""
        return bool(self.model.head.sentences == 2)

    @property
    def has_trees(self) -> bool:
        """Whether the model builds trees; the baselines do not."""
        return bool(self.model.encoder.builds_trees)

    @cached_property
    def check(self) -> Check | None:
        """The check of texts of the model's task, if it has one."""
        return self.model.text_check()

    @cached_property
    def examples(self) -> list[str]:
        """Example sentences of the model's task."""
        return example_sentences(self.model.data_settings.get("task"))

    @cached_property
    def phrases(self) -> Phrases:
        """The phrases of the example sentences, computed on first use."""
        return Phrases(self.model, self.examples)

    def describe(self) -> dict[str, Any]:
        """Return the entry of the model in `/api/models`."""
        config = self.model.config
        return {
            "name": self.name,
            "kind": config.head.kind,
            "sentences": self.model.head.sentences,
            "labels": list(self.model.labels),
            "trees": self.model.encoder.trees,
            "beams": self.model.encoder.why_no_beams() is None,
            "width": self.model.encoder.vector_dim,
            "vocabulary": self.model.tokenizer.get_vocab_size(),
            "max_words": config.max_words,
            "description": _description(self.model),
            "measured": measured(self.model.provenance),
            "index": self.index is not None,
        }


@dataclass(frozen=True)
class Options:
    """Options of a parse; see `schema.ParseRequest`."""

    seed: int | None = None
    temperature: float = 1.0
    samples: int = 0
    beams: int = 0
    tree: str = "model"
    prefix: tuple[int, ...] = ()


def parse(served: Served, texts: list[str], options: Options) -> Generator[None, None, Answers]:
    """Return the trace of each text with its prediction, and its sampled and most probable trees.

    Yields between short steps, because sampling and beam search take long.
    """
    model = served.model
    errors = [_find_error(served, [text]) for text in texts]
    usable = [text for text, error in zip(texts, errors, strict=True) if error is None]
    given = options.tree != "model" or options.prefix
    results: Answers = []
    # a given tree may fit some texts only
    for group in [[text] for text in usable] if given else [usable]:
        try:
            traces = trace_many(
                model,
                group,
                seed=options.seed,
                temperature=options.temperature,
                tree=options.tree,
                prefix=options.prefix,
            )
        except GivenTreeError as error:
            results.append(RefusedError(error.message, error.field))
            continue
        for text, trace in zip(group, traces, strict=True):
            result = trace.as_dict()
            answer = result["answer"] or {}
            result["classes"] = answer.get("probabilities") if model.labels else None
            result["spans"] = result["samples"] = result["beams"] = None
            if options.samples:
                yield
                drawn = yield from _sampled(model, text, None, options)
                result["spans"] = [[*span, share] for span, share in drawn.spans.items()]
                result["samples"] = drawn.as_dict()
                yield
            if options.beams:
                yield
                result["beams"] = yield from searching(model, text, options.beams)
                yield
            results.append(to_json(result))
            yield
    return _merged(results, errors)


def _sampled(
    model: TextModel, text: str, second: str | None, options: Options
) -> Generator[None, None, Samples]:
    return sampling(
        model,
        text,
        second,
        samples=options.samples,
        seed=options.seed or 0,
        temperature=options.temperature,
    )


def predict(served: Served, items: list[tuple[str, str | None]]) -> Answers:
    """Return the prediction for each text or pair."""

    def run(items: list[tuple[str, str | None]]) -> list[str]:
        second = [second or "" for _, second in items] if served.pair else None
        predictions = served.model.predict([text for text, _ in items], second)
        return [to_json(prediction.as_dict()) for prediction in predictions]

    def texts(item: tuple[str, str | None]) -> list[str]:
        return [text for text in item if text is not None]

    return _run_usable(served, items, texts, run)


def predict_along(
    served: Served, items: list[tuple[str, str | None]], options: Options
) -> Generator[None, None, Answers]:
    """Return the prediction for each text or pair along sampled or given trees.

    Yields between short steps, because sampling takes long.
    """
    model = served.model
    results: Answers = []
    for text, second in items:
        error = _find_error(served, [text] if second is None else [text, second])
        if error is not None:
            results.append(error)
            continue
        try:
            (prediction,) = predict_trees(
                model,
                [text],
                None if second is None else [second],
                seed=options.seed,
                temperature=options.temperature,
                tree=options.tree,
            )
        except GivenTreeError as refused:
            results.append(RefusedError(refused.message, refused.field))
            continue
        result = prediction.as_dict()
        if options.samples:
            drawn = yield from _sampled(model, text, second, options)
            result["samples"] = drawn.as_dict()
        results.append(to_json(result))
        yield
    return results


def encode(served: Served, texts: list[str]) -> Answers:
    """Return the vector of each text."""

    def run(texts: list[str]) -> list[str]:
        return [to_json(vector) for vector in served.model.encode(texts).tolist()]

    return _run_usable(served, texts, lambda text: [text], run)


def similar_phrases(served: Served, items: list[tuple[str, list[int] | None, int]]) -> Answers:
    """Return the `k` phrases most similar to a node of each text; by default, its root."""

    def run(items: list[tuple[str, list[int] | None, int]]) -> Answers:
        traces = trace_many(served.model, [text for text, _, _ in items])
        return [
            _similar_to_node(served.phrases, trace, span, k)
            for trace, (_, span, k) in zip(traces, items, strict=True)
        ]

    return _run_usable(served, items, lambda item: [item[0]], run)


def similar_sentences(served: Served, items: list[tuple[str, int]]) -> Answers:
    """Return the `k` indexed sentences most similar to each text, except the text itself."""
    index = served.index
    assert index is not None

    def run(items: list[tuple[str, int]]) -> list[str]:
        vectors = served.model.encode([text for text, _ in items])
        # one more, because the text itself may be in the index
        rows, scores = index.search(vectors, max(k for _, k in items) + 1)
        results = []
        for (text, k), near, cosines in zip(items, rows.tolist(), scores.tolist(), strict=True):
            others = zip(index.texts(near), cosines, strict=True)
            results.append(_neighbours([pair for pair in others if pair[0] != text][:k]))
        return results

    return _run_usable(served, items, lambda item: [item[0]], run)


def to_json(value: object) -> str:
    """Return compact JSON; raise for NaN, which JSON cannot represent."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def _neighbours(pairs: list[tuple[str, float]]) -> str:
    return to_json([{"text": text, "score": score} for text, score in pairs])


def _similar_to_node(
    phrases: Phrases, trace: Trace, span: list[int] | None, k: int
) -> str | RefusedError:
    nodes = {node.span: number for number, node in enumerate(trace.nodes)}
    wanted = (0, len(trace.tree)) if span is None else (span[0], span[1])
    if wanted not in nodes:
        known = ", ".join(str(list(node)) for node in sorted(nodes))
        if len(known) > 200:
            known = f"{known[:200]}..."
        return RefusedError(f"not a node of the sentence's tree; its nodes are {known}", "span")
    words = phrase_words(trace, wanted)
    return _neighbours(phrases.nearest(trace.states[nodes[wanted]], words, k))


def _run_usable(
    served: Served,
    items: list[Item],
    texts: Callable[[Item], list[str]],
    run: Callable[[list[Item]], Sequence[str | RefusedError]],
) -> Answers:
    """Call `run` on the items whose texts are usable; return its results and the other errors.

    Args:
        served: the model.
        items: items of several requests.
        texts: returns the texts of an item.
        run: returns one result per item.
    """
    errors = [_find_error(served, texts(item)) for item in items]
    usable = [item for item, error in zip(items, errors, strict=True) if error is None]
    return _merged(run(usable) if usable else [], errors)


def _merged(results: Sequence[str | RefusedError], errors: list[RefusedError | None]) -> Answers:
    """Return the errors, and the results in place of None."""
    rest = iter(results)
    return [next(rest) if error is None else error for error in errors]


def _find_error(served: Served, texts: list[str]) -> RefusedError | None:
    """Return an error for the first text that has no words or too many, or fails the check."""
    for text in texts:
        # unlike `encode`, this lets other threads run, so that the server responds meanwhile
        (encoding,) = served.model.tokenizer.encode_batch_fast([text])
        words = len(encoding.ids)
        if words == 0:
            return RefusedError("the text contains no words")
        if words > LIMITS.words:
            return RefusedError(f"the text has {words} words; the limit is {LIMITS.words}")
        try:
            if served.check is not None:
                served.check(text)
        except MismatchError as error:
            return RefusedError(error.problem)
    return None


def _description(model: TextModel) -> str:
    """Return the description in the model's recipe, or else its dimension and input."""
    recipe = model.provenance.get("recipe")
    recorded = recipe.get("description") if isinstance(recipe, Mapping) else None
    if isinstance(recorded, str) and recorded:
        return without_published(recorded)
    what = "pairs of sentences" if model.head.sentences == 2 else "single sentences"
    return f"{model.encoder.vector_dim}D, reads {what}"
