"""Read the weights of a model folder as NumPy arrays, and check that they match the model."""

from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from numpy.typing import NDArray

from gumbeltree.fit import Stored, check_stored, damaged, model_dtype, not_finite
from gumbeltree.light.arrays import Array, Shapes, Weights
from gumbeltree.store import WORD_VECTORS

DTYPES = {
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{"BF16": "bfloat16", "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn"},
}
"""Names of the dtypes in a file."""


def read_weights(
    path: Path, shapes: Shapes, unused: Container[str] = ()
) -> tuple[dict[str, Array], str]:
    """Read the weights of a model, in float64 if they are stored so, otherwise in float32.

    Word vectors stored as float16 stay so, since only those of a few words are needed at a time.

    Args:
        path: a file of weights.
        shapes: names and shapes of the weights that the model needs.
        unused: names of further weights that the file may contain.

    Returns:
        The weights by name, and the dtype of the model in the file.

    Raises:
        ValueError: If the file is damaged, or does not match the model, or a weight is not finite.
    """
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            found = {}
            for name in file.keys():  # noqa: SIM118
                if name in unused:
                    continue
                part = file.get_slice(name)
                kind = part.get_dtype()
                found[name] = Stored(tuple(part.get_shape()), DTYPES.get(kind, kind.lower()))
            dtype = model_dtype(found, path)
            check_stored(_expected(shapes, found, dtype), found, str(path))
            if dtype == "bfloat16":
                weights = _widened(path)
            else:
                weights = {name: file.get_tensor(name) for name in found}
    except safetensors.SafetensorError as error:
        raise damaged(path, error) from error
    for name, x in weights.items():
        if not np.isfinite(x).all():
            raise not_finite(str(path), name)
        if x.dtype == np.float16 and name != WORD_VECTORS:
            weights[name] = x.astype(np.float32)
    return weights, dtype


def weight_bytes(weights: Weights, dtype: str) -> Iterator[tuple[str, str, NDArray[np.uint8]]]:
    """Yield the bytes of each weight as a torch model holds them; see `TextModel.weight_bytes`.

    Args:
        weights: weights returned by `read_weights`.
        dtype: dtype of the model in its file. A torch model keeps it and converts word vectors
            stored as float16 to it.
    """
    for name, x in sorted(weights.items()):
        kind = dtype if x.dtype.kind == "f" else str(x.dtype)
        if kind == "bfloat16":
            # the upper half of a float32
            stored = (np.ascontiguousarray(x).view(np.uint32) >> 16).astype(np.uint16)
        else:
            stored = np.ascontiguousarray(x, kind)
        yield name, f"{kind} {list(x.shape)}", stored.reshape(-1).view(np.uint8)


def _expected(shapes: Shapes, found: Mapping[str, Stored], dtype: str) -> dict[str, Stored]:
    """Return what a file of a model with this dtype contains."""
    expected = {}
    for name, shape in shapes.items():
        stored = Stored(shape, "int64" if name.endswith("num_batches_tracked") else dtype)
        if name == WORD_VECTORS and name in found:
            # `model_dtype` has checked it
            stored = Stored(shape, found[name].dtype)
        expected[name] = stored
    return expected


def _widened(path: Path) -> dict[str, NDArray[Any]]:
    """Read bfloat16 weights as float32, which NumPy has no type for."""
    weights: dict[str, NDArray[Any]] = {}
    for name, part in safetensors.deserialize(path.read_bytes()):
        if part["dtype"] == "BF16":
            # the upper half of a float32
            bits = np.frombuffer(part["data"], "<u2").astype(np.uint32) << 16
            x = bits.view(np.float32)
        else:
            x = np.frombuffer(part["data"], DTYPES[part["dtype"]])
        weights[name] = x.reshape(part["shape"])
    return weights
