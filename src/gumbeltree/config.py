"""The settings of everything, recipes, and `--set`."""

import dataclasses
import json
import math
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Self

from gumbeltree.migrate import ONLY_FIRST, current_recipe, current_setting
from gumbeltree.parts import CELLS, ENCODERS, ESTIMATORS, HEADS, LEAVES
from gumbeltree.registry import UnknownNameError, suggest
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
"""Score and start of the cell in the two models under one name: as published, and the authors' last
version. Where print and the code of the time disagree (forget gates, leaf LSTM), both variants
follow the code."""

WIDEST = 2**20
"""No width is larger: a weight of that size would need terabytes."""


@dataclass(frozen=True)
class TreeLSTMConfig(Settings):
    """The binary Tree-LSTM cell."""

    init: str = setting("he", choices=("he", "orthogonal"))
    """Start of its weight: he (paper) or orthogonal (reference)."""
    forget_offset: float = setting(1.0, low=-math.inf)
    """Added to the forget gates before the sigmoid; printed as 0, 1 in all of the code."""
    kind: str = kind_of("treelstm")


@dataclass(frozen=True)
class AffineLeafConfig(Settings):
    """Each word by itself (Eq. 10)."""

    kind: str = kind_of("affine")


@dataclass(frozen=True)
class LSTMLeafConfig(Settings):
    """Each word with what stands before it (Eq. 13)."""

    init: str = setting("orthogonal", choices=("orthogonal", "he"))
    """Its start: orthogonal W_hh, forget bias 1 (the authors' code), or he (printed)."""
    kind: str = kind_of("lstm")


@dataclass(frozen=True)
class BidirectionalLSTMLeafConfig(LSTMLeafConfig):
    """Each word with what stands on both sides of it, D/2 a direction."""

    kind: str = kind_of("bilstm")


@dataclass(frozen=True)
class StraightThroughConfig(PartConfig):
    """One-hot forward, softmax backward (Eqs. 8, 9, S11)."""

    kind: str = kind_of("st_gumbel")


@dataclass(frozen=True)
class SoftConfig(PartConfig):
    """A mixture of all candidates, forward and backward (Eq. 8)."""

    kind: str = kind_of("soft")


@dataclass(frozen=True)
class EncoderSettings(Settings):
    """What all encoders have: from word vectors to sentence vectors."""

    embedding_dim: int = setting(300, low=1, high=WIDEST)
    """Width E of the word vectors."""
    hidden_dim: int = setting(300, low=1, high=WIDEST)
    """Width D of the states."""
    kind: str = kind_of("")
    """Which encoder this is."""


@dataclass(frozen=True)
class TreeSettings(EncoderSettings):
    """What all encoders have that merge words into a tree."""

    leaf: Any = part(LEAVES, "lstm")
    """Leaf transformation: affine (Eq. 10), lstm (Eq. 13) or bilstm."""
    cell: Any = part(CELLS, "treelstm")
    """Composition cell."""
    attention: bool = False
    """Pool all tree nodes by attention instead of taking the root."""
    impl: str = "auto"
    """Implementation of the merge: auto, fused, exact or reference."""


@dataclass(frozen=True)
class EncoderConfig(TreeSettings):
    """The paper's encoder, which learns its trees."""

    score: str = setting("dot", choices=("dot", "scaled_dot"))
    """Validity score: dot, q.h (paper), or scaled_dot, q.h / sqrt(D) (reference)."""
    estimator: Any = part(ESTIMATORS, "st_gumbel")
    """How the choice of a merge is differentiated."""
    temperature: float = 1.0
    """Of the softmax in the backward pass."""
    kind: str = kind_of("gumbel_tree")

    def with_variant(self, variant: str) -> Self:
        """Return a copy with the fields of the variant `paper` or `reference`."""
        if variant not in VARIANTS:
            raise UnknownNameError(
                f"unknown variant {variant!r}; known: {', '.join(VARIANTS)}."
                f"{suggest(variant, list(VARIANTS))}"
            )
        fields = VARIANTS[variant]
        if not hasattr(self.cell, "init"):
            raise ValueError(
                f"a variant says how the cell starts, and the cell {self.cell.kind!r} has no "
                "`init`; take 'treelstm', or set `score` by itself"
            )
        cell = dataclasses.replace(self.cell, init=fields["init"])
        return dataclasses.replace(self, score=fields["score"], cell=cell)


@dataclass(frozen=True)
class FixedTreeConfig(TreeSettings):
    """Trees that do not depend on the words, to compare with learned ones."""

    trees: str = setting("balanced", choices=("left", "right", "balanced", "random"))
    """Left- and right-branching, balanced (each node split in half, the larger half on the left),
    or random (drawn anew at each reading in training, fixed for each length otherwise)."""
    kind: str = kind_of("fixed_tree")


@dataclass(frozen=True)
class BagConfig(EncoderSettings):
    """A bag of words."""

    kind: str = kind_of("bag")


