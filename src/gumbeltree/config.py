"""Settings of models, data and training, recipes, and the changes of `--set`."""

import dataclasses
import json
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Self

from gumbeltree.migrate import ONLY_FIRST, current_recipe, current_setting
from gumbeltree.parts import CELLS, ENCODERS, ESTIMATORS, HEADS, LEAVES
from gumbeltree.registry import UnknownNameError, found_at, suggest
from gumbeltree.settings import (
    PartConfig,
    Settings,
    from_dict,
    kind_of,
    part,
    part_settings,
    setting,
)

VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {"score": "dot", "init": "he"},
    "reference": {"score": "scaled_dot", "init": "orthogonal"},
}
"""Score and cell initialisation of the paper and of the authors' latest code. Where the paper and
the code released with it disagree (forget gates, leaf LSTM), both variants follow the code."""

ENCODER_KINDS = {"tree": "gumbel_tree", "lstm": "lstm", "bag": "bag"}
"""Kinds of the encoders that `--encoder` names; it accepts other kinds by their own name."""
CANDIDATES = ("bag", "lstm", "tree")
"""Encoders that `--encoder auto` compares, from the smallest to the largest."""

LABELS_FROM_DATA = ("?",)
"""Placeholder in recipes whose labels come from the training data."""

TARGETS = {
    "classes": ("single", "pair"),
    "number": ("single_number", "pair_number"),
    "tags": ("single_tags", "pair_tags"),
}
"""Heads for single sentences and for pairs, by what they predict."""

LSTM_INITS = ("orthogonal", "he", "uniform", "xavier")
"""Initialisations of an LSTM; see `LSTMLeafConfig`."""

OPTIMIZERS = ("adam", "adadelta", "rmsprop", "sgd", "adagrad")
"""Optimizers; see `training.optimizers`."""

BASELINES = ("none", "batch", "running", "self_critical", "rloo", "nvil")
"""What REINFORCE and PPO compare the loss of a drawn tree with."""

DIFFERENCES = ("abs", "signed", "squared")
"""Forms of the difference in the features of a pair; see `MLPSettings`."""

MIXTURES = ("vectors", "answers")
"""What beams average over their trees in training."""

POOLINGS = ("root", "max", "mean_max")
"""How the nodes of a tree become its vector."""

WIDEST = 2**20
"""Upper limit of all widths; a square weight matrix of this width would need terabytes."""


@dataclass(frozen=True)
class TreeLSTMConfig(Settings):
    """The binary Tree-LSTM cell."""

    init: str = setting("he", choices=("he", "orthogonal", "uniform"))
    """Initialisation of the weight: he (paper), orthogonal (reference), or uniform, as in
    `torch.nn.Linear`."""
    forget_offset: float = setting(1.0, low=-math.inf)
    """Added to the forget gates before the sigmoid: 1 in the authors' code, 0 in the paper."""
    kind: str = kind_of("treelstm")


@dataclass(frozen=True)
class GatedConfig(Settings):
    """The gated recursive cell (Shen et al. 2019)."""

    expansion: int = setting(4, low=1, high=64)
    """Width of its hidden layer in multiples of the state width."""
    dropout: float = setting(0.0, low=0, high=0.9)
    """Share of the hidden units to drop in training, drawn once per candidate."""
    left_offset: float = setting(0.0, low=-math.inf)
    """Added to the initial bias of the left child's gate and subtracted from that of the right
    child's: new parents then resemble their left children."""
    kind: str = kind_of("gated")


@dataclass(frozen=True)
class AffineLeafConfig(Settings):
    """An affine map of each word (Eq. 10)."""

    kind: str = kind_of("affine")


@dataclass(frozen=True)
class NormLeafConfig(Settings):
    """An affine map of each word, followed by layer normalisation."""

    kind: str = kind_of("norm")


@dataclass(frozen=True)
class LSTMLeafConfig(Settings):
    """An LSTM over the words (Eq. 13)."""

    init: str = setting("orthogonal", choices=LSTM_INITS)
    """Initialisation: orthogonal W_hh and forget bias 1 (the authors' code), he (paper), uniform,
    as in `torch.nn.LSTM`, or xavier and forget bias 1 (Bowman et al. 2016)."""
    biases: int = field(default=2, kw_only=True, metadata={"low": 1, "high": 2})
    """Bias vectors: two, as in `torch.nn.LSTM`, whose sum is used, or one."""
    kind: str = kind_of("lstm")


@dataclass(frozen=True)
class BidirectionalLSTMLeafConfig(LSTMLeafConfig):
    """A bidirectional LSTM over the words, D/2 per direction."""

    kind: str = kind_of("bilstm")


@dataclass(frozen=True)
class StraightThroughConfig(PartConfig):
    """One-hot forward, softmax backward (Eqs. 8, 9, S11)."""

    kind: str = kind_of("st_gumbel")


