"""What to serve, and where: models by name, options and sockets.

The supervisor imports this module but neither models nor FastAPI, which keeps it small.
"""

import contextlib
import dataclasses
import errno
import ipaddress
import logging
import re
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gumbeltree.packaged import packaged_names
from gumbeltree.plugins import load_plugin
from gumbeltree.threads import set_threads
from gumbeltree.web.limits import ServerSettings

if TYPE_CHECKING:
    from fastapi import FastAPI

    from gumbeltree.analysis.index import Index
    from gumbeltree.text_model import TextModel

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
TOKEN = "GUMBELTREE_TOKEN"
"""Environment variable for the token."""
FORCED_SECONDS = 2.0
"""Maximum time for sending 503 responses."""

ENDS_WELL: dict[int, int] = {signal.SIGINT: 0, signal.SIGTERM: 0}
"""Exit statuses by signal: uvicorn finishes its requests, then raises the signal again."""

log = logging.getLogger("gumbeltree.web")


@dataclasses.dataclass(frozen=True)
class ServerPlan:
    """What to serve.

    Attributes:
        models: arguments of `gumbeltree.load`.
        indexes: index folders, each used by the model that encoded it.
        device: where models run; see `load_for_use`.
        runtime: what computes them; see `load_for_use`.
        threads: threads per process; 0 means the default of `gumbeltree.threads`.
        settings: settings of the server.
        plugins: arguments of `load_plugin`.
    """

    models: tuple[str, ...]
    indexes: tuple[str, ...] = ()
    device: str = "cpu"
    runtime: str = "auto"
    threads: int = 0
    settings: ServerSettings = dataclasses.field(default_factory=ServerSettings)
    plugins: tuple[str, ...] = ()

    def app(self) -> "FastAPI":
        """Load models and indexes and return the application."""
        from gumbeltree.web.api import create_app

        if self.threads:
            set_threads(self.threads)
        for plugin in self.plugins:
            # again in each process
            load_plugin(plugin)
        models = load_models(self.models, self.device, self.runtime)
        if self.threads and "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(self.threads)
        return create_app(models, self.settings, open_indexes(self.indexes, models))


def load_models(
    models: Sequence[str], device: str = "cpu", runtime: str = "auto"
) -> "dict[str, TextModel]":
    """Load models by unique name: that of the packaged model or of the folder.

    Args:
        models: arguments of `gumbeltree.load`; by default, all packaged models.
        device: where they run; see `load_for_use`.
        runtime: what computes them; see `load_for_use`.
    """
    from gumbeltree.runtimes import load_for_use

    loaded: dict[str, TextModel] = {}
    for model in models or packaged_names():
        loaded[_unique(_short_name(model), loaded)] = load_for_use(model, device, runtime)
    return loaded


def _short_name(model: str) -> str:
    if model.startswith("hub:"):
        return model.partition("@")[0].rpartition("/")[2]
    return Path(model).resolve().name or "model"


def _unique(name: str, taken: dict[str, Any]) -> str:
    names = [name, *(f"{name}-{number}" for number in range(2, len(taken) + 2))]
    return next(name for name in names if name not in taken)


def open_indexes(folders: Sequence[str], models: "dict[str, TextModel]") -> "dict[str, Index]":
    """Return indexes by the names of the models that produce the same vectors."""
    if not folders:
        return {}
    from gumbeltree.analysis.index import Index

    indexes: dict[str, Index] = {}
    for folder in folders:
        index = Index.open(folder)
        names = []
        for name, model in models.items():
            with contextlib.suppress(ValueError):
                index.check_model(model, name)
                names.append(name)
        if not names:
            raise ValueError(
                f"{folder} was built with {index.header.model or 'another model'}, which is not "
                f"among the served models ({', '.join(models)}); add that model to the command"
            )
        for name in names:
            if name in indexes:
                raise ValueError(f"{folder} is a second index for {name}; pass only one per model")
            indexes[name] = index
    return indexes


def allowed_hosts(host: str, names: Sequence[str]) -> tuple[str, ...] | None:
    """Return the names to accept in the Host header; None accepts any.

    Args:
        host: the address to listen on.
        names: names to accept. A loopback `host` also accepts the loopback names; any other
            `host` accepts any name if there are none.
    """
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]", name):
            raise ValueError(
                f"`--allow-host` must be a host name without scheme or port, such as example.org, "
                f"got {name!r}"
            )
    if is_loopback(host):
        return (*LOOPBACK, _bracketed(host).lower(), *(name.lower() for name in names))
    return tuple(name.lower() for name in names) or None


def is_loopback(host: str) -> bool:
    """Return whether an address is reachable from this machine only."""
    if host.lower() == "localhost":
        return True
    # resolve spellings such as 127.1, names in the hosts file and IPv4-mapped addresses
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    addresses = [ipaddress.ip_address(str(info[4][0]).partition("%")[0]) for info in infos]
    return all((getattr(ip, "ipv4_mapped", None) or ip).is_loopback for ip in addresses)


def checked_origins(origins: Sequence[str]) -> tuple[str, ...]:
    """Return origins in lower case; raise unless each is a valid origin."""
    for origin in origins:
        if not re.fullmatch(r"https?://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:\d+)?", origin):
            raise ValueError(
                f"`--cors` must be an origin such as https://example.org or http://localhost:3000, "
                f"got {origin!r}"
            )
    return tuple(origin.lower() for origin in origins)


def checked_token(token: str | None) -> str | None:
    """Return the token; raise if it is too short or unsuitable for a header."""
    if token is not None and not re.fullmatch(r"[!-~]{8,}", token):
        # do not print the token: it may be a secret
        raise ValueError(
            "the token must have at least 8 printable ASCII characters and no spaces; create one "
            "with: python -c 'import secrets; print(secrets.token_urlsafe())'"
        )
    return token


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 picks a free one."""
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
            # on Windows, this would let two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise OSError(
                f"port {port} on {host} is already in use; pass another --port, or --port 0 for a "
                "free one"
            ) from None
        reason = error.strerror or str(error)
        raise OSError(f"cannot listen on {host} port {port}: {reason}") from None
    listener.set_inheritable(True)
    return listener


def address_of(listener: socket.socket, host: str) -> str:
    """Return the URL of a server for clients on this machine."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, _bracketed(host))
    return f"http://{shown}:{listener.getsockname()[1]}/"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def start_logging() -> None:
    """Log server messages to standard error, one per line."""
    log.setLevel(logging.INFO)
    log.propagate = False
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
        log.addHandler(handler)
