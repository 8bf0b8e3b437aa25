"""The files of an index of sentences: written all at once or not at all, opened without reading.

`vectors.npy` holds unit vectors, float32 `[N, D]`; `texts.txt` the texts, UTF-8, a line end after
each; `offsets.npy` where each of them starts and the last one ends, int64 `[N+1]`; `index.json`
what is known of them; `approximate.faiss` is there only if asked for.
"""

import dataclasses
import json
import math
import os
import shutil
import uuid
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gumbeltree import __version__
from gumbeltree.array_file import write_rows
from gumbeltree.atomic import replace_file
from gumbeltree.settings import from_dict

HEADER, VECTORS, TEXTS, OFFSETS = "index.json", "vectors.npy", "texts.txt", "offsets.npy"
APPROXIMATE = "approximate.faiss"
FORMAT, VERSION = "gumbeltree-index", 1
ANEW = "make the index anew with `gumbeltree index`"

Result = TypeVar("Result")

_POSITIVE = {"low": 1, "high": math.inf}
_NOT_NEGATIVE = {"low": 0, "high": math.inf}


@dataclasses.dataclass(frozen=True)
class Header:
    """What index.json says.

    Attributes:
        gumbeltree_version: what wrote the index.
        model: name or folder of the model, empty where it has none.
        model_digest: of all that its vectors depend on.
        width: D.
        count: N.
        unique: whether each distinct text was taken once.
        repeated: texts left out for that.
        pretokenized: whether texts were words with spaces between already.
        lists: into how many lists the approximate index divides the vectors; 0 if there is none.
    """

    gumbeltree_version: str
    model: str
    model_digest: str
    width: int = dataclasses.field(metadata=_POSITIVE)
    count: int = dataclasses.field(metadata=_POSITIVE)
    unique: bool
    repeated: int = dataclasses.field(metadata=_NOT_NEGATIVE)
    pretokenized: bool
    lists: int = dataclasses.field(metadata=_NOT_NEGATIVE)


@dataclasses.dataclass(frozen=True)
class Arrays:
    """The memory-mapped files of an index."""

    vectors: NDArray[np.float32]
    offsets: NDArray[np.int64]
    text: NDArray[np.uint8]