@dataclass(frozen=True)
class SampledConfig(PartConfig):
    """Straight-through without noise in the backward pass (Bengio et al. 2013)."""

    forward_temperature: float = setting(1.0, low=1e-6)
    """Temperature of the softmax that merges are sampled from; other values than 1 decouple it
    from the temperature of the backward pass (Shah et al. 2024)."""
    kind: str = kind_of("st")


@dataclass(frozen=True)
class GumbelRaoConfig(PartConfig):
    """ST-Gumbel, averaged over noise that leads to the same choice (Paulus et al. 2021)."""

    samples: int = setting(10, low=1, high=1000)
    """Number of draws of the noise."""
    kind: str = kind_of("gumbel_rao")


@dataclass(frozen=True)
class GappedConfig(PartConfig):
    """Gapped straight-through (Fan et al. 2022)."""

    gap: float = setting(1.0, low=0.0)
    """Minimum distance of the chosen logit from all others in the backward pass."""
    kind: str = kind_of("gapped")


@dataclass(frozen=True)
class ReinMaxConfig(PartConfig):
    """ReinMax, a second-order estimator (Liu et al. 2023)."""

    kind: str = kind_of("reinmax")


@dataclass(frozen=True)
class SpigotConfig(PartConfig):
    """A projected gradient step on the choice (Peng et al. 2018, Mihaylova et al. 2020)."""

    variant: str = setting("spigot", choices=("spigot", "ce", "eg"))
    """Start of the step and its geometry: spigot (the choice, projection), ce (the softmax,
    projection) or eg (the softmax, exponentiated gradient)."""
    step: float = setting(1.0, low=1e-6)
    """Size of the step."""
    kind: str = kind_of("spigot")


@dataclass(frozen=True)
class SoftConfig(PartConfig):
    """A mixture of all candidates, forward and backward (Eq. 8)."""

    kind: str = kind_of("soft")


@dataclass(frozen=True)
class ReinforceConfig(PartConfig):
    """The log-probability of a drawn tree, weighted by its advantage (Williams 1992)."""

    baseline: str = setting("batch", choices=BASELINES)
    """Subtracted from the loss: none, batch (mean of the other examples), running (mean of earlier
    batches), self_critical (loss with the highest-scoring merges), rloo (mean over the other trees
    of the same example) or nvil (prediction of an LSTM plus the running mean)."""
    samples: int = setting(4, low=2, high=1000)
    """Trees per example for the baseline rloo."""
    scaled: bool = False
    """Divide advantages by max(1, their running deviation); nvil always does."""
    decay: float = setting(0.9, low=0, high=0.9999)
    """Decay of the running mean and deviation per batch."""
    critic_dim: int = setting(64, low=1, high=1024)
    """Width of the LSTM for the baseline nvil."""
    critic_rate: float = setting(0.001, low=0)
    """Learning rate of this LSTM."""
    mean_entropy: bool = False
    """Divide the entropy of a sentence, weighted by `training.entropy`, by its number of merges."""
    kind: str = kind_of("reinforce")


@dataclass(frozen=True)
class PPOConfig(ReinforceConfig):
    """Several updates per drawn tree, with clipped probability ratios (Schulman et al. 2017)."""

    updates: int = setting(4, low=1, high=1000)
    """Updates per batch; all but the first change only the choice of merges."""
    epsilon: float = setting(0.2, low=1e-6, high=1e6)
    """Ratios of probabilities receive a gradient within 1 - epsilon .. 1 + epsilon."""
    kind: str = kind_of("ppo")


@dataclass(frozen=True)
class EncoderSettings(Settings):
    """Settings shared by all encoders, which map word vectors to sentence vectors."""

    embedding_dim: int = setting(300, low=1, high=WIDEST)
    """Width E of the word vectors."""
    hidden_dim: int = setting(300, low=1, high=WIDEST)
    """Width D of the states."""
    kind: str = kind_of("")


@dataclass(frozen=True)
class TreeSettings(EncoderSettings):
    """Settings shared by all encoders that merge words into a tree."""

    leaf: Any = part(LEAVES, "lstm")
    """Leaf transformation: affine (Eq. 10), lstm (Eq. 13), bilstm or norm."""
    cell: Any = part(CELLS, "treelstm")
    """Composition cell: treelstm (Eqs. 1-3) or gated."""
    attention: bool = False
    """Pool all tree nodes with attention instead of using the root."""
    pooling: str = field(default="root", kw_only=True, metadata={"choices": POOLINGS})
    """The vector of a tree: root, max (maximum over all nodes) or mean_max (their mean plus their
    maximum). Attention replaces it."""
    add_words: bool = field(default=False, kw_only=True)
    """Add the mean of the word vectors to the vector of a tree, which must have their width. Both
    are scaled to length 1 before."""
    impl: str = "auto"
    """Implementation of the merge: auto, fused, exact or reference."""


