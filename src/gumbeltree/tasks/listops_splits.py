"""Draw the ListOps splits on which tree learners are compared, exactly by length.

Long expressions are rare: one draw in 77,000 has 900 to 1,000 tokens. Instead of drawing until one
fits, `Sampler` computes the distribution of lengths and draws the length first. All weights are
integers, so that the same seed gives the same bytes on every machine.
"""

import bisect
import hashlib
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from typing import Any, NamedTuple

from gumbeltree.tasks.listops import CLOSING, DIGITS, OPERATORS, apply

BITS = 96
"""Fractional bits of a probability."""
SLOT = 32
"""Bytes per coefficient in a product of polynomials, which has fewer than 2 * BITS + 64 bits."""


class Grammar(NamedTuple):
    """Parameters of the recursive generator of Nangia and Bowman (2018)."""

    operator: Fraction = Fraction(1, 4)
    """Probability that a node is an operator, above the deepest level."""
    arguments: int = 5
    """Maximum number of arguments; the minimum is 2, and all numbers are equally likely."""
    levels: int = 20
    """Number of levels, including that of the root."""


class Expression(NamedTuple):
    """An expression, its value and its number of levels."""

    tokens: tuple[str, ...]
    value: int
    depth: int


class SplitPlan(NamedTuple):
    """What to draw for a split.

    Attributes:
        grammar: distribution of the expressions.
        size: number of distinct expressions.
        shortest: minimum number of tokens.
        longest: maximum number of tokens.
        shallowest: minimum number of levels.
        deepest: maximum number of levels.
    """

    grammar: Grammar
    size: int
    shortest: int
    longest: int
    shallowest: int = 1
    deepest: int = 2**31

    def fits(self, expression: Expression) -> bool:
        """Return whether an expression has the required number of levels."""
        return self.shallowest <= expression.depth <= self.deepest


BASE = Grammar()
LRA = Grammar(arguments=10, levels=10)
DEEP = Grammar(operator=Fraction(3, 10), levels=10)
LENGTHS = (200, 300, 400, 500, 600, 700, 800, 900)
PLANS: dict[str, SplitPlan] = {
    **{f"{n}-{n + 100}": SplitPlan(BASE, 2000, n + 1, n + 99) for n in LENGTHS},
    "arguments-10": SplitPlan(Grammar(arguments=10, levels=9), 2000, 101, 999),
    "arguments-15": SplitPlan(Grammar(arguments=15, levels=9), 2000, 101, 999),
    "lra": SplitPlan(LRA, 2000, 501, 1999),
    "depth-test": SplitPlan(DEEP, 2000, 20, 100, shallowest=8),
    "depth-dev": SplitPlan(DEEP, 2000, 20, 500, shallowest=7, deepest=7),
    "depth-train": SplitPlan(Grammar(levels=6), 100_000, 20, 100),
}
"""Splits by name, those for testing first. Lengths and depths follow Nangia and Bowman (2018),
Havrylov et al. (2019), Tay et al. (2021) and Ray Chowdhury and Caragea (2023)."""


