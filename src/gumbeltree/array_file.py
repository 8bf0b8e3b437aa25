"""Write a matrix to a file row by row, when the number of rows is known only at the end."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from gumbeltree.atomic import replace_file

SAFETENSORS_HEADER = 248
"""Bytes of the JSON header, spaces behind it included."""
NAME = "vectors"
"""Name of the matrix in a safetensors file."""


def write_rows(path: Path, width: int, blocks: Iterable[NDArray[np.float32]]) -> int:
    """Write float32 `[N, width]` to a .npy or .safetensors file, whole or not at all.

    A header for no rows comes first and is written over in the end, so that nothing but a block is
    ever held in memory.

    Args:
        path: where to; its end says what kind of file.
        width: columns.
        blocks: rows `[n, width]`, some at a time.

    Returns:
        The number of rows N.
    """
    write_header = writer_for(path)
    rows = 0

    def write(temporary: Path) -> None:
        nonlocal rows
        with temporary.open("wb") as file:
            write_header(file, 0, width)
            start = file.tell()
            for block in blocks:
                file.write(np.ascontiguousarray(block, dtype="<f4").data)
                rows += len(block)
            file.seek(0)
            write_header(file, rows, width)
            if file.tell() != start:
                raise RuntimeError(
                    f"the header for {rows} rows is {file.tell()} bytes, not {start}"
                )

    replace_file(path, write)
    return rows


def writer_for(path: Path) -> Callable[[BinaryIO, int, int], None]:
    """Return what writes the header of a file, by its suffix; refuse other suffixes."""
    writers = {".npy": _npy_header, ".safetensors": _safetensors_header}
    if path.suffix not in writers:
        raise ValueError(
            f"vectors are written to .npy or .safetensors files, got {path.name!r}; pass such as "
            "vectors.npy"
        )
    return writers[path.suffix]


def _npy_header(file: BinaryIO, rows: int, width: int) -> None:
    # numpy leaves room for the first axis to grow
    about = {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
    np.lib.format.write_array_header_1_0(file, about)


def _safetensors_header(file: BinaryIO, rows: int, width: int) -> None:
    about = {"dtype": "F32", "shape": [rows, width], "data_offsets": [0, rows * width * 4]}
    header = json.dumps({NAME: about}).encode().ljust(SAFETENSORS_HEADER)
    file.write(len(header).to_bytes(8, "little") + header)
