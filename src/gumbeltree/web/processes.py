"""A server with several processes."""

import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from gumbeltree.signals import StopRequest, exits
from gumbeltree.web.server import ENDS_WELL, FORCED_SECONDS, ServerPlan, log, serve, start_logging

if TYPE_CHECKING:
    from multiprocessing.synchronize import Event

PAUSE_SECONDS = 2.0
"""Delay before replacing a process that failed to start."""


def serve_many(
    plan: ServerPlan, listener: socket.socket, workers: int, ready: Callable[[], None], proxies: str
) -> None:
    """Serve with several processes, each with its own models, until a signal arrives.

    A process that dies is replaced; if one dies before all are ready, the server stops. A second
    signal stops the processes without finishing their requests.

    Args:
        plan: what to serve.
        listener: a listening socket, shared by the processes.
        workers: number of processes.
        ready: called once all processes accept requests.
        proxies: as in `serve`.
    """
    start_logging()
    with exits(ENDS_WELL):
        # report a broken model once, here, not in every process
        plan.app()
        with StopRequest() as stop:
            running: list[_Running] = []
            try:
                running += [_Running(plan, listener, proxies) for _ in range(workers)]
                started = False
                while not stop.number:
                    if not started and all(worker.served.is_set() for worker in running):
                        ready()
                        started = True
                    sentinels = [worker.process.sentinel for worker in running]
                    multiprocessing.connection.wait(sentinels, 0.2)
                    _replace_dead(running, stop, started, lambda: _Running(plan, listener, proxies))
            finally:
                # accept no new connections while they finish
                listener.close()
                _end(running)


class _Running:
    """A process that serves, and whether it is ready."""

    def __init__(self, plan: ServerPlan, listener: socket.socket, proxies: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.served = context.Event()
        self.process = context.Process(
            target=_serve_worker, args=(plan, listener, self.served, proxies), daemon=True
        )
        # the child inherits this; Ctrl-C may reach it too early, and the parent forwards it anyway
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self.process.start()
        finally:
            signal.signal(signal.SIGINT, before)


def _serve_worker(plan: ServerPlan, listener: socket.socket, served: "Event", proxies: str) -> None:
    """Serve in a child process, which ends with its parent."""

    def follow() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, daemon=True).start()
    serve(plan, listener, served.set, proxies)


def _replace_dead(
    running: list[_Running], stop: StopRequest, started: bool, start: Callable[[], _Running]
) -> None:
    for place, worker in enumerate(running):
        if worker.process.is_alive() or stop.number:
            continue
        status = worker.process.exitcode
        if not (started or worker.served.is_set()):
            raise OSError(
                f"a process ended with status {status} before it was ready; if memory is short, "
                "pass a smaller --workers"
            )
        log.warning("process %s ended with status %s; restarting", worker.process.pid, status)
        if not worker.served.is_set():
            # the other processes keep running, and the cause may be temporary
            time.sleep(PAUSE_SECONDS)
        running[place] = start()


def _end(running: list[_Running]) -> None:
    """Let processes finish their requests, unless a second signal arrives."""
    processes = [worker.process for worker in running]
    for process in processes:
        process.terminate()
    try:
        for process in processes:
            process.join()
    except SystemExit:
        for process in processes:
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, signal.SIGINT)
        for process in processes:
            process.join(FORCED_SECONDS)
            process.kill()
        raise SystemExit(1) from None
