"""Measure how fast `read_vectors` skips the lines of words that nobody asked for.

    python benchmarks/read_vectors.py [--megabytes 400] [--words 50000] [--share 0.03] [--gz]

Makes a file like GloVe's (random words, 300 numbers of 5 decimals) in a temporary folder, which is
removed afterwards, and reads it `--repeats` times: once nothing of it is kept, then `--share` of
the words asked for occur. Times include the operating system's cache of the file.
"""

import argparse
import gzip
import shutil
import string
import tempfile
import time
from pathlib import Path

import numpy as np

from gumbeltree.text.vectors import read_vectors

DIM = 300
LETTERS = np.array(list(string.ascii_lowercase))


def random_words(generator: np.random.Generator, n: int) -> list[str]:
    lengths = generator.integers(3, 12, n)
    letters = "".join(LETTERS[generator.integers(0, 26, int(lengths.sum()))])
    ends = np.cumsum(lengths)
    return [letters[end - length : end] for end, length in zip(ends.tolist(), lengths, strict=True)]


def write(path: Path, megabytes: int, generator: np.random.Generator) -> list[str]:
    """Write the file; the numbers come from a pool of vectors, which reading does not notice."""
    pool = [
        " ".join(f"{x:.5f}" for x in vector) for vector in generator.normal(0, 0.4, (2000, DIM))
    ]
    words: list[str] = []
    size = 0
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        while size < megabytes * 1_000_000:
            batch = random_words(generator, 1000)
            text = "".join(
                f"{word} {pool[i]}\n"
                for word, i in zip(batch, generator.integers(0, len(pool), 1000), strict=True)
            )
            size += file.write(text)
            words += batch
    return words


def measure(path: Path, words: list[str], size: int, repeats: int) -> None:
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        vectors = read_vectors(path, words)
        best = min(best, time.perf_counter() - start)
    print(
        f"{path.name}: {len(vectors):,} of {len(words):,} words found in {vectors.lines:,} lines, "
        f"{size / 1e6:.0f} MB of text in {best:.2f} s: {size / best / 1e6:.0f} MB/s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--words", type=int, default=50_000)
    parser.add_argument("--share", type=float, default=0.03, help="of the words that occur")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--gz", action="store_true", help="also read it compressed")
    arguments = parser.parse_args()
    generator = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vectors.txt"
        present = write(path, arguments.megabytes, generator)
        size = path.stat().st_size
        # upper case: none of them is in the file
        absent = [
            f"{word.upper()}{i}" for i, word in enumerate(random_words(generator, arguments.words))
        ]
        kept = min(int(arguments.words * arguments.share), len(present))
        chosen = generator.choice(len(present), kept, replace=False).tolist()
        some = [present[i] for i in chosen] + absent[: arguments.words - kept]
        measure(path, absent[: arguments.words], size, arguments.repeats)
        measure(path, some, size, arguments.repeats)
        if arguments.gz:
            packed = path.with_name("vectors.txt.gz")
            with open(path, "rb") as source, gzip.open(packed, "wb", compresslevel=6) as target:
                shutil.copyfileobj(source, target, 1 << 20)
            measure(packed, some, size, 1)


if __name__ == "__main__":
    main()