class Sampler:
    """Draws expressions of given lengths, with the probabilities of the recursive generator.

    Args:
        grammar: parameters of the generator.
        longest: maximum number of tokens.
    """

    def __init__(self, grammar: Grammar, longest: int) -> None:
        self.grammar, self.longest = grammar, longest
        size, q = longest + 1, grammar.operator
        most = grammar.arguments
        # weights[d][m][n]: probability that m nodes with d levels below have n tokens
        self.weights: list[list[list[int]]] = []
        one = [0] * size
        one[1] = 1 << BITS
        for _ in range(grammar.levels):
            powers = [one]
            for _ in range(most - 1):
                powers.append(_product(powers[-1], one, size))
            self.weights.append(powers)
            # an operator and its bracket are two tokens more than the arguments
            sums = [sum(column) for column in zip(*powers[1:], strict=True)]
            share = q / (most - 1)
            inner = [x * share.numerator // share.denominator for x in sums]
            one = [0, 0, *inner[:-2]]
            one[1] = (1 << BITS) - ((1 << BITS) * q.numerator // q.denominator)

    def probability(self, shortest: int, longest: int) -> float:
        """Return the probability that an expression has `shortest` to `longest` tokens."""
        return sum(self.weights[-1][0][shortest : longest + 1]) / (1 << BITS)

    def draw(self, generator: random.Random, shortest: int, longest: int) -> Expression:
        """Draw an expression of `shortest` to `longest` tokens.

        Uses only `random()`, whose values are guaranteed not to change in later Python versions.
        """
        lengths = self.weights[-1][0][shortest : longest + 1]
        length = shortest + _choose(generator, lengths)
        tokens: list[str] = []
        value, depth = self._node(generator, self.grammar.levels - 1, length, tokens)
        return Expression(tuple(tokens), value, depth)

    def _node(
        self, generator: random.Random, level: int, length: int, tokens: list[str]
    ) -> tuple[int, int]:
        """Append the tokens of a node with `level` levels below; return its value and depth."""
        if length == 1:
            digit = int(generator.random() * len(DIGITS))
            tokens.append(DIGITS[digit])
            return digit, 1
        operator = OPERATORS[int(generator.random() * len(OPERATORS))]
        tokens.append(operator)
        left = length - 2
        below = self.weights[level - 1]
        count = 2 + _choose(generator, [weights[left] for weights in below[1:]])
        values, deepest = [], 0
        for others in range(count - 1, -1, -1):
            size = left
            if others:
                # the other arguments have at least one token each
                longest = left - others
                rest = below[others - 1]
                fits = [below[0][n] * rest[left - n] for n in range(1, longest + 1)]
                size = 1 + _choose(generator, fits)
            value, depth = self._node(generator, level - 1, size, tokens)
            values.append(value)
            deepest = max(deepest, depth)
            left -= size
        tokens.append(CLOSING)
        return apply(operator, values), deepest + 1


def draw_split(
    plan: SplitPlan, seed: str, taken: set[str], progress: Callable[[int], Any] = lambda done: None
) -> tuple[list[Expression], int]:
    """Draw the distinct expressions of a split.

    Args:
        plan: what to draw.
        seed: any text.
        taken: expressions that must not occur, as text.
        progress: called with the number of expressions so far.

    Returns:
        The expressions, and how many draws were dropped because they are in `taken`.
    """
    sampler = Sampler(plan.grammar, plan.longest)
    generator = random.Random(int.from_bytes(hashlib.sha256(seed.encode()).digest()))
    found: dict[str, Expression] = {}
    leaks = 0
    while len(found) < plan.size:
        expression = sampler.draw(generator, plan.shortest, plan.longest)
        text = " ".join(expression.tokens)
        if text in taken:
            leaks += 1
        elif plan.fits(expression) and text not in found:
            found[text] = expression
            progress(len(found))
    return list(found.values()), leaks


def lines(expressions: Iterable[Expression]) -> Iterator[str]:
    """Yield the lines of a file: value, tab, tokens."""
    for expression in expressions:
        yield f"{expression.value}\t{' '.join(expression.tokens)}\n"


def _product(a: list[int], b: list[int], size: int) -> list[int]:
    """Return the first coefficients of the product of two polynomials, divided by 2^BITS.

    The coefficients become digits of two large numbers, whose product Python computes quickly.
    """
    x, y = (
        int.from_bytes(b"".join(n.to_bytes(SLOT, "little") for n in polynomial), "little")
        for polynomial in (a, b)
    )
    digits = (x * y).to_bytes(2 * size * SLOT, "little")
    return [
        int.from_bytes(digits[i * SLOT : (i + 1) * SLOT], "little") >> BITS for i in range(size)
    ]


def _choose(generator: random.Random, weights: list[int]) -> int:
    """Draw an index with probability proportional to its weight."""
    sums = list(itertools.accumulate(weights))
    point = int(generator.random() * 2**53) * sums[-1] >> 53
    return bisect.bisect_right(sums, point)
