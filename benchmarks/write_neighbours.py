"""Write the measured parts of docs/neighbours.md: Table 3 of the paper, and speed.

    OMP_NUM_THREADS=1 python benchmarks/write_neighbours.py snli_1.0/snli_1.0_dev.jsonl
        [--model snli-100d] [--page docs/neighbours.md] [--count 1000000]

The text between each pair of markers in the page is replaced. Speed is measured with random vectors
in a temporary folder (1.2 GB), in CPU time, which other programs hardly affect.
"""

import argparse
import re
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import gumbeltree
from gumbeltree.analysis.index import Header, Index, write_index
from gumbeltree.atomic import replace_file
from gumbeltree.bench.run import environment
from gumbeltree.model import SentenceModel
from gumbeltree.tasks.checks import checked_object
from gumbeltree.text.files import Report, read_lines

ROOT = Path(__file__).parent.parent
K = 5
BLOCK = 2**14


class Query(NamedTuple):
    """A column of the paper's Table 3."""

    text: str
    paper: tuple[str, ...]


TABLE_3 = (
    Query(
        "sunshine is on a man 's face .",
        (
            "a man is walking on sunshine .",
            "a guy is in a hot , sunny place",
            "a man is working in the sun .",
            "it is sunny .",
            "a man enjoys the sun coming through the window .",
        ),
    ),
    Query(
        "a girl is staring at a dog .",
        (
            "the woman is looking at a dog .",
            "a girl takes a photo of a dog .",
            "a girl is petting her dog .",
            "a man is taking a picture of a dog , while a woman watches .",
            "a woman is playing with her dog .",
        ),
    ),
    Query(
        "the woman is wearing boots .",
        (
            "the girl is wearing shoes",
            "a person is wearing boots .",
            "the woman is wearing jeans .",
            "a woman wearing sunglasses .",
            "the woman is wearing a vest .",
        ),
    ),
)
"""Queries and neighbours in Table 3 of Choi, Yoo and Lee (AAAI 2018): 300D, SNLI's test split."""


def sentences(path: Path) -> Iterator[str]:
    """Yield premises and hypotheses of SNLI's jsonl, including pairs without a gold label."""
    for _, line in read_lines(path, Report()):
        fields = checked_object(line)
        for name in ("sentence1", "sentence2"):
            if fields[name].strip():
                yield fields[name].strip()


def table(index: Index, model: SentenceModel, name: str) -> str:
    """Return our nearest sentences for the paper's queries, beside the paper's."""
    rows, scores = index.search(model.encode([query.text for query in TABLE_3]), K)
    parts = [
        f"Ours: `{name}` over the {len(index):,} distinct sentences of SNLI's development split.\n"
        "The paper's: its 300D model over the test split (Choi, Yoo and Lee 2018, Table 3)."
    ]
    for query, near, cosines in zip(TABLE_3, rows, scores, strict=True):
        lines = [
            f"**{query.text}**",
            "",
            "| | cosine | ours (development split) | the paper's (test split) |",
            "|---|---|---|---|",
        ]
        neighbours = zip(cosines, index.texts(near), query.paper, strict=True)
        for place, (cosine, ours, theirs) in enumerate(neighbours, 1):
            ours = ours.replace("|", "\\|")
            lines.append(f"| {place} | {cosine:.3f} | {ours} | {theirs} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def random_vectors(count: int, width: int) -> Iterator[tuple[list[str], NDArray[np.float32]]]:
    """Yield blocks of texts and random vectors for an index."""
    generator = np.random.default_rng(0)
    for start in range(0, count, BLOCK):
        size = min(BLOCK, count - start)
        texts = [f"sentence {start + i}" for i in range(size)]
        yield texts, generator.standard_normal((size, width), dtype=np.float32)


def seconds(index: Index, queries: NDArray[np.float32]) -> float:
    start = time.process_time()
    index.search(queries, K)
    return time.process_time() - start


def speed(folder: Path, count: int, width: int) -> str:
    """Measure search in an index of random vectors."""
    write_index(folder, Header("", "", "", width, False, False), random_vectors(count, width))
    size = sum(file.stat().st_size for file in folder.iterdir())
    start = time.process_time()
    index = Index.open(folder)
    opening = time.process_time() - start
    queries = np.random.default_rng(1).standard_normal((100, width), dtype=np.float32)
    single = min(seconds(index, query) for query in queries)
    together = min(seconds(index, queries) for _ in range(5))
    tracemalloc.start()
    index.search(queries, K)
    memory = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    lines = [
        f"{count:,} random vectors of {width} numbers, {size / 1e9:.2f} GB, {K} neighbours, "
        f"{environment()['machine']['cpu']}, NumPy {np.__version__}; CPU time:",
        "",
        "| | |",
        "|---|---|",
        f"| opening the index | {1e3 * opening:.1f} ms |",
        f"| one query | {1e3 * single:.0f} ms |",
        f"| 100 queries in one call | {1e3 * together:.0f} ms |",
        f"| memory allocated for these 100 queries, at its peak | {memory / 2**20:.0f} MiB |",
    ]
    return "\n".join(lines)


def replaced(page: str, name: str, text: str) -> str:
    """Return a page with `text` between the markers `name`."""
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    pattern = re.compile(f"{re.escape(start)}\n.*?{re.escape(end)}", re.DOTALL)
    if len(pattern.findall(page)) != 1:
        raise ValueError(f"the page must contain {start} and {end} exactly once")
    return pattern.sub(lambda _: f"{start}\n\n{text}\n\n{end}", page)


def write(data: Path, name: str, path: Path, count: int, width: int = 300) -> None:
    model = gumbeltree.load(name)
    page = path.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        index = Index.build(Path(folder) / "snli", model, sentences(data))
        page = replaced(page, "table 3", table(index, model, name))
        page = replaced(page, "speed", speed(Path(folder) / "random", count, width))
    replace_file(path, lambda part: part.write_text(page, encoding="utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, help="SNLI's development split, jsonl, plain or gzip")
    parser.add_argument("--model", default="snli-100d")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "neighbours.md")
    parser.add_argument("--count", type=int, default=1_000_000, help="number of random vectors")
    arguments = parser.parse_args()
    try:
        write(arguments.data, arguments.model, arguments.page, arguments.count)
    except (OSError, ValueError) as error:
        sys.exit(f"write_neighbours: error: {error}")


if __name__ == "__main__":
    main()
