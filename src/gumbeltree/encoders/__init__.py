"""Encoders: word vectors -> sentence vector and tree. One line here for each."""

from gumbeltree.registry import Registry

ENCODERS = Registry(
    "encoder",
    {
        "gumbel_tree": "gumbeltree.encoders.gumbel_tree:GumbelTreeEncoder",
        "bag": "gumbeltree.encoders.baselines:BagEncoder",
        "lstm": "gumbeltree.encoders.baselines:LSTMEncoder",
    },
)
