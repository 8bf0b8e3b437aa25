"""ListOps (Nangia and Bowman 2018): nested operations on lists of digits."""

import random
import statistics
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import ClassVar

from gumbeltree.tasks.checks import checked_columns, checked_label, checked_text, checked_tree
from gumbeltree.tasks.task import Example, FileNames, Task
from gumbeltree.text.files import SKIP, MismatchError, Report, counted, shown
from gumbeltree.tree import Tree

OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
CLOSING = "]"
DIGITS = tuple("0123456789")

# parameters of the published data
MAX_DEPTH = 20
MAX_ARGUMENTS = 5
OPERATOR_PROBABILITY = 0.25


def evaluate(tokens: Iterable[str]) -> int:
    """Compute the value of an expression.

    Example:
        >>> evaluate("[MAX 2 [MED 1 4 8 9 ] [SM 7 8 ] ]".split())
        6

    Args:
        tokens: The expression without parentheses. `[MED` is the median, rounded down; `[SM` is
            the sum modulo 10.

    Raises:
        MismatchError: If the tokens do not form exactly one expression.
    """
    operators: list[str] = []
    values: list[list[int]] = [[]]
    position = 0
    for position, token in enumerate(tokens, 1):
        if not operators and values[0]:
            raise _malformed(f"{shown(token)} after its end, at token {position}")
        if token in OPERATORS:
            operators.append(token)
            values.append([])
        elif token in DIGITS:
            values[-1].append(int(token))
        elif token == CLOSING and operators and values[-1]:
            values[-2].append(apply(operators.pop(), values.pop()))
        else:
            raise _malformed(f"{shown(token)} at token {position}")
    if operators or not values[0]:
        open_ones = f" with {counted(len(operators), 'open bracket')}" if operators else ""
        raise _malformed(f"the end{open_ones}" if position else "an empty text")
    return values[0][0]


def tree_of(tokens: Sequence[str]) -> Tree:
    """Return the tree of a valid expression: an operator takes its arguments one by one, then `]`.

    Example:
        >>> tree_of("[SM 6 5 ]".split())
        Tree('( ( ( [SM 6 ) 5 ) ] )')
    """
    order: list[int] = []
    depth = 0
    for count, token in enumerate(tokens, 1):
        if token in OPERATORS:
            depth += 1
            continue
        if token == CLOSING:
            order.append(count - len(order) - 2)
            depth -= 1
        if depth:
            # a complete argument joins its operator
            order.append(count - len(order) - 2)
    return Tree(tokens, order)


def generate(count: int, seed: int) -> Iterator[Example]:
    """Generate distinct examples with the published distribution.

    A node is an operator with a probability of 0.25 and otherwise a digit; operators, digits and
    the number of arguments are uniform. Since short expressions run out, later examples are longer:
    to obtain the published 90,000 and 10,000 examples, generate 100,000 and split them with
    `gumbeltree.tasks.table.split`. With the same seed, a smaller count yields
    the first examples of a larger one.

    Args:
        count: Number of examples.
        seed: Any integer.
    """
    generator = random.Random(seed)
    seen: set[str] = set()
    while len(seen) < count:
        tokens, order = _expression(generator)
        text = " ".join(tokens)
        if text not in seen:
            seen.add(text)
            yield Example((text,), str(evaluate(tokens)), (Tree(tokens, order),))


class ListOps(Task):
    """Expressions as tokens; the label is their value, a digit.

    Each line has the label, a tab and the expression, with or without binary brackets, such as
    `( ( ( [SM 6 ) 5 ) ] )`. They give the gold tree; without them, it follows from the tokens.
    """

    name = "listops"
    size_name = "levels"
    labels = DIGITS
    pair = False
    pretokenized = True
    file_names: ClassVar[FileNames] = {
        split: (f"{split}_d20s.tsv", f"{split}.tsv") for split in ("train", "dev", "test")
    }

    generate = staticmethod(generate)
    evaluate = staticmethod(evaluate)

    @staticmethod
    def check_text(text: str) -> None:
        """Raise unless `text` is an expression of tokens without parentheses."""
        evaluate(text.split())

    def size_of(self, texts: tuple[str, ...]) -> int:
        """Return the number of levels of an expression; a digit has one."""
        tokens = texts[0].split()
        opened = accumulate((token in OPERATORS) - (token == CLOSING) for token in tokens)
        return 1 + max(opened)

    def parse(self, line: str, split: str, report: Report) -> list[Example]:
        """Read one label and expression, and check the label; see `Task.parse`."""
        label, expression = checked_columns(line.split("\t"), 2)
        label = checked_label(label.strip(), self.labels)
        expression = checked_text(expression, "expression")
        tokens = expression.replace("(", " ").replace(")", " ").split()
        answer = evaluate(tokens)
        if str(answer) != label:
            raise MismatchError(
                f"the label {answer}, the value of {shown(' '.join(tokens))}",
                label,
                "correct the label or remove the line",
            )
        tree = None
        if self.trees:
            bracketed = "(" in expression or ")" in expression
            tree = checked_tree(expression, "expression") if bracketed else tree_of(tokens)
        return [Example((" ".join(tokens),), label, (tree,))]


def _expression(generator: random.Random) -> tuple[list[str], list[int]]:
    """Draw the tokens of one expression and the merges of its tree.

    Uses only `random()`, whose values are guaranteed not to change in later Python versions.
    """
    tokens: list[str] = []
    order: list[int] = []
    # remaining arguments of each open operator
    missing: list[int] = []
    while True:
        if len(missing) + 1 < MAX_DEPTH and generator.random() < OPERATOR_PROBABILITY:
            missing.append(2 + int(generator.random() * (MAX_ARGUMENTS - 1)))
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


def apply(operator: str, values: list[int]) -> int:
    """Return the value of an operator for its arguments."""
    if operator == "[MIN":
        return min(values)
    if operator == "[MAX":
        return max(values)
    if operator == "[SM":
        return sum(values) % 10
    return int(statistics.median(values))


def _malformed(actual: str) -> MismatchError:
    return MismatchError(
        f"one expression of {', '.join(OPERATORS)}, digits and ']', such as [MAX 2 9 ]",
        actual,
        f"correct the expression: spaces between tokens, no parentheses; {SKIP}",
    )