@dataclass(frozen=True)
class LSTMConfig(EncoderSettings):
    """An LSTM without any merge."""

    init: str = setting("orthogonal", choices=("orthogonal", "he"))
    """Its start, see `LSTMLeafConfig`."""
    impl: str = setting("auto", choices=("auto", "fused", "exact", "reference"))
    """By kernels where they run (auto, fused), or by operations of torch (exact, reference)."""
    kind: str = kind_of("lstm")


@dataclass(frozen=True)
class HeadConfig(Settings):
    """From sentence vectors to classes."""

    kind: str = "pair"
    """pair: two sentences, [u; v; |u-v|; u*v] (Eqs. 14-16); single: one (Eqs. 17-18)."""
    labels: tuple[str, ...] = ("neutral", "entailment", "contradiction")
    """Names of the classes, in the order of the outputs."""
    hidden_dim: int = setting(1024, low=1, high=WIDEST)
    """Width of each hidden layer."""
    hidden_layers: int = setting(1, low=1, high=100)
    """Number of hidden layers, each linear and ReLU."""
    batch_norm: bool = False
    """Batch normalisation before the MLP's input and after its output."""
    dropout: float = setting(0.0, low=0, high=1)
    """On the MLP's input and output, behind the batch normalisation."""
    output_range: float = setting(0.005, low=0)
    """The last layer's weights start uniform within plus and minus this."""


@dataclass(frozen=True)
class EmbeddingConfig(Settings):
    """From ids to word vectors."""

    dropout: float = setting(0.0, low=0, high=1)
    """On the word vectors, element by element."""
    tuned: bool = False
    """Whether training changes the word vectors."""


@dataclass(frozen=True)
class ModelConfig(Settings):
    """A whole model: embedding, encoder and head."""

    encoder: Any = part(ENCODERS, "gumbel_tree")
    head: Any = part(HEADS, "pair")
    embedding: EmbeddingConfig = field(default_factory=EmbeddingConfig)
    max_words: int = setting(1024, low=1)
    """Longer sentences are cut to this many words, in training and in use; how many is reported."""


@dataclass(frozen=True)
class DataConfig(Settings):
    """From files to ids."""

    task: str = "table"
    """The reader of the files: snli, sst2, sst5, listops, sick, demo or table."""
    tokenizer: str = setting("treebank", choices=("treebank", "whitespace"))
    """How the model will split plain text; data sets that come in words keep their words."""
    lower: bool = True
    """Whether text is lower-cased."""
    vocabulary: str = setting("train", choices=("train", "all"))
    """Splits whose words get a word vector: train, or all, as the authors did for SST."""
    extra_words: int = setting(0, low=0, high=10_000_000)
    """Words from the start of the vector file that join the vocabulary, for text yet unseen."""
    missing_vectors: str = setting("zero", choices=("zero", "random", "parts"))
    """Words that the vector files lack: zero, random from N(0, 0.01^2), or parts: the mean of the
    vectors of their parts, between hyphens, slashes, full stops and apostrophes, if all have one,
    else zero."""
    pretokenized: bool = False
    """Whether the texts of a table are words separated by white space, to be split nowhere else."""
    quotes: bool = True
    """Whether double quotes enclose fields of a table, as in CSV; false: they are characters."""
    text: str = ""
    """Column of the text in a table."""
    text2: str = ""
    """Column of the second text of a pair in a table."""
    label: str = ""
    """Column of the label in a table."""
    dev_fraction: float = setting(0.0, low=0, high=0.9)
    """Share of the training file that becomes the development split where no file is given for it;
    0 asks for a file."""
    test_fraction: float = setting(0.0, low=0, high=0.9)
    """Share of the training file that becomes the test split where no file is given for it."""
    split_seed: int = setting(0, low=0)
    """Seed of that division, of generated data and of random word vectors; training's own seed
    changes none of these."""
    generate: int = setting(0, low=0, high=100_000_000)
    """Examples to generate where no training file is given (listops, demo)."""


@dataclass(frozen=True)
class TrainingConfig(Settings):
    """From a new model to a trained one."""

    optimizer: str = setting("adam", choices=("adam", "adadelta"))
    """adam, or adadelta with rho 0.9 and eps 1e-6."""
    learning_rate: float = setting(0.001, low=0)
    """At the start; halved as `patience` says."""
    batch_size: int = setting(128, low=1)
    """Examples a step, over all processes."""
    pool: int = setting(100, low=1)
    """Batches whose examples are sorted by length together, so that steps are short; 1: batches
    are shuffled and nothing else, as the authors' SNLI batches are."""
    epochs: int = setting(20, low=1)
    """The most passes over the training data."""
    clip: float = setting(5.0, low=0)
    """Largest norm of the gradient of all parameters; 0: not clipped."""
    evaluations: int = setting(10, low=1)
    """Evaluations on the development split an epoch."""
    patience: int = setting(10, low=0)
    """The learning rate is halved after more than this many evaluations without a better one."""
    stop_after: int = setting(0, low=0)
    """Training ends after this many evaluations without a better one; 0: only after `epochs`."""
    entropy: float = setting(0.0, low=0)
    """Weight of the entropy of sampled trees, to be kept high, for estimators that have its
    gradient from log-probabilities."""
    losses: dict[str, float] = field(default_factory=dict, hash=False)
    """Weights of losses that an encoder adds to the head's, by name; 1 for those not named here."""
    anneal_rate: float = setting(0.0, low=0)
    """Temperature max(0.5, exp(-rate * step)); 0: the model's own temperature throughout."""
    precision: str = setting("32", choices=("32", "tf32", "bf16", "64"))
    """32, tf32 (products on CUDA), bf16 (products; weights stay 32) or 64."""
    checkpoint_seconds: float = setting(60.0, low=0)
    """The state is saved at the first evaluation after so many seconds, and at the end."""
    seed: int = setting(0, low=0, high=2**31)
    """Every random choice of training follows from it; those of the data from `split_seed`."""


