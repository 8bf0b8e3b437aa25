"""Read the weights of a model folder, convert their dtype and check that they match the model."""

import math
from pathlib import Path

import safetensors
import torch
from safetensors.torch import load_file
from torch import Tensor

from gumbeltree.fit import FULL, Stored, check_stored, damaged, model_dtype, not_finite
from gumbeltree.store import WORD_VECTORS


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read a file of weights."""
    try:
        return load_file(path)
    except safetensors.SafetensorError as error:
        raise damaged(path, error) from error


def halved(vectors: Tensor) -> Tensor:
    """Round word vectors to float16; raise if they are out of range."""
    if _stored(vectors).dtype not in FULL:
        raise ValueError(
            f"`half_embeddings` needs a model in float32, got {_stored(vectors).dtype}; call "
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
    dtype: torch.dtype = getattr(
        torch, model_dtype({name: _stored(x) for name, x in weights.items()}, path)
    )
    if WORD_VECTORS in weights:
        weights[WORD_VECTORS] = weights[WORD_VECTORS].to(dtype)
    return dtype


def check_fit(expected: dict[str, Tensor], found: dict[str, Tensor], source: str) -> None:
    """Raise unless weights are finite and have the expected names, shapes and dtypes."""
    expected_stored, found_stored = (
        {name: _stored(x) for name, x in weights.items()} for weights in (expected, found)
    )
    check_stored(expected_stored, found_stored, source)
    for name, x in found.items():
        # a finite sum implies finite values and is faster to compute
        if not math.isfinite(x.sum()) and not bool(x.isfinite().all()):
            raise not_finite(source, name)


def _stored(x: Tensor) -> Stored:
    return Stored(tuple(x.shape), str(x.dtype).removeprefix("torch."))
