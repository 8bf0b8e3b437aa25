"""Serve in this process, and end it when it cannot go on."""

import asyncio
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import uvicorn

from gumbeltree.signals import exits
from gumbeltree.web.api import Api
from gumbeltree.web.protocol import protocol_class
from gumbeltree.web.server import ENDS_WELL, FORCED_SECONDS, ServerPlan, log, start_logging

FINISHING = 0.8
"""Share of the grace time in which running requests can finish; the rest is for 503 responses."""


class _Server(uvicorn.Server):
    """A uvicorn server that ends its process when it cannot go on.

    It responds with 503 to its requests and exits with status 1 after a second Ctrl-C, if requests
    do not finish within the grace time, and if a call to the models exceeds its time limit.

    Args:
        config: a configuration with an application of `create_app`.
        ready: called once the server accepts requests.
        beat: called several times per second.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        ready: Callable[[], None],
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(config)
        self._ready, self._beat = ready, beat
        self._api: Api = config.app.state.api  # type: ignore[union-attr]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def on_tick(self, counter: int) -> bool:
        self._beat()
        worker, limit = self._api.worker, self._api.settings.timeout
        worker.check()
        # one second more, so that the request gets its own status first
        if worker.slice_seconds > limit + 1:
            log.error("a call to a model exceeded %g s; ending process %s", limit, os.getpid())
            self.should_exit = self.force_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        grace = self._api.settings.grace
        limit = time.monotonic() + FINISHING * grace
        ending = asyncio.ensure_future(super().shutdown(sockets))
        while not (ending.done() or self.force_exit or time.monotonic() > limit):
            await asyncio.wait({ending}, timeout=0.1)
        if ending.done() and not self.force_exit:
            await ending
            return
        # cancelled requests get 503
        for task in self.server_state.tasks:
            task.cancel()
        if self.server_state.tasks:
            seconds = min(FORCED_SECONDS, (1 - FINISHING) * grace / 2)
            await asyncio.wait(self.server_state.tasks, timeout=seconds)
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        # a normal exit would abort while the models' thread is running
        os._exit(1)


def serve(
    plan: ServerPlan,
    listener: socket.socket,
    ready: Callable[[], None],
    proxies: str,
    beat: Callable[[], None] = lambda: None,
) -> None:
    """Serve in this process until a signal arrives, then finish the running requests.

    A second Ctrl-C ends the process immediately with status 1.

    Args:
        plan: what to serve.
        listener: a listening socket.
        ready: called once the server accepts requests.
        proxies: addresses of proxies whose X-Forwarded headers are trusted.
        beat: called several times per second.
    """
    start_logging()
    with exits(ENDS_WELL):
        config = uvicorn.Config(plan.app(), **_options(plan, proxies))
        _Server(config, ready, beat).run([listener])


def _options(plan: ServerPlan, proxies: str) -> dict[str, Any]:
    return {
        "root_path": plan.settings.root_path,
        "forwarded_allow_ips": proxies,
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "ws": "none",
        "http": protocol_class(plan.settings.connections),
    }