QUERY_SCORES = ("dot", "scaled_dot")
"""Scores of a candidate by a query vector; all others depend on its children alone."""


@dataclass(frozen=True)
class EncoderConfig(TreeSettings):
    """The paper's encoder, with learned trees."""

    score: str = setting("dot", choices=(*QUERY_SCORES, "pair", "cosine"))
    """Validity score: dot, q.h (paper), or scaled_dot, q.h / sqrt(D) (reference). Of the children
    alone: pair, a perceptron, or cosine."""
    estimator: Any = part(ESTIMATORS, "st_gumbel")
    """Gradient estimator of the merge decisions: st_gumbel, st, gumbel_rao, gapped, reinmax,
    spigot, soft, reinforce or ppo."""
    temperature: float = 1.0
    """Temperature of the softmax in the backward pass."""
    kind: str = kind_of("gumbel_tree")

    def with_variant(self, variant: str) -> Self:
        """Return a copy with the score and the cell initialisation of a variant.

        Args:
            variant: "paper" or "reference".
        """
        if variant not in VARIANTS:
            raise UnknownNameError(
                f"unknown variant {variant!r}; known: {', '.join(VARIANTS)}."
                f"{suggest(variant, list(VARIANTS))}"
            )
        fields = VARIANTS[variant]
        if not hasattr(self.cell, "init"):
            raise ValueError(
                f"variants set the initialisation of the cell, but {self.cell.kind!r} has no "
                "`init`; use the cell 'treelstm', or set only `score`"
            )
        cell = dataclasses.replace(self.cell, init=fields["init"])
        return dataclasses.replace(self, score=fields["score"], cell=cell)


@dataclass(frozen=True)
class SupervisedTreeConfig(EncoderConfig):
    """The paper's encoder, with merges learned from the trees of the training data."""

    kind: str = kind_of("supervised_tree")


@dataclass(frozen=True)
class BeamTreeConfig(EncoderConfig):
    """Several learned trees per sentence, found by beam search."""

    beams: int = field(default=5, kw_only=True, metadata={"low": 1, "high": 100})
    """Number of trees per sentence."""
    distinct: bool = field(default=True, kw_only=True)
    """Drop beams that reach the same nodes as a better one, by another order of merges."""
    stochastic: bool = field(default=False, kw_only=True)
    """Draw the merges that a beam proposes in training, instead of taking the most probable."""
    mixture: str = field(default="vectors", kw_only=True, metadata={"choices": MIXTURES})
    """What training averages over the trees: their vectors, or the probabilities of the classes
    given each vector."""
    kind: str = kind_of("beam_tree")


@dataclass(frozen=True)
class ParserConfig(Settings):
    """The parser of the encoder `parser_composer`, which has weights of its own."""

    hidden_dim: int | None = setting(None, low=1, high=WIDEST)
    """Width of its states; by default that of the composer."""
    leaf: Any = part(LEAVES, "lstm")
    """Leaf transformation."""
    cell: Any = part(CELLS, "treelstm")
    """Composition cell."""
    tunes_words: bool = False
    """Whether its gradients reach the word vectors, which it shares with the composer."""


@dataclass(frozen=True)
class ParserComposerConfig(EncoderConfig):
    """A parser, which draws the tree, and a composer, which follows it (Havrylov et al. 2019)."""

    parser: ParserConfig = field(default_factory=ParserConfig, kw_only=True)
    """Settings of the parser; `leaf`, `cell` and `hidden_dim` of the encoder are the composer's."""
    estimator: Any = part(ESTIMATORS, "reinforce")
    """Gradient estimator of the parser: reinforce or ppo."""
    kind: str = kind_of("parser_composer")

    @property
    def of_parser(self) -> EncoderConfig:
        """Settings of the parser as an encoder."""
        return EncoderConfig(
            embedding_dim=self.embedding_dim,
            hidden_dim=self.parser.hidden_dim or self.hidden_dim,
            leaf=self.parser.leaf,
            cell=self.parser.cell,
            impl=self.impl,
            score=self.score,
            estimator=self.estimator,
            temperature=self.temperature,
        )


@dataclass(frozen=True)
class FixedTreeConfig(TreeSettings):
    """Trees that are not learned, for comparison with those that are."""

    trees: str = setting("balanced", choices=("left", "right", "balanced", "random", "gold"))
    """left- or right-branching, balanced (split in half, the larger half on the left), random
    (a new tree per training example and epoch, one fixed tree per length otherwise), or the gold
    trees of the data."""
    kind: str = kind_of("fixed_tree")


@dataclass(frozen=True)
class BagConfig(EncoderSettings):
    """A bag of words."""

    kind: str = kind_of("bag")


