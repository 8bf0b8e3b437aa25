"""Phrases to compare with: every node of the trees of the example sentences."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gumbeltree.analysis.trace import Trace, trace_many
from gumbeltree.model import SentenceModel
from gumbeltree.tree import Span

EXAMPLES = Path(__file__).parent / "examples.json"


def example_sentences() -> list[str]:
    """Return the sentences that come with the page, none where it is not installed."""
    if not EXAMPLES.is_file():
        return []
    examples = json.loads(EXAMPLES.read_text(encoding="utf-8"))
    return [
        *examples.get("sentences", []),
        *(x for pair in examples.get("pairs", []) for x in pair),
    ]


class Phrases:
    """Phrases and the h of their nodes.

    Args:
        model: any with a tree.
        sentences: what the phrases are taken from.
    """

    def __init__(self, model: SentenceModel, sentences: Sequence[str]) -> None:
        traces = trace_many(model, sentences) if sentences else []
        places = [(trace, node.span) for trace in traces for node in trace.nodes]
        self._texts = [_phrase_text(trace, span) for trace, span in places]
        self._words = [phrase_words(trace, span) for trace, span in places]
        states = [np.zeros((0, model.encoder.vector_dim), np.float32)]
        self._vectors = _unit(np.concatenate(states + [trace.states for trace in traces]))

    def nearest(
        self, state: NDArray[np.float32], words: tuple[str, ...], k: int
    ) -> list[tuple[str, float]]:
        """Return the k phrases of the highest cosine and their cosines, the highest first.

        Args:
            state: h of a node `[D]`.
            words: of that node, as `phrase_words` gives them; that phrase is left out.
            k: how many; all where there are fewer.
        """
        cosines = (self._vectors @ _unit(state[None])[0]).clip(-1, 1)
        # the same phrase has other states in other sentences: the nearest counts
        found: dict[tuple[str, ...], tuple[str, float]] = {}
        for row in np.argsort(-cosines, kind="stable").tolist():
            other = self._words[row]
            if other != words and other not in found:
                found[other] = (self._texts[row], float(cosines[row]))
                if len(found) == k:
                    break
        return list(found.values())


def phrase_words(trace: Trace, span: Span) -> tuple[str, ...]:
    """Return the words of a node, by which phrases are told apart: upper case is no difference."""
    start, end = span
    return tuple(word.casefold() for word in trace.tree.words[start:end])


def _phrase_text(trace: Trace, span: Span) -> str:
    """Return the text of a node, with single spaces."""
    start, end = span
    return " ".join(trace.text[trace.offsets[start][0] : trace.offsets[end - 1][1]].split())


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return vectors `[N, D]` of length one; those of length zero stay."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled = vectors / np.where(lengths == 0, 1, lengths)
    return scaled.astype(np.float32)
