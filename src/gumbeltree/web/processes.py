"""The processes of a server, and their supervisor.

uvicorn's supervisor also replaces processes, but it waits without a limit for a process that does
not react to SIGTERM, and it cannot see that the models of a process are stuck.
"""

import math
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from gumbeltree.signals import StopRequest, exits
from gumbeltree.web.server import ENDS_WELL, FORCED_SECONDS, ServerPlan, log, start_logging

if TYPE_CHECKING:
    from ctypes import c_double
    from multiprocessing.connection import Connection

PAUSE_SECONDS = 2.0
"""Delay before replacing a process that failed to start."""
SILENT_SECONDS = 2.0
"""How much longer than a request a process can be silent, so that it can respond and end itself."""
START_SECONDS = 60.0
"""Minimum time for a replacement to become ready."""
START_FACTOR = 5.0
"""How much longer than all processes at the start a replacement can take to become ready."""


def supervise(
    plan: ServerPlan, listener: socket.socket, workers: int, ready: Callable[[], None], proxies: str
) -> None:
    """Serve with processes that each have their own models, until a signal arrives.

    A process that dies is replaced. So is one that stops responding for the time limit of a
    request and `SILENT_SECONDS`, or does not become ready: it is killed first. If one dies before
    all are ready, the server stops. A second signal stops the processes without finishing their
    requests.

    Args:
        plan: what to serve.
        listener: a listening socket, shared by the processes.
        workers: number of processes.
        ready: called once all processes accept requests.
        proxies: as in `serve`.
    """
    start_logging()
    with exits(ENDS_WELL):
        running: list[_Running] = []
        started, begun, starting = False, time.monotonic(), math.inf
        with StopRequest() as stop:
            try:
                while not stop.number:
                    if not started and all(worker.beat.value for worker in running):
                        # the first alone, so that a broken model is reported once
                        missing = (workers if running else 1) - len(running)
                        running += [_Running(plan, listener, proxies) for _ in range(missing)]
                        if not missing:
                            ready()
                            started = True
                            starting = START_FACTOR * (time.monotonic() - begun)
                    sentinels = [worker.process.sentinel for worker in running]
                    multiprocessing.connection.wait(sentinels, 0.2 if started else 0.05)
                    silent = plan.settings.timeout + SILENT_SECONDS
                    _kill_silent(running, silent, max(starting, START_SECONDS))
                    _replace_dead(running, stop, started, lambda: _Running(plan, listener, proxies))
            finally:
                # accept no new connections while they finish
                listener.close()
                finished = _end(running, plan.settings.grace)
        if not finished:
            raise SystemExit(1)


class _Running:
    """A process that serves.

    Attributes:
        process: the process.
        begun: when it was started.
        beat: when its event loop last reported; 0 until it is ready.
        failure: the error that prevented its start.
    """

    def __init__(self, plan: ServerPlan, listener: socket.socket, proxies: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.beat: c_double = context.RawValue("d", 0.0)
        self.begun = time.monotonic()
        self.failure, failure = context.Pipe(duplex=False)
        self.process = context.Process(
            target=_serve_worker, args=(plan, listener, self.beat, failure, proxies), daemon=True
        )
        # the child inherits this; Ctrl-C may reach it too early, and the parent forwards it anyway
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self.process.start()
        finally:
            signal.signal(signal.SIGINT, before)


def _serve_worker(
    plan: ServerPlan,
    listener: socket.socket,
    beat: "c_double",
    failure: "Connection",
    proxies: str,
) -> None:
    """Serve in a child process, which ends with its parent."""
    from gumbeltree.web.serving import serve

    def follow() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os.kill(os.getpid(), signal.SIGTERM)

    def report() -> None:
        # the clock is the same in all processes
        beat.value = time.monotonic()

    threading.Thread(target=follow, daemon=True).start()
    try:
        serve(plan, listener, report, proxies, report)
    except (ValueError, TypeError, OSError, ImportError, NotImplementedError) as error:
        if beat.value:
            raise
        # the parent reports it
        failure.send(_portable(error))
        raise SystemExit(1) from None


def _portable(error: Exception) -> Exception:
    """Return an error that can be sent to another process."""
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:
        return ValueError(str(error))
    return error if str(copy) == str(error) else ValueError(str(error))


def _kill_silent(running: list[_Running], limit: float, starting: float) -> None:
    """Kill processes that have not reported for `limit` seconds, or `starting` until they do."""
    for worker in running:
        beat = worker.beat.value
        silent = time.monotonic() - (beat or worker.begun)
        if silent > (limit if beat else starting) and worker.process.is_alive():
            what = "responded" if beat else "become ready"
            log.error("process %s has not %s for %.0f s", worker.process.pid, what, silent)
            # works for stopped processes as well
            worker.process.kill()
            worker.process.join()


def _replace_dead(
    running: list[_Running], stop: StopRequest, started: bool, start: Callable[[], _Running]
) -> None:
    for place, worker in enumerate(running):
        if worker.process.is_alive() or stop.number:
            continue
        status = worker.process.exitcode
        if not (started or worker.beat.value):
            if worker.failure.poll():
                raise worker.failure.recv()
            raise OSError(
                f"a process ended with status {status} before it was ready; if memory is short, "
                "pass a smaller --workers"
            )
        log.warning("process %s ended with status %s; restarting", worker.process.pid, status)
        if not worker.beat.value:
            # the other processes keep running, and the cause may be temporary
            time.sleep(PAUSE_SECONDS)
        running[place] = start()


def _end(running: list[_Running], grace: float) -> bool:
    """Let processes finish their requests, unless a second signal arrives.

    Args:
        running: the processes.
        grace: seconds in which all of them end; those that do not are killed.

    Returns:
        Whether all of them finished.
    """
    processes = [worker.process for worker in running]
    for process in processes:
        process.terminate()
    # killing them takes time, too
    deadline = time.monotonic() + 0.95 * grace
    try:
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
    except SystemExit:
        for process in processes:
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, signal.SIGINT)
        for process in processes:
            process.join(FORCED_SECONDS)
            process.kill()
        raise SystemExit(1) from None
    for process in processes:
        if process.is_alive():
            log.error("process %s did not end within %g s; killing it", process.pid, grace)
            process.kill()
            process.join()
    # a process may receive SIGTERM before it handles signals
    return all(process.exitcode in (0, -signal.SIGTERM) for process in processes)
