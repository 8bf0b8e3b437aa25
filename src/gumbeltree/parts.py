"""Registries of model parts: name, class, settings and NumPy version.

Classes are imported on first use. The settings of built-in parts are listed separately, so that
they can be read without importing torch; other parts define theirs in their class, as `Config`.
The last table of a registry lists the parts that can be used without torch; see `gumbeltree.light`.
"""

from gumbeltree.registry import Registry

CELLS = Registry(
    "cell",
    {
        "treelstm": "gumbeltree.nn.cells.treelstm:TreeLSTMCell",
        "gated": "gumbeltree.nn.cells.gated:GatedCell",
    },
    {"treelstm": "gumbeltree.config:TreeLSTMConfig", "gated": "gumbeltree.config:GatedConfig"},
    {
        "treelstm": "gumbeltree.light.cells:LightTreeLSTM",
        "gated": "gumbeltree.light.cells:LightGated",
    },
)

LEAVES = Registry(
    "leaf",
    {
        "affine": "gumbeltree.nn.leaves.affine:AffineLeaf",
        "lstm": "gumbeltree.nn.leaves.lstm:LSTMLeaf",
        "bilstm": "gumbeltree.nn.leaves.lstm:BidirectionalLSTMLeaf",
        "norm": "gumbeltree.nn.leaves.norm:NormLeaf",
    },
    {
        "affine": "gumbeltree.config:AffineLeafConfig",
        "lstm": "gumbeltree.config:LSTMLeafConfig",
        "bilstm": "gumbeltree.config:BidirectionalLSTMLeafConfig",
        "norm": "gumbeltree.config:NormLeafConfig",
    },
    {
        "affine": "gumbeltree.light.leaves:LightAffineLeaf",
        "lstm": "gumbeltree.light.leaves:LightLSTMLeaf",
        "bilstm": "gumbeltree.light.leaves:LightBidirectionalLeaf",
        "norm": "gumbeltree.light.leaves:LightNormLeaf",
    },
)

ESTIMATORS = Registry(
    "estimator",
    {
        "st_gumbel": "gumbeltree.nn.estimators.st_gumbel:StraightThroughGumbel",
        "st": "gumbeltree.nn.estimators.st:StraightThrough",
        "gumbel_rao": "gumbeltree.nn.estimators.gumbel_rao:GumbelRao",
        "gapped": "gumbeltree.nn.estimators.gapped:GappedStraightThrough",
        "reinmax": "gumbeltree.nn.estimators.reinmax:ReinMax",
        "spigot": "gumbeltree.nn.estimators.spigot:Spigot",
        "soft": "gumbeltree.nn.estimators.soft:SoftGumbel",
        "reinforce": "gumbeltree.nn.estimators.reinforce:Reinforce",
        "ppo": "gumbeltree.nn.estimators.ppo:PPO",
    },
    {
        "st_gumbel": "gumbeltree.config:StraightThroughConfig",
        "st": "gumbeltree.config:SampledConfig",
        "gumbel_rao": "gumbeltree.config:GumbelRaoConfig",
        "gapped": "gumbeltree.config:GappedConfig",
        "reinmax": "gumbeltree.config:ReinMaxConfig",
        "spigot": "gumbeltree.config:SpigotConfig",
        "soft": "gumbeltree.config:SoftConfig",
        "reinforce": "gumbeltree.config:ReinforceConfig",
        "ppo": "gumbeltree.config:PPOConfig",
    },
    {
        **dict.fromkeys(
            ("st_gumbel", "st", "gumbel_rao", "gapped", "reinmax", "spigot", "reinforce", "ppo"),
            "gumbeltree.light.estimators:HardChoice",
        ),
        "soft": "gumbeltree.light.estimators:SoftChoice",
    },
)

