"""Traces made without a model."""

import random

import numpy as np

from gumbeltree.analysis.trace import Trace, _layers_and_nodes
from gumbeltree.tree import Tree


def made_trace(words, order, scores=None, classes=None, **changes) -> Trace:
    """Return a trace with the given rows of scores, one per layer, or with random ones."""
    tree = Tree(words, order)
    T = len(tree)
    table = np.random.default_rng(T).normal(size=(T, T))
    for step, row in enumerate(scores or []):
        table[step, : len(row)] = row
    scored = changes.get("trees", "learned") == "learned"
    layers, nodes = _layers_and_nodes(tree, table, 1.0, [classes] * (2 * T - 1), scored)
    states = np.arange(2 * (2 * T - 1), dtype=np.float32).reshape(-1, 2)
    fields = {
        "text": " ".join(tree.words),
        "offsets": (),
        "unknown": (False,) * T,
        "vector": states[-1],
        "states": states,
        "sampled": False,
        "cut": False,
        **changes,
    }
    return Trace(tree=tree, layers=layers, nodes=nodes, **fields)


def random_trace(count: int) -> Trace:
    """Return a trace of a random tree over random words."""
    generator = random.Random(count)
    letters = "abcdefghijklmnopqrstuvwxyzMWQ"
    sizes = generator.choices([1, 2, 3, 4, 5, 7, 11], k=count)
    words = ["".join(generator.choices(letters, k=size)) for size in sizes]
    return made_trace(words, Tree.random(words, count).order)
