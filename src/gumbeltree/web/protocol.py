"""Limits on connections, for both HTTP parsers of uvicorn.

uvicorn itself waits indefinitely for the headers of a request and for a client to read a response.
Its faster parser, httptools, also accepts headers of any size, reads requests before earlier ones
are answered, and loses the bodies of requests that offer to switch to another protocol.
"""

import asyncio
import contextlib
import json
from collections import Counter
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

from uvicorn.protocols.http.h11_impl import H11Protocol

from gumbeltree.web.guards import API, BYTES_PER_SECOND, network_of

HttpToolsProtocol: Any = None
with contextlib.suppress(ImportError):
    HttpToolsProtocol = import_module("uvicorn.protocols.http.httptools_impl").HttpToolsProtocol

if TYPE_CHECKING:
    _Parser: TypeAlias = H11Protocol
else:
    # a mixin, which uses the attributes that both parsers have in common
    _Parser = object

CLIENT_SECONDS = 10.0
"""Time limit for receiving headers and for the client to read what was sent."""
HEADER_BYTES = 2**16
"""Maximum size of the headers of a request."""
PIECE_BYTES = 4096
"""httptools parses pieces of this size, and all requests in a piece at once."""


def most_connections() -> int:
    """Return a limit that leaves file descriptors for everything else."""
    try:
        import resource
    except ImportError:
        return 800
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(16, min(4096, (soft if soft > 0 else 4096) * 3 // 4))


class Limited(_Parser):
    """Limits on the number of connections and on stalled clients.

    Attributes:
        most: maximum number of connections.
        share: maximum number of connections per client address, except for trusted proxies.
        clients: number of connections by client address.
    """

    most = most_connections()
    share: int
    clients: Counter[str]
    _client: str | None = None
    _began = 0.0
    _size = 0
    _sending: asyncio.TimerHandle | None = None
    _taking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, or close it if there are too many."""
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        # uvicorn's middleware knows which proxies are trusted
        if address not in getattr(self.app, "trusted_hosts", ()):
            self._client = network_of(address)
            self.clients[self._client] += 1
        if len(self.connections) > self.most:
            transport.abort()
        elif self._client is not None and self.clients[self._client] > self.share:
            self.send_error(429, "Too Many Requests", "too many connections from this address")
        else:
            self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers."""
        self.forget()
        super().connection_lost(exc)

    def forget(self) -> None:
        """Stop counting and timing this connection."""
        self._sending = self._cancel(self._sending)
        self._taking = self._cancel(self._taking)
        if self._client is not None:
            self.clients[self._client] -= 1
            if not self.clients[self._client]:
                del self.clients[self._client]
            self._client = None

    @property
    def answering(self) -> bool:
        """Whether headers are complete and the response is not."""
        return self.cycle is not None and not self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        """Parse data; time the headers while they are incomplete."""
        super().data_received(data)
        if self.answering:
            self._size = 0
            if self._sending is not None:
                self._sending = self._cancel(self._sending)
            return
        self._size += len(data)
        if self._sending is None and not self.transport.is_closing():
            self._await_headers()

    def pause_writing(self) -> None:
        """Start a timer: the client reads too slowly."""
        self._cancel(self._taking)
        self._taking = self.loop.call_later(CLIENT_SECONDS, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        """Stop the timer: the client has caught up."""
        self._taking = self._cancel(self._taking)
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Respond to malformed HTTP."""
        self.send_error(400, "Bad Request", msg)

    def send_error(self, status: int, reason: str, detail: str) -> None:
        """Send an error in the format of all others, unless a response has begun, and close."""
        if not (self.answering and self.cycle.response_started):
            body = json.dumps({"detail": detail}).encode()
            fields = {**API, "Content-Type": "application/json", "Content-Length": str(len(body))}
            fields["Connection"] = "close"
            lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
            self.transport.write(f"HTTP/1.1 {status} {reason}\r\n{lines}\r\n".encode() + body)
        self.transport.close()

    def _await_headers(self) -> None:
        self._began = self.loop.time()
        self._sending = self.loop.call_later(CLIENT_SECONDS, self._abort_if_late)

    def _abort_if_late(self) -> None:
        deadline = self._began + CLIENT_SECONDS + self._size / BYTES_PER_SECOND
        if self.loop.time() >= deadline:
            self.transport.abort()
        else:
            self._sending = self.loop.call_at(deadline, self._abort_if_late)

    @staticmethod
    def _cancel(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()


class PlainProtocol(Limited, H11Protocol):
    """The parser h11 with limits."""


if HttpToolsProtocol is not None:

    class FastProtocol(Limited, HttpToolsProtocol):
        """The parser httptools with limits and the checks that it lacks."""

        plain: type[PlainProtocol]
        _head = _rest = b""
        _complete = False

        def data_received(self, data: bytes) -> None:
            """Parse data, but leave further requests until the present one is answered."""
            self._rest += data
            self._parse()

        def _parse(self) -> None:
            while self._rest and not self.transport.is_closing():
                if self.answering and not self.cycle.more_body:
                    self.flow.pause_reading()
                    return
                # a piece can contain several requests, which are all parsed
                piece, self._rest = self._rest[:PIECE_BYTES], self._rest[PIECE_BYTES:]
                if self.answering:
                    super().data_received(piece)
                    continue
                self._head += piece
                super().data_received(piece)
                if self.answering:
                    self._head = b""
                elif len(self._head) > HEADER_BYTES and not self.transport.is_closing():
                    self.send_400_response("the headers are too large")

        def on_response_complete(self) -> None:
            """Continue with the next request."""
            super().on_response_complete()
            if self._rest:
                self.loop.call_soon(self._parse)

        def on_message_begin(self) -> None:
            """Start a request."""
            self._complete = False
            super().on_message_begin()

        def on_header(self, name: bytes, value: bytes) -> None:
            """Store a header; ignore those after the body, which would change checked ones."""
            if not self._complete:
                super().on_header(name, value)

        def on_headers_complete(self) -> None:
            """Check what decides about the length of the body and the name of the server."""
            self._complete = True
            version = self.parser.get_http_version()
            if version not in ("1.0", "1.1"):
                raise ValueError("unknown version")
            codings = [value for name, value in self.headers if name == b"transfer-encoding"]
            if codings and (version == "1.0" or codings != [b"chunked"]):
                raise ValueError("unknown transfer encoding")
            hosts = sum(name == b"host" for name, _ in self.headers)
            if hosts != 1 and (hosts or version == "1.1"):
                raise ValueError("missing or repeated Host header")
            super().on_headers_complete()

        def _should_upgrade(self) -> bool:
            return True

        def handle_websocket_upgrade(self) -> None:  # type: ignore[override]
            """Continue with h11, which ignores the offer and reads the body."""
            if self.answering:
                self.send_400_response("pipelined request with an upgrade")
                return
            self.connections.discard(self)
            self.forget()
            protocol = self.plain(self.config, self.server_state, self.app_state)
            self.transport.set_protocol(protocol)
            protocol.connection_made(self.transport)
            data, self._head, self._rest = self._head + self._rest, b"", b""
            protocol.data_received(data)


def protocol_class(share: int = 0, fast: bool = HttpToolsProtocol is not None) -> type[Any]:
    """Return the protocol of a server, which counts its own connections.

    Args:
        share: maximum number of connections per client address; 0 is a quarter of all.
        fast: use httptools instead of h11.
    """
    settings = {"clients": Counter(), "share": share or max(1, Limited.most // 4)}
    plain = type("Plain", (PlainProtocol,), settings)
    return type("Fast", (FastProtocol,), {**settings, "plain": plain}) if fast else plain
