"""Settings of the systems that the paper compares itself with in Tables 1 and 2."""

from dataclasses import dataclass

from gumbeltree.config import WIDEST, ClassLossSettings, EncoderSettings, LabelSettings
from gumbeltree.settings import kind_of, setting

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


# encoders that follow trees of the data, and fixed trees

# encoders that find their own trees

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
