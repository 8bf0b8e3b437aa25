"""Heads: encodings of sentences -> what is asked about them. One file each, a line here."""

from gumbeltree.registry import Registry

HEADS = Registry(
    "head",
    {
        "single": "gumbeltree.nn.heads.classes:SingleHead",
        "pair": "gumbeltree.nn.heads.classes:PairHead",
    },
)
