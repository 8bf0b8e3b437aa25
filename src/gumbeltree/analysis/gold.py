"""Gold trees: those of SST, SNLI and ListOps, and those of a user's file, one a line."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from gumbeltree.tasks import TASKS
from gumbeltree.tasks.checks import checked_text
from gumbeltree.tasks.listops import OPERATORS
from gumbeltree.tasks.snli import SNLI
from gumbeltree.tasks.task import Example, Task
from gumbeltree.text.files import BadLines, MismatchError, Report, is_blank, read_lines, shown
from gumbeltree.text.tokenizer import undo_ptb_escapes
from gumbeltree.tree import Span, Tree

Form: TypeAlias = Literal["auto", "labelled", "plain"]
Parses: TypeAlias = Literal["binary", "full"]

TREE_TASKS = ("sst2", "sst5", "snli", "listops")
"""Tasks whose files hold trees."""

_PIECE = re.compile(r"[()]|[^\s()]+")
_COMPACT = re.compile(r"\([^\s()]")
_SPACED = re.compile(r"\(\s+[^\s()]")


class Gold(NamedTuple):
    """A gold tree.

    Attributes:
        words: the tree's own, escapes of the Penn Treebank undone.
        spans: half-open word ranges of its nodes of two words or more.
        place: where it stands, for messages.
    """

    words: tuple[str, ...]
    spans: frozenset[Span]
    place: str


class GoldExample(NamedTuple):
    """A labelled example and the gold trees of its texts, None where the file has none."""

    example: Example
    trees: tuple[Gold | None, ...]


def parse_brackets(text: str, labelled: bool, strict: bool = False) -> tuple[list[str], set[Span]]:
    """Read words and spans of a tree in brackets; a node may have any number of children.

    Words of the label -NONE-, which are traces, are left out.

    Example:
        >>> parse_brackets("(S (NP (DT the) (NN cat)) (VP sat) (. .))", labelled=True)
        (['the', 'cat', 'sat', '.'], {(0, 2), (0, 4)})

    Args:
        text: one tree.
        labelled: whether the word after an open bracket is the label of its node.
        strict: whether every node but one around the whole tree must have a label.

    Raises:
        MismatchError: If the text is not one whole tree.
    """
    words: list[str] = []
    spans: set[Span] = set()
    # first word, label, children so far
    opened: list[tuple[int, list[str], list[None]]] = []
    closed = False
    previous = ""
    for match in _PIECE.finditer(text):
        piece, at = match.group(), f"at character {match.start()} of {shown(text)}"
        if closed:
            raise MismatchError("one tree a line", f"{piece!r} {at}", "put each on its own line")
        if piece == "(":
            if opened:
                opened[-1][2].append(None)
            opened.append((len(words), [], []))
        elif piece == ")":
            if not opened:
                raise MismatchError("'(' before ')'", f"')' {at}", "correct the tree")
            start, label, children = opened.pop()
            if not children:
                raise MismatchError("a word in every node", f"none {at}", "correct the tree")
            if strict and labelled and not label and (opened or len(children) > 1):
                raise MismatchError(
                    "labels after '(', or '(' and a space in trees without labels",
                    f"a node without label that ends {at}",
                    "say which trees these are with --gold-format plain or labelled",
                )
            if len(words) - start > 1:
                spans.add((start, len(words)))
            closed = not opened
        elif labelled and previous == "(":
            opened[-1][1].append(piece)
        elif not opened and labelled:
            raise MismatchError("'(' and a label", f"{piece!r} {at}", "correct the tree")
        else:
            if opened:
                opened[-1][2].append(None)
            if not opened or opened[-1][1] != ["-NONE-"]:
                words.append(undo_ptb_escapes(piece))
            closed = not opened
        previous = piece
    if opened:
        raise MismatchError(
            f"{len(opened)} more ')'", f"the end of {shown(text)}", "write the whole tree"
        )
    if not words:
        raise MismatchError("a tree with words", shown(text), "leave the line out")
    return words, spans


def form_of(line: str) -> str:
    """Return whether the tree of a line is labelled, as in the Penn Treebank, or plain.

    A label stands right after its bracket, a word after a space: `(S (NP a) b)`, `( ( a b ) c )`.
    """
    compact, spaced = _COMPACT.search(line), _SPACED.search(line)
    if compact and spaced:
        raise MismatchError(
            "a label right after every '(', or a space after every '('",
            f"both in {shown(line)}",
            "say which trees these are with --gold-format plain or labelled",
        )
    return "labelled" if compact else "plain"


def read_trees(
    path: Path | str,
    form: Form = "auto",
    limit: int | None = None,
    report: Report | None = None,
    skip_bad: bool = False,
) -> list[Gold]:
    """Read a file of trees, one a line, UTF-8, plain or gzip; blank lines are left out.

    Args:
        path: the file.
        form: labelled, plain, or auto: as the first line is; see `form_of`.
        limit: most trees.
        report: counts what is read and skipped.
        skip_bad: whether bad lines are counted and left out.

    Raises:
        BadLineError: If a line holds no tree.
        ValueError: If there is no tree at all.
    """
    if form not in ("auto", "labelled", "plain"):
        raise ValueError(f"`form` must be auto, labelled or plain, got {form!r}; pass one of them")
    path, found = Path(path), ""
    report = Report() if report is None else report
    trees: list[Gold] = []
    for number, line in read_lines(path, report, skip_bad):
        if limit is not None and len(trees) >= limit:
            break
        # tabs are no tree either
        if is_blank(line.strip(), report):
            continue
        with BadLines(path, number, report, skip_bad):
            given = form_of(line) if form == "auto" else form
            found = found or given
            if given != found:
                raise MismatchError(
                    f"a {found} tree, as before",
                    f"a {given} one, {shown(line)}",
                    "write all trees alike, or pass --gold-format",
                )
            words, spans = parse_brackets(line, given == "labelled", strict=form == "auto")
            trees.append(Gold(tuple(words), frozenset(spans), f"{path}, line {number}"))
            report.examples += 1
    if not trees:
        raise ValueError(f"{path}: expected a tree a line, got none; pass a file with gold trees")
    return trees


def tree_task(name: str) -> Task:
    """Return the reader of a task whose files hold trees."""
    if name not in TREE_TASKS:
        raise ValueError(
            f"expected a task with gold trees, {', '.join(TREE_TASKS)}, got {name!r}; pass --task "
            "with one of them, or a file of trees with --gold"
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
    """Read labelled examples with the gold trees of their texts; whole sentences only.

    Args:
        task: of `tree_task`.
        path: a file of it.
        parses: binary: the binary trees of the file. full: SNLI's constituents
            (`sentence1_parse`), and for ListOps the operators with their arguments.
        limit: most examples.
        report: counts what is read, dropped and skipped.
        skip_bad: whether bad lines are counted and left out.
    """
    if parses not in ("binary", "full"):
        raise ValueError(f"`parses` must be binary or full, got {parses!r}; pass one of them")
    if parses == "full" and task.name not in ("snli", "listops"):
        raise ValueError(
            f"the trees of {task.name} are binary and have no other form; leave --parses out"
        )
    path = Path(path)
    report = Report() if report is None else report
    if parses == "full" and task.name == "snli":
        task = _Constituents()
    examples: list[GoldExample] = []
    # as a split for evaluation: SST's training split would give every phrase
    for number, example in enumerate(task.read(path, "test", report, skip_bad), 1):
        place = f"{path}, example {number}"
        if isinstance(task, _Constituents):
            found = tuple(_gold(spans, place) for spans in task.found)
        elif parses == "full":
            found = (_operations(example.texts[0], place),)
        else:
            found = tuple(_of_tree(tree, place) for tree in example.trees)
        examples.append(GoldExample(example, found))
        if limit is not None and len(examples) >= limit:
            break
    return examples


def distinct(examples: list[GoldExample]) -> list[Gold]:
    """Return the gold trees of examples, each once: SNLI's premises come three times."""
    seen: dict[tuple[tuple[str, ...], frozenset[Span]], Gold] = {}
    for tree in (tree for each in examples for tree in each.trees):
        if tree is not None:
            seen.setdefault(tree[:2], tree)
    return list(seen.values())


