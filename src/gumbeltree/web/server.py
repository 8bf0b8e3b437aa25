"""A server: models by name, a socket, processes, signals."""

import asyncio
import contextlib
import dataclasses
import errno
import ipaddress
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import uvicorn

from gumbeltree.model import SentenceModel, load
from gumbeltree.packaged import packaged_names
from gumbeltree.signals import exits
from gumbeltree.web.api import create_app
from gumbeltree.web.limits import ServerSettings
from gumbeltree.web.protocol import Protocol

if TYPE_CHECKING:
    from fastapi import FastAPI

    from gumbeltree.analysis.index import Index

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
TOKEN = "GUMBELTREE_TOKEN"
"""Variable of the environment that may hold the token."""
SHUTDOWN_SECONDS = 60
"""How long requests may take that are being answered when the server is told to stop."""
FORCED_SECONDS = 2.0
"""How long it may take to tell clients that they get no answer, when it is told so twice."""

ENDS_WELL: dict[int, int] = {signal.SIGINT: 0, signal.SIGTERM: 0}
"""Statuses. uvicorn stops at the first of these, finishes what it was asked, and then raises
it again for whoever listened before: that is the end, and a good one."""

log = logging.getLogger("gumbeltree.web")


@dataclasses.dataclass(frozen=True)
class ServerPlan:
    """What to serve and how.

    Attributes:
        models: as `gumbeltree.load` takes them.
        indexes: folders of indexes; each belongs to the model that encoded it.
        device: where models run.
        threads: that torch may use in one process; 0 lets it choose.
        settings: of the server.
    """

    models: tuple[str, ...]
    indexes: tuple[str, ...] = ()
    device: str = "cpu"
    threads: int = 0
    settings: ServerSettings = dataclasses.field(default_factory=ServerSettings)

    def app(self) -> "FastAPI":
        """Load everything and return the application."""
        if self.threads:
            torch.set_num_threads(self.threads)
        models = load_models(self.models, self.device)
        return create_app(models, self.settings, open_indexes(self.indexes, models))


def load_models(models: Sequence[str], device: str = "cpu") -> dict[str, SentenceModel]:
    """Return models by the names that clients use: of packaged ones their own, else the folder's.

    Args:
        models: as `gumbeltree.load` takes them; none stands for all packaged ones.
        device: where they go.
    """
    found: dict[str, SentenceModel] = {}
    for model in models or packaged_names():
        found[_unique(_short_name(model), found)] = load(model, device)
    return found


def _short_name(model: str) -> str:
    if model.startswith("hub:"):
        return model.partition("@")[0].rpartition("/")[2]
    return Path(model).resolve().name or "model"


def _unique(name: str, taken: dict[str, Any]) -> str:
    names = [name, *(f"{name}-{number}" for number in range(2, len(taken) + 2))]
    return next(each for each in names if each not in taken)


def open_indexes(folders: Sequence[str], models: dict[str, SentenceModel]) -> "dict[str, Index]":
    """Return indexes by the names of the models that encode as those that made them."""
    if not folders:
        return {}
    from gumbeltree.analysis.index import Index

    found: dict[str, Index] = {}
    for folder in folders:
        index = Index.open(folder)
        names = []
        for name, model in models.items():
            with contextlib.suppress(ValueError):
                index.check_model(model, name)
                names.append(name)
        if not names:
            raise ValueError(
                f"{folder}: expected an index made with a model that is served, "
                f"{', '.join(models)}, got one of {index.header.model or 'another'}; name that "
                "model, too"
            )
        for name in names:
            if name in found:
                raise ValueError(
                    f"{folder}: expected one index for {name}, got a second; leave one of them out"
                )
            found[name] = index
    return found


def allowed_hosts(host: str, names: Sequence[str]) -> tuple[str, ...] | None:
    """Return the names that the Host header may hold; None is any.

    Args:
        host: what the server listens on. On loopback only names of loopback are its own.
        names: more names; on another address they are the only ones, and without any, all are.
    """
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]", name):
            raise ValueError(
                f"`--allow-host` must be a name without scheme and port, such as example.org, got "
                f"{name!r}"
            )
    if is_loopback(host):
        return (*LOOPBACK, _bracketed(host).lower(), *(name.lower() for name in names))
    return tuple(name.lower() for name in names) or None


