"""Encoders: word vectors -> sentence vector and tree. One line here for each."""

from gumbeltree.registry import Registry

ENCODERS = Registry(
    "encoder",
    {
        "gumbel_tree": "gumbeltree.nn.encoders.gumbel_tree:GumbelTreeEncoder",
        "bag": "gumbeltree.nn.encoders.baselines:BagEncoder",
        "lstm": "gumbeltree.nn.encoders.baselines:LSTMEncoder",
    },
)
