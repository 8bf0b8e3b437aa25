"""The thread that runs the models, in short slices, so that long requests do not delay short ones.

A request consists of items, usually texts. Requests that take less than one slice are batched and
take turns with longer ones, which therefore get at least half of the time. Among the longer ones,
each slice goes to the request with the earliest arrival plus `FAVOUR` times its duration. Later
requests rarely overtake, so the end of each request can be predicted, and a request is refused if
it, or another because of it, would end too late.
"""

import asyncio
import contextlib
import itertools
import math
import threading
import time
from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Steps: TypeAlias = Generator[None, None, Sequence[Any]]
Call: TypeAlias = Callable[[list[Any]], Sequence[Any] | Steps]

SLICE_SECONDS = 0.05
"""How long the thread works on one batch before it turns to the next."""
FAVOUR = 2.0
"""How much later a request can arrive, per second that it is shorter, and still run first."""
STUCK_SECONDS = 5.0
"""Duration of a slice from which the thread is considered stuck, and requests are refused."""
MARGIN = 0.7
"""Share of the time limit within which a request must be predicted to end."""
CALL_COST = 50.0
"""What a call costs besides its items: about as much as encoding this many words."""
SHORT_COST = 256.0
"""Requests that cost less are always short, so that new measurements correct wrong estimates."""
START_RATE = 5e-5
"""Seconds per unit of cost before any measurement, and at most if there is no recent one."""
RECENT_SECONDS = 60.0


class BusyError(Exception):
    """The request cannot be finished in time, or the queue is full.

    Attributes:
        seconds: when to try again.
        alone: seconds that the request takes, if that alone exceeds its time limit.
    """

    def __init__(self, seconds: float = 1.0, alone: float | None = None) -> None:
        super().__init__()
        self.seconds, self.alone = seconds, alone


class LateError(Exception):
    """A request timed out."""


@dataclass(eq=False, repr=False)
class _Job:
    """The items of one request and their results so far."""

    key: tuple[Hashable, ...]
    call: Call
    items: list[Any]
    costs: list[float]
    enough: Callable[[list[Any]], bool]
    arrival: float
    deadline: float
    typical: bool
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[list[Any]]"
    results: list[Any] = field(default_factory=list)
    rank: float = 0.0
    begun: bool = False
    """Whether any of it has run."""
    alone: bool = False
    """Whether a batch with this request failed."""
    batch: "_Batch | None" = None
    """A call of this request that has not ended."""


@dataclass(eq=False, repr=False)
class _Batch:
    """One call: the next items of one or several requests."""

    parts: list[tuple[_Job, int]]
    cost: float
    seconds: float = 0.0
    steps: Steps | None = None

    def run(self) -> Sequence[Any] | None:
        """Work for one slice; return the results, or None if there is more to do."""
        until = time.monotonic() + SLICE_SECONDS
        if self.steps is None:
            items = [item for job, count in self.parts for item in _rest(job.items, job, count)]
            results = self.parts[0][0].call(items)
            if not isinstance(results, Generator):
                return self._checked(results)
            self.steps = results
        before = time.monotonic()
        while True:
            try:
                next(self.steps)
            except StopIteration as end:
                return self._checked(end.value)
            now = time.monotonic()
            # only the first request can keep a batch that has not ended
            if len(self.parts) == 1 and 2 * now - before > until:
                # another step would take too long
                return None
            before = now

    def _checked(self, results: Sequence[Any]) -> Sequence[Any]:
        count = sum(count for _, count in self.parts)
        if len(results) != count:
            raise RuntimeError(f"{len(results)} results for {count} items")
        return results