@dataclass(frozen=True)
class Recipe(Settings):
    """Everything that decides a result, by name."""

    description: str
    """One line: which number of the paper this is, or what it is for."""
    model: ModelConfig
    data: DataConfig = field(default_factory=DataConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)


PARTS = {
    "encoder": ENCODERS, "head": HEADS, "leaf": LEAVES, "cell": CELLS, "estimator": ESTIMATORS,
}  # fmt: skip
"""Tables of the parts that settings name."""


def recipe_names() -> list[str]:
    """Return the names of all recipes in the package."""
    folder = resources.files("gumbeltree") / "recipes"
    return sorted(
        f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml")
    )


def load_recipe(name: str | Path) -> Recipe:
    """Read a recipe by its name in the package or by the path of a TOML file."""
    if isinstance(name, Path) or name.endswith(".toml"):
        source, content = str(name), Path(name).read_bytes()
    elif name in recipe_names():
        source = f"recipe {name}"
        content = (resources.files("gumbeltree") / "recipes" / f"{name}.toml").read_bytes()
    else:
        known = recipe_names()
        raise UnknownNameError(
            f"unknown recipe {name!r}; known: {', '.join(known)}.{suggest(name, known)}"
        )
    try:
        recipe: Recipe = from_dict(Recipe, current_recipe(tomllib.loads(content.decode("utf-8"))))
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error
    return recipe


def with_settings(recipe: Recipe, settings: Iterable[str]) -> Recipe:
    """Return a copy with some values replaced.

    Args:
        recipe: what to change.
        settings: such as "training.batch_size=64"; the value is read as TOML, or as a string where
            it is none. The end of the name suffices where it is unique: "batch_size=64". The name
            of a part stands for its kind: "leaf=affine"; a part of another kind keeps the settings
            that both have.
    """
    data = dataclasses.asdict(recipe)
    # names of version 1 last: they mean what the encoder then is
    for given in sorted(settings, key=_is_of_version_1):
        name, equals, text = given.partition("=")
        if not equals or not name.strip():
            raise ValueError(
                f"`--set` takes key=value, got {given!r}; write such as training.batch_size=64"
            )
        for today, value in current_setting(name.strip(), text, data["model"]["encoder"]):
            _set(data, today, value, given)
            # another kind of a part has other settings
            data = dataclasses.asdict(from_dict(Recipe, data))
    changed: Recipe = from_dict(Recipe, data)
    return changed


def _is_of_version_1(given: str) -> bool:
    return given.partition("=")[0].rpartition(".")[2].strip() in ONLY_FIRST


def _set(data: dict[str, Any], name: str, text: str, given: str) -> None:
    """Set one value in nested tables; see `with_settings`."""
    keys = list(_leaves(data))
    matches = [key for key in keys if key == name or key.endswith("." + name)]
    matches = matches or [key for key in keys if f".{key}".endswith(f".{name}.kind")]
    prefix, named, loss = name.partition("losses.")
    if not matches and named and loss and prefix in ("", "training."):
        data["training"]["losses"][loss] = _value(text)
        return
    if not matches and name in ("losses", "training.losses"):
        data["training"]["losses"] = _value(text)
        return
    if len(matches) != 1:
        near = suggest(name, keys) or suggest(name, [key.rpartition(".")[2] for key in keys])
        raise ValueError(
            f"`{name}` is {' as well as '.join(matches)}; write the whole name"
            if matches
            else f"unknown key '{name}' in --set {given};{near or ' see `gumbeltree info`'}"
        )
    *path, last = matches[0].split(".")
    table = data
    for step in path:
        table = table[step]
    value = _value(text)
    if isinstance(table[last], str) and not isinstance(value, str):
        # a column may be called 0, and precision=64 is a name
        value = text.strip()
    if last == "kind" and path[-1] in PARTS:
        own = type(part_settings(PARTS[path[-1]], "", value, ".".join(path)))
        for key in list(table):
            try:
                from_dict(own, {key: table[key]})
            except ValueError:
                # another kind has no such setting, or means something else by it
                del table[key]
    table[last] = value


def _value(text: str) -> Any:
    """Return a value as TOML reads it, or a string where it is none."""
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
