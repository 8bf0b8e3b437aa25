"""Write a matrix to a file block by block, without knowing the number of rows in advance."""

from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from gumbeltree.atomic import replace_file


def write_rows(path: Path, width: int, blocks: Iterable[NDArray[np.float32]]) -> int:
    """Write blocks `[n, width]` to one .npy file, and return the number of rows.

    The file appears only once it is complete. One block at a time is held in memory: the header
    is first written for zero rows, and rewritten once the number of rows is known.
    """
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


def write_header(file: BinaryIO, rows: int, width: int) -> None:
    """Write the header of a matrix; NumPy pads it, so that its size does not depend on `rows`."""
    header = {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
    np.lib.format.write_array_header_1_0(file, header)
