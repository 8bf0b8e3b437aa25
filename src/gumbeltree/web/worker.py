"""One thread that runs the models: requests that wait for the same thing are answered together."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Call: TypeAlias = Callable[[list[Any]], Sequence[Any]]


class BusyError(Exception):
    """As many requests wait as may wait."""


class LateError(Exception):
    """A request waited as long as it may."""


@dataclass(eq=False, repr=False)
class _Job:
    """The items of one request."""

    key: Hashable
    call: Call
    items: list[Any]
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[list[Any]]"


class Worker:
    """A queue, and the thread that works it off.

    The thread starts with the first request. Nothing but this thread runs a model, so that torch
    works in one thread at a time.

    Args:
        limit: most requests that wait.
        linger: seconds that the first request of a batch waits for others.
        batch: most items that are answered together, unless one request alone has more.
    """

    def __init__(self, limit: int, linger: float, batch: int) -> None:
        self.limit, self.linger, self.batch = limit, linger, batch
        # in the order in which they came; any of them leaves at once
        self._jobs: dict[_Job, None] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def waiting(self) -> int:
        """How many requests wait that have not begun."""
        return len(self._jobs)

    async def run(
        self, key: Hashable, call: Call, items: Sequence[Any], deadline: float, again: bool = False
    ) -> list[Any]:
        """Return what `call` gives for `items`, which it may get among those of other requests.

        Args:
            key: requests of one key are answered together, by the `call` of any of them.
            call: gets items, returns as many results. If it raises for several requests together,
                it is called for each of them alone, so that one cannot spoil the others.
            items: of this request.
            deadline: time of the running loop at which `LateError` is raised; what has not begun
                by then never will.
            again: whether the request was in the queue before, and so is not one more.
        """
        loop = asyncio.get_running_loop()
        job = _Job(key, call, list(items), loop, loop.create_future())
        with self._changed:
            if not again and len(self._jobs) >= self.limit:
                raise BusyError
            self._jobs[job] = None
            if self._thread is None:
                self._closed = False
                self._thread = threading.Thread(target=self._work, name="models", daemon=True)
                self._thread.start()
            self._changed.notify()
        try:
            async with asyncio.timeout_at(deadline):
                return await job.future
        except TimeoutError:
            raise LateError from None
        finally:
            # too late, or the client is gone
            with self._changed:
                self._jobs.pop(job, None)

    def close(self) -> None:
        """Finish what waits, then end the thread; it starts again with the next request."""
        with self._changed:
            thread, self._thread = self._thread, None
            self._closed = True
            self._changed.notify()
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while batch := self._take():
            _settle(list(zip(batch, _outcomes(batch), strict=True)))

    def _take(self) -> list[_Job]:
        """Return the next requests to answer together; none when the thread is to end."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._closed)
                if not self._jobs:
                    return []
                linger = not self._closed and self._ready() < self.batch
            if linger:
                time.sleep(self.linger)
            with self._changed:
                # the only request may have been given up meanwhile
                if self._jobs:
                    return self._first()

    def _ready(self) -> int:
        """Return the items that could be answered together with the first request."""
        key = next(iter(self._jobs)).key
        return sum(len(job.items) for job in self._jobs if job.key == key)

    def _first(self) -> list[_Job]:
        """Take the first request from the queue, and those of its key as long as they fit."""
        key, size = next(iter(self._jobs)).key, 0
        taken: list[_Job] = []
        for job in self._jobs:
            if job.key == key and (not taken or size + len(job.items) <= self.batch):
                taken.append(job)
                size += len(job.items)
        for job in taken:
            del self._jobs[job]
        return taken


def _outcomes(batch: list[_Job]) -> list[list[Any] | Exception]:
    """Return the results of each request, or what went wrong with it."""
    items = [item for job in batch for item in job.items]
    try:
        results = list(batch[0].call(items))
        if len(results) != len(items):
            raise RuntimeError(f"expected {len(items)} results, got {len(results)}")
    except Exception as error:
        if len(batch) == 1:
            return [error]
        return [outcome for job in batch for outcome in _outcomes([job])]
    found: list[list[Any] | Exception] = []
    for job in batch:
        found.append(results[: len(job.items)])
        results = results[len(job.items) :]
    return found


def _settle(answers: list[tuple[_Job, list[Any] | Exception]]) -> None:
    """Hand the answers to the loops that wait for them."""

    def deliver(own: list[tuple[_Job, list[Any] | Exception]]) -> None:
        for job, outcome in own:
            if job.future.done():
                continue
            if isinstance(outcome, Exception):
                job.future.set_exception(outcome)
            else:
                job.future.set_result(outcome)

    for loop in {job.loop for job, _ in answers}:
        # a loop that has ended waits for nothing
        with contextlib.suppress(RuntimeError):
            own = [answer for answer in answers if answer[0].loop is loop]
            loop.call_soon_threadsafe(deliver, own)