@dataclass(frozen=True)
class LSTMConfig(EncoderSettings):
    """An LSTM without a tree."""

    init: str = setting("orthogonal", choices=LSTM_INITS)
    """Initialisation; see `LSTMLeafConfig`."""
    biases: int = field(default=2, kw_only=True, metadata={"low": 1, "high": 2})
    """Bias vectors: two, as in `torch.nn.LSTM`, whose sum is used, or one."""
    impl: str = setting("auto", choices=("auto", "fused", "exact", "reference"))
    """Triton kernels where available (auto, fused), or torch operations (exact, reference)."""
    kind: str = kind_of("lstm")


@dataclass(frozen=True)
class MLPSettings(Settings):
    """Settings shared by all heads: an MLP over sentence vectors (Eqs. 14-18)."""

    hidden_dim: int = setting(1024, low=1, high=WIDEST)
    """Width of each hidden layer."""
    hidden_layers: int = setting(1, low=0, high=100)
    """Number of hidden layers, each linear with ReLU; 0 for a linear classifier."""
    batch_norm: bool = False
    """Batch normalisation of the places that `normalise` names."""
    dropout: float = setting(0.0, low=0, high=1)
    """Dropout in the same places, after the batch normalisation."""
    output_range: float = setting(0.005, low=0)
    """Weights of the last layer are initialised uniformly in [-output_range, output_range]."""
    normalise: str = field(default="ends", kw_only=True, metadata={"choices": ("ends", "every")})
    """Places of batch normalisation and dropout: ends (the MLP's input and its last hidden layer,
    after the ReLU) or every (its input and every hidden layer)."""
    input_dropout: float | None = field(default=None, kw_only=True, metadata={"low": 0, "high": 1})
    """Dropout of the MLP's input; by default `dropout`."""
    difference: str = field(default="abs", kw_only=True, metadata={"choices": DIFFERENCES})
    """Third feature of a pair u, v: abs, |u-v|, signed, u-v, or squared, (u-v)^2."""
    skip: bool = field(default=False, kw_only=True)
    """Hidden layers after the first one read the MLP's input as well."""
    hidden_init: str = field(default="he", kw_only=True, metadata={"choices": ("he", "xavier")})
    """Initialisation of the hidden layers: he (paper), normal with variance 2 / inputs, or xavier,
    normal with variance 4 / (inputs + outputs)."""


@dataclass(frozen=True)
class LabelSettings(Settings):
    """Kind and classes of a classifier, its first settings."""

    kind: str = "pair"
    """pair: two sentences, [u; v; |u-v|; u*v] (Eqs. 14-16) or another difference; single: one
    (Eqs. 17-18)."""
    labels: tuple[str, ...] = ("neutral", "entailment", "contradiction")
    """Names of the classes, in the order of the outputs; "?" takes them from the training data."""


@dataclass(frozen=True)
class ClassLossSettings(Settings):
    """Settings of the loss of a classifier."""

    class_weights: str | dict[str, float] = field(
        default="none", hash=False, metadata={"choices": ("none", "balanced")}
    )
    """Weight of each class in the loss: none, balanced (inversely proportional to the number of
    training examples), or a table of weights by label, 1 for labels that it omits."""
    label_smoothing: float = setting(0.0, low=0, high=1)
    """In training, share of the target probability that is spread over all classes."""


@dataclass(frozen=True)
class HeadConfig(ClassLossSettings, MLPSettings, LabelSettings):
    """A classifier of sentence vectors."""


@dataclass(frozen=True)
class NumberConfig(MLPSettings):
    """A regression from sentence vectors to a number; trained on standardised targets."""

    mean: float | None = setting(None, low=-math.inf)
    """Mean of the training targets; computed from them by default."""
    deviation: float | None = setting(None, low=1e-30)
    """Standard deviation of the training targets; computed from them by default."""
    kind: str = kind_of("single_number")

    @property
    def scale(self) -> tuple[float, float]:
        """Mean and deviation; 0 and 1 before they are known."""
        return (
            0.0 if self.mean is None else self.mean,
            1.0 if self.deviation is None else self.deviation,
        )


@dataclass(frozen=True)
class BinsConfig(MLPSettings):
    """A distribution over equidistant numbers, whose mean is the prediction (Tai et al. 2015)."""

    bins: int = setting(5, low=2, high=10_000)
    """Number of bins."""
    low: float | None = setting(None, low=-math.inf)
    """Position of the first bin; by default the smallest training target."""
    high: float | None = setting(None, low=-math.inf)
    """Position of the last bin; by default the largest training target."""
    kind: str = kind_of("single_bins")

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.range
        if low >= high:
            raise ValueError(f"`head.low` must be less than `head.high`, got {low:g} and {high:g}")

    @property
    def range(self) -> tuple[float, float]:
        """Positions of the first and the last bin, 1 apart before they are known."""
        if self.low is None:
            return (0.0, 1.0) if self.high is None else (self.high - 1.0, self.high)
        return self.low, self.low + 1.0 if self.high is None else self.high


