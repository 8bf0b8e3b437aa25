"""Write a matrix to a file block by block, without knowing the number of rows in advance."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from gumbeltree.atomic import replace_file

SAFETENSORS_HEADER = 248
"""Size of the JSON header in bytes, padded with spaces."""
NAME = "vectors"
"""Name of the matrix in a safetensors file."""


def write_rows(path: Path, width: int, blocks: Iterable[NDArray[np.float32]]) -> int:
    """Write blocks `[n, width]` to one .npy or .safetensors file, and return the number of rows.

    The file appears when it is complete. Only one block is held in memory: the header is written
    first for zero rows, then again once their number is known.
    """
    write_header = writer_for(path)
    rows = 0

    def write(temporary: Path) -> None:
        nonlocal rows
        with temporary.open("wb") as file:
            write_header(file, 0, width)
            for block in blocks:
                file.write(np.ascontiguousarray(block, dtype="<f4").data)
                rows += len(block)
            file.seek(0)
            write_header(file, rows, width)

    replace_file(path, write)
    return rows


def writer_for(path: Path) -> Callable[[BinaryIO, int, int], None]:
    """Return the function that writes the header, by the file's suffix."""
    writers = {".npy": _npy_header, ".safetensors": _safetensors_header}
    if path.suffix not in writers:
        raise ValueError(
            f"vectors are written to .npy or .safetensors files, got {path.name!r}; pass a name "
            "like vectors.npy"
        )
    return writers[path.suffix]


def _npy_header(file: BinaryIO, rows: int, width: int) -> None:
    # NumPy pads the header, so that its size does not depend on the number of rows
    header = {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
    np.lib.format.write_array_header_1_0(file, header)


def _safetensors_header(file: BinaryIO, rows: int, width: int) -> None:
    tensor = {"dtype": "F32", "shape": [rows, width], "data_offsets": [0, rows * width * 4]}
    header = json.dumps({NAME: tensor}).encode().ljust(SAFETENSORS_HEADER)
    file.write(len(header).to_bytes(8, "little") + header)
