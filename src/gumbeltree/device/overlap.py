"""Work that nobody waits for yet, beside the main stream of a CUDA device."""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


class Overlap:
    """Lets implementations start work on a second stream, while this is entered.

    A batch carries it to them (`Layout.overlap`). Whoever enters it promises to use each weight
    once, and no gradient of a weight before leaving: leaving waits for all that was started. A
    training step that is captured as a graph does so; there, work on two streams becomes two
    branches of the graph.

    Args:
        device: a CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.side = side_stream(device)
        self.kept: list[Any] = []

    def __enter__(self) -> "Overlap":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.wait()
        finally:
            self.kept.clear()

    def start(self, work: Callable[[], Result]) -> Result:
        """Start work that follows everything on the main stream so far; wait before using it."""
        # memory of the main stream that the work reads must not be given away before its end; and
        # if the work fails, the main stream must still wait for the other one
        self.kept.append(work)
        self.side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.side):
            result = work()
        self.kept.append(result)
        return result

    def wait(self) -> None:
        """Let the main stream wait for everything started."""
        if not self.kept:
            # a graph that is being captured must not depend on a stream outside of it
            return
        torch.cuda.current_stream(self.device).wait_stream(self.side)


@cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the second stream of a device; one for all, since libraries keep memory for each."""
    return torch.cuda.Stream(device)
