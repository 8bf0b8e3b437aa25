"""Connections: not too many, and none that a client lets stand half way.

uvicorn itself waits for ever for the rest of a request's headers, and for a client to take what was
written, also when the connection is to be closed.
"""

import asyncio
import json

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from gumbeltree.web.guards import API

CLIENT_SECONDS = 15.0
"""How long a client may take for its headers, or to take what was written."""


def most_connections() -> int:
    """Return how many connections leave the process descriptors for everything else."""
    try:
        import resource
    except ImportError:
        return 800
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(16, min(4096, (soft if soft > 0 else 4096) * 3 // 4))


class Protocol(H11Protocol):
    """uvicorn's, with limits on connections and on clients that stand still."""

    most = most_connections()
    _sending: asyncio.TimerHandle | None = None
    _taking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, or refuse it."""
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.abort()
        else:
            self._sending = self._abort_later(self._sending)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        self._cancel(self._sending)
        self._cancel(self._taking)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on; once the headers are there, others watch the clock."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._cancel(self._sending)

    def on_response_complete(self) -> None:
        """Wait for the next request of the connection."""
        self._sending = self._abort_later(self._sending)
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The client is behind: it has some time to catch up."""
        self._taking = self._abort_later(self._taking)
        super().pause_writing()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._cancel(self._taking)
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, with the headers and the form of all other errors."""
        body = json.dumps({"detail": msg}).encode()
        fields = {**API, "Content-Type": "application/json", "Content-Length": str(len(body))}
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            for event in (
                h11.Response(
                    status_code=400,
                    headers=[*fields.items(), ("Connection", "close")],
                    reason=b"Bad Request",
                ),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _abort_later(self, before: asyncio.TimerHandle | None) -> asyncio.TimerHandle:
        self._cancel(before)
        return self.loop.call_later(CLIENT_SECONDS, self.transport.abort)

    def _cancel(self, timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()
