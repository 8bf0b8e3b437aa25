"""Weights of a model folder: number types, and whether they fit."""

from collections import Counter
from pathlib import Path

import safetensors
import torch
from safetensors.torch import load_file
from torch import Tensor

from gumbeltree.store import WORD_VECTORS

TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
"""Number types that a whole model may have."""
FULL = (torch.float32, torch.float64)
"""Those beside which word vectors may be in float16."""


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read a file of weights."""
    try:
        return load_file(path)
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is damaged or cut short: {error}") from error


def halved(vectors: Tensor) -> Tensor:
    """Return word vectors in float16, or refuse what that cannot hold."""
    if vectors.dtype not in FULL:
        raise ValueError(
            f"`half_embeddings` needs a model in float32, got {_kind(vectors.dtype)}; call "
            "model.float() first, or save it as it is"
        )
    half = vectors.half()
    if not bool(half.isfinite().all()):
        raise ValueError(
            "`half_embeddings` needs word vectors within -65,504..65,504, got "
            f"{vectors.min():.4g}..{vectors.max():.4g}; save them as they are"
        )
    return half


def restored(weights: dict[str, Tensor], path: Path) -> torch.dtype:
    """Return the number type of a model; word vectors saved in float16 get it back, in place."""
    rest = [x for name, x in weights.items() if name != WORD_VECTORS]
    others = Counter(x.dtype for x in rest if x.is_floating_point())
    others = others or Counter(x.dtype for x in rest)
    if WORD_VECTORS not in weights or not others:
        # what is missing is named with all else that does not fit
        return torch.float32
    vectors, ((other, _),) = weights[WORD_VECTORS], others.most_common(1)
    if vectors.dtype == torch.float16 and other in FULL:
        weights[WORD_VECTORS] = vectors.to(other)
    elif vectors.dtype != other or other not in TYPES:
        raise ValueError(
            f"{path}: expected word vectors in float32 or float16 and all else in float32, got "
            f"{WORD_VECTORS} in {_kind(vectors.dtype)} and the others in {_kind(other)}; save the "
            "model anew with gumbeltree.save"
        )
    return other


def check_fit(expected: dict[str, Tensor], found: dict[str, Tensor], source: str) -> None:
    """Raise unless both hold the same names with the same shapes and types."""

    def show(x: Tensor | None) -> str:
        return (
            "nothing" if x is None else f"{list(x.shape)} {x.dtype}".removesuffix(" torch.float32")
        )

    names = sorted(expected.keys() | found.keys())
    rows = [(name, show(expected.get(name)), show(found.get(name))) for name in names]
    wrong = [f"{name}: expected {a}, found {b}" for name, a, b in rows if a != b]
    if wrong:
        raise ValueError(f"the weights in {source} do not fit the model: {'; '.join(wrong[:5])}")


def _kind(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
