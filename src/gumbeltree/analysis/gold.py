"""Read gold trees from SST, SNLI, ListOps and logic files, or from files of one tree per line."""

import re
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from gumbeltree.tasks import TASKS
from gumbeltree.tasks.checks import checked_text
from gumbeltree.tasks.snli import SNLI
from gumbeltree.tasks.task import Example, Task
from gumbeltree.text.files import BadLines, MismatchError, Report, is_blank, read_lines, shown
from gumbeltree.text.tokenizer import undo_ptb_escapes
from gumbeltree.tree import Span, read_brackets

Parses: TypeAlias = Literal["binary", "full"]

TREE_TASKS = ("sst2", "sst5", "snli", "listops", "logic")
"""Tasks whose files contain trees."""

_COMPACT = re.compile(r"\([^\s()]")
_SPACED = re.compile(r"\(\s+[^\s()]")


class Gold(NamedTuple):
    """A gold tree; nodes may have more than two children.

    Attributes:
        words: words of the tree, with the escapes of the Penn Treebank undone.
        spans: half-open word ranges of the nodes with two or more words.
        place: file and line, for error messages.
    """

    words: tuple[str, ...]
    spans: frozenset[Span]
    place: str


class GoldExample(NamedTuple):
    """A labelled example and the gold tree of each text, None where the file has none."""

    example: Example
    """Texts and label."""
    trees: tuple[Gold | None, ...]
    """The gold tree of each text."""


def parse_brackets(text: str) -> tuple[list[str], set[Span]]:
    """Return the words and spans of a tree in brackets, labelled or not.

    Labels directly follow their brackets; in unlabelled trees, a space follows every bracket.
    Traces (-NONE-) are dropped.

    Example:
        >>> parse_brackets("(S (NP (DT the) (NN cat)) (VP sat) (. .))")
        (['the', 'cat', 'sat', '.'], {(0, 2), (0, 4)})
        >>> parse_brackets("( ( the cat ) sat )")
        (['the', 'cat', 'sat'], {(0, 2), (0, 3)})

    Raises:
        MismatchError: If the text is not exactly one tree.
    """
    labelled = _COMPACT.search(text) is not None
    if labelled and _SPACED.search(text):
        raise MismatchError(
            "a label directly after every '(' or a space after every '('",
            f"both in {shown(text)}",
            "write labelled trees as (S (NP a) b) and others as ( ( a b ) c )",
        )
    try:
        words, nodes = read_brackets(text, labelled)
    except ValueError as error:
        raise MismatchError("one tree", shown(text), str(error)) from error
    return words, {(node[0], node[-1]) for node in nodes if node[-1] - node[0] > 1}


def read_trees(
    path: Path | str,
    limit: int | None = None,
    report: Report | None = None,
    skip_bad: bool = False,
) -> list[Gold]:
    """Read a UTF-8 file, plain or gzipped, with one tree per line; blank lines are ignored.

    Args:
        path: the file.
        limit: maximum number of trees.
        report: counts trees and skipped lines.
        skip_bad: whether to skip malformed lines instead of raising.

    Raises:
        BadLineError: If a line is not a tree.
        ValueError: If the file contains no tree.
    """
    path = Path(path)
    report = Report() if report is None else report
    trees: list[Gold] = []
    for number, line in read_lines(path, report, skip_bad):
        if len(trees) == limit:
            break
        if is_blank(line.strip(), report):
            continue
        with BadLines(path, number, report, skip_bad):
            trees.append(_gold(*parse_brackets(line), f"{path}, line {number}"))
            report.examples += 1
    if not trees:
        raise ValueError(f"{path} contains no trees ({report}); pass a file with one tree per line")
    return trees


def tree_task(name: str) -> Task:
    """Return the reader of a task whose files contain trees."""
    if name not in TREE_TASKS:
        raise ValueError(
            f"the task {name!r} has no gold trees; pass --task with one of "
            f"{', '.join(TREE_TASKS)}, or a file of trees with --gold"
        )
    task: Task = TASKS[name]()
    return task


def read_examples(
    task: Task,
    path: Path | str,
    parses: Parses = "binary",
    limit: int | None = None,
    report: Report | None = None,
    skip_bad: bool = False,
) -> list[GoldExample]:
    """Read labelled examples and the gold trees of their texts; raise if there are none.

    Only whole sentences are read, not their phrases.

    Args:
        task: see `tree_task`.
        path: a file of the task.
        parses: "binary" for the binary trees of the file, "full" for SNLI's constituency parses
            (`sentence1_parse` and `sentence2_parse`).
        limit: maximum number of examples.
        report: counts examples, dropped ones and skipped lines.
        skip_bad: whether to skip malformed lines instead of raising.
    """
    if parses == "full":
        if task.name != "snli":
            raise ValueError(
                f"{task.name} has only binary trees; --parses full is only available for snli"
            )
        task = _Constituents()
    report = Report() if report is None else report
    # read as an evaluation split, because the training split of SST yields every phrase
    read = islice(task.read(Path(path), "test", report, skip_bad), limit)
    examples = [
        GoldExample(
            example,
            tuple(
                None if tree is None else _gold(tree.words, tree.spans, f"{path}, example {number}")
                for tree in example.trees
            ),
        )
        for number, example in enumerate(read, 1)
    ]
    if not examples:
        raise ValueError(f"{path} contains no usable examples: {report}")
    return examples


def distinct(examples: list[GoldExample]) -> list[Gold]:
    """Return each distinct gold tree once; in SNLI most premises occur three times."""
    trees: dict[tuple[tuple[str, ...], frozenset[Span]], Gold] = {}
    for example in examples:
        for tree in example.trees:
            if tree is not None:
                trees.setdefault((tree.words, tree.spans), tree)
    return list(trees.values())


def _gold(words: Sequence[str], spans: Iterable[Span], place: str) -> Gold:
    return Gold(tuple(map(undo_ptb_escapes, words)), frozenset(spans), place)


class _Constituents(SNLI):
    """SNLI with the Stanford parser's constituency trees instead of binary trees."""

    trees = False

    def parse_fields(self, fields: dict[str, Any], report: Report) -> list[Example]:
        def tree(name: str) -> Gold | None:
            text = fields.get(name)
            if not text:
                return None
            words, spans = parse_brackets(checked_text(text, name))
            return Gold(tuple(words), frozenset(spans), "")

        return [
            # a Gold has the words and spans that `read_examples` takes from a Tree
            example._replace(trees=(tree("sentence1_parse"), tree("sentence2_parse")))  # type: ignore[arg-type]
            for example in super().parse_fields(fields, report)
        ]
