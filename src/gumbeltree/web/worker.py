"""The thread that runs the models on batches of requests."""

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Call: TypeAlias = Callable[[list[Any]], Sequence[Any]]


class BusyError(Exception):
    """The queue is full."""


class LateError(Exception):
    """A request timed out."""


@dataclass(eq=False, repr=False)
class _Job:
    """The items of one request."""

    key: Hashable
    call: Call
    items: list[Any]
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[list[Any]]"


class Worker:
    """A queue of requests and the thread that processes them.

    The thread starts with the first request. Only this thread runs models.

    Args:
        limit: maximum number of waiting requests.
        linger: seconds to wait for more requests to batch.
        batch: maximum number of items per batch, unless one request has more.
    """

    def __init__(self, limit: int, linger: float, batch: int) -> None:
        self.limit, self.linger, self.batch = limit, linger, batch
        # an ordered set: any request can be removed in constant time
        self._jobs: dict[_Job, None] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def waiting(self) -> int:
        """Number of requests that have not started."""
        return len(self._jobs)

    async def run(
        self, key: Hashable, call: Call, items: Sequence[Any], deadline: float, again: bool = False
    ) -> list[Any]:
        """Return the results of `call` for `items`, batched with other requests.

        Args:
            key: requests with the same key are batched, using the `call` of any of them.
            call: returns one result per item. If it raises on a batch, it is called again for each
                request separately, so that one request cannot fail the others.
            items: the items of this request.
            deadline: event loop time at which to raise `LateError` and drop the request.
            again: whether an earlier part of the request was queued, which lifts the limit.
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
            # timed out, or the client disconnected
            with self._changed:
                self._jobs.pop(job, None)

    def close(self) -> None:
        """Process the waiting requests, then end the thread; a new request restarts it."""
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
        """Return the next batch; an empty one ends the thread."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._closed)
                if not self._jobs:
                    return []
                linger = not self._closed and self._ready() < self.batch
            if linger:
                time.sleep(self.linger)
            with self._changed:
                # the only request may have been dropped in the meantime
                if self._jobs:
                    return self._first()

    def _ready(self) -> int:
        """Return the number of items that can be batched with the first request."""
        key = next(iter(self._jobs)).key
        return sum(len(job.items) for job in self._jobs if job.key == key)

    def _first(self) -> list[_Job]:
        """Remove and return the first request and those with its key that fit in the batch."""
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
    """Return the results of each request, or the error it raised."""
    items = [item for job in batch for item in job.items]
    try:
        results = list(batch[0].call(items))
        if len(results) != len(items):
            raise RuntimeError(f"{len(results)} results for {len(items)} items")
    except Exception as error:
        if len(batch) == 1:
            return [error]
        return [outcome for job in batch for outcome in _outcomes([job])]
    rest = iter(results)
    return [list(itertools.islice(rest, len(job.items))) for job in batch]


def _settle(answers: list[tuple[_Job, list[Any] | Exception]]) -> None:
    """Pass the results to the event loops that wait for them."""

    def deliver(own: list[tuple[_Job, list[Any] | Exception]]) -> None:
        for job, outcome in own:
            if job.future.done():
                continue
            if isinstance(outcome, Exception):
                job.future.set_exception(outcome)
            else:
                job.future.set_result(outcome)

    for loop in {job.loop for job, _ in answers}:
        # the loop may have been closed
        with contextlib.suppress(RuntimeError):
            own = [answer for answer in answers if answer[0].loop is loop]
            loop.call_soon_threadsafe(deliver, own)
