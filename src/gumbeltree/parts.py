"""Registries of model parts: name, class and settings.

Classes are imported on first use. The settings of built-in parts are listed separately, so that
they can be read without importing torch; other parts define theirs in their class, as `Config`.
"""

from gumbeltree.registry import Registry

CELLS = Registry(
    "cell",
    {"treelstm": "gumbeltree.nn.cells.treelstm:TreeLSTMCell"},
    {"treelstm": "gumbeltree.config:TreeLSTMConfig"},
)

LEAVES = Registry(
    "leaf",
    {
        "affine": "gumbeltree.nn.leaves.affine:AffineLeaf",
        "lstm": "gumbeltree.nn.leaves.lstm:LSTMLeaf",
        "bilstm": "gumbeltree.nn.leaves.lstm:BidirectionalLSTMLeaf",
    },
    {
        "affine": "gumbeltree.config:AffineLeafConfig",
        "lstm": "gumbeltree.config:LSTMLeafConfig",
        "bilstm": "gumbeltree.config:BidirectionalLSTMLeafConfig",
    },
)

ESTIMATORS = Registry(
    "estimator",
    {
        "st_gumbel": "gumbeltree.nn.estimators.st_gumbel:StraightThroughGumbel",
        "soft": "gumbeltree.nn.estimators.soft:SoftGumbel",
    },
    {
        "st_gumbel": "gumbeltree.config:StraightThroughConfig",
        "soft": "gumbeltree.config:SoftConfig",
    },
)

ENCODERS = Registry(
    "encoder",
    {
        "gumbel_tree": "gumbeltree.nn.encoders.gumbel_tree:GumbelTreeEncoder",
        "fixed_tree": "gumbeltree.nn.encoders.fixed_tree:FixedTreeEncoder",
        "bag": "gumbeltree.nn.encoders.baselines:BagEncoder",
        "lstm": "gumbeltree.nn.encoders.baselines:LSTMEncoder",
    },
    {
        "gumbel_tree": "gumbeltree.config:EncoderConfig",
        "fixed_tree": "gumbeltree.config:FixedTreeConfig",
        "bag": "gumbeltree.config:BagConfig",
        "lstm": "gumbeltree.config:LSTMConfig",
    },
)

HEADS = Registry(
    "head",
    {
        "pair": "gumbeltree.nn.heads.classes:PairHead",
        "single": "gumbeltree.nn.heads.classes:SingleHead",
    },
    {
        "pair": "gumbeltree.config:HeadConfig",
        "single": "gumbeltree.config:HeadConfig",
    },
)
