"""Write the parts of docs/neighbours.md that are measured: the paper's Table 3, and speed.

    python benchmarks/write_neighbours.py snli_1.0/snli_1.0_dev.jsonl [--model snli-100d]
                                          [--speed benchmarks/results/neighbours.json]
                                          [--page docs/neighbours.md]

What stands between two marks of the page is replaced. `neighbours_speed.py` measures the speed;
by hand are only the explanations and the paper's own neighbours below.
"""

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gumbeltree
from gumbeltree.analysis.index import Index
from gumbeltree.atomic import replace_file
from gumbeltree.model import SentenceModel
from gumbeltree.tasks.checks import checked_object
from gumbeltree.text.files import Report, read_lines

ROOT = Path(__file__).parent.parent
K = 5
EVERY = 13
"""Of so many sentences one is a query in the comparison of approximate and exact search."""


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
    """Yield premises and hypotheses of SNLI's jsonl, those of pairs without a gold label too."""
    for _, line in read_lines(path, Report()):
        fields = checked_object(line)
        for name in ("sentence1", "sentence2"):
            if fields[name].strip():
                yield fields[name].strip()


def table(index: Index, model: SentenceModel, name: str) -> str:
    """Return the nearest sentences of the paper's queries beside the paper's."""
    rows, scores = index.search(model.encode([query.text for query in TABLE_3]), K)
    parts = [
        f"Ours: `{name}` over the {len(index):,} distinct sentences of SNLI's development split.\n"
        "The paper's: its 300D model over the test split (Choi, Yoo and Lee 2018, Table 3)."
    ]
    for query, near, cosines in zip(TABLE_3, rows.tolist(), scores.tolist(), strict=True):
        lines = [
            f"**{query.text}**",
            "",
            "| | cosine | ours, of the development split | the paper's, of the test split |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| {place} | {cosine:.3f} | {cell(ours)} | {cell(theirs)} |"
            for place, (cosine, ours, theirs) in enumerate(
                zip(cosines, index.texts(near), query.paper, strict=True), 1
            )
        ]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def recall(index: Index) -> str:
    """Return how many of the nearest sentences the approximate index finds."""
    queries = range(0, len(index), EVERY)
    vectors = index.vectors[::EVERY]
    # each sentence is in the index itself, and does not count
    exact, approximate = (
        [set(near) - {row} for row, near in zip(queries, rows.tolist(), strict=True)]
        for rows in (index.search(vectors, K + 1, approximate=way)[0] for way in (False, True))
    )
    wanted = sum(map(len, exact))
    found = sum(len(a & b) for a, b in zip(exact, approximate, strict=True))
    return (
        f"Of the {K} nearest other sentences of {len(queries):,} sentences of SNLI's development "
        f"split it finds {100 * found / wanted:.0f} %."
    )


def speed(report: dict[str, Any]) -> str:
    """Return the figures of `neighbours_speed.py` in words."""
    best, cold, vectors = report["best"], report["cold"], report["vectors"]
    machine, versions = report["machine"], report["versions"]
    rows = [
        ("opening", f"{1e3 * best['open_seconds']:.1f} ms"),
        ("the first query of a process", f"{1e3 * best['first_query_seconds']:.0f} ms"),
        ("a later query", f"{1e3 * best['query_seconds']['median']:.0f} ms"),
        ("100 queries in one call", f"{1e3 * best['hundred_queries_seconds']:.0f} ms"),
        ("opening, files not cached", f"{1e3 * cold['open_seconds']:.1f} ms"),
        ("the first query, files not cached", f"{1e3 * cold['first_query_seconds']:.0f} ms"),
    ]
    runs = sorted(run["query_seconds"]["median"] for run in report["runs"])
    memory = best["bytes"]
    own = max(0, memory["own"] - memory["own_before"])
    lines = [
        f"{vectors['count']:,} random vectors of {vectors['width']} numbers, "
        f"{vectors['bytes'] / 1e9:.2f} GB, {report['neighbours']} neighbours, {machine['threads']} "
        f"threads of {machine['cpu']}, numpy {versions['numpy']}:",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {figure} |" for name, figure in rows),
        "",
        f"Before, the answers to {report['checked_queries']} queries were compared with a plain "
        "sort of all cosines. Other programs",
        f"ran on the machine: of {len(runs)} runs the one with the fastest queries is shown; their "
        f"medians lay between {1e3 * runs[0]:.0f}",
        f"and {1e3 * runs[-1]:.0f} ms. The process had {memory['peak'] / 2**20:,.0f} MiB at its "
        f"highest, {memory['before'] / 2**20:,.0f} MiB before it opened the index;",
        f"single queries left {own / 2**10:,.0f} KiB of its own. The rest are pages of the files, "
        "which the system takes back",
        "when it needs memory, and the scores of 100 queries in one call.",
    ]
    return "\n".join(lines)


def replaced(page: str, name: str, text: str) -> str:
    """Return a page with other text between the marks of that name."""
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    pattern = re.compile(f"{re.escape(start)}\n.*?{re.escape(end)}", re.DOTALL)
    if len(pattern.findall(page)) != 1:
        raise ValueError(f"expected {start} and {end} once in the page; put them there")
    return pattern.sub(lambda _: f"{start}\n\n{text}\n\n{end}", page)


def write(data: Path, name: str, report: Path, path: Path) -> None:
    model = gumbeltree.load(name)
    with tempfile.TemporaryDirectory() as folder:
        index = Index.build(Path(folder) / "index", model, sentences(data), approximate=True)
        page = path.read_text(encoding="utf-8")
        page = replaced(page, "table 3", table(index, model, name))
        page = replaced(page, "recall", recall(index))
    page = replaced(page, "speed", speed(json.loads(report.read_text(encoding="utf-8"))))
    replace_file(path, lambda part: part.write_text(page, encoding="utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, help="SNLI's development split, jsonl, plain or gzip")
    parser.add_argument("--model", default="snli-100d")
    parser.add_argument(
        "--speed", type=Path, default=ROOT / "benchmarks" / "results" / "neighbours.json"
    )
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "neighbours.md")
    arguments = parser.parse_args()
    try:
        write(arguments.data, arguments.model, arguments.speed, arguments.page)
    except (ImportError, OSError, ValueError) as error:
        sys.exit(f"write_neighbours: error: {error}")


if __name__ == "__main__":
    main()
