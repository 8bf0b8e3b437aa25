"""Propositional logic (Bowman et al. 2015): the relation between two formulas."""

import re
from typing import ClassVar, NamedTuple

from gumbeltree.tasks.checks import checked_columns, checked_label, checked_text
from gumbeltree.tasks.task import Example, FileNames, Task
from gumbeltree.text.files import SKIP, MismatchError, Report, shown
from gumbeltree.tree import Tree

VARIABLES = "abcdef"
OPERATORS = ("not", "and", "or")
WORLDS = 1 << len(VARIABLES)
"""Number of assignments of truth values to the variables."""
ALL = (1 << WORLDS) - 1
"""The set of all worlds; a set of worlds is an integer with one bit per world."""
TRUE_IN = {
    name: sum(1 << world for world in range(WORLDS) if world >> place & 1)
    for place, name in enumerate(VARIABLES)
}
"""Worlds in which each variable is true."""
RELATIONS = {"=": (1, 0, 0, 1), "<": (1, 0, 1, 1), ">": (1, 1, 0, 1)} | {
    "^": (0, 1, 1, 0),
    "|": (0, 1, 1, 1),
    "v": (1, 1, 1, 0),
}
"""Whether there are worlds in both formulas, only the first, only the second, and neither. All
other combinations are #."""
LABELS = ("<", ">", "=", "^", "|", "#", "v")
HELD_OUT = re.compile(r"\( (?:and|or) \( not ")
"""Formulas that split C keeps out of training (Shen et al. 2019)."""


class Formula(NamedTuple):
    """A formula read from its tokens.

    Attributes:
        worlds: the worlds in which it is true.
        operations: number of `not`, `and` and `or`.
        order: merges of its tree; a bracketed group merges its two parts first, then its brackets.
    """

    worlds: int
    operations: int
    order: tuple[int, ...]


def read_formula(text: str) -> Formula:
    """Read a formula such as `( a ( and ( not b ) ) )`.

    Example:
        >>> read_formula("( not a )").operations
        1

    Raises:
        MismatchError: If the tokens do not form exactly one formula.
    """
    # items of each open bracket: worlds of a formula, or an operator with its operand
    stack: list[list[int | str | tuple[str, int]]] = [[]]
    order: list[int] = []
    operations = count = 0

    for token in text.split():
        if token == "(":
            stack.append([])
        elif token == ")":
            group = stack.pop() if len(stack) > 1 else []
            count += 1
            found = _combined(group)
            if found is None:
                raise _malformed(text)
            stack[-1].append(found)
            # the two parts, the opening bracket, the closing bracket
            nodes = count - len(order)
            order += [nodes - 3, nodes - 4, nodes - 4]
            continue
        elif token in TRUE_IN:
            stack[-1].append(TRUE_IN[token])
        elif token in OPERATORS:
            operations += 1
            stack[-1].append(token)
        else:
            raise _malformed(text)
        count += 1
    if len(stack) != 1 or len(stack[0]) != 1 or not isinstance(stack[0][0], int):
        raise _malformed(text)
    return Formula(stack[0][0], operations, tuple(order))


def _combined(group: list[int | str | tuple[str, int]]) -> int | tuple[str, int] | None:
    """Return what a bracketed group stands for: worlds, or an operator with its operand."""
    match group:
        case ["not", int(x)]:
            return ALL & ~x
        case ["and" | "or" as name, int(x)]:
            return name, x
        case [int(x), ("and", int(y))]:
            return x & y
        case [int(x), ("or", int(y))]:
            return x | y
    return None


def relation(first: int, second: int) -> str:
    """Return the relation between two formulas, given the worlds in which they are true."""
    parts = (first & second, first & ~second, second & ~first, ALL & ~(first | second))
    cells = tuple(int(part != 0) for part in parts)
    return next((name for name, wanted in RELATIONS.items() if wanted == cells), "#")


class Logic(Task):
    """Pairs of formulas over six variables; the label is one of seven relations.

    Each line has the relation and two formulas, separated by tabs. Brackets are tokens. The
    published files are `train0` to `train6` and `test0` to `test12`, by number of operations;
    `gumbeltree data make logic` turns them into splits.
    """

    name = "logic"
    size_name = "operations"
    labels = LABELS
    pair = True
    pretokenized = True
    file_names: ClassVar[FileNames] = {
        split: (f"{split}.tsv",) for split in ("train", "dev", "test")
    }

    @staticmethod
    def check_text(text: str) -> None:
        """Raise unless `text` is a formula."""
        read_formula(" ".join(text.split()))

    def size_of(self, texts: tuple[str, ...]) -> int:
        """Return the number of operations of the larger formula."""
        return max(sum(token in OPERATORS for token in text.split()) for text in texts)

    def parse(self, line: str, split: str, report: Report) -> list[Example]:
        """Read a relation and two formulas, and check the relation; see `Task.parse`."""
        label, *texts = checked_columns(line.split("\t"), 3)
        label = checked_label(label.strip(), self.labels)
        words = [" ".join(checked_text(text, "formula").split()) for text in texts]
        first, second = (read_formula(text) for text in words)
        answer = relation(first.worlds, second.worlds)
        if answer != label:
            raise MismatchError(
                f"the relation {answer} between these formulas",
                label,
                "correct the relation or remove the line",
            )
        trees = tuple(
            Tree(text, formula.order) if self.trees else None
            for text, formula in zip(words, (first, second), strict=True)
        )
        return [Example(tuple(words), label, trees)]


def _malformed(text: str) -> MismatchError:
    return MismatchError(
        "a formula of a..f, not, and, or, such as ( a ( and ( not b ) ) )",
        shown(text),
        f"correct the formula: spaces between tokens; {SKIP}",
    )
