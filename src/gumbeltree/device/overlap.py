"""Run work on a second CUDA stream, beside other work or because nothing waits for its result."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

import torch

from gumbeltree.device.graphs import capture_stream

Result = TypeVar("Result")


class Overlap:
    """Context manager within which operations may start work on a second stream.

    Operations receive it as `Layout.overlap`. Inside the context, each weight must be used only
    once and no gradient of a weight may be read; leaving the context waits for all work. When a
    training step is captured as a graph, the two streams become parallel branches.

    Args:
        device: A CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.side = side_stream(device)
        self.kept: list[Any] = []

    def __enter__(self) -> "Overlap":
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def start(self, work: Callable[[], Result]) -> Result:
        """Run `work` after the work queued so far; call `wait` before using the result."""
        # Keep a reference to the inputs, so that their memory is not reused before the work ends,
        # and append it first, so that `wait` also waits for work that fails.
        self.kept.append(work)
        self.side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.side):
            result = work()
        self.kept.append(result)
        return result

    def wait(self) -> None:
        """Make the main stream wait for all work started so far."""
        if not self.kept:
            # a graph under capture must not depend on a stream outside it
            return
        torch.cuda.current_stream(self.device).wait_stream(self.side)

    def finish(self) -> None:
        """Wait for all work, so that a graph under capture can end here."""
        try:
            self.wait()
        finally:
            self.kept.clear()


def at_once(device: torch.device, works: Sequence[Callable[[], Result]]) -> list[Result]:
    """Return the results of one or two works, the second of which runs on a second stream.

    Later work waits for both. They run one after the other outside the functions of `Graphs`, of
    which only one at a time uses the second stream.
    """
    if device.type != "cuda" or len(works) == 1:
        return [work() for work in works]
    first, second = works
    main, side = torch.cuda.current_stream(device), side_stream(device)
    if main != capture_stream(device):
        return [first(), second()]
    side.wait_stream(main)
    # memory that this work frees is reused on the same stream, which waits for the main one before
    try:
        with torch.cuda.stream(side):
            beside = second()
        return [first(), beside]
    finally:
        # also after an error, so that a graph under capture can end
        main.wait_stream(side)


@cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the second stream of a device, shared because every stream needs a workspace."""
    return torch.cuda.Stream(device)
