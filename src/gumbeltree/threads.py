"""Choose the number of CPU threads: one per operation, several operations at a time.

The threads of one operation wait for each other at its end, usually in a busy loop. The merge
consists of thousands of short operations, so if any thread has to share its core with another
program, all of them lose most of their time. Operations therefore run on one thread (`limited`),
and threads process separate batches instead (`in_threads`). Only large training steps use several
threads per operation (`for_step`). `benchmarks/threads.py` measures the alternatives.
"""

import ctypes
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

MOST = 8
"""Maximum number of batches computed at once, which bounds memory."""
SHARE = 64
"""Minimum number of sentences per thread; smaller batches spend most of their time in Python."""
LARGE_STEP = 2e7
"""Sentences times squared width from which a training step uses several threads per operation. On
two cores, two threads train 64 and 128 sentences at 300D more slowly than one, and 256 faster."""

Item = TypeVar("Item")
Result = TypeVar("Result")

_chosen: int | None = None
_lock = threading.Lock()
_local = threading.local()
_active: list[int] = []
_outside: dict[str, int] = {}


class _Library(NamedTuple):
    """Reads and sets the number of threads per operation of a library."""

    get: Callable[[], int]
    set: Callable[[int], object]


def set_threads(count: int | None) -> None:
    """Set the number of CPU threads that gumbeltree uses.

    Settings of torch and NumPy remain unchanged outside gumbeltree's functions.

    Args:
        count: at least 1. None restores the default: the number of threads of torch if torch is
            loaded, otherwise OMP_NUM_THREADS or the number of available CPU cores.
    """
    global _chosen
    if count is not None and (type(count) is not int or count < 1):
        raise ValueError(f"the number of threads must be a positive integer or None, got {count!r}")
    _chosen = count


def get_threads() -> int:
    """Return the number of CPU threads that gumbeltree uses; see `set_threads`."""
    if _chosen is not None:
        return _chosen
    libraries = _libraries()
    if "torch" in libraries:
        with _lock:
            return _outside["torch"] if "torch" in _outside else libraries["torch"].get()
    number = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if number.isdecimal() and int(number) > 0:
        return int(number)
    # `cpu_count` ignores restrictions such as those of containers
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def limited(count: int) -> Iterator[None]:
    """Run operations of torch and NumPy on `count` threads; restore their settings at the end.

    Can be nested, and used in several Python threads at once.
    """
    outer = getattr(_local, "count", None)
    if outer == count:
        yield
        return
    with _lock:
        libraries = _libraries()
        _active.append(count)
        for name, library in libraries.items():
            # in a new Python thread, torch returns the number that another block has set
            _outside.setdefault(name, library.get())
            library.set(count)
    _local.count = count
    try:
        yield
    finally:
        _local.count = outer
        with _lock:
            _active.remove(count)
            for name, library in libraries.items():
                # torch counts threads per Python thread, OpenBLAS per process
                others = _active if name == "openblas" else [outer] if outer else []
                library.set(min(others, default=_outside[name]))
            if not _active:
                _outside.clear()


def share(items: int, most: int) -> int:
    """Return the batch size, at most `most`, with which all threads get a share of the items."""
    return min(most, max(SHARE, -(-items // min(get_threads(), MOST))))


def in_threads(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Return the results of `function` for each item, computed by several threads, in order.

    Pays off if `function` spends most of its time in operations, which release Python's lock.
    """
    count = min(get_threads(), len(items), MOST)
    if count < 2:
        return list(map(function, items))
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(function, items))


def for_step(sentences: int, width: int) -> int:
    """Return the number of threads per operation for a training step.

    The number depends only on the arguments and the settings, so that results are reproducible.
    Several threads pay off only if they sleep while they wait, which OpenMP decides when torch is
    imported: the command line sets OMP_WAIT_POLICY=passive.
    """
    passive = os.environ.get("OMP_WAIT_POLICY", "").lower() == "passive"
    return get_threads() if passive and sentences * width**2 >= LARGE_STEP else 1


def prepare_environment() -> None:
    """Set environment variables for libraries that the command line imports later.

    OpenMP threads sleep while they wait, after a busy loop of some microseconds in GNU's OpenMP,
    and OpenBLAS, NumPy's library, uses one thread. Variables that are already set, and libraries
    that are already imported, are left alone.
    """
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        # two threads, 300D, quiet and beside a busy core: 1.37 and 0.96 of the speed of one thread
        # without a loop, 1.58 and 0.88 with 1,000 rounds, 1.82 and 0.37 with 30,000
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    if "numpy" not in sys.modules:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _libraries() -> dict[str, _Library]:
    """Return the libraries that are loaded."""
    found = {}
    torch: Any = sys.modules.get("torch")
    numpy = sys.modules.get("numpy")
    # another thread may still be importing torch
    if hasattr(torch, "set_num_threads"):
        found["torch"] = _Library(torch.get_num_threads, torch.set_num_threads)
    blas = None if numpy is None else _openblas(str(numpy.__file__))
    if blas is not None:
        found["openblas"] = blas
    return found


@functools.cache
def _openblas(numpy: str) -> _Library | None:
    """Return the OpenBLAS that wheels of NumPy contain, or None with other builds of NumPy."""
    folder = Path(numpy).parent
    for place in (folder.with_name("numpy.libs"), folder / ".dylibs"):
        for path in place.glob("*openblas*"):
            library = ctypes.CDLL(str(path))
            for suffix in ("64_", ""):
                names = (f"scipy_openblas_{x}_num_threads{suffix}" for x in ("get", "set"))
                get, set_to = (getattr(library, name, None) for name in names)
                if get and set_to:
                    return _Library(get, set_to)
    return None
