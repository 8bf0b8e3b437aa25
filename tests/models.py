"""Tiny models for tests: a few words, a few units, weights large enough for trees to differ."""

from collections.abc import Generator
from typing import Any

import pytest
import torch

from gumbeltree.config import EmbeddingConfig, EncoderSettings, ModelConfig
from gumbeltree.layout import Sentences
from gumbeltree.model import SentenceModel
from gumbeltree.ops.merge import IMPLEMENTATIONS
from gumbeltree.parts import ENCODERS, HEADS
from gumbeltree.settings import part_settings
from gumbeltree.text.tokenizer import whitespace_tokenizer

# interpreted kernels take minutes here; tests/ops/test_fused.py has short cases of its own
IMPLS = [
    pytest.param(name, marks=pytest.mark.slow) if name == "fused" else name
    for name in IMPLEMENTATIONS
]

WORDS = ["the", "dog", "that", "barked", "all", "night", "sleeps", "now", "not", "one", "."]

# lengths 1, 8, 3, 1, 5, 2, with out-of-vocabulary words, not sorted by length
TEXTS = [
    "now",
    "the dog that barked all night sleeps .",
    "not one cat",
    "zebra",
    "the dog sleeps now .",
    "one dog",
]


def ids_of(sentences: Sentences) -> list[list[int]]:
    """Return the ids of each sentence, in the caller's order."""
    padded = sentences.layout.unpack(sentences.words)
    lengths = sentences.layout.own_lengths().tolist()
    return [row[:length] for row, length in zip(padded.tolist(), lengths, strict=True)]


def encoder_settings(**settings: object) -> EncoderSettings:
    """Return the settings of an encoder with 5D words and 6D states; `trees` names fixed trees.

    `encoder` is its kind, as is `kind`, which the functions below use for the head.
    """
    if "encoder" in settings:
        settings["kind"] = settings.pop("encoder")
    if settings.get("trees") == "learned":
        del settings["trees"]
    if "trees" in settings:
        settings["kind"] = "fixed_tree"
    sizes = {"embedding_dim": 5, "hidden_dim": 6, **settings}
    return part_settings(ENCODERS, "gumbel_tree", sizes, "encoder")


def tiny_config(kind: str = "pair", **encoder: object) -> ModelConfig:
    """Return the settings of a model with 5D words and 6D states; `encoder` replaces some."""
    labels = ("neutral", "entailment", "contradiction") if kind == "pair" else ("bad", "good")
    own: dict[str, object] = {
        "": {"labels": labels},
        "number": {"mean": 2.5, "deviation": 1.5},
        "bins": {"low": 1.0, "high": 5.0},
        "tags": {"tags": ("plot", "music", "cast")},
        "maxout": {"labels": labels},
    }[kind.partition("_")[2]]
    sizes = {"hidden_dim": 7, "hidden_layers": 2, "batch_norm": True, "dropout": 0.3}
    if kind == "similarity":
        own, sizes = {}, {"scale": 20.0}
    if kind == "single_maxout":
        sizes = {"hidden_dims": [7, 5], "batch_norm": True, "dropouts": [0.3, 0.3, 0.3]}
    head = part_settings(HEADS, kind, {"kind": kind, **own, **sizes}, "head")
    return ModelConfig(encoder_settings(**encoder), head, EmbeddingConfig(dropout=0.3, tuned=True))


def tiny_model(kind: str = "pair", lower: bool = False, **encoder: object) -> SentenceModel:
    """Return a model in evaluation mode, every weight and running statistic random."""
    generator = torch.Generator().manual_seed(23)
    model = SentenceModel(tiny_config(kind, **encoder), whitespace_tokenizer(WORDS, lower))
    with torch.no_grad():
        for name, x in [*model.named_parameters(), *model.named_buffers()]:
            if name.endswith("running_var"):
                x.copy_(torch.rand(x.shape, generator=generator) * 0.1 + 0.05)
            elif x.is_floating_point():
                # small biases in the head, so that the classes depend on the sentences
                small = name.startswith("head") and name.endswith(("bias", "mean"))
                x.copy_(torch.randn(x.shape, generator=generator) * (0.1 if small else 0.7))
    return model.eval()


def finished(steps: Generator[None, None, Any]) -> Any:
    """Run a generator to its end and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