class _Constituents(SNLI):
    """SNLI with the constituents of the Stanford parser, of any number of children."""

    trees = False
    found: tuple[tuple[list[str], set[Span]] | None, ...] = ()
    """Of the last example."""

    def _example(self, fields: dict[str, Any], report: Report) -> list[Example]:
        examples = super()._example(fields, report)
        if examples:
            self.found = tuple(self._parsed(fields, n) for n in ("sentence1", "sentence2"))
        return examples

    def _parsed(self, fields: dict[str, Any], name: str) -> tuple[list[str], set[Span]] | None:
        text = fields.get(f"{name}_parse")
        if text is None or text == "":
            return None
        return parse_brackets(checked_text(text, f"{name}_parse"), labelled=True)


def _gold(found: tuple[list[str], set[Span]] | None, place: str) -> Gold | None:
    return None if found is None else Gold(tuple(found[0]), frozenset(found[1]), place)


def _of_tree(tree: Tree | None, place: str) -> Gold | None:
    if tree is None:
        return None
    return Gold(tuple(map(undo_ptb_escapes, tree.words)), frozenset(tree.spans), place)


def _operations(text: str, place: str) -> Gold:
    """Return the tree of an expression whose nodes are operators with all their arguments."""
    words = tuple(text.split())
    return Gold(words, frozenset(_operation_spans(words)), place)


def _operation_spans(words: tuple[str, ...]) -> Iterator[Span]:
    opened: list[int] = []
    for place, word in enumerate(words):
        if word in OPERATORS:
            opened.append(place)
        elif word == "]":
            yield opened.pop(), place + 1
