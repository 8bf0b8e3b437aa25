"""The merges of a sentence as a film: the candidates of each layer, the choice, the runner-up."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gumbeltree.analysis.figure import check_suffix, check_traces
from gumbeltree.analysis.film.gif import save_gif
from gumbeltree.analysis.film.layout import Reel, reel
from gumbeltree.analysis.film.svg import film_svg
from gumbeltree.analysis.trace import Trace
from gumbeltree.atomic import replace_file

SUFFIXES = (".json", ".svg", ".gif")
MOST_WORDS = 120
"""A film of more would run for minutes, and take as long to make."""


def film(trace: Trace) -> dict[str, Any]:
    """Return what happened at each layer, for JSON.

    Candidate i of a layer stands between its nodes i and i + 1. `made` is the number of the node
    that the choice made; the words have the numbers from 0 on, then come the merges in their
    order. `probabilities` are before the noise by which a sampled choice was made.
    """
    present = list(range(len(trace.tree)))
    layers = []
    for step, layer in enumerate(trace.layers):
        made = len(trace.tree) + step
        layers.append(
            {
                "nodes": [_node(trace, number) for number in present],
                "scores": list(layer.scores),
                "probabilities": list(layer.probabilities),
                "choice": layer.choice,
                "runner_up": layer.runner_up,
                "made": made,
            }
        )
        present[layer.choice : layer.choice + 2] = [made]
    return {
        "text": trace.text,
        "words": list(trace.tree.words),
        "unknown": list(trace.unknown),
        "sampled": trace.sampled,
        "cut": trace.cut,
        "layers": layers,
        "root": _node(trace, present[0]),
        "brackets": str(trace.tree),
        "classes": trace.nodes[-1].classes,
    }


@dataclass(frozen=True)
class Film:
    """The merges of one model, or of several at the same time; a notebook shows it running.

    Attributes:
        traces: what is shown, each with the name of its model.
    """

    traces: tuple[tuple[str, Trace], ...]

    def data(self) -> dict[str, Any]:
        """Return what is shown, for JSON: `film` of each model, with its name."""
        return {"films": [{"model": name, **film(trace)} for name, trace in self.traces]}

    def svg(self) -> str:
        """Return the film as an SVG document that moves by itself, over and over.

        Who has asked for less motion sees the last picture, the trees.
        """
        return film_svg(self._reel())

    _repr_svg_ = svg

    @property
    def pictures(self) -> int:
        """How many there are: one a layer, and the finished trees."""
        return 1 + max(len(trace.layers) for _, trace in self.traces)

    def check(self, path: str | Path) -> str:
        """Return the suffix of a file for the film, or raise if it cannot be written there."""
        suffix = check_suffix(Path(path), SUFFIXES)
        if suffix != ".json":
            self._check_length()
        return suffix

    def save(self, path: str | Path, advance: Callable[[int], None] = lambda count: None) -> None:
        """Write the film to a file, whole or not at all.

        Args:
            path: ends in .json, .svg, or .gif, for which matplotlib is needed.
            advance: is told how many pictures of a GIF more are done.
        """
        path = Path(path)
        suffix = self.check(path)
        if suffix == ".gif":
            shown = self._reel()
            replace_file(path, lambda temporary: save_gif(shown, temporary, advance))
            return
        if suffix == ".json":
            text = json.dumps(self.data(), indent=1, ensure_ascii=False)
        else:
            text = self.svg()
        replace_file(path, lambda temporary: temporary.write_text(text + "\n", encoding="utf-8"))

    def _reel(self) -> Reel:
        self._check_length()
        return reel(self.traces)

    def _check_length(self) -> None:
        longest = max(len(trace.tree) for _, trace in self.traces)
        if longest > MOST_WORDS:
            raise ValueError(
                f"a film shows sentences of {MOST_WORDS} words at most, got {longest}; take a "
                "shorter text, or write the data to a .json file"
            )


def draw_film(traces: Sequence[tuple[str, Trace]]) -> Film:
    """Show how one tree comes about, or several at the same time.

    Args:
        traces: the name of a model, or another title, and what `trace` returned; one or more.

    Raises:
        ValueError: If trees are fixed, among others.
    """
    check_traces(traces)
    for name, trace in traces:
        if trace.trees != "learned":
            raise ValueError(
                f"{name}: expected a model that chooses its merges, got one whose trees are fixed "
                f"({trace.trees}), so that there is nothing to film; draw the tree alone"
            )
    return Film(tuple(traces))


def _node(trace: Trace, number: int) -> dict[str, Any]:
    start, end = trace.nodes[number].span
    return {"node": number, "span": [start, end], "words": list(trace.tree.words[start:end])}
