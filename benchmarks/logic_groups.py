"""Count the bracketed groups of logic formulas that the trees of models keep together.

    python benchmarks/logic_groups.py groups.json --data data/logic/split-c/test.tsv MODEL...

A group is a pair of brackets with all words between them. A tree keeps it together if one of its
nodes has exactly these words; how it divides them further does not matter, unlike for the F1 of
`gumbeltree trees`. The file has the share of all groups in all distinct formulas, by model, and its
tree of one formula.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import gumbeltree
from gumbeltree.bench.report import environment

EXAMPLE = "( a ( and ( not b ) ) )"


def groups(words: list[str]) -> set[tuple[int, int]]:
    """Return start and end of all groups."""
    open_at, found = [], set()
    for i, word in enumerate(words):
        if word == "(":
            open_at.append(i)
        elif word == ")":
            found.add((open_at.pop(), i + 1))
    return found


def formulas(path: Path) -> list[str]:
    """Return the distinct formulas of a file that have brackets."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [*dict.fromkeys(x for line in lines for x in line.split("\t")[1:] if "(" in x)]


def measure(name: str, texts: list[str]) -> dict[str, Any]:
    """Return the share of groups that the model's trees keep together, and the tree of EXAMPLE."""
    model = gumbeltree.load(name)
    expected = [groups(text.split()) for text in texts]
    pairs = zip(expected, model.parse_many(texts), strict=True)
    kept = sum(len(x & {*tree.spans}) for x, tree in pairs)
    tree = str(model.parse(EXAMPLE))
    return {"model": Path(name).name, "share": kept / sum(map(len, expected)), "tree": tree}


def main() -> None:
    """Write the shares of all models."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("json", type=Path, help="JSON file for the shares")
    parser.add_argument("models", nargs="+", metavar="MODEL", help="folder of a trained model")
    parser.add_argument("--data", type=Path, required=True, help="file of the task logic")
    given = parser.parse_args()
    try:
        texts, rows = formulas(given.data), []
        for model in given.models:
            rows.append(measure(model, texts))
            print(f"{model}: {rows[-1]['share']:.2%} of the groups", flush=True)
        about = {"file": given.data.name, "formulas": len(texts), "rows": rows}
        content = json.dumps(environment() | about, indent=1) + "\n"
        given.json.write_text(content, encoding="utf-8")
    except (OSError, ValueError) as error:
        sys.exit(f"logic_groups: error: {error}")


if __name__ == "__main__":
    main()
