"""Handle Ctrl-C and SIGTERM."""

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self


@contextmanager
def exits(statuses: Mapping[int, int]) -> Iterator[None]:
    """Exit on each signal with its status in `statuses`, after cleaning up.

    Python handles signals only in the main thread; other threads keep the default behaviour.
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
    """Record Ctrl-C and SIGTERM in `number`; a repeated signal has its previous effect.

    Launchers forward Ctrl-C as SIGTERM even to processes that already received it. Handling
    the two separately lets such a process save before it ends.
    """

    def __init__(self) -> None:
        self.number = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._record)
        return self

    def _record(self, number: int, frame: object) -> None:
        self.number = self.number or number
        signal.signal(number, self._before.pop(number))

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
