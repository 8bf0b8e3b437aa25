"""Write the files of ListOps and propositional logic on which tree learners are compared."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from gumbeltree.atomic import replace_file
from gumbeltree.tasks import logic
from gumbeltree.tasks.listops import ListOps, generate
from gumbeltree.tasks.listops_splits import PLANS, draw_split, lines
from gumbeltree.tasks.table import split
from gumbeltree.text.files import BadLineError, MismatchError, Report, read_lines

DRAWN, TRAINED = 100_000, 0.9
"""Number of distinct expressions that are drawn at once, and the share for training."""
SUMMARY = "splits.json"
DEV = 1_000
"""Number of training expressions for development."""
LONGEST = 100
"""Maximum number of tokens of a training expression."""
OPERATIONS = 6
"""Maximum number of operations of a training formula."""
MOST_OPERATIONS = 12
"""Number of the last test file; it also has formulas with more operations."""

Say = Callable[[str], Any]
Progress = Callable[[str, int, int], Any]


class Made(NamedTuple):
    """Lines of a file, and how many were dropped because they are in another split."""

    lines: list[str]
    dropped: int = 0


def make_listops(seed: int, test: Path | None = None, progress: Progress | None = None) -> "Files":
    """Return the ListOps splits.

    Expressions of a test split do not occur in any development or training split, nor do those of
    a development split in training.

    Args:
        seed: any integer.
        test: the published test file. Its expressions replace the test split.
        progress: called with the name of a split, the number of expressions so far and their total.
    """
    drawn = []
    for number, example in enumerate(generate(DRAWN, seed), 1):
        drawn.append(f"{example.label}\t{example.texts[0]}\n")
        if progress is not None and number % 1000 == 0:
            progress("train, dev, test", number, DRAWN)
    parts = split(DRAWN, [TRAINED, 1 - TRAINED], seed)
    train, tested = ([drawn[i] for i in places] for places in parts)
    files: Files = {}
    if test is None:
        files["test.tsv"] = Made(tested)
    else:
        examples = list(ListOps().read(test, "test", Report()))
        if not examples:
            raise ValueError(f"{test} contains no expressions; pass the published test_d20s.tsv")
        tested = [f"{example.label}\t{example.texts[0]}\n" for example in examples]
    taken = {_expression(line) for line in tested}
    for name, plan in PLANS.items():

        def done(number: int, name: str = name, count: int = plan.size) -> None:
            if progress is not None:
                progress(name, number, count)

        expressions, leaks = draw_split(plan, f"{name} {seed}", taken, done)
        kind, _, part = name.partition("-")
        path = f"depth/{part}.tsv" if kind == "depth" else f"test-{name}.tsv"
        files[path] = Made(list(lines(expressions)), leaks)
        taken.update(_expression(line) for line in files[path].lines)
    short = [line for line in train if len(_expression(line).split()) <= LONGEST]
    kept = [line for line in short if _expression(line) not in taken]
    files["dev.tsv"] = Made(kept[:DEV])
    files["train.tsv"] = Made(kept[DEV:], len(short) - len(kept))
    return files


def make_logic(folder: Path) -> "Files":
    """Return the splits of propositional logic.

    Every tenth training pair is for development. The folder `split-c` has the pairs without and,
    for testing, with a negated second operand of `and` or `or`; its `dev-held-out.tsv` has a tenth
    of the training pairs with one.

    Args:
        folder: the published files `train0` to `train6` and `test0` to `test12`, plain or .gz.
    """
    train = [line for i in range(OPERATIONS + 1) for line in _published(folder, f"train{i}")]
    tests = [_published(folder, f"test{i}") for i in range(MOST_OPERATIONS + 1)]
    tested = {line for part in tests for line in part}
    kept = [line for line in train if line not in tested]
    dropped = len(train) - len(kept)
    files: Files = {
        "train.tsv": Made([line for i, line in enumerate(kept, 1) if i % 10], dropped),
        "dev.tsv": Made(kept[9::10]),
    }
    for i, part in enumerate(tests):
        files[f"test-{i}.tsv"] = Made(part)
    plain = [line for line in kept if not logic.HELD_OUT.search(line)]
    files["split-c/train.tsv"] = Made([line for i, line in enumerate(plain, 1) if i % 10])
    files["split-c/dev.tsv"] = Made(plain[9::10])
    held_out = [line for line in kept if logic.HELD_OUT.search(line)]
    files["split-c/dev-held-out.tsv"] = Made(held_out[9::10])
    short = [line for part in tests[: OPERATIONS + 1] for line in part]
    files["split-c/test.tsv"] = Made([line for line in short if logic.HELD_OUT.search(line)])
    return files


Files = dict[str, Made]
"""Content of files by path."""


def write_files(files: Files, folder: Path, about: dict[str, Any]) -> dict[str, Any]:
    """Write files and a summary, `splits.json`; existing files are not replaced.

    Args:
        files: what to write.
        folder: where to write it.
        about: how the files were made, for the summary.

    Returns:
        The summary.
    """
    check_free(folder)
    summary: dict[str, Any] = {**about, "files": {}}
    for name, made in files.items():
        text = "".join(made.lines).encode()
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, lambda part, text=text: part.write_bytes(text))  # type: ignore[misc]
        summary["files"][name] = {
            "examples": len(made.lines),
            "dropped": made.dropped,
            "sha256": hashlib.sha256(text).hexdigest(),
        }
    shown = json.dumps(summary, indent=1) + "\n"
    replace_file(folder / SUMMARY, lambda part: part.write_text(shown, "utf-8"))
    return summary


def check_free(folder: Path) -> None:
    """Raise FileExistsError if the folder is a file or has data files."""
    taken = [folder] if folder.exists() and not folder.is_dir() else sorted(folder.rglob("*.tsv"))
    taken += [path for path in [folder / SUMMARY] if path.exists()]
    if taken:
        raise FileExistsError(f"{taken[0]} already exists; pass another --out, or delete it")


def _expression(line: str) -> str:
    return line.rstrip("\n").partition("\t")[2]


def _published(folder: Path, name: str) -> list[str]:
    """Return the lines of a published file, after checking them."""
    found = [path for path in (folder / name, folder / f"{name}.gz") if path.is_file()]
    if not found:
        raise FileNotFoundError(
            f"{folder} has no file {name} or {name}.gz; pass the folder with the published files "
            "train0 to train6 and test0 to test12"
        )
    task, report, kept = logic.Logic(), Report(), []
    task.trees = False
    again = "get the published files again"
    for number, line in read_lines(found[0], report, skip_bad=False):
        try:
            examples = task.parse(line, "train", report)
        except MismatchError as error:
            raise BadLineError(f"{found[0]}, line {number}: {error.problem}; {again}") from None
        kept += ["\t".join((example.label, *example.texts)) + "\n" for example in examples]
    if not kept:
        raise ValueError(f"{found[0]} contains no pairs; {again}")
    return kept
