"""A server of several processes: started, watched, replaced, ended."""

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
"""How long after a process that could not start another one is tried."""


def serve_many(
    plan: ServerPlan, listener: socket.socket, workers: int, ready: Callable[[], None], proxies: str
) -> None:
    """Serve with several processes, each with models of its own, until a signal comes.

    A process that dies is replaced; if one dies before all answer, they all end. At a second signal
    of a kind they leave what they were asked unfinished.

    Args:
        plan: what to serve.
        listener: a socket that listens; the processes share it.
        workers: how many processes.
        ready: called as soon as all of them answer.
        proxies: as in `serve`.
    """
    start_logging()
    with exits(ENDS_WELL):
        # what is wrong with models is said once, here, not by each process again and again
        plan.app()
        with StopRequest() as stop:
            running: list[_Running] = []
            try:
                running += [_Running(plan, listener, proxies) for _ in range(workers)]
                told = False
                while not stop.number:
                    if not told and all(each.served.is_set() for each in running):
                        ready()
                        told = True
                    multiprocessing.connection.wait(
                        [each.process.sentinel for each in running], 0.2
                    )
                    _replace_dead(running, stop, told, lambda: _Running(plan, listener, proxies))
            finally:
                # nobody new comes in while they finish
                listener.close()
                _end(running)


class _Running:
    """A process that serves, and whether it answers yet."""

    def __init__(self, plan: ServerPlan, listener: socket.socket, proxies: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.served = context.Event()
        self.process = context.Process(
            target=_serve_below, args=(plan, listener, self.served, proxies), daemon=True
        )
        # Ctrl-C reaches it, too, when it cannot yet end quietly; who started it passes it on
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self.process.start()
        finally:
            signal.signal(signal.SIGINT, before)


def _serve_below(plan: ServerPlan, listener: socket.socket, served: "Event", proxies: str) -> None:
    """Serve in a process that another one started, and end with it."""

    def follow() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, daemon=True).start()
    serve(plan, listener, served.set, proxies)


def _replace_dead(
    running: list[_Running], stop: StopRequest, told: bool, start: Callable[[], _Running]
) -> None:
    for place, each in enumerate(running):
        if each.process.is_alive() or stop.number:
            continue
        status = each.process.exitcode
        if not (told or each.served.is_set()):
            raise OSError(
                f"expected a process that serves, got one that ended with status {status} before "
                "it did; start fewer with --workers if memory is short"
            )
        log.warning("process %s ended with status %s: another one starts", each.process.pid, status)
        if not each.served.is_set():
            # the others go on; what keeps this one from starting may be gone a little later
            time.sleep(PAUSE_SECONDS)
        running[place] = start()


def _end(running: list[_Running]) -> None:
    """Let processes finish what they were asked, unless told a second time."""
    for each in running:
        each.process.terminate()
    try:
        for each in running:
            each.process.join()
    except SystemExit:
        for each in running:
            if each.process.is_alive() and each.process.pid is not None:
                os.kill(each.process.pid, signal.SIGINT)
        for each in running:
            each.process.join(FORCED_SECONDS)
            each.process.kill()
        raise SystemExit(1) from None
