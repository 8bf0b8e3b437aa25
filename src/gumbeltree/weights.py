"""Read the weights of a model folder, convert their dtype and check that they match the model."""

import math
from collections import Counter
from pathlib import Path

import safetensors
import torch
from safetensors.torch import load_file
from torch import Tensor

from gumbeltree.store import WORD_VECTORS

TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
"""Supported dtypes of models."""
FULL = (torch.float32, torch.float64)
"""Dtypes of models whose word vectors may be saved as float16."""


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read a file of weights."""
    try:
        return load_file(path)
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is damaged or truncated: {error}") from error


def halved(vectors: Tensor) -> Tensor:
    """Round word vectors to float16; raise if they are out of range."""
    if vectors.dtype not in FULL:
        raise ValueError(
            f"`half_embeddings` needs a model in float32, got {_name(vectors.dtype)}; call "
            "model.float() first, or save without it"
        )
    half = vectors.half()
    if not bool(half.isfinite().all()):
        raise ValueError(
            "`half_embeddings` needs word vectors within -65,504..65,504, got "
            f"{vectors.min():.4g}..{vectors.max():.4g}; save without it"
        )
    return half


def restored(weights: dict[str, Tensor], path: Path) -> torch.dtype:
    """Return the dtype of a model, and convert word vectors saved as float16 to it."""
    rest = [x for name, x in weights.items() if name != WORD_VECTORS]
    others = Counter(x.dtype for x in rest if x.is_floating_point())
    others = others or Counter(x.dtype for x in rest)
    if WORD_VECTORS not in weights or not others:
        # `check_fit` reports what is missing
        return torch.float32
    vectors, ((other, _),) = weights[WORD_VECTORS], others.most_common(1)
    if vectors.dtype == torch.float16 and other in FULL:
        weights[WORD_VECTORS] = vectors.to(other)
    elif vectors.dtype != other or other not in TYPES:
        raise ValueError(
            f"{path}: {WORD_VECTORS} is {_name(vectors.dtype)} and the other weights are "
            f"{_name(other)}; save the model again with gumbeltree.save"
        )
    return other


def check_fit(expected: dict[str, Tensor], found: dict[str, Tensor], source: str) -> None:
    """Raise unless weights are finite and have the expected names, shapes and types."""

    def show(x: Tensor | None) -> str:
        return (
            "nothing" if x is None else f"{list(x.shape)} {x.dtype}".removesuffix(" torch.float32")
        )

    names = sorted(expected.keys() | found.keys())
    rows = [(name, show(expected.get(name)), show(found.get(name))) for name in names]
    wrong = [f"{name}: expected {a}, found {b}" for name, a, b in rows if a != b]
    if wrong:
        raise ValueError(f"the weights in {source} do not match the model: {'; '.join(wrong[:5])}")
    for name, x in found.items():
        # a finite sum implies finite values and is faster to compute
        if not math.isfinite(x.sum()) and not bool(x.isfinite().all()):
            raise ValueError(
                f"{source}: {name} contains NaN or infinite values; retrain the model with a lower "
                "learning rate"
            )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