def unit(vectors: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """Return vectors `[n, D]` divided by their lengths; those of length zero stay zero."""
    wide: NDArray[np.float64] = vectors.astype(np.float64)
    # by powers of two, which rounds nothing, so that no square is too large or too small
    wide = np.ldexp(wide, -np.frexp(np.abs(wide).max(axis=1, keepdims=True))[1])
    lengths = np.sqrt(np.square(wide).sum(axis=1, keepdims=True))
    return (wide / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def check_free(path: Path, replace: bool) -> None:
    """Refuse a place where no index can be written, before anything is computed."""
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"{path}: expected a folder {path.parent} to write to, got none; make it first"
        )
    if not path.exists():
        return
    if not replace:
        raise FileExistsError(f"{path} exists; name another folder, or pass --replace")
    known = {HEADER, VECTORS, TEXTS, OFFSETS, APPROXIMATE}
    others = {found.name for found in path.iterdir()} - known if path.is_dir() else {path.name}
    if others or (any(path.iterdir()) and not _is_index(path)):
        raise FileExistsError(
            f"{path} is no index or holds more than one, so it is not replaced; name another folder"
        )


def _is_index(path: Path) -> bool:
    try:
        header = json.loads((path / HEADER).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(header, dict) and header.get("format") == FORMAT


def write_folder(path: Path, write: Callable[[Path], Result], replace: bool = False) -> Result:
    """Let `write` fill a folder beside `path`, then give it that name; whatever fails leaves none.

    Args:
        path: the index.
        write: is told the folder.
        replace: whether an index of that name gives way.
    """
    check_free(path, replace)
    # of a link, what it leads to; and a name in place of `.`
    path = path.resolve()
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
    try:
        temporary.mkdir()
        result = write(temporary)
        _move(temporary, path, replace)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return result


def _move(temporary: Path, path: Path, replace: bool) -> None:
    if not replace:
        # others may have taken the name meanwhile: the system gives none that is in use
        try:
            temporary.rename(path)
        except OSError as error:
            check_free(path, False)
            raise error
        return
    check_free(path, True)
    if not path.exists():
        temporary.rename(path)
        return
    # a folder that is not empty cannot be replaced in one step
    old = path.with_name(f"{path.name}.{uuid.uuid4().hex}.old")
    path.rename(old)
    try:
        temporary.rename(path)
    finally:
        if path.exists():
            shutil.rmtree(old)
        else:
            old.rename(path)


def write_files(
    folder: Path, width: int, blocks: Iterable[tuple[Sequence[str], NDArray[np.float32]]]
) -> int:
    """Write vectors, made as long as one, and texts; return how many.

    Args:
        folder: where to.
        width: D.
        blocks: texts and their vectors `[n, D]`, some at a time.
    """
    offsets = array("q", [0])
    with (folder / TEXTS).open("wb") as file:

        def vectors() -> Iterator[NDArray[np.float32]]:
            for texts, block in blocks:
                broken = np.flatnonzero(~np.isfinite(block).all(axis=1))
                if len(broken):
                    raise ValueError(
                        f"the model gives NaN or infinite numbers, at first for text "
                        f"{len(offsets) - 1 + int(broken[0])}; its weights are broken: train it "
                        "anew"
                    )
                for text in texts:
                    offsets.append(offsets[-1] + file.write(text.encode() + b"\n"))
                yield unit(block)

        count = write_rows(folder / VECTORS, width, vectors())
        file.flush()
        os.fsync(file.fileno())
    if not count:
        raise ValueError("expected at least one text for an index, got none; look at the input")
    # a file, as numpy would add a suffix to a name that has another
    replace_file(folder / OFFSETS, lambda part: _save(part, np.array(offsets, dtype="<i8")))
    return count


def _save(path: Path, values: NDArray[np.int64]) -> None:
    with path.open("wb") as file:
        np.save(file, values)


def write_header(folder: Path, header: Header) -> None:
    """Write index.json."""
    about = {"format": FORMAT, "format_version": VERSION, **dataclasses.asdict(header)}
    text = json.dumps(about, indent=2, ensure_ascii=False) + "\n"
    replace_file(folder / HEADER, lambda part: part.write_text(text, encoding="utf-8"))


def read_header(path: Path) -> Header:
    """Return what index.json of an index says, checked."""
    file = path / HEADER
    if not file.is_file():
        raise FileNotFoundError(
            f"{path} is no index: it has no {HEADER}; make one with `gumbeltree index`"
        )
    try:
        about = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not JSON: {error}; {ANEW}") from error
    if not isinstance(about, dict) or about.pop("format", None) != FORMAT:
        raise ValueError(f'{file} is not of an index: expected "format": "{FORMAT}"; {ANEW}')
    version = about.pop("format_version", None)
    if version != VERSION:
        raise ValueError(
            f"{file} has format version {version!r}, this gumbeltree ({__version__}) reads version "
            f"{VERSION}; {ANEW}, or install a newer one"
        )
    try:
        header: Header = from_dict(Header, about)
    except ValueError as error:
        raise ValueError(f"{file}: {error}; {ANEW}") from error
    return header


def open_arrays(path: Path, header: Header) -> Arrays:
    """Map the files of an index into memory; raise if one is missing or of another size."""
    vectors = _mapped(path / VECTORS, np.dtype("<f4"), (header.count, header.width))
    offsets = _mapped(path / OFFSETS, np.dtype("<i8"), (header.count + 1,))
    file = _found(path / TEXTS)
    size = file.stat().st_size
    if size != int(offsets[-1]) or size == 0:
        raise ValueError(
            f"{file} is damaged or cut short: expected {int(offsets[-1]):,} bytes, got {size:,}; "
            f"{ANEW}"
        )
    return Arrays(vectors, offsets, np.memmap(file, dtype=np.uint8, mode="r"))


def _mapped(file: Path, kind: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    _found(file)
    try:
        values = np.load(file, mmap_mode="r", allow_pickle=False)
    except OSError:
        raise
    except Exception as error:
        # what is wrong with a header comes as many kinds of errors
        raise ValueError(f"{file} is damaged or cut short: {error}; {ANEW}") from error
    if not isinstance(values, np.memmap):
        raise ValueError(f"{file} is damaged: expected one array, got an archive; {ANEW}")
    came = (values.dtype, values.shape, values.flags.c_contiguous, file.stat().st_size)
    if came != (kind, shape, True, values.offset + values.nbytes):
        raise ValueError(
            f"{file} is damaged: expected {kind} {list(shape)}, got {values.dtype} "
            f"{list(values.shape)} in {file.stat().st_size:,} bytes; {ANEW}"
        )
    return values


def _found(file: Path) -> Path:
    if not file.is_file():
        raise FileNotFoundError(
            f"{file.parent} is incomplete: it has no {file.name}; copy it whole, or {ANEW}"
        )
    return file
