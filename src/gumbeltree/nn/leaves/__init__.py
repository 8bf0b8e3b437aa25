"""Leaf transformations: word vectors `[rows, E]` -> leaf states `[rows, 2D]`. One line for each.

A leaf is made from E, D and its start, and called with words, their layout and the implementation
that will merge them; h and c of a word stand side by side.
"""

from gumbeltree.registry import Registry

LEAVES = Registry(
    "leaf",
    {
        "affine": "gumbeltree.nn.leaves.affine:AffineLeaf",
        "lstm": "gumbeltree.nn.leaves.lstm:LSTMLeaf",
        "bilstm": "gumbeltree.nn.leaves.lstm:BidirectionalLSTMLeaf",
    },
)
