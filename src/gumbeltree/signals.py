"""What happens at Ctrl-C and SIGTERM."""

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self


@contextmanager
def exits(statuses: Mapping[int, int]) -> Iterator[None]:
    """Let signals end the program with a status each, and what was begun is taken away first.

    Only the main thread may handle signals; elsewhere they keep their usual effect.
    """

    def end(number: int, frame: object) -> None:
        raise SystemExit(statuses[number])

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, end) for number in statuses}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class StopRequest:
    """Notice Ctrl-C and SIGTERM; a second one of a kind ends the process at once, as usual.

    Launchers pass Ctrl-C on as SIGTERM, also to processes that have had it already: they must not
    die of it before they have saved.
    """

    def __init__(self) -> None:
        self.number = 0
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        # only the main thread may handle signals; elsewhere they keep their usual effect
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._notice)
        return self

    def _notice(self, number: int, frame: FrameType | None) -> None:
        self.number = self.number or number
        signal.signal(number, self._before.pop(number))  # type: ignore[arg-type]

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before.clear()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._restore()