@dataclass(frozen=True)
class TagsConfig(MLPSettings):
    """A classifier that assigns any number of labels, called tags, to each example."""

    tags: tuple[str, ...] = LABELS_FROM_DATA
    """Names of the tags, in the order of the outputs; "?" takes them from the training data."""
    tag_separator: str = "|"
    """Separator of the tags in the label column, as in "plot|music"."""
    threshold: float = setting(0.5, low=0, high=1)
    """Tags of at least this probability are predicted."""
    kind: str = kind_of("single_tags")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.tag_separator:
            raise ValueError("`head.tag_separator` must not be empty; the default is '|'")


@dataclass(frozen=True)
class SimilarityConfig(Settings):
    """The cosine of two sentence vectors, trained with a contrastive loss."""

    scale: float = setting(20.0, low=0.01, high=1000)
    """Factor of the cosines before the softmax of the loss."""
    kind: str = kind_of("similarity")


@dataclass(frozen=True)
class EmbeddingConfig(Settings):
    """The word embedding."""

    dropout: float = setting(0.0, low=0, high=1)
    """Dropout on the elements of the word vectors."""
    tuned: bool = False
    """Train the word vectors as well."""
    std: float = setting(0.01, low=0)
    """Standard deviation of initial word vectors if they do not come from a file."""


@dataclass(frozen=True)
class ModelConfig(Settings):
    """A whole model: embedding, encoder and head."""

    encoder: Any = part(ENCODERS, "gumbel_tree")
    """Encoder: gumbel_tree, beam_tree, parser_composer, supervised_tree, fixed_tree, bag, lstm, or
    one of the systems in `gumbeltree.peers`."""
    head: Any = part(HEADS, "pair")
    """Head: pair, single or single_maxout (classes), nodes (classes of all nodes), pair_number or
    single_number, pair_bins or single_bins, pair_tags or single_tags, similarity, merges
    (trees)."""
    embedding: EmbeddingConfig = field(default_factory=EmbeddingConfig)
    """Word vectors."""
    max_words: int = setting(1024, low=1)
    """Longer sentences are truncated to this many words, and their number is reported."""


@dataclass(frozen=True)
class DataConfig(Settings):
    """Reading, tokenization and splitting of the data."""

    task: str = "table"
    """Task that reads the files: snli, snli_similarity, sst2, sst5, listops, logic, sick,
    sick_relatedness, parses, demo or table."""
    tokenizer: str = setting("treebank", choices=("treebank", "whitespace"))
    """Tokenizer of plain text; pretokenized data sets keep their tokens."""
    lower: bool = True
    """Convert text to lower case."""
    vocabulary: str = setting("train", choices=("train", "all"))
    """Splits to build the vocabulary from: train, or all, as the authors did for SST."""
    extra_words: int = setting(0, low=0, high=10_000_000)
    """Words to add to the vocabulary from the start of the vector file, to cover unseen text."""
    missing_vectors: str = setting("zero", choices=("zero", "random", "parts"))
    """Vectors of words without a pretrained vector: zero, random (from N(0, 0.01^2)), or parts (the
    mean over the parts between hyphens, slashes, full stops and apostrophes if all of them have a
    vector, else zero)."""
    word_weights: float = setting(0.0, low=0, high=1)
    """If positive, multiply the vectors of a file by a / (a + p), with a this setting, such as
    1e-3, and p the share of a word in the texts of `word_shares` (Arora et al. 2017)."""
    word_shares: str = setting("train", choices=("train", "file"))
    """Texts that `word_weights` counts words in: train, or file, those of the vector file, whose
    r-th line has a share proportional to 1 / r."""
    remove_directions: int = setting(0, low=0, high=100)
    """Remove from the vectors of a file this many main directions of the mean vectors of the
    training sentences, which say what all of them have in common."""
    own_vectors: bool = False
    """Without a vector file, start from word vectors computed from the training texts: words with
    similar neighbours get similar vectors. If false, start from N(0, 0.01^2)."""
    pretokenized: bool = False
    """Split the texts of a table at white space only."""
    quotes: bool = True
    """Double quotes enclose table fields, as in CSV; if false, they are ordinary characters."""
    separator: str = ""
    """Separator of the columns of a CSV or TSV file, such as ; or tab; recognised by default."""
    text: str = ""
    """Column of the text in a table."""
    text2: str = ""
    """Column of the second text of a pair in a table."""
    label: str = ""
    """Column of the label in a table."""
    any_labels: bool = False
    """Accept labels that do not look like classes, such as measurements and ids."""
    dev_fraction: float = setting(0.0, low=0, high=0.9)
    """Fraction of the training file to use as the development split if there is no file for it; if
    0, that file is required."""
    test_fraction: float = setting(0.0, low=0, high=0.9)
    """Fraction of the training file to use as the test split if there is no file for it."""
    split_seed: int = setting(0, low=0)
    """Seed of these splits, of generated data and of random word vectors; independent of the
    training seed."""
    train_max_words: int = setting(0, low=0)
    """Drop training examples with a sentence of more than this many words; 0 keeps all of them."""
    generate: int = setting(0, low=0, high=100_000_000)
    """Number of examples to generate if there is no training file (listops, demo)."""


