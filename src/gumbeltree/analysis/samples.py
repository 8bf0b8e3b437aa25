"""Sample the trees of a sentence or pair: which trees a model draws, and what it predicts."""

from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gumbeltree.analysis.trace import (
    given_order,
    gumbel_noise,
    noise_source,
    padded_noise,
    read_sentences,
)
from gumbeltree.generators import finish
from gumbeltree.text_model import TextModel, ranked_trees
from gumbeltree.tree import Span, Tree

MOST_TREES = 5
"""The number of distinct trees in the summary of a sample."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Samples:
    """Sampled trees of a sentence and their predictions.

    Attributes:
        greedy: The tree that the model builds without sampling.
        greedy_answer: Its prediction; None for one sentence of a pair.
        trees: The sampled trees, in the order of sampling; of the first sentence of a pair.
        answers: Their predictions; empty for one sentence of a pair.
        pair: Whether the predictions also depend on the tree of a second sentence.
    """

    greedy: Tree
    greedy_answer: Any
    trees: Sequence[Tree]
    answers: Sequence[Any]
    pair: bool = False

    @property
    def spans(self) -> dict[Span, float]:
        """The share of the sampled trees that contain each span, sorted."""
        counts = Counter(span for tree in self.trees for span in tree.spans)
        return {span: count / len(self.trees) for span, count in sorted(counts.items())}

    def as_dict(self) -> dict[str, Any]:
        """Return the most frequent trees and the distribution of the predictions, as JSON data."""
        total, counts = len(self.trees), Counter(self.trees)
        answers = [answer.as_dict() for answer in self.answers]
        answer_of = {}
        if answers and not self.pair:
            # equal trees have equal predictions
            answer_of = dict(zip(self.trees, answers, strict=True))
        return {
            "trees": [
                {
                    "order": tree.order,
                    "brackets": str(tree),
                    "share": count / total,
                    "greedy": tree == self.greedy,
                    "answer": answer_of.get(tree),
                }
                for tree, count in counts.most_common(MOST_TREES)
            ],
            "distinct": len(counts),
            "greedy_share": counts[self.greedy] / total,
            **_distribution(answers, self.greedy_answer and self.greedy_answer.as_dict()),
        }


def sample_trees(model: TextModel, text: str, second: str | None = None, **options: Any) -> Samples:
    """Sample trees of a sentence, and predict with each.

    Args:
        model: As in `trace_many`.
        text: One sentence.
        second: The second sentence of a pair. Its trees are sampled as well.
        options: As in `sampling`.
    """
    return finish(sampling(model, text, second, **options))


def sampling(
    model: TextModel,
    text: str,
    second: str | None = None,
    *,
    samples: int = 100,
    seed: int = 0,
    temperature: float = 1.0,
    pretokenized: bool = False,
) -> Generator[None, None, Samples]:
    """Sample trees in short steps, so that the caller can do something else in between.

    Args:
        model: As in `trace_many`.
        text: One sentence.
        second: The second sentence of a pair. Its trees are sampled as well.
        samples: The number of trees to sample.
        seed: A single seed for all samples.
        temperature: As in `trace_many`.
        pretokenized: See `TextModel.encode`.
    """
    if samples < 1:
        raise ValueError(f"`samples` must be at least 1, got {samples}")
    texts = [text] if second is None else [text, second]
    sentences, _ = read_sentences(model, texts, temperature, pretokenized)
    # one source each, so that the trees of a sentence do not depend on the other one
    sources = [noise_source(seed) for _ in sentences]
    trees: list[Tree] = []
    answers: list[Any] = []
    most = max(1, model.step_words // max(len(sentence.ids) for sentence in sentences))
    # the greedy tree, then the samples
    for count in (0, *(min(most, samples - start) for start in range(0, samples, most))):
        encodings = []
        for sentence, source in zip(sentences, sources, strict=True):
            noise = None
            if count:
                noise = temperature * gumbel_noise(count, len(sentence.ids) - 1, source)
            ids = [sentence.ids] * max(1, count)
            encodings.append(model.encode_ids(ids, model.head.keep, noise))
        if model.head.sentences == len(texts):
            answers += model.head.answers(model.head_output(*encodings))
        order = model.as_numpy(encodings[0]).order
        assert order is not None
        trees += [Tree(sentences[0].words, row) for row in order.tolist()]
        yield
    first = answers[0] if answers else None
    return Samples(trees[0], first, trees[1:], answers[1:], len(texts) == 2)


def probable_trees(model: TextModel, text: str, beams: int = 5) -> list[dict[str, Any]]:
    """Return the most probable trees of a sentence with the prediction for each, as JSON data.

    Args:
        model: A model with learned trees; see `TextModel.best_trees`.
        text: One sentence.
        beams: The number of trees.
    """
    return finish(searching(model, text, beams))


def searching(
    model: TextModel, text: str, beams: int = 5
) -> Generator[None, None, list[dict[str, Any]]]:
    """Search for trees in short steps, so that the caller can do something else in between.

    Args:
        model: As in `probable_trees`.
        text: As in `probable_trees`.
        beams: As in `probable_trees`.
    """
    model.check_has_beams(beams)
    (sentence,), _ = read_sentences(model, [text], 1.0)
    (order,), (log_prob,) = yield from model.beam_steps(sentence.ids, beams)
    best = ranked_trees(sentence, order, log_prob)
    yield
    own = model.as_numpy(model.encode_ids([sentence.ids])).order
    assert own is not None
    greedy = Tree(sentence.words, own[0].tolist())
    answers: list[Any] = [None] * len(best) if model.head.sentences > 1 else []
    most = max(1, model.step_words // len(sentence.ids))
    for start in range(len(answers), len(best), most):
        orders = [tree.order for tree, _, _ in best[start : start + most]]
        ids = [sentence.ids] * len(orders)
        noise = padded_noise(ids, None, 1.0, orders)
        encoding = model.encode_ids(ids, model.head.keep, noise)
        answers += model.head.answers(model.head_output(encoding))
        yield
    return [
        {
            "order": tree.order,
            "brackets": str(tree),
            "probability": probability,
            "log_prob": log_prob,
            "greedy": tree == greedy,
            "answer": answer and answer.as_dict(),
        }
        for (tree, probability, log_prob), answer in zip(best, answers, strict=True)
    ]


def predict_trees(
    model: TextModel,
    texts: Sequence[str],
    second: Sequence[str] | None = None,
    *,
    seed: int | None = None,
    temperature: float = 1.0,
    tree: str = "model",
) -> list[Any]:
    """Return the prediction for each text or pair along sampled or given trees.

    The trees are those that `trace_many` returns for the same options.

    Args:
        model: A model that builds trees.
        texts: Sentences.
        second: The second sentences of pairs.
        seed: As in `trace_many`.
        temperature: As in `trace_many`.
        tree: As in `trace_many`.
    """
    encodings = []
    for column in [texts] if second is None else [texts, second]:
        sentences, _ = read_sentences(model, column, temperature)
        given = [given_order(model, sentence.words, tree) for sentence in sentences]
        ids = [sentence.ids for sentence in sentences]
        noise = padded_noise(ids, seed, temperature, given)
        encodings.append(model.encode_ids(ids, model.head.keep, noise))
    answers: list[Any] = model.head.answers(model.head_output(*encodings))
    return answers


def span_probabilities(
    model: TextModel, text: str, **options: Any
) -> tuple[Tree, dict[Span, float]]:
    """Return the greedy tree, and the share of sampled trees that contain each span.

    Args:
        model: As in `trace_many`.
        text: One sentence.
        options: As in `sample_trees`.
    """
    drawn = sample_trees(model, text, **options)
    return drawn.greedy, drawn.spans


def _distribution(answers: list[dict[str, Any]], greedy: dict[str, Any] | None) -> dict[str, Any]:
    """Summarise predictions: "answers", and "top" with one number per sample.

    Args:
        answers: Predictions of classes, tags or numbers; others have no summary.
        greedy: The prediction for the greedy tree.
    """
    if greedy is not None and "value" in greedy:
        values = [answer["value"] for answer in answers]
        found = zip(map(str, QUANTILES), np.quantile(values, QUANTILES).tolist(), strict=True)
        return {
            "answers": {"mean": float(np.mean(values)), "quantiles": dict(found)},
            "top": values,
        }
    if greedy is None or not ("label" in greedy or "labels" in greedy):
        return {"answers": None, "top": None}
    # tags have several labels
    labels = [answer.get("labels") or [answer.get("label")] for answer in answers]
    shares = {
        label: [answer["probabilities"][label] for answer in answers]
        for label in greedy["probabilities"]
    }
    summary = {
        label: {
            "share": sum(label in names for names in labels) / len(answers),
            "mean": sum(values) / len(answers),
        }
        for label, values in shares.items()
    }
    return {"answers": summary, "top": shares.get(greedy.get("label"))}
