"""ASGI middleware: request checks, response headers and logging.

All responses are JSON, so that input is never interpreted as markup.
"""

import asyncio
import contextlib
import hmac
import logging
import time
import uuid
from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("gumbeltree.web")
access = logging.getLogger("gumbeltree.web.access")

COMMON = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
API = {
    **COMMON,
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}
PAGE = {
    **COMMON,
    "Content-Security-Policy": "default-src 'self'; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    # revalidate, so that an updated page is loaded after an upgrade
    "Cache-Control": "no-cache",
}
LINGER_SECONDS = 2.0
"""How long to keep reading a rejected body, so that the client can read the error."""


def route(scope: Scope) -> str:
    """Return the path of a request without the prefix added by a proxy."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if path.startswith(f"{root}/") else path


class Outside:
    """Add security headers, log requests, and turn unexpected errors into status 500.

    Requests cancelled by a shutdown get status 503.

    Args:
        app: the application to wrap.
        pages: paths of the page's files, which may load each other.
        paths: paths that are logged; others may contain arbitrary input.
        access_log: whether to log requests.
    """

    def __init__(
        self, app: ASGIApp, pages: Collection[str], paths: Collection[str], access_log: bool
    ) -> None:
        self.app = app
        self.pages, self.paths, self.access_log = pages, paths, access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = route(scope)
        extra = PAGE if path in self.pages else API
        status, began = 0, time.monotonic()

        async def send_more(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in extra.items():
                    headers[name] = value
            await send(message)

        try:
            await self.app(scope, receive, send_more)
        except asyncio.CancelledError:
            # the server is shutting down
            if not status:
                response = JSONResponse({"detail": ENDING}, 503, {"Retry-After": "1"})
                await response(scope, receive, send_more)
        except Exception:
            number = uuid.uuid4().hex[:12]
            log.exception("error %s while answering %s", number, self._shown(path))
            if status:
                raise
            content = {"detail": f"internal server error; see {number} in the server's log"}
            await JSONResponse({**content, "id": number}, 500)(scope, receive, send_more)
        finally:
            if self.access_log:
                took = 1000 * (time.monotonic() - began)
                # the method is also arbitrary input
                method = scope["method"] if scope["method"] in ("GET", "POST", "OPTIONS") else "?"
                access.info("%s %s %s %.0f ms", method, self._shown(path), status or "-", took)

    def _shown(self, path: str) -> str:
        return path if path in self.paths or path in self.pages else "(no such path)"


class Hosts:
    """Reject requests with an unknown Host header.

    This prevents DNS rebinding: a web page can point its own host name to 127.0.0.1 to reach a
    local server, but the Host header still contains the page's name.

    Args:
        app: the application to wrap.
        names: accepted host names, in lower case, without a port.
    """

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self.app = app
        self.names = frozenset(names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] == "http":
            host = Headers(scope=scope).get("host", "").lower()
            name = host[: host.find("]") + 1] if host.startswith("[") else host.partition(":")[0]
            if name not in self.names:
                message = "host name not accepted; add it with --allow-host"
                await JSONResponse({"detail": message}, 421)(scope, receive, send)
                return
        await self.app(scope, receive, send)


class Token:
    """Reject requests without the token.

    Args:
        app: the application to wrap.
        token: the required token.
        free: paths that require no token.
    """

    def __init__(self, app: ASGIApp, token: str, free: Collection[str]) -> None:
        self.app = app
        self.token, self.free = token.encode(), free

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] == "http" and route(scope) not in self.free:
            kind, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
            # constant-time comparison, against timing attacks
            same = hmac.compare_digest(given.strip().encode("latin-1"), self.token)
            if kind.lower() != "bearer" or not same:
                message = "missing or wrong token; send the header Authorization: Bearer TOKEN"
                headers = {"WWW-Authenticate": "Bearer"}
                await JSONResponse({"detail": message}, 401, headers)(scope, receive, send)
                return
        await self.app(scope, receive, send)


class _GoneError(Exception):
    """The client does not read its response."""


async def _gone(receive: Receive) -> None:
    """Wait until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass


class Bodies:
    """Limit size, time and number of requests with a body.

    Args:
        app: the application to wrap.
        paths: paths that accept a body.
        limit: maximum size of a body in bytes.
        seconds: time limit for receiving the body, and for sending each chunk of the response.
        requests: maximum number of concurrent requests.
    """

    def __init__(
        self, app: ASGIApp, paths: Collection[str], limit: int, seconds: float, requests: int
    ) -> None:
        self.app = app
        self.paths = paths
        self.limit, self.seconds, self.requests = limit, seconds, requests
        self._now = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] == "http" and "\n" in route(scope):
            # the router's patterns end in `$`, which also matches before a final line feed
            await JSONResponse({"detail": "Not Found"}, 404)(scope, receive, send)
            return
        if scope["type"] != "http" or scope["method"] != "POST" or route(scope) not in self.paths:
            await self.app(scope, receive, send)
            return
        if self._now >= self.requests:
            await self._refuse(503, BUSY, scope, receive, send)
            return
        self._now += 1
        try:
            await self._answer(scope, receive, send)
        finally:
            self._now -= 1

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            # any web page may send other types without a CORS preflight
            detail = "send the header Content-Type: application/json"
            await self._refuse(415, detail, scope, receive, send)
            return
        size, too_large = 0, f"the body exceeds {self.limit} bytes"
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self.limit:
            await self._refuse(413, too_large, scope, receive, send)
            return
        pieces: list[bytes] = []
        more = True
        try:
            async with asyncio.timeout(self.seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return
                    pieces.append(message.get("body", b""))
                    size += len(pieces[-1])
                    more = message.get("more_body", False)
                    if size > self.limit:
                        break
        except TimeoutError:
            detail = f"the body was not received within {self.seconds:g} seconds"
            await self._refuse(408, detail, scope, receive, send)
            return
        if size > self.limit:
            await self._refuse(413, too_large, scope, receive, send)
            return
        body: bytes | None = b"".join(pieces)

        async def replay() -> Message:
            nonlocal body
            if body is None:
                await gone
                return {"type": "http.disconnect"}
            whole, body = body, None
            return {"type": "http.request", "body": whole, "more_body": False}

        async def send_soon(message: Message) -> None:
            try:
                async with asyncio.timeout(self.seconds):
                    await send(message)
            except TimeoutError:
                raise _GoneError from None

        answer = asyncio.ensure_future(self.app(scope, replay, send_soon))
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            # the client is gone, or the response is complete
            answer.cancel()
        with contextlib.suppress(_GoneError, asyncio.CancelledError):
            await answer

    async def _refuse(
        self, status: int, detail: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Send an error, keep reading the body for a while, and close the connection.

        If it were closed immediately, a client still sending would get a connection error instead
        of the response.
        """
        headers = {"Connection": "close"}
        if status == 503:
            headers["Retry-After"] = "1"

        async def send_open(message: Message) -> None:
            await send(message if "body" not in message else {**message, "more_body": True})

        await JSONResponse({"detail": detail}, status, headers)(scope, receive, send_open)
        if "expect" not in Headers(scope=scope):
            await self._drop(receive)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _drop(self, receive: Receive) -> None:
        size = 0
        try:
            async with asyncio.timeout(min(LINGER_SECONDS, self.seconds)):
                while size < 8 * self.limit:
                    message = await receive()
                    size += len(message.get("body", b""))
                    if not message.get("more_body", False):
                        return
        except TimeoutError:
            return


BUSY = "the server is busy; retry in a second"
ENDING = "the server is shutting down; retry later"
