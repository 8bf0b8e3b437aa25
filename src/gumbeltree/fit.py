"""Check that the weights in a file match a model: names, shapes and dtypes."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from gumbeltree.store import WORD_VECTORS

TYPES = ("float32", "float64", "float16", "bfloat16")
"""Supported dtypes of models."""
FULL = ("float32", "float64")
"""Dtypes of models whose word vectors may be saved as float16."""


class Stored(NamedTuple):
    """Shape and dtype of a weight."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{list(self.shape)} {self.dtype}".removesuffix(" float32")


def damaged(path: Path, error: Exception) -> ValueError:
    """Return the error for a file of weights that cannot be read."""
    return ValueError(f"{path} is damaged or truncated: {error}")


def not_finite(source: str, name: str) -> ValueError:
    """Return the error for a weight that contains NaN or infinity."""
    return ValueError(
        f"{source}: {name} contains NaN or infinite values; retrain the model with a lower "
        "learning rate"
    )


def model_dtype(found: Mapping[str, Stored], path: Path) -> str:
    """Return the dtype of a model; raise if the word vectors have an incompatible one."""
    rest = [x.dtype for name, x in found.items() if name != WORD_VECTORS]
    others = Counter(dtype for dtype in rest if "float" in dtype) or Counter(rest)
    if WORD_VECTORS not in found or not others:
        # `check_stored` reports what is missing
        return "float32"
    vectors, ((other, _),) = found[WORD_VECTORS].dtype, others.most_common(1)
    if (vectors, other) not in {("float16", full) for full in FULL} and (
        vectors != other or other not in TYPES
    ):
        raise ValueError(
            f"{path}: {WORD_VECTORS} is {vectors} and the other weights are {other}; save the "
            "model again with gumbeltree.save"
        )
    return other


def check_stored(expected: Mapping[str, Stored], found: Mapping[str, Stored], source: str) -> None:
    """Raise unless weights have the expected names, shapes and dtypes."""
    names = sorted(expected.keys() | found.keys())
    rows = [(name, expected.get(name, "nothing"), found.get(name, "nothing")) for name in names]
    wrong = [f"{name}: expected {a}, found {b}" for name, a, b in rows if a != b]
    if wrong:
        raise ValueError(f"the weights in {source} do not match the model: {'; '.join(wrong[:5])}")