@dataclass(frozen=True)
class TrainingConfig(Settings):
    """Optimisation, evaluation and checkpoints."""

    optimizer: str = setting("adam", choices=OPTIMIZERS)
    """adam, adadelta or rmsprop (rho 0.9), sgd without momentum, or adagrad."""
    learning_rate: float = setting(0.001, low=0)
    """Initial learning rate; see `patience`, `decay` and `halve_every`."""
    eps: float | None = setting(None, low=0)
    """Prevents division by zero: added under the root by adadelta and rmsprop (1e-6 by default),
    to the root by adam (1e-8) and adagrad (1e-10)."""
    accumulator: float = setting(0.0, low=0)
    """Initial sum of squared gradients of adagrad."""
    reset_every: int = setting(0, low=0)
    """Return the sums of adagrad to `accumulator` every this many epochs; 0 never does."""
    word_optimizer: str = setting("", choices=("", *OPTIMIZERS))
    """Optimizer of the word vectors, without weight decay; by default `optimizer`, with it."""
    word_decay: float | None = setting(None, low=0)
    """L2 penalty of the vectors of a batch's words; by default, `weight_decay` of all words, and
    none with `word_optimizer`."""
    word_rate: float | None = setting(None, low=0)
    """Initial learning rate of the word vectors; by default `learning_rate`."""
    word_accumulator: float | None = setting(None, low=0)
    """Initial sum of adagrad for the word vectors; by default `accumulator`. Without `eps`, a
    factor f of their gradients has the effect of dividing it by f^2."""
    parser_rate: float | None = setting(None, low=0)
    """Initial learning rate of the parser of a parser_composer; by default `learning_rate`."""
    weight_decay: float = setting(0.0, low=0)
    """L2 penalty: each update adds this multiple of a weight to its gradient."""
    batch_size: int = setting(128, low=1)
    """Examples per step, over all processes."""
    pool: int = setting(100, low=1)
    """Number of batches whose examples are sorted by length together, for speed; 1 only shuffles,
    as the authors did for SNLI."""
    epochs: int = setting(20, low=1)
    """Maximum number of passes over the training data."""
    clip: float = setting(5.0, low=0)
    """Maximum total gradient norm; 0 disables clipping."""
    evaluations: int = setting(10, low=1)
    """Evaluations on the development split per epoch."""
    evaluation_steps: int = setting(1, low=1)
    """Minimum number of steps between evaluations. In small data sets, they are several epochs
    apart."""
    patience: int = setting(10, low=0)
    """Halve the learning rate after more than this many evaluations without improvement. A number
    that is never reached disables it."""
    restore: bool = False
    """Return to the best weights whenever the rate is halved for lack of improvement. The state of
    the optimizer stays."""
    stop_halvings: int = setting(0, low=0)
    """Stop when the rate has been halved this many times for lack of improvement; 0 disables it."""
    halve_every: int = setting(0, low=0)
    """Halve the learning rate every this many epochs as well; 0 disables it."""
    curriculum: int = setting(0, low=0)
    """Begin with short examples: of the first n epochs, epoch e, counted from 1, has the shortest
    e / (n + 1) of them. 0 disables it."""
    decay: float = setting(1.0, low=1e-6, high=1)
    """Multiply the learning rate by decay^(step / decay_steps) as well, anew in every step."""
    decay_steps: int = setting(10_000, low=1)
    """Steps in which the learning rate falls by the factor `decay`."""
    best_by: str = ""
    """Metric on the development split that selects the best model and governs `patience` and
    `stop_after`, such as accuracy, macro_f1 or recall:LABEL; by default the head's main metric."""
    stop_after: int = setting(0, low=0)
    """Stop after this many evaluations without improvement; 0 trains for all `epochs`."""
    average: float = setting(0.0, low=0, high=1)
    """Evaluate and save a running average of the weights with this decay per step; 0 evaluates the
    weights themselves."""
    entropy: float = setting(0.0, low=0)
    """Weight of a bonus for the entropy of the choices, with the estimators reinforce and ppo."""
    policy_weight: float = setting(1.0, low=0)
    """Weight of the policy's objective beside the loss, with the estimators reinforce and ppo."""
    losses: dict[str, float] = field(default_factory=dict, hash=False)
    """Weights of the encoder's additional losses, by name; 1 by default."""
    anneal_rate: float = setting(0.0, low=0)
    """Set the temperature to max(0.5, exp(-rate * step)); 0 keeps the model's."""
    precision: str = setting("32", choices=("32", "tf32", "bf16", "64"))
    """32, tf32 (matrix products on CUDA), bf16 (matrix products; weights stay float32) or 64."""
    checkpoint_seconds: float = setting(60.0, low=0)
    """Save a checkpoint at the first evaluation after this many seconds, and at the end."""
    seed: int = setting(0, low=0, high=2**31)
    """Seed of all randomness in training; for that of the data see `split_seed`."""