ENCODERS = Registry(
    "encoder",
    {
        "gumbel_tree": "gumbeltree.nn.encoders.gumbel_tree:GumbelTreeEncoder",
        "supervised_tree": "gumbeltree.nn.encoders.supervised_tree:SupervisedTreeEncoder",
        "beam_tree": "gumbeltree.nn.encoders.beam_tree:BeamTreeEncoder",
        "parser_composer": "gumbeltree.nn.encoders.parser_composer:ParserComposerEncoder",
        "fixed_tree": "gumbeltree.nn.encoders.fixed_tree:FixedTreeEncoder",
        "bag": "gumbeltree.nn.encoders.baselines:BagEncoder",
        "lstm": "gumbeltree.nn.encoders.baselines:LSTMEncoder",
        "stacked_bilstm": "gumbeltree.nn.encoders.stacked_bilstm:StackedBiLSTMEncoder",
        "nse": "gumbeltree.nn.encoders.nse:NSEEncoder",
        "gated_attention": "gumbeltree.nn.encoders.gated_attention:GatedAttentionEncoder",
        "bcn": "gumbeltree.nn.encoders.bcn:BCNEncoder",
        "dmn": "gumbeltree.nn.encoders.dmn:DMNEncoder",
        "byte_mlstm": "gumbeltree.nn.encoders.byte_mlstm:ByteMLSTMEncoder",
        "level_tree": "gumbeltree.nn.encoders.level_tree:LevelTreeEncoder",
        "constituency": "gumbeltree.nn.encoders.constituency:ConstituencyEncoder",
        "constituency_dropout": "gumbeltree.nn.encoders.constituency:DropoutConstituencyEncoder",
        "rntn": "gumbeltree.nn.encoders.rntn:RNTNEncoder",
        "nti": "gumbeltree.nn.encoders.nti:NTIEncoder",
        "spinn": "gumbeltree.nn.encoders.spinn:SpinnEncoder",
        "latent_syntax": "gumbeltree.nn.encoders.latent_syntax:LatentSyntaxEncoder",
        "cyk": "gumbeltree.nn.encoders.cyk:CYKEncoder",
    },
    {
        "gumbel_tree": "gumbeltree.config:EncoderConfig",
        "supervised_tree": "gumbeltree.config:SupervisedTreeConfig",
        "beam_tree": "gumbeltree.config:BeamTreeConfig",
        "parser_composer": "gumbeltree.config:ParserComposerConfig",
        "fixed_tree": "gumbeltree.config:FixedTreeConfig",
        "bag": "gumbeltree.config:BagConfig",
        "lstm": "gumbeltree.config:LSTMConfig",
        "stacked_bilstm": "gumbeltree.peers:StackedBiLSTMConfig",
        "nse": "gumbeltree.peers:NSEConfig",
        "gated_attention": "gumbeltree.peers:GatedAttentionConfig",
        "bcn": "gumbeltree.peers:BCNConfig",
        "dmn": "gumbeltree.peers:DMNConfig",
        "byte_mlstm": "gumbeltree.peers:ByteMLSTMConfig",
        "level_tree": "gumbeltree.peers:LevelTreeConfig",
        "constituency": "gumbeltree.peers:ConstituencyConfig",
        "constituency_dropout": "gumbeltree.peers:DropoutConstituencyConfig",
        "rntn": "gumbeltree.peers:RNTNConfig",
        "nti": "gumbeltree.peers:NTIConfig",
        "spinn": "gumbeltree.peers:SpinnConfig",
        "latent_syntax": "gumbeltree.peers:LatentSyntaxConfig",
        "cyk": "gumbeltree.peers:CYKConfig",
    },
    {
        "gumbel_tree": "gumbeltree.light.trees:LightGumbelTree",
        "supervised_tree": "gumbeltree.light.trees:LightGumbelTree",
        "beam_tree": "gumbeltree.light.trees:LightBeamTree",
        "parser_composer": "gumbeltree.light.trees:LightParserComposer",
        "fixed_tree": "gumbeltree.light.trees:LightFixedTree",
        "bag": "gumbeltree.light.baselines:LightBag",
        "lstm": "gumbeltree.light.baselines:LightLSTM",
    },
)

HEADS = Registry(
    "head",
    {
        "pair": "gumbeltree.nn.heads.classes:PairHead",
        "single": "gumbeltree.nn.heads.classes:SingleHead",
        "pair_number": "gumbeltree.nn.heads.numbers:PairNumberHead",
        "single_number": "gumbeltree.nn.heads.numbers:SingleNumberHead",
        "pair_bins": "gumbeltree.nn.heads.numbers:PairBinsHead",
        "single_bins": "gumbeltree.nn.heads.numbers:SingleBinsHead",
        "pair_tags": "gumbeltree.nn.heads.tags:PairTagsHead",
        "single_tags": "gumbeltree.nn.heads.tags:SingleTagsHead",
        "similarity": "gumbeltree.nn.heads.similarity:SimilarityHead",
        "single_maxout": "gumbeltree.nn.heads.maxout:SingleMaxoutHead",
        "nodes": "gumbeltree.nn.heads.nodes:NodesHead",
        "merges": "gumbeltree.nn.heads.merges:MergesHead",
    },
    {
        "pair": "gumbeltree.config:HeadConfig",
        "single": "gumbeltree.config:HeadConfig",
        "pair_number": "gumbeltree.config:NumberConfig",
        "single_number": "gumbeltree.config:NumberConfig",
        "pair_bins": "gumbeltree.config:BinsConfig",
        "single_bins": "gumbeltree.config:BinsConfig",
        "pair_tags": "gumbeltree.config:TagsConfig",
        "single_tags": "gumbeltree.config:TagsConfig",
        "similarity": "gumbeltree.config:SimilarityConfig",
        "single_maxout": "gumbeltree.peers:MaxoutConfig",
        "nodes": "gumbeltree.peers:NodesConfig",
        "merges": "gumbeltree.peers:MergesConfig",
    },
    {
        "pair": "gumbeltree.light.heads:LightPairHead",
        "single": "gumbeltree.light.heads:LightSingleHead",
        "pair_number": "gumbeltree.light.heads:LightPairNumberHead",
        "single_number": "gumbeltree.light.heads:LightSingleNumberHead",
        "pair_bins": "gumbeltree.light.heads:LightPairBinsHead",
        "single_bins": "gumbeltree.light.heads:LightSingleBinsHead",
        "pair_tags": "gumbeltree.light.heads:LightPairTagsHead",
        "single_tags": "gumbeltree.light.heads:LightSingleTagsHead",
        "similarity": "gumbeltree.light.heads:LightSimilarityHead",
        "single_maxout": "gumbeltree.light.heads:LightMaxoutHead",
    },
)
