"""ASGI middleware: request checks, response headers and logging.

All responses are JSON, so that input is never interpreted as markup.
"""

import asyncio
import functools
import hmac
import ipaddress
import logging
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, TypeAlias

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

Endpoint: TypeAlias = Callable[[bytes], Awaitable[Response]]

log = logging.getLogger("gumbeltree.web")
access = logging.getLogger("gumbeltree.web.access")


def raw_headers(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Return headers in the format of ASGI."""
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]


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
API_HEADERS, PAGE_HEADERS = raw_headers(API), raw_headers(PAGE)
LINGER_SECONDS = 2.0
"""How long to keep reading a rejected body, so that the client can read the error."""


BYTES_PER_SECOND = 16_384
"""Slower clients are disconnected, after a number of seconds that are granted in any case."""
HELD_BYTES = 2**26
"""Maximum size of all unfinished bodies together."""


def header(scope: Scope, name: bytes) -> str:
    """Return the value of a request header, given its name in lower case; "" if it is missing."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


def client_of(scope: Scope) -> str:
    """Return the address of the client, from X-Forwarded-For if a trusted proxy sent it."""
    return network_of(scope["client"][0]) if scope.get("client") else ""


@functools.lru_cache(4096)
def network_of(address: str) -> str:
    """Return an address, or for IPv6 the network that providers assign to a single client."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:100]
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))


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
        path, method = route(scope), scope["method"]
        extra = PAGE_HEADERS if path in self.pages else API_HEADERS
        status, began = 0, time.monotonic()

        async def send_more(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *extra]
            elif method == "HEAD":
                message["body"] = b""
            await send(message)

        if method == "HEAD":
            # the response to GET without its body
            scope = {**scope, "method": "GET"}
        try:
            if header(scope, b"transfer-encoding") and header(scope, b"content-length"):
                # a proxy may take another length, and the rest for another request
                response = JSONResponse({"detail": AMBIGUOUS}, 400, {"Connection": "close"})
                await response(scope, receive, send_more)
                return
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
                shown = method if method in ("GET", "HEAD", "POST", "OPTIONS") else "?"
                access.info("%s %s %s %.0f ms", shown, self._shown(path), status or "-", took)

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
            host = header(scope, b"host").lower()
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
            kind, _, given = header(scope, b"authorization").partition(" ")
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


async def _watch(receive: Receive, task: "asyncio.Task[Any]") -> None:
    """Cancel a task when the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
    task.cancel()


class Bodies:
    """Receive the bodies of requests within limits, and send the responses.

    A request counts as concurrent once its body is complete. Before, it counts only among the
    unfinished bodies of its client, so that slow clients do not keep others out.

    Args:
        app: the application for all other requests.
        endpoints: functions that return the response to a body, by path.
        limit: maximum size of a body in bytes.
        seconds: time limit for receiving the body, and for sending each chunk of the response;
            each `BYTES_PER_SECOND` bytes of the body add another second.
        requests: maximum number of concurrent requests.
        unfinished: maximum number of unfinished bodies per client address.
    """

    def __init__(
        self,
        app: ASGIApp,
        endpoints: Mapping[str, Endpoint],
        limit: int,
        seconds: float,
        requests: int,
        unfinished: int,
    ) -> None:
        self.app = app
        self.endpoints = endpoints
        self.limit, self.seconds = limit, seconds
        self.requests, self.unfinished = requests, unfinished
        self._now = self._held = 0
        self._waiting: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        # the router's patterns end in `$`, which also matches before a final line feed
        scope = {**scope, "path": scope["path"].replace("\n", "?")}
        path = route(scope)
        endpoint = self.endpoints.get(path) if scope["method"] == "POST" else None
        if endpoint is None:
            await self.app(scope, receive, send)
            return
        try:
            body = await self._receive(scope, receive)
            if self._now >= self.requests:
                raise _RefusedError(503, BUSY)
        except _RefusedError as error:
            await self._refuse(error, scope, receive, send)
            return
        if body is None:
            return
        self._now += 1
        try:
            await self._answer(endpoint, body, scope, receive, send)
        finally:
            self._now -= 1

    async def _receive(self, scope: Scope, receive: Receive) -> bytes | None:
        """Return the body of a request, or None if the client disconnected."""
        kind = header(scope, b"content-type").partition(";")[0].strip().lower()
        if kind != "application/json":
            # any web page may send other types without a CORS preflight
            raise _RefusedError(415, "send the header Content-Type: application/json")
        too_large = f"the body exceeds {self.limit} bytes"
        length = header(scope, b"content-length")
        if length.isdecimal() and int(length) > self.limit:
            raise _RefusedError(413, too_large)
        pieces: list[bytes] = []
        size = held = 0
        client = None
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout_at(began + self.seconds) as deadline:
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    pieces.append(message.get("body", b""))
                    size += len(pieces[-1])
                    if size > self.limit:
                        raise _RefusedError(413, too_large)
                    if not message.get("more_body", False):
                        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
                    if client is None:
                        client = client_of(scope)
                        if self._waiting[client] >= self.unfinished:
                            client = None
                            raise _RefusedError(429, TOO_MANY)
                        self._waiting[client] += 1
                    self._held += size - held
                    held = size
                    if self._held > HELD_BYTES:
                        raise _RefusedError(503, BUSY)
                    deadline.reschedule(began + self.seconds + size / BYTES_PER_SECOND)
        except TimeoutError:
            seconds = self.seconds + size / BYTES_PER_SECOND
            raise _RefusedError(
                408, f"the body was not received within {seconds:.3g} seconds"
            ) from None
        finally:
            self._held -= held
            if client is not None:
                self._waiting[client] -= 1
                # addresses are arbitrary: keep only those that have unfinished bodies
                self._waiting += Counter()

    async def _answer(
        self, endpoint: Endpoint, body: bytes, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Send the response to a body, unless the client disconnects before it is complete."""
        task = asyncio.current_task()
        assert task is not None
        watch = asyncio.ensure_future(_watch(receive, task))

        async def send_soon(message: Message) -> None:
            if not message.get("more_body", False):
                # sent at once or buffered by the server: too short to wait for
                await send(message)
                return
            try:
                async with asyncio.timeout(self.seconds):
                    await send(message)
            except TimeoutError:
                raise _GoneError from None

        try:
            response = await endpoint(body)
            await response(scope, receive, send_soon)
        except _GoneError:
            pass
        except asyncio.CancelledError:
            if not watch.done():
                raise
            task.uncancel()
        finally:
            watch.cancel()

    async def _refuse(
        self, error: "_RefusedError", scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Send an error, keep reading the body for a while, and close the connection.

        If it were closed immediately, a client still sending would get a connection error instead
        of the response.
        """
        headers = {"Connection": "close"}
        if error.status in (429, 503):
            headers["Retry-After"] = "1"

        async def send_open(message: Message) -> None:
            await send(message if "body" not in message else {**message, "more_body": True})

        response = JSONResponse({"detail": error.detail}, error.status, headers)
        await response(scope, receive, send_open)
        if not header(scope, b"expect"):
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


class _RefusedError(Exception):
    """A request whose body is not read, or not to the end."""

    def __init__(self, status: int, detail: str) -> None:
        self.status, self.detail = status, detail


BUSY = "the server is busy; retry in a second"
TOO_MANY = "too many unfinished requests from this address; send complete bodies"
AMBIGUOUS = "send either Content-Length or Transfer-Encoding, not both"
ENDING = "the server is shutting down; retry later"