@dataclass(frozen=True)
class Recipe(Settings):
    """All settings that determine a result."""

    description: str
    """One line: which number of the paper this reproduces, or what it is for."""
    model: ModelConfig
    """Settings of the model."""
    data: DataConfig = field(default_factory=DataConfig)
    """Settings of the data."""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    """Settings of the training."""


PARTS = {
    "encoder": ENCODERS, "head": HEADS, "leaf": LEAVES, "cell": CELLS, "estimator": ESTIMATORS,
}  # fmt: skip
"""Registries of the parts, by the name of their setting."""


def recipe_names() -> list[str]:
    """Return the names of all recipes in the package."""
    folder = resources.files("gumbeltree") / "recipes"
    return sorted(
        f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml")
    )


def load_recipe(name: str | Path, encoder: str | None = None) -> Recipe:
    """Read a recipe.

    Args:
        name: name of a packaged recipe, or path of a TOML file.
        encoder: encoder to use instead of the recipe's: tree, lstm, bag or another kind. Settings
            that the recipe lists for it in the table `encoders` are applied as well.
    """
    source, table = _read_recipe(name)
    try:
        changes = _encoder_changes(table.pop("encoders", {}))
        recipe: Recipe = from_dict(Recipe, current_recipe(table))
        if encoder is None:
            return recipe
        kind = ENCODER_KINDS.get(encoder, encoder)
        return with_settings(recipe, [f"encoder.kind={kind}", *changes.get(encoder, [])])
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error


