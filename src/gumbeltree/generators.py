"""Computations in short steps: generators that return a result, so that others can run between."""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import TypeVar

Result = TypeVar("Result")


def finish(steps: Generator[None, None, Result]) -> Result:
    """Take all steps, and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result


def each_within(
    context: Callable[[], AbstractContextManager[object]], steps: Generator[None, None, Result]
) -> Generator[None, None, Result]:
    """Take each step within a new context, which therefore has no effect between steps."""
    while True:
        with context():
            try:
                next(steps)
            except StopIteration as end:
                result: Result = end.value
                return result
        yield
