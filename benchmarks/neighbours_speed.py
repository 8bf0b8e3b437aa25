"""Measure how fast an index of a million sentences opens and answers.

    python benchmarks/neighbours_speed.py [--count 1000000] [--width 300] [--threads 2]
                                          [--runs 5] [--folder FOLDER] [--json FILE]

Makes an index of random unit vectors in a temporary folder (1.2 GB, removed afterwards), compares
its answers with a plain sort of all cosines, and only then measures, each run in a process of its
own: opening, the first query, later queries, and memory. The first of the runs starts with the
files out of the operating system's cache, the others with them in it. Other programs on the
machine disturb such measurements, so every run is recorded and the one with the fastest queries
stands for all.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gumbeltree import __version__
from gumbeltree.analysis.index import Index
from gumbeltree.analysis.index.files import Header, write_files, write_folder, write_header
from gumbeltree.atomic import replace_file
from gumbeltree.bench.memory import resident
from gumbeltree.bench.run import environment

RESULTS = Path(__file__).parent / "results" / "neighbours.json"
BLOCK = 2**14
COPIES = 100
"""Rows at the end that repeat those at the start, so that there are ties."""
K = 5
CHECKED, LATER, TOGETHER = 10, 30, 100
"""Queries compared with the plain sort, timed one by one, and timed in one call."""


def random_rows(count: int, width: int, seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((count, width), dtype=np.float32)


def make(path: Path, count: int, width: int) -> float:
    """Write the index; return the seconds it took."""

    def blocks() -> Iterator[tuple[list[str], NDArray[np.float32]]]:
        first = random_rows(min(BLOCK, count), width, 0)
        for start in range(0, count, BLOCK):
            size = min(BLOCK, count - start)
            block = random_rows(size, width, start)
            if start and start + size == count:
                block[-COPIES:] = first[:COPIES]
            yield [f"sentence {start + i} of the index" for i in range(size)], block

    def write(folder: Path) -> None:
        write_files(folder, width, blocks())
        write_header(folder, Header(__version__, "", "", width, count, False, 0, False, 0))

    start = time.perf_counter()
    write_folder(path, write)
    return time.perf_counter() - start


def queries(index: Index, count: int) -> NDArray[np.float32]:
    """Return random vectors, and such as have a tie in the index in every second place."""
    found = random_rows(count, index.header.width, 10**9)
    found[1::2] = index.vectors[: len(found[1::2])]
    return found


def check(index: Index) -> None:
    """Raise unless the answers are those of a plain stable sort of all cosines."""
    vectors = queries(index, CHECKED)
    rows, scores = index.search(vectors, K)
    for query, near, cosines in zip(vectors, rows, scores, strict=True):
        wide = query.astype(np.float64)
        wide = (wide / np.linalg.norm(wide)).astype(np.float32).astype(np.float64)
        every = np.concatenate(
            [
                (index.vectors[start : start + BLOCK].astype(np.float64) * wide).sum(1)
                for start in range(0, len(index), BLOCK)
            ]
        )
        every = every.clip(-1, 1).astype(np.float32)
        expected = np.argsort(-every, kind="stable")[:K]
        if near.tolist() != expected.tolist() or not np.array_equal(cosines, every[expected]):
            raise ValueError(f"expected rows {expected}, got {near}: not timed")


def forget(folder: Path) -> None:
    """Take the files of a folder out of the operating system's cache."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(path: Path) -> dict[str, Any]:
    """Return what one process sees."""
    memory = {"before": resident("VmRSS"), "own_before": resident("RssAnon")}
    start = time.perf_counter()
    index = Index.open(path)
    opened = time.perf_counter() - start
    vectors = random_rows(1 + LATER + TOGETHER, index.header.width, 10**9)
    seconds = []
    for vector in vectors[: 1 + LATER]:
        start = time.perf_counter()
        rows, _ = index.search(vector, K)
        index.texts(rows[0])
        seconds.append(time.perf_counter() - start)
    memory["own"] = resident("RssAnon")
    start = time.perf_counter()
    index.search(vectors[1 + LATER :], K)
    together = time.perf_counter() - start
    memory["peak"] = resident("VmHWM")
    return {
        "open_seconds": opened,
        "first_query_seconds": seconds[0],
        "query_seconds": {
            "median": statistics.median(seconds[1:]),
            "fastest": min(seconds[1:]),
            "slowest": max(seconds[1:]),
        },
        "hundred_queries_seconds": together,
        "bytes": memory,
    }


def measured_apart(path: Path, threads: int) -> dict[str, Any]:
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    settings = {**os.environ, **dict.fromkeys(names, str(threads))}
    command = [sys.executable, __file__, "--measure", str(path)]
    done = subprocess.run(command, env=settings, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def report(arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = Path(folder) / "million.index"
        made = make(path, arguments.count, arguments.width)
        index = Index.open(path)
        check(index)
        size = sum(file.stat().st_size for file in path.iterdir())
        # a file that is mapped stays in the cache
        del index
        forget(path)
        cold = measured_apart(path, arguments.threads)
        runs = [measured_apart(path, arguments.threads) for _ in range(arguments.runs)]
    # asking git about the working tree must not change it
    os.environ["GIT_OPTIONAL_LOCKS"] = "0"
    about = environment()
    about["machine"]["threads"] = arguments.threads
    about["versions"]["numpy"] = np.__version__
    return {
        **about,
        "vectors": {"count": arguments.count, "width": arguments.width, "bytes": size},
        "neighbours": K,
        "checked_queries": CHECKED,
        "write_seconds": made,
        "cold": cold,
        "best": min(runs, key=lambda run: run["query_seconds"]["median"]),
        "runs": runs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=300)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the temporary folder is made")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the figures go")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure)))
        return
    found = report(arguments)
    text = json.dumps(found, indent=1) + "\n"
    replace_file(arguments.json, lambda part: part.write_text(text, encoding="utf-8"))
    for name in ("cold", "best"):
        run = found[name]
        print(
            f"{name}: opened in {1e3 * run['open_seconds']:.1f} ms, first query "
            f"{1e3 * run['first_query_seconds']:.0f} ms, later ones "
            f"{1e3 * run['query_seconds']['median']:.0f} ms, peak "
            f"{run['bytes']['peak'] / 2**20:.0f} MiB"
        )


if __name__ == "__main__":
    main()