def _read_recipe(name: str | Path, derived: tuple[str, ...] = ()) -> tuple[str, dict[str, Any]]:
    """Return where a recipe comes from and its table, which contains that of its `base`.

    Args:
        name: name or path of the recipe.
        derived: recipes that are based on it.
    """
    if isinstance(name, Path) or name.endswith(".toml"):
        source, content = str(name), Path(name).read_bytes()
    elif name in recipe_names():
        source = f"recipe {name}"
        content = (resources.files("gumbeltree") / "recipes" / f"{name}.toml").read_bytes()
    else:
        known = recipe_names()
        is_file = Path(name).is_file()
        advice = f" To train on a file, use: gumbeltree train text --data {name}" if is_file else ""
        raise UnknownNameError(
            f"unknown recipe {name!r}; known: {', '.join(known)}.{suggest(name, known)}{advice}"
        )
    try:
        table = tomllib.loads(content.decode("utf-8"))
        base = table.pop("base", None)
        if base is None:
            return source, table
        if not isinstance(base, str):
            raise ValueError(f"`base` must be the name of a recipe, got {base!r}")
        if base in (str(name), *derived):
            raise ValueError(f"`base` is {base!r}, which is based on this recipe itself")
        # settings for `--encoder` are not inherited
        below = {**_read_recipe(base, (*derived, str(name)))[1], "encoders": {}}
        return source, _merged(below, table)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a table with some entries replaced, and those of its tables in turn.

    A part of another kind replaces the part as a whole, since it has other settings.
    """
    if changes.get("kind", base.get("kind")) != base.get("kind"):
        return changes
    both = dict(base)
    for key, value in changes.items():
        tables = isinstance(value, dict) and isinstance(both.get(key), dict)
        both[key] = _merged(both[key], value) if tables else value
    return both


def _encoder_changes(table: Any) -> dict[str, list[str]]:
    """Return the table `encoders` of a recipe: settings as for `--set`, by encoder."""
    if not isinstance(table, dict):
        raise ValueError(f"`encoders` must be a table, got {table!r}")
    for name, changes in table.items():
        if not isinstance(changes, list) or not all(isinstance(x, str) for x in changes):
            raise ValueError(f'`encoders.{name}` must be a list of "key=value", got {changes!r}')
    return table


def assignments(settings: Iterable[str] | Mapping[str, Any]) -> list[str]:
    """Return settings as a list of "key=value"; a mapping has the values themselves."""
    if isinstance(settings, str):
        raise TypeError(
            f"`settings` must be a list of strings, got one string; pass [{settings!r}]"
        )
    if isinstance(settings, Mapping):
        # JSON writes numbers, truth values, strings and lists of them as TOML does
        return [
            # NumPy's numbers have an item
            f"{key}={json.dumps(x, ensure_ascii=False, default=lambda x: x.item())}"
            for key, x in settings.items()
        ]
    return list(settings)


def with_settings(recipe: Recipe, settings: Iterable[str] | Mapping[str, Any]) -> Recipe:
    """Return a copy of a recipe with some settings replaced.

    Args:
        recipe: the recipe to change.
        settings: each "key=value", for example "training.batch_size=64". The value is read as TOML,
            or else as a string. The last part of the key suffices if it is unique:
            "batch_size=64". "leaf=affine" selects the kind of a part, and keeps the settings that
            both kinds share. A mapping such as {"batch_size": 64} works as well.
    """
    data = dataclasses.asdict(recipe)
    # set version 1 keys last, because their meaning depends on the kind of the encoder
    for assignment in sorted(assignments(settings), key=_is_of_version_1):
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise ValueError(
                f"a setting has the form KEY=VALUE, got {assignment!r}; for example "
                "training.batch_size=64"
            )
        try:
            for current, value in current_setting(key.strip(), text, data["model"]["encoder"]):
                _set(data, current, value)
                # a part of another kind has other settings
                data = dataclasses.asdict(from_dict(Recipe, data))
        except ValueError as error:
            raise ValueError(f"the setting {assignment[:80]}: {error}") from error
    changed: Recipe = from_dict(Recipe, data)
    return changed


def with_target(recipe: Recipe, target: str) -> Recipe:
    """Return a copy of a recipe whose head predicts something else from the same sentences.

    Args:
        recipe: the recipe to change; the new head keeps the settings that both heads have.
        target: classes, number or tags.
    """
    if target not in TARGETS:
        raise UnknownNameError(
            f"unknown target {target!r}; known: {', '.join(TARGETS)}."
            f"{suggest(target, list(TARGETS))}"
        )
    single, pair = TARGETS[target]
    kind = pair if HEADS[recipe.model.head.kind].sentences == 2 else single
    return with_settings(recipe, [f"model.head.kind={kind}"])


def _is_of_version_1(assignment: str) -> bool:
    return assignment.partition("=")[0].rpartition(".")[2].strip() in ONLY_FIRST


def _set(data: dict[str, Any], name: str, text: str) -> None:
    """Set one value in nested tables; see `with_settings`."""
    # the keys of these tables are up to the user
    for pattern, owner in (
        (r"(?:training\.)?(losses)", data["training"]),
        (r"(?:(?:model\.)?head\.)?(class_weights)", data["model"]["head"]),
    ):
        match = re.fullmatch(pattern + r"(?:\.(.+))?", name)
        if match and match[1] in owner:
            last, entry = match.groups()
            value = _value(text)
            if entry:
                entries = owner[last] if isinstance(owner[last], dict) else {}
                value = {**entries, entry: value}
            owner[last] = value
            return
    # labels and losses are not settings
    tables = ("model.head.class_weights.", "training.losses.")
    keys = [key for key in _leaves(data) if not key.startswith(tables)]
    matches = [key for key in keys if key == name or key.endswith("." + name)]
    matches = matches or [key for key in keys if f".{key}".endswith(f".{name}.kind")]
    encoder = data["model"]["encoder"]
    if not matches and "estimator" in name.split(".") and "estimator" not in encoder:
        raise ValueError(
            f"unknown key '{name}': the encoder {encoder['kind']!r} does not learn which words to "
            "merge, so it has no estimator; use encoder.kind=gumbel_tree"
        )
    if not matches:
        near = suggest(name, keys) or suggest(name, [key.rpartition(".")[2] for key in keys])
        if others := _parts_with(name.rpartition(".")[2]):
            near = f" it is a setting of {' or '.join(others)}"
        raise ValueError(f"unknown key '{name}';{near or ' see `gumbeltree info`'}")
    if len(matches) > 1:
        raise ValueError(f"{name} is ambiguous: write {' or '.join(matches)}")
    *path, last = matches[0].split(".")
    table = data
    for step in path:
        table = table[step]
    value = _value(text)
    if isinstance(table[last], str) and not isinstance(value, str):
        # strings can look like numbers: a column can be named 0, and precision can be 64
        value = text.strip()
    if last == "kind" and path[-1] in PARTS:
        config = type(part_settings(PARTS[path[-1]], "", value, ".".join(path)))
        for key in list(table):
            try:
                from_dict(config, {key: table[key]})
            except ValueError:
                # the new kind lacks this setting or rejects its value
                del table[key]
    table[last] = value


def _parts_with(name: str) -> list[str]:
    """Return the built-in parts that have a setting, such as "estimator=reinforce"."""
    return [
        f"{kind}={part}"
        for kind, table in PARTS.items()
        for part, place in table.settings.items()
        if name != "kind" and name in {field.name for field in dataclasses.fields(found_at(place))}
    ]


def _value(text: str) -> Any:
    """Parse a value as TOML; return it as a string if that fails."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text.strip()


def _leaves(data: dict[str, Any], path: str = "") -> Iterator[str]:
    for key, value in data.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{path}{key}.")
        else:
            yield path + key


def to_json(config: Any) -> str:
    """Return settings as JSON text."""
    return json.dumps(dataclasses.asdict(config), indent=2, ensure_ascii=False)
