"""Limits on connections.

uvicorn itself waits indefinitely for the headers of a request and for a client to read a response.
"""

import asyncio
import json

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from gumbeltree.web.guards import API

CLIENT_SECONDS = 15.0
"""Time limit for receiving headers and for the client to read what was sent."""


def most_connections() -> int:
    """Return a limit that leaves file descriptors for everything else."""
    try:
        import resource
    except ImportError:
        return 800
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(16, min(4096, (soft if soft > 0 else 4096) * 3 // 4))


class Protocol(H11Protocol):
    """uvicorn's protocol with limits on connections and stalled clients."""

    most = most_connections()
    _sending: asyncio.TimerHandle | None = None
    _taking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, or abort it if there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.abort()
        else:
            self._sending = self._abort_later(self._sending)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers."""
        self._cancel(self._sending)
        self._cancel(self._taking)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Stop the timer once the headers are complete."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._cancel(self._sending)

    def on_response_complete(self) -> None:
        """Restart the timer for the next request on this connection."""
        self._sending = self._abort_later(self._sending)
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Start a timer: the client reads too slowly."""
        self._taking = self._abort_later(self._taking)
        super().pause_writing()

    def resume_writing(self) -> None:
        """Stop the timer: the client has caught up."""
        self._cancel(self._taking)
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Respond to malformed HTTP in the format of all other errors."""
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
