"""Print what the probability of a merge and its lead over the runner-up depend on.

    python benchmarks/certainty.py [MODEL ...]

For the explorer's example sentences: the rank correlation (Spearman) of either number with the
number of candidates, the median lead, and the share of near ties. The last merge of a sentence,
which has no alternative, is left out.
"""

import argparse

import numpy as np
from numpy.typing import ArrayLike

from gumbeltree.analysis.trace import trace_many
from gumbeltree.packaged import packaged_names
from gumbeltree.runtimes import load
from gumbeltree.web.phrases import example_sentences


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Return the correlation of the ranks; equal values share their mean rank."""
    ranks = []
    for values in (x, y):
        _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
        ranks.append((counts.cumsum() - counts / 2)[places])
    return float(np.corrcoef(ranks)[0, 1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=packaged_names())
    for name in parser.parse_args().models:
        traces = trace_many(load(name, runtime="numpy"), example_sentences())
        layers = [layer for trace in traces for layer in trace.layers if layer.lead is not None]
        candidates = [len(layer.scores) for layer in layers]
        probabilities = [layer.probabilities[layer.choice] for layer in layers]
        leads = [layer.lead for layer in layers]
        print(
            f"{name}: {len(layers)} merges; Spearman with the number of candidates: "
            f"{spearman(probabilities, candidates):.2f} for the probability, "
            f"{spearman(leads, candidates):.2f} for the lead; median lead {np.median(leads):.2f}, "
            f"{np.mean([layer.near_tie for layer in layers]):.0%} near ties"
        )


if __name__ == "__main__":
    main()
