"""Stop when asked to, at a place where nothing is lost."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Self


class InterruptedRunError(Exception):
    """Training was asked to stop, and has saved its state.

    Attributes:
        status: exit status, 128 and the signal's number: 130 after Ctrl-C.
    """

    def __init__(self, number: int, folder: object) -> None:
        super().__init__(f"stopped; the state is saved in {folder}: go on with --resume")
        self.status = 128 + number


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
