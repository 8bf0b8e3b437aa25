"""Settings as frozen dataclasses, read strictly from TOML and JSON."""

import dataclasses
import json
import tomllib
import types
import typing
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Self

from gumbeltree.registry import UnknownNameError, suggest

VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {"score": "dot", "cell_init": "he"},
    "reference": {"score": "scaled_dot", "cell_init": "orthogonal"},
}
"""The two models under one name: as published, and the authors' last version. Where print and the
code of the time disagree (forget gates, leaf LSTM), both variants follow the code."""

CHOICES: dict[str, tuple[str, ...]] = {
    "leaf": ("affine", "lstm", "bilstm"),
    "leaf_init": ("orthogonal", "he"),
    "cell_init": ("he", "orthogonal"),
    "score": ("dot", "scaled_dot"),
    "kind": ("pair", "single"),
}


@dataclass(frozen=True)
class EncoderConfig:
    """From word vectors to sentence vector and tree."""

    embedding_dim: int = 300
    """Width E of the word vectors."""
    hidden_dim: int = 300
    """Width D of the tree's states."""
    leaf: str = "lstm"
    """Leaf transformation: affine (Eq. 10), lstm (Eq. 13) or bilstm (D/2 a direction)."""
    leaf_init: str = "orthogonal"
    """Leaf LSTM's start: orthogonal W_hh, forget bias 1 (the authors' code), or he (printed)."""
    cell: str = "treelstm"
    """Composition cell."""
    cell_init: str = "he"
    """Start of the cell's weight: he (paper) or orthogonal (reference)."""
    forget_offset: float = 1.0
    """Added to the cell's forget gates before the sigmoid; printed as 0, 1 in all of the code."""
    score: str = "dot"
    """Validity score: dot, q.h (paper), or scaled_dot, q.h / sqrt(D) (reference)."""
    estimator: str = "st_gumbel"
    """How the choice of a merge is differentiated."""
    temperature: float = 1.0
    """Of the softmax in the backward pass."""
    attention: bool = False
    """Pool all tree nodes by attention instead of taking the root."""
    impl: str = "auto"
    """Implementation of the merge: auto, exact or reference."""

    def with_variant(self, variant: str) -> Self:
        """Return a copy with the fields of the variant `paper` or `reference`."""
        if variant not in VARIANTS:
            raise UnknownNameError(
                f"unknown variant {variant!r}; known: {', '.join(VARIANTS)}."
                f"{suggest(variant, list(VARIANTS))}"
            )
        return dataclasses.replace(self, **VARIANTS[variant])


@dataclass(frozen=True)
class HeadConfig:
    """From sentence vectors to classes."""

    kind: str = "pair"
    """pair: two sentences, [u; v; |u-v|; u*v] (Eqs. 14-16); single: one (Eqs. 17-18)."""
    labels: tuple[str, ...] = ("neutral", "entailment", "contradiction")
    """Names of the classes, in the order of the outputs."""
    hidden_dim: int = 1024
    """Width of each hidden layer."""
    hidden_layers: int = 1
    """Number of hidden layers, each linear and ReLU."""
    batch_norm: bool = False
    """Batch normalisation before the MLP's input and after its output."""
    dropout: float = 0.0
    """On the MLP's input and output, behind the batch normalisation."""
    output_range: float = 0.005
    """The last layer's weights start uniform within plus and minus this."""


@dataclass(frozen=True)
class EmbeddingConfig:
    """From ids to word vectors."""

    dropout: float = 0.0
    """On the word vectors, element by element."""
    tuned: bool = False
    """Whether training changes the word vectors."""


@dataclass(frozen=True)
class ModelConfig:
    """A whole model: embedding, encoder and head."""

    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    head: HeadConfig = field(default_factory=HeadConfig)
    embedding: EmbeddingConfig = field(default_factory=EmbeddingConfig)


@dataclass(frozen=True)
class Recipe:
    """A published model by name."""

    description: str
    """One line: which number of the paper this is."""
    model: ModelConfig


def from_dict(cls: type[Any], data: Any, path: str = "") -> Any:
    """Build the dataclass `cls` from a dict; name unknown keys and wrong types by dotted path."""
    if not isinstance(data, dict):
        raise ValueError(f"`{path}` must be a table of settings, got {data!r}")
    fields = typing.get_type_hints(cls)
    values = {}
    for key, value in data.items():
        dotted = f"{path}.{key}" if path else key
        if key not in fields:
            raise ValueError(
                f"unknown key '{dotted}'; known: {', '.join(fields)}.{suggest(key, list(fields))}"
            )
        values[key] = _convert(fields[key], value, dotted)
    missing = [
        f.name
        for f in dataclasses.fields(cls)
        if f.name not in values
        and f.default is dataclasses.MISSING
        and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ValueError(f"`{path or cls.__name__}` lacks {', '.join(missing)}")
    return cls(**values)


def _convert(kind: Any, value: Any, path: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return from_dict(typing.cast("type[Any]", kind), value, path)
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, list | tuple) or not all(isinstance(x, str) for x in value):
            raise ValueError(f"`{path}` must be a list of strings, got {value!r}")
        return tuple(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise ValueError(f"`{path}` must be {_name(kind)}, got {value!r}")
    choices = CHOICES.get(path.rsplit(".", 1)[-1])
    if choices is not None and value not in choices:
        raise ValueError(
            f"`{path}` must be one of {', '.join(choices)}, got {value!r}."
            f"{suggest(str(value), list(choices))}"
        )
    return value


def _name(kind: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}
    return names.get(kind, str(kind) if isinstance(kind, types.UnionType) else repr(kind))


def recipe_names() -> list[str]:
    """Return the names of all recipes in the package."""
    folder = resources.files("gumbeltree") / "recipes"
    return sorted(
        f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml")
    )


def load_recipe(name: str) -> Recipe:
    """Read a recipe by its name in the package or by the path of a TOML file."""
    if name.endswith(".toml"):
        text = Path(name).read_text(encoding="utf-8")
    elif name in recipe_names():
        text = (resources.files("gumbeltree") / "recipes" / f"{name}.toml").read_text("utf-8")
    else:
        known = recipe_names()
        raise UnknownNameError(
            f"unknown recipe {name!r}; known: {', '.join(known)}.{suggest(name, known)}"
        )
    recipe: Recipe = from_dict(Recipe, tomllib.loads(text))
    return recipe


def to_json(config: Any) -> str:
    """Return a dataclass as JSON text."""
    return json.dumps(dataclasses.asdict(config), indent=2, ensure_ascii=False)
