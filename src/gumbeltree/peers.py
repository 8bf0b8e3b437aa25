"""Settings of the systems that the paper compares itself with in Tables 1 and 2."""

from dataclasses import dataclass, field
from typing import Any

from gumbeltree.config import (
    LABELS_FROM_DATA,
    WIDEST,
    ClassLossSettings,
    EncoderSettings,
    LabelSettings,
)
from gumbeltree.parts import CELLS, ESTIMATORS, LEAVES
from gumbeltree.settings import Settings, kind_of, part, setting

STACK_IMPLS = ("auto", "fused", "exact", "reference")
"""Implementations of shift-reduce."""
CHART_IMPLS = ("auto", "fused", "exact")
"""Implementations of the chart."""

# encoders of sequences


@dataclass(frozen=True)
class StackedBiLSTMConfig(EncoderSettings):
    """Stacked bidirectional LSTMs, pooled by their maximum (Nie and Bansal 2017).

    `hidden_dim` is the width of the top layer, both directions together.
    """

    layers: int = setting(3, low=1, high=20)
    """Number of layers."""
    growth: int = setting(1, low=1, high=16)
    """Width of a layer in multiples of the layer below."""
    residual: bool = False
    """Let layers read the sum of the outputs of all layers below, instead of all of them side by
    side; needs `growth` 1."""
    kind: str = kind_of("stacked_bilstm")


@dataclass(frozen=True)
class NSEConfig(EncoderSettings):
    """The Neural Semantic Encoder (Munkhdalai and Yu 2017).

    `hidden_dim` must equal `embedding_dim`.
    """

    compose: bool = True
    """Apply a linear layer to the output of the reader and the memory, as the authors' code does.
    Without it, the model for SNLI has the 3.0M parameters of the paper."""
    dropout: float = setting(0.0, low=0, high=1)
    """Dropout on the inputs of both LSTMs."""
    init_range: float = setting(0.1, low=0)
    """Weights and biases are initialised uniformly in [-init_range, init_range]."""
    kind: str = kind_of("nse")


@dataclass(frozen=True)
class GatedAttentionConfig(EncoderSettings):
    """Stacked bidirectional LSTMs with attention by input gates (Chen et al. 2017).

    `hidden_dim` is the width of each layer, both directions together; sentence vectors are three
    times as wide.
    """

    layers: int = setting(3, low=1, high=20)
    """Number of layers."""
    character_dim: int = setting(0, low=0, high=WIDEST)
    """Width of the vectors that convolutions compute from the characters of each word; 0 reads no
    characters. Out-of-vocabulary words have none. The set of characters and the padding of short
    words are our choice, not checked against the authors' code."""
    dropout: float = setting(0.0, low=0, high=1)
    """Dropout on the word vectors, including those of the characters."""
    kind: str = kind_of("gated_attention")


@dataclass(frozen=True)
class BCNConfig(EncoderSettings):
    """The biattentive classification network (McCann et al. 2017)."""

    dropout: float = setting(0.0, low=0, high=0.9)
    """Dropout on the projected words. Dropout on the sentence vector is a setting of the head."""
    kind: str = kind_of("bcn")


@dataclass(frozen=True)
class DMNConfig(EncoderSettings):
    """A dynamic memory network whose only question is learned (Kumar et al. 2016)."""

    passes: int = setting(2, low=1, high=100)
    """Number of passes over the words, each of which updates the memory."""
    kind: str = kind_of("dmn")


@dataclass(frozen=True)
class ByteMLSTMConfig(EncoderSettings):
    """A multiplicative LSTM over bytes, trained as a language model (Radford et al. 2017).

    It reads the bytes of the words instead of their vectors, so `embedding_dim` can be 1.
    """

    hidden_dim: int = setting(1024, low=1, high=WIDEST)
    """Width D of the states."""
    byte_dim: int = setting(64, low=1, high=WIDEST)
    """Width of the byte vectors."""
    probe: bool = field(default=True, kw_only=True)
    """Train the encoder as a language model only. If false, the gradients of the head reach it
    too."""
    kind: str = kind_of("byte_mlstm")


# encoders that follow trees of the data, and fixed trees


@dataclass(frozen=True)
class LevelTreeConfig(EncoderSettings):
    """Gold trees, composed level by level."""

    leaf: Any = part(LEAVES, "lstm")
    """Leaf transformation; see `TreeSettings`."""
    cell: Any = part(CELLS, "treelstm")
    """Composition cell; see `TreeSettings`."""
    kind: str = kind_of("level_tree")


@dataclass(frozen=True)
class ConstituencyConfig(EncoderSettings):
    """The constituency Tree-LSTM (Tai et al. 2015)."""

    kind: str = kind_of("constituency")


@dataclass(frozen=True)
class DropoutConstituencyConfig(EncoderSettings):
    """The constituency Tree-LSTM with recurrent dropout (Looks et al. 2017)."""

    dropout: float = setting(0.25, low=0, high=0.99)
    """Dropout on the candidate of each node."""
    kind: str = kind_of("constituency_dropout")


@dataclass(frozen=True)
class RNTNConfig(EncoderSettings):
    """The recursive neural tensor network (Socher et al. 2013); both widths must be equal."""

    kind: str = kind_of("rntn")


