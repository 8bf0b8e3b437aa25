"""Reference phrases: every node of the trees of the example sentences."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gumbeltree.analysis.trace import Trace, trace_many
from gumbeltree.text_model import TextModel
from gumbeltree.tree import Span

EXAMPLES = Path(__file__).parent / "examples.json"


def example_sentences(task: str | None = None) -> list[str]:
    """Return the example sentences of the explorer, those of a task if it has its own."""
    examples = json.loads(EXAMPLES.read_text(encoding="utf-8"))
    examples = examples.get("tasks", {}).get(task, examples)
    return [*examples["sentences"], *(text for pair in examples["pairs"] for text in pair)]


class Phrases:
    """The phrases of some sentences, searchable by the hidden state h of their nodes.

    Args:
        model: any model that builds trees.
        sentences: sentences whose nodes become the phrases.
    """

    def __init__(self, model: TextModel, sentences: Sequence[str]) -> None:
        traces = trace_many(model, sentences)
        nodes = [(trace, node.span) for trace in traces for node in trace.nodes]
        self._texts = [_phrase_text(trace, span) for trace, span in nodes]
        self._words = [phrase_words(trace, span) for trace, span in nodes]
        self._vectors = _normalize(np.concatenate([trace.states for trace in traces]))

    def nearest(
        self, state: NDArray[np.float32], words: tuple[str, ...], k: int
    ) -> list[tuple[str, float]]:
        """Return the `k` most similar phrases and their cosine similarities, highest first.

        Args:
            state: hidden state of a node `[D]`.
            words: `phrase_words` of that node; the phrase itself is excluded.
            k: maximum number of phrases.
        """
        cosines = (self._vectors @ _normalize(state[None])[0]).clip(-1, 1)
        # a phrase has a different state in each sentence: its nearest occurrence counts
        nearest: dict[tuple[str, ...], tuple[str, float]] = {}
        for row in np.argsort(-cosines, kind="stable").tolist():
            other = self._words[row]
            if other != words and other not in nearest:
                nearest[other] = (self._texts[row], float(cosines[row]))
                if len(nearest) == k:
                    break
        return list(nearest.values())


def phrase_words(trace: Trace, span: Span) -> tuple[str, ...]:
    """Return the case-folded words of a node, which identify a phrase."""
    start, end = span
    return tuple(word.casefold() for word in trace.tree.words[start:end])


def _phrase_text(trace: Trace, span: Span) -> str:
    """Return the text of a node with single spaces."""
    start, end = span
    return " ".join(trace.text[trace.offsets[start][0] : trace.offsets[end - 1][1]].split())


def _normalize(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale vectors `[N, D]` to unit length; zero vectors stay zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(lengths == 0, 1, lengths)).astype(np.float32)