def is_loopback(host: str) -> bool:
    """Return whether an address is reached from this machine only."""
    if host.lower() == "localhost":
        return True
    # 127.1, a name in the hosts file, an IPv4 address in an IPv6 one: where they lead counts
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    addresses = [ipaddress.ip_address(str(one[4][0]).partition("%")[0]) for one in found]
    return all((getattr(one, "ipv4_mapped", None) or one).is_loopback for one in addresses)


def checked_origins(origins: Sequence[str]) -> tuple[str, ...]:
    """Return origins as browsers write them, or refuse them."""
    for origin in origins:
        if not re.fullmatch(r"https?://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:\d+)?", origin):
            raise ValueError(
                f"`--cors` must be scheme, name and perhaps port, such as https://example.org, got "
                f"{origin!r}"
            )
    return tuple(origin.lower() for origin in origins)


def checked_token(token: str | None) -> str | None:
    """Return a token that a header can hold, or refuse it."""
    if token is not None and not re.fullmatch(r"[!-~]{8,}", token):
        # what was given is not repeated: it may be most of a secret
        raise ValueError(
            "the token must be 8 or more letters, digits or signs of ASCII without spaces; make "
            "one with: python -c 'import secrets; print(secrets.token_urlsafe())'"
        )
    return token


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; 0 is a free port."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise OSError(
            f"`--host` must be an address of this machine, got {host!r}: {error}"
        ) from None
    listener = socket.socket(family, kind, protocol)
    try:
        if sys.platform != "win32":
            # there it would let two servers have one port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise OSError(
                f"port {port} of {host} is taken by another program; pass another, such as "
                f"--port {port + 1 if port < 65535 else 8000}, or --port 0 for any free one"
            ) from None
        reason = error.strerror or str(error)
        raise OSError(f"cannot listen on {host}, port {port}: {reason}; pass others") from None
    listener.set_inheritable(True)
    return listener


def address_of(listener: socket.socket, host: str) -> str:
    """Return the URL at which this machine reaches a server, without a proxy."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, _bracketed(host))
    return f"http://{shown}:{listener.getsockname()[1]}/"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


class _Server(uvicorn.Server):
    """A server that says when it is there, and that ends at once at a second Ctrl-C."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        ending = asyncio.ensure_future(super().shutdown(sockets))
        while not (ending.done() or self.force_exit):
            await asyncio.wait({ending}, timeout=0.1)
        if not self.force_exit:
            await ending
            return
        # those who wait are told
        for task in self.server_state.tasks:
            task.cancel()
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=FORCED_SECONDS)
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        # the models' thread is at work, and Python would abort if it ended under it
        os._exit(1)


def serve(
    plan: ServerPlan, listener: socket.socket, ready: Callable[[], None], proxies: str
) -> None:
    """Serve in this process until a signal comes; then finish what was asked, and return.

    At a second Ctrl-C what was asked is left unfinished, and the process ends with status 1.

    Args:
        plan: what to serve.
        listener: a socket that listens.
        ready: called as soon as there are answers.
        proxies: addresses whose word on the client's address is taken.
    """
    start_logging()
    with exits(ENDS_WELL):
        config = uvicorn.Config(plan.app(), **_options(plan, proxies))
        _Server(config, ready).run([listener])


def _options(plan: ServerPlan, proxies: str) -> dict[str, Any]:
    return {
        "root_path": plan.settings.root_path,
        "forwarded_allow_ips": proxies,
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "ws": "none",
        "http": Protocol,
        "timeout_graceful_shutdown": SHUTDOWN_SECONDS,
    }


def start_logging() -> None:
    """Let what serving has to say go to standard error, a line each."""
    log.setLevel(logging.INFO)
    log.propagate = False
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
        log.addHandler(handler)