@dataclass(frozen=True)
class NTIConfig(EncoderSettings):
    """The neural tree indexer, a full binary tree (Munkhdalai and Yu 2017)."""

    dropout: float = setting(0.0, low=0, high=0.99)
    """Dropout on the inputs of the LSTM and of every node."""
    least_leaves: int = setting(1, low=1, high=2**16)
    """Minimum number of leaves, a power of two; shorter sentences are padded to it."""
    kind: str = kind_of("nti")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.least_leaves & (self.least_leaves - 1):
            raise ValueError(
                f"`encoder.least_leaves` must be a power of two, got {self.least_leaves}; use "
                f"{1 << self.least_leaves.bit_length()}"
            )


@dataclass(frozen=True)
class SpinnConfig(EncoderSettings):
    """Shift-reduce along the trees of the data, or learned from them (Bowman et al. 2016)."""

    tracker: int = setting(61, low=0, high=WIDEST)
    """Width of the LSTM that reads the stack and takes part in the composition; 0 for none."""
    parses: bool = False
    """Learn to parse from the trees of the training data, and build own trees after training. If
    false, every text needs a tree, also after training."""
    dropout: float = setting(0.0, low=0, high=1)
    """Dropout of the states of the words, after their batch normalisation."""
    impl: str = setting("auto", choices=STACK_IMPLS)
    """Backward pass written by hand, with PyTorch operations (exact) or, inside CUDA graphs, with
    Triton kernels (fused), or autograd, which is slower (reference); auto: fused where it can run,
    else exact."""
    kind: str = kind_of("spinn")


# encoders that find their own trees


@dataclass(frozen=True)
class LatentSyntaxConfig(EncoderSettings):
    """Shift-reduce with actions learned by policy gradients (Yogatama et al. 2017)."""

    leaf: Any = part(LEAVES, "affine")
    """Leaf transformation."""
    tracker: int = setting(0, low=0, high=WIDEST)
    """Width of an LSTM that reads the stack, chooses the actions and takes part in the composition;
    0 for none."""
    estimator: Any = part(ESTIMATORS, "reinforce")
    """Gradient estimator of the actions: reinforce or ppo."""
    impl: str = setting("auto", choices=STACK_IMPLS)
    """Backward pass written by hand, with PyTorch operations (exact) or, inside CUDA graphs, with
    Triton kernels (fused; not with a tracker), or autograd, which is slower (reference); auto:
    fused where it can run, else exact."""
    kind: str = kind_of("latent_syntax")


@dataclass(frozen=True)
class CYKConfig(EncoderSettings):
    """A Tree-LSTM over all trees at once (Maillard et al. 2017)."""

    sharpening: float = setting(100.0, low=0)
    """Increase of the inverse temperature per epoch; it begins with 1."""
    refresh: int = setting(500, low=1)
    """Steps between updates of the inverse temperature in training."""
    impl: str = setting("auto", choices=CHART_IMPLS)
    """PyTorch operations (exact) or Triton kernels (fused); auto: fused where it can run."""
    kind: str = kind_of("cyk")


# heads


@dataclass(frozen=True)
class MaxoutConfig(ClassLossSettings, LabelSettings):
    """A classifier of sentence vectors with maxout layers (McCann et al. 2017)."""

    kind: str = "single_maxout"
    """Classifies single sentences."""
    hidden_dims: tuple[int, ...] = setting((1200, 600), low=1, high=WIDEST)
    """Width of each hidden layer; the output is a further maxout layer."""
    pieces: int = setting(4, low=1, high=1000)
    """Linear maps of which each layer takes the maximum."""
    batch_norm: bool = False
    """Batch normalisation of the input of every layer."""
    dropouts: tuple[float, ...] = setting((0.1, 0.2, 0.3), low=0, high=1)
    """Dropout of the input of each layer, after the batch normalisation; one value per layer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        layers = len(self.hidden_dims) + 1
        if len(self.dropouts) != layers:
            raise ValueError(
                f"`head.dropouts` must have one value for each of the {layers} layers, got "
                f"{list(self.dropouts)}; the last layer is the output"
            )


@dataclass(frozen=True)
class NodesConfig(Settings):
    """A classifier of every node of gold trees, a linear layer; it predicts the root."""

    labels: tuple[str, ...] = LABELS_FROM_DATA
    """Names of the classes, in the order of the outputs; "?" takes them from the training data."""
    dropout: float = setting(0.0, low=0, high=1)
    """Dropout on the states that the linear layer reads."""
    other_class: bool = False
    """Learn one more class for nodes whose label is not a class, such as neutral nodes in sst2. It
    is never predicted. If false, these nodes have no loss."""
    loss_scale: float = setting(1.0, low=0)
    """Factor of the loss in training, a sum over the nodes of a tree and a mean over the trees."""
    negative: tuple[str, ...] | None = None
    """Classes of one side; with `positive`, evaluations include the accuracy of the side with the
    higher total probability, over the examples of either side."""
    positive: tuple[str, ...] | None = None
    """Classes of the other side."""
    kind: str = kind_of("nodes")

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.negative is None) != (self.positive is None):
            raise ValueError(
                "`head.negative` and `head.positive` belong together: "
                f"got {self.negative!r} and {self.positive!r}; set both or neither"
            )


@dataclass(frozen=True)
class MergesConfig(Settings):
    """A parser: the tree of a sentence is the prediction."""

    words: int = setting(256, low=2, high=2**16)
    """Maximum number of words per sentence, at least `model.max_words`."""
    kind: str = kind_of("merges")
