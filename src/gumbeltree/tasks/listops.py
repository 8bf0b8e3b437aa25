"""ListOps (Nangia and Bowman 2018): nested operations on lists of digits."""

import hashlib
import random
from collections.abc import Iterable, Iterator
from typing import ClassVar

from gumbeltree.tasks.checks import checked_columns, checked_label, checked_text, checked_tree
from gumbeltree.tasks.task import Example, FileNames, Task
from gumbeltree.text.files import MismatchError, Report, shown
from gumbeltree.tree import Tree

OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
CLOSING = "]"
DIGITS = tuple("0123456789")
_PATIENCE = 100_000


def evaluate(tokens: Iterable[str]) -> int:
    """Compute the answer of an expression.

    Example:
        >>> evaluate("[MAX 2 [MED 1 4 8 9 ] [SM 7 8 ] ]".split())
        6

    Args:
        tokens: The expression without parentheses. `[MED` is the median, the mean of the middle
            two rounded down; `[SM` is the sum modulo 10.

    Raises:
        ValueError: If the tokens are not one whole expression.
    """
    operators: list[str] = []
    values: list[list[int]] = [[]]
    position = -1
    for position, token in enumerate(tokens):
        if not operators and values[0]:
            came = f"{shown(token)} at token {position + 1}"
            raise MismatchError("the end after one expression", came, "write one expression a line")
        if token in OPERATORS:
            operators.append(token)
            values.append([])
        elif token in DIGITS:
            values[-1].append(int(token))
        elif token == CLOSING and operators and values[-1]:
            values[-2].append(_apply(operators.pop(), values.pop()))
        else:
            expected = "an operator " + ", ".join(OPERATORS) + " or a digit"
            if operators and values[-1]:
                expected += " or ']'"
            came = f"{shown(token)} at token {position + 1}"
            raise MismatchError(expected, came, "correct the expression")
    if operators or not values[0]:
        expected = f"{len(operators)} more ']'" if operators else "an expression"
        came = f"the end after {position + 1} tokens"
        raise MismatchError(expected, came, "write the whole expression, such as [MAX 2 9 ]")
    return values[0][0]


def generate(
    count: int,
    seed: int,
    max_depth: int = 20,
    max_arguments: int = 5,
    probability: float = 0.25,
    distinct: bool = True,
) -> Iterator[Example]:
    """Make examples with the published distribution.

    A node is an operator with the given probability, and otherwise a digit; the operator, the
    digit and the number of arguments are uniform. As in the published data, no expression comes
    twice, which leaves ten single digits at most. Since short expressions run out, later examples
    are longer: for the published 90,000 and 10,000, make 100,000 and divide them with
    `gumbeltree.tasks.table.split`. Fewer examples with the same seed are the first of more.

    Args:
        count: How many examples.
        seed: Any integer; the same one gives the same examples.
        max_depth: How many levels a tree may have, that of the innermost digits included.
        max_arguments: The most arguments an operator has; the fewest are 2.
        probability: How likely a node is an operator. Above 2 / (2 + max_arguments), trees grow
            until `max_depth` stops them.
        distinct: Whether each expression comes once.

    Raises:
        ValueError: If an argument is out of range, or no more distinct expressions are found.
    """
    for name, value, least in (
        ("count", count, 0),
        ("max_depth", max_depth, 1),
        ("max_arguments", max_arguments, 2),
    ):
        if value < least:
            raise ValueError(f"`{name}` must be at least {least}, got {value}; pass a larger one")
    if not 0 <= probability <= 1:
        raise ValueError(f"`probability` must lie in 0..1, got {probability}; pass a fraction")
    return _generated(count, seed, max_depth, max_arguments, probability, distinct)


class ListOps(Task):
    """Expressions as tokens; the label is the answer, a digit.

    The official file has the label, a tab and the expression in binary brackets, such as
    `( ( ( [SM 6 ) 5 ) ] )`, which give the gold tree; an expression without them has none.
    """

    name = "listops"
    labels = DIGITS
    pair = False
    pretokenized = True
    file_names: ClassVar[FileNames] = {
        split: (f"{split}_d20s.tsv",) for split in ("train", "dev", "test")
    }

    generate = staticmethod(generate)
    evaluate = staticmethod(evaluate)

    def parse(self, line: str, split: str, report: Report) -> list[Example]:
        """Read one label and expression, and check the label; see `Task.parse`."""
        label, expression = checked_columns(line.split("\t"), 2)
        label = checked_label(label.strip(), self.labels)
        expression = checked_text(expression, "expression")
        tokens = expression.replace("(", " ").replace(")", " ").split()
        answer = evaluate(tokens)
        if str(answer) != label:
            raise MismatchError(
                f"the answer {answer} of {shown(' '.join(tokens))} as label",
                label,
                "correct the label, or leave the line out",
            )
        bracketed = "(" in expression or ")" in expression or len(tokens) == 1
        tree = checked_tree(expression, "expression") if bracketed and self.trees else None
        return [Example((" ".join(tokens),), label, (tree,))]


def _generated(
    count: int, seed: int, max_depth: int, max_arguments: int, probability: float, distinct: bool
) -> Iterator[Example]:
    generator = random.Random(seed)
    seen: set[bytes] = set()
    repeats = made = 0
    while made < count:
        tokens, order = _expression(generator, max_depth, max_arguments, probability)
        text = " ".join(tokens)
        if distinct:
            digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
            if digest in seen:
                repeats += 1
                if repeats == _PATIENCE:
                    raise ValueError(
                        f"`count` must not exceed the number of expressions, got {count}, but "
                        f"{repeats} expressions after {made} were all repeated; pass a smaller "
                        "`count`, a larger `max_depth`, or distinct=False"
                    )
                continue
            seen.add(digest)
            repeats = 0
        made += 1
        yield Example((text,), str(evaluate(tokens)), (Tree(tokens, order),))


def _expression(
    generator: random.Random, max_depth: int, max_arguments: int, probability: float
) -> tuple[list[str], list[int]]:
    """Draw the tokens of one expression, and the merges of its tree.

    Only `random()` is drawn from: Python promises that it stays the same for the same seed.
    """
    tokens: list[str] = []
    order: list[int] = []
    # the arguments still to come of each open operator
    missing: list[int] = []
    while True:
        if len(missing) + 1 < max_depth and generator.random() < probability:
            missing.append(2 + int(generator.random() * (max_arguments - 1)))
            tokens.append(OPERATORS[int(generator.random() * len(OPERATORS))])
            continue
        tokens.append(DIGITS[int(generator.random() * len(DIGITS))])
        while missing:
            order.append(len(tokens) - len(order) - 2)
            missing[-1] -= 1
            if missing[-1]:
                break
            missing.pop()
            tokens.append(CLOSING)
            order.append(len(tokens) - len(order) - 2)
        if not missing:
            return tokens, order


def _apply(operator: str, values: list[int]) -> int:
    if operator == "[MIN":
        return min(values)
    if operator == "[MAX":
        return max(values)
    if operator == "[SM":
        return sum(values) % 10
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) // 2