class Worker:
    """A queue of requests and the thread that processes them.

    The thread starts with the first request. Only this thread runs models.

    Args:
        limit: maximum number of requests that have not begun.
        linger: seconds to wait for more requests to batch.
        batch: maximum number of items per batch.
    """

    def __init__(self, limit: int, linger: float, batch: int) -> None:
        self.limit, self.linger, self.batch = limit, linger, batch
        # ordered sets: any request can be removed in constant time
        self._short: dict[_Job, None] = {}
        self._long: dict[_Job, None] = {}
        self._measured: dict[Hashable, tuple[float, float, float]] = {}
        """Seconds and cost of recent calls, and the end of the last, by operation and model."""
        self._pace = 1.0
        """Seconds that pass per second of work on long requests."""
        self._last_long = math.inf
        """When the last slice of a long request ended."""
        self._running: tuple[float, _Batch] | None = None
        """When the current slice began, and its batch."""
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def waiting(self) -> int:
        """Number of requests that have not begun."""
        return sum(not job.begun for job in self._jobs())

    @property
    def oldest(self) -> float:
        """Seconds since the oldest unanswered request arrived; 0 if there is none."""
        return max((time.monotonic() - job.arrival for job in self._jobs()), default=0.0)

    @property
    def slice_seconds(self) -> float:
        """Duration of the current slice so far; 0 between slices."""
        running = self._running
        return time.monotonic() - running[0] if running else 0.0

    @property
    def alive(self) -> bool:
        """Whether the thread is alive, or starts with the next request."""
        thread = self._thread
        return thread is None or thread.is_alive()

    async def run(
        self,
        key: tuple[Hashable, ...],
        call: Call,
        items: Sequence[Any],
        costs: Sequence[float],
        timeout: float,
        enough: Callable[[list[Any]], bool] = lambda results: False,
        typical: bool = True,
    ) -> list[Any]:
        """Return the results of `call` for `items`, batched with other requests.

        Args:
            key: requests with the same key are batched, using the `call` of any of them. Its first
                two entries, operation and model, determine how long a unit of cost takes.
            call: returns one result per item, or a generator that returns them and yields at least
                every few hundredths of a second. If it raises on a batch, it is called again for
                each request separately, so that one request cannot fail the others.
            items: the items of this request.
            costs: cost of each item, proportional to its duration, such as its number of words.
            timeout: seconds until `LateError` if the request has not begun. A request that has
                begun gets twice the time, unless its call is stuck.
            enough: given the results so far, says whether to return them without the others.
            typical: whether to learn from this request how long others take.

        Raises:
            BusyError: If the queue is full, or the request would end too late.
            LateError: If the time is over.
        """
        loop, now = asyncio.get_running_loop(), time.monotonic()
        job = _Job(
            *(key, call, list(items), list(costs), enough, now, now + MARGIN * timeout),
            *(typical, loop, loop.create_future()),
        )
        with self._changed:
            self._admit(job)
            self._start()
            self._changed.notify()
        try:
            await asyncio.wait({job.future}, timeout=timeout)
            if not job.future.done() and job.begun and not self._is_stuck(job, timeout / 2):
                await asyncio.wait({job.future}, timeout=timeout)
            if not job.future.done():
                raise LateError
            return job.future.result()
        finally:
            # timed out, or the client disconnected
            job.future.cancel()
            with self._changed:
                self._remove(job)

    def check(self) -> None:
        """Replace the thread if it died; refuse the waiting requests if it is stuck."""
        with self._changed:
            if not self.alive:
                self._start()
            if self.slice_seconds > STUCK_SECONDS:
                waiting = [job for job in self._jobs() if not job.begun]
                _settle([(job, BusyError()) for job in waiting])

    def close(self) -> None:
        """Process the waiting requests, then end the thread; a new request restarts it."""
        with self._changed:
            thread, self._thread = self._thread, None
            self._closed = True
            self._changed.notify()
        if thread is not None:
            thread.join()

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._closed, self._running = False, None
            self._thread = threading.Thread(target=self._work, name="models", daemon=True)
            self._thread.start()

    def _jobs(self) -> list[_Job]:
        return [*self._short, *self._long]

    def _remove(self, job: _Job) -> None:
        self._short.pop(job, None)
        self._long.pop(job, None)

    def _is_stuck(self, job: _Job, limit: float) -> bool:
        running = self._running
        return (
            running is not None
            and any(own is job for own, _ in running[1].parts)
            and self.slice_seconds > min(limit, STUCK_SECONDS)
        )

    # who is admitted

    def _rate(self, job: _Job) -> float:
        """Return the measured seconds per unit of cost."""
        seconds, cost, when = self._measured.get(job.key[:2], (START_RATE, 1.0, -math.inf))
        # an old measurement must not keep requests out, which would prevent new ones
        limit = START_RATE if time.monotonic() - when > RECENT_SECONDS else math.inf
        return min(max(seconds / cost, 1e-9), limit)

    def _seconds(self, job: _Job) -> float:
        """Return how long the rest of a request takes, without interruptions."""
        cost: float = sum(_rest(job.costs, job))
        return self._rate(job) * (CALL_COST + cost)

    def _admit(self, job: _Job) -> None:
        """Queue a request, or raise."""
        if self.waiting >= self.limit or self.slice_seconds > STUCK_SECONDS:
            raise BusyError
        seconds = self._seconds(job)
        if seconds <= SLICE_SECONDS or sum(job.costs) <= SHORT_COST:
            self._short[job] = None
            return
        limit = job.deadline - job.arrival
        if seconds > limit:
            raise BusyError(limit, seconds)
        job.rank = job.arrival + FAVOUR * seconds
        end, late = job.arrival, 0.0
        for other in sorted([*self._long, job], key=_rank):
            end += self._pace * self._seconds(other)
            late = max(late, end - other.deadline)
        if late > 0:
            raise BusyError(late)
        self._long[job] = None

    # what runs next

    def _work(self) -> None:
        long = False
        while batch := self._take(long):
            long = batch.parts[0][0] in self._short
            began = time.monotonic()
            self._running = began, batch
            answers = _outcome(batch)
            ended = time.monotonic()
            self._running = None
            batch.seconds += ended - began
            with self._changed:
                self._measure(batch, began, ended, answers)
                _settle(self._finish(batch, answers))

    def _take(self, long: bool) -> _Batch | None:
        """Return the next batch; None ends the thread.

        Args:
            long: whether it is the turn of the long requests.
        """
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._short or self._long or self._closed)
                if not (self._short or self._long):
                    return None
                linger = not (self._closed or self._long) and self._ready() < self.batch
            if linger:
                time.sleep(self.linger)
            with self._changed:
                # the only request may have been dropped in the meantime
                if self._long and (long or not self._short):
                    return self._next(sorted(self._long, key=_rank))
                if self._short:
                    return self._next(list(self._short))

    def _ready(self) -> int:
        """Return the number of items that can be batched with the first request."""
        key = next(iter(self._short)).key
        return sum(len(job.items) for job in self._short if job.key == key)

    def _next(self, jobs: list[_Job]) -> _Batch:
        """Return the next items of the first request, and requests that fit in the same slice."""
        first = jobs[0]
        if first.batch is not None:
            return first.batch
        most, size = SLICE_SECONDS / self._rate(first), 0
        batch = _Batch([], CALL_COST)
        for job in jobs:
            if job.key != first.key or (job is not first and (first.alone or job.alone)):
                continue
            costs, count, cost = _rest(job.costs, job), 0, batch.cost
            while count < len(costs) and size + count < self.batch:
                if cost + costs[count] > most and (count or job is not first):
                    break
                cost += costs[count]
                count += 1
            if count == len(costs) or job is first:
                batch.parts.append((job, count))
                batch.cost = cost
                size += count
                job.begun = True
        return batch

    def _measure(
        self,
        batch: _Batch,
        began: float,
        ended: float,
        results: Sequence[Any] | Exception | None,
    ) -> None:
        """Learn from a slice how long calls take."""
        first = batch.parts[0][0]
        if first in self._long:
            # includes the turns of short requests in between
            pause = max(0.0, began - self._last_long)
            pace = 1 + pause / max(ended - began, 1e-3)
            self._pace += 0.1 * (min(pace, 3.0) - self._pace)
            self._last_long = ended if len(self._long) > 1 or results is None else math.inf
        if results is None or isinstance(results, Exception):
            return
        failed = any(isinstance(one, Exception) for one in results)
        if all(job.typical for job, _ in batch.parts) and not failed:
            # limit the effect of a single slow call
            took = min(batch.seconds, 3 * self._rate(first) * batch.cost)
            seconds, cost, _ = self._measured.get(first.key[:2], (0.0, 0.0, 0.0))
            self._measured[first.key[:2]] = (0.9 * seconds + took, 0.9 * cost + batch.cost, ended)

    def _finish(
        self, batch: _Batch, results: Sequence[Any] | Exception | None
    ) -> list[tuple[_Job, list[Any] | Exception]]:
        """Distribute results to the requests; return those that are complete."""
        first = batch.parts[0][0]
        first.batch = batch if results is None else None
        if results is None:
            return []
        if isinstance(results, Exception) and len(batch.parts) > 1:
            for job, _ in batch.parts:
                job.alone = True
            return []
        answers: list[tuple[_Job, list[Any] | Exception]] = []
        rest = iter([] if isinstance(results, Exception) else results)
        for job, count in batch.parts:
            job.results += itertools.islice(rest, count)
            if isinstance(results, Exception):
                answers.append((job, results))
            elif len(job.results) == len(job.items) or job.enough(job.results):
                answers.append((job, job.results))
        for job, _ in answers:
            self._remove(job)
        return answers


def _rank(job: _Job) -> float:
    return job.rank


def _rest(values: list[Any], job: _Job, count: int | None = None) -> list[Any]:
    """Return the values of the next `count` items; by default, of all that have no results."""
    done = len(job.results)
    return values[done:] if count is None else values[done : done + count]


def _outcome(batch: _Batch) -> Sequence[Any] | Exception | None:
    """Run a batch for one slice; return its results, its error, or None if it has not ended."""
    try:
        return batch.run()
    except Exception as error:
        if not isinstance(error, StopIteration):
            return error
        # a future cannot hold a StopIteration
        problem: BaseException = error
    except BaseException as error:
        # such as a panic of the tokenizers library, which must not end the thread
        problem = error
    failure = RuntimeError(f"{type(problem).__name__}: {problem}")
    failure.__cause__ = problem
    return failure


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
